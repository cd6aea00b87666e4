"""Gives numba a vector type: sixteen numbers as one value inside kernels.

Every operation becomes one LLVM vector instruction. A kernel is therefore as wide as the processor allows (one 512-bit
register, two of 256, four of 128) and does not depend on the auto-vectoriser. There are three types: `floats` (16 x
float32), `ints` (16 x int32) and `mask` (16 booleans). Arithmetic, comparisons, `&` and `|` work as written; a scalar
on one side is spread over all lanes. `lane_io.py` moves lanes between arrays and registers; read it next.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

LANES = 16


class LanesType(types.Type):
    """Describes to numba a value of sixteen elements of one kind: "floats", "ints" or "mask"."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(name=f"lanes[{kind}]")


floats, ints, mask = LanesType("floats"), LanesType("ints"), LanesType("mask")
F32, I1, I32, I64 = ir.FloatType(), ir.IntType(1), ir.IntType(32), ir.IntType(64)
ELEMENT = {"floats": F32, "ints": I32, "mask": I1}
FLOATS, INTS = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: LanesType) -> None:
        super().__init__(dmm, fe_type, ir.VectorType(ELEMENT[fe_type.kind], LANES))


# ------------------------------------------------------------------------------------- code emission


def operation(function: Callable[..., Any]) -> Any:
    """Makes a function callable in kernels. It takes the typing context and argument types; returns (signature,
    emitter)."""
    return intrinsic(function)


def spread_value(builder: Any, scalar: Any) -> Any:
    """Returns the scalar in every lane."""
    vector = ir.VectorType(scalar.type, LANES)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, I32(0))
    return shuffle(builder, first, [0] * LANES)


def shuffle(builder: Any, x: Any, order: Sequence[int], y: Any = None) -> Any:
    """Returns elements of x, or of x followed by y, in the given order."""
    indices = ir.Constant(ir.VectorType(I32, len(order)), [I32(i) for i in order])
    return builder.shuffle_vector(x, ir.Constant(x.type, ir.Undefined) if y is None else y, indices)


def call_llvm(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """Calls an LLVM intrinsic by its full name."""
    function_type = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), args)


def _as_floats(context: Any, builder: Any, sig: Any, args: Any) -> list[Any]:
    """Returns the arguments as lanes of floats, with scalars spread."""
    return [
        arg if type_ == floats else spread_value(builder, context.cast(builder, arg, type_, types.float32))
        for type_, arg in zip(sig.args, args, strict=True)
    ]


# ----------------------------------------------------------------------------------------- operators


def _operator(function: Any, kind: LanesType, scalar: Any, result: LanesType, emit: Callable[..., Any]) -> None:
    """Types and lowers a binary operator for lanes with lanes, and with a scalar on either side."""
    cases = [(kind, kind), (kind, scalar), (scalar, kind)]
    template = type("LanesOperator", (ConcreteTemplate,), {"cases": [signature(result, *case) for case in cases]})
    infer_global(function)(template)  # pyright: ignore[reportOptionalCall]

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit(
            builder,
            *(arg if type_ == kind else spread_value(builder, arg) for type_, arg in zip(sig.args, args, strict=True)),
        )

    for case in cases:
        lower_builtin(function, *case)(lower)


for _function, _method in (
    (operator.add, "fadd"),
    (operator.iadd, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _operator(_function, floats, types.float32, floats, lambda b, x, y, m=_method: getattr(b, m)(x, y))
for _function, _sign in ((operator.ge, ">="), (operator.gt, ">"), (operator.le, "<="), (operator.lt, "<")):
    _operator(_function, floats, types.float32, mask, lambda b, x, y, s=_sign: b.fcmp_ordered(s, x, y))
    _operator(_function, ints, types.int32, mask, lambda b, x, y, s=_sign: b.icmp_signed(s, x, y))
for _function, _method in (
    (operator.add, "add"),
    (operator.sub, "sub"),
    (operator.mul, "mul"),
    (operator.and_, "and_"),
    (operator.lshift, "shl"),
    (operator.rshift, "ashr"),
):
    _operator(_function, ints, types.int32, ints, lambda b, x, y, m=_method: getattr(b, m)(x, y))
_operator(operator.and_, mask, types.boolean, mask, lambda b, x, y: b.and_(x, y))
_operator(operator.or_, mask, types.boolean, mask, lambda b, x, y: b.or_(x, y))


# --------------------------------------------------------------------------------- making and choosing


@operation
def spread(typing, value):
    """Returns `value` in every lane, as floats."""
    return floats(value), lambda context, builder, sig, args: _as_floats(context, builder, sig, args)[0]


@operation
def spread_int(typing, value):
    """Returns `value` in every lane, as ints."""

    def emit(context, builder, sig, args):
        return spread_value(builder, context.cast(builder, args[0], sig.args[0], types.int32))

    return ints(value), emit


@operation
def lane_numbers(typing):
    """Returns 0, 1, ... 15 as ints."""
    return ints(), lambda context, builder, sig, args: ir.Constant(INTS, [I32(i) for i in range(LANES)])


@operation
def select(typing, where, x, y):
    """Returns x in lanes whose mask is true, y in the others."""
    return x(where, x, y), lambda context, builder, sig, args: builder.select(*args)


@operation
def mask_bits(typing, x):
    """Returns a mask as an int64 whose bit i is lane i."""

    def emit(context, builder, sig, args):
        return builder.zext(builder.bitcast(args[0], ir.IntType(LANES)), I64)

    return types.int64(mask), emit


@operation
def bits_mask(typing, bits):
    """Returns the mask whose lane i is bit i of an int64."""

    def emit(context, builder, sig, args):
        return builder.bitcast(builder.trunc(args[0], ir.IntType(LANES)), ir.VectorType(I1, LANES))

    return mask(types.int64), emit


# ----------------------------------------------------------------------------------------- functions


def _unary(name: str, doc: str) -> Any:
    def function(typing, x):
        return floats(floats), lambda context, builder, sig, args: call_llvm(
            builder, f"llvm.{name}.v16f32", FLOATS, args[0]
        )

    function.__doc__ = doc
    return operation(function)


def _extreme(sign: str, doc: str) -> Any:
    def function(typing, x, y):
        def emit(context, builder, sig, args):
            x, y = _as_floats(context, builder, sig, args)
            return builder.select(builder.fcmp_ordered(sign, x, y), x, y)

        return floats(x, y), emit

    function.__doc__ = doc
    return operation(function)


square_root = _unary("sqrt", "Returns the square root of each lane.")
floor = _unary("floor", "Returns the largest whole number not above each lane.")
ceiling = _unary("ceil", "Returns the smallest whole number not below each lane.")
absolute = _unary("fabs", "Returns each lane without its sign.")
minimum = _extreme("<", "Returns the smaller of two; the second where either is NaN.")
maximum = _extreme(">", "Returns the larger of two; the second where either is NaN.")


@operation
def negative(typing, x):
    """Returns -x."""
    return floats(floats), lambda context, builder, sig, args: builder.fneg(args[0])


@operation
def multiply_add(typing, x, y, z):
    """Returns x * y + z, fused if the processor can; each argument may be a scalar."""

    def emit(context, builder, sig, args):
        return call_llvm(builder, "llvm.fmuladd.v16f32", FLOATS, *_as_floats(context, builder, sig, args))

    return floats(x, y, z), emit


@operation
def bits_of(typing, x):
    """Returns the bit patterns of floats, as ints."""
    return ints(floats), lambda context, builder, sig, args: builder.bitcast(args[0], INTS)


@operation
def from_bits(typing, x):
    """Returns floats with the given bit patterns."""
    return floats(ints), lambda context, builder, sig, args: builder.bitcast(args[0], FLOATS)


@operation
def to_floats(typing, x):
    """Converts ints to floats."""
    return floats(ints), lambda context, builder, sig, args: builder.sitofp(args[0], FLOATS)


@operation
def to_ints(typing, x):
    """Converts floats to ints by dropping the fraction; each must be in the range of an int32."""
    return ints(floats), lambda context, builder, sig, args: builder.fptosi(args[0], INTS)


# ---------------------------------------------------------------------------------- across the lanes


@operation
def largest(typing, x):
    """Returns the largest of sixteen ints, as a scalar."""
    return types.int32(ints), lambda context, builder, sig, args: call_llvm(
        builder, "llvm.vector.reduce.smax.v16i32", I32, args[0]
    )


@operation
def add_up(typing, x):
    """Returns the sum of sixteen ints, as an int64 scalar."""

    def emit(context, builder, sig, args):
        return builder.sext(call_llvm(builder, "llvm.vector.reduce.add.v16i32", I32, args[0]), I64)

    return types.int64(ints), emit


@operation
def totals(typing, v0, v1, v2, v3, v4, v5, v6, v7, v8):
    """Returns lanes whose lane i is the sum over all lanes of v_i, for i = 0 ... 8; the other lanes hold copies.

    Folds two vectors into one at a time, so that nine sums take 13 additions, not 36. The code fixes the order of
    additions on every processor.
    """

    def emit(context, builder, sig, args):
        def fold(x, y, half):
            """Adds each lane to its partner, whose number differs in bit `half`: returns sums of x in lanes without
            that bit, of y in the others."""
            low = [i if i & half == 0 else LANES + i - half for i in range(LANES)]
            high = [i + half if i & half == 0 else LANES + i for i in range(LANES)]
            return builder.fadd(shuffle(builder, x, low, y), shuffle(builder, x, high, y))

        def fold_alone(x, half):
            """Adds each lane to its partner, whose number differs in bit `half`."""
            return builder.fadd(x, shuffle(builder, x, [i ^ half for i in range(LANES)]))

        # Folds eight vectors over bits 4, 2 and 1, so that v_i is in lanes i and i + 8, and then over bit 8.
        vectors, last = list(args[:8]), args[8]
        for half in (4, 2, 1):
            middle = len(vectors) // 2
            vectors = [fold(x, y, half) for x, y in zip(vectors[:middle], vectors[middle:], strict=True)]
            last = fold_alone(last, half)
        order = [i if i < 8 else LANES + i for i in range(LANES)]
        return shuffle(builder, fold_alone(vectors[0], 8), order, fold_alone(last, 8))

    return floats(v0, v1, v2, v3, v4, v5, v6, v7, v8), emit


# ------------------------------------------------------------------------------------- bits of words


@operation
def float_bits(typing, value):
    """Returns the bit pattern of a float32 as uint32."""
    return types.uint32(types.float32), lambda context, builder, sig, args: builder.bitcast(args[0], I32)


@operation
def first_bit(typing, word):
    """Returns the number of the lowest set bit of a non-zero int64."""
    return types.int64(types.int64), lambda context, builder, sig, args: call_llvm(
        builder, "llvm.cttz.i64", I64, args[0], I1(1)
    )


@operation
def count_bits(typing, word):
    """Returns the number of set bits of an int64."""
    return types.int64(types.int64), lambda context, builder, sig, args: call_llvm(
        builder, "llvm.ctpop.i64", I64, args[0]
    )
