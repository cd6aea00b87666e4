"""Sixteen numbers as one value inside numba kernels: numba has no vector type, this gives it one.

Every operation becomes one LLVM vector instruction, so a kernel is as wide as the processor allows
(one 512-bit register, two of 256, four of 128) without hoping for the auto-vectoriser. Three types:
`floats` (16 x float32), `ints` (16 x int32) and `mask` (16 booleans). Arithmetic, comparisons, `&`
and `|` work as written; a scalar on one side is spread over all lanes. Arrays are addressed by flat
element index and must be C-contiguous; nothing is bounds-checked. Read `functions.py` next.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model
from numba.np import arrayobj

LANES = 16


class LanesType(types.Type):
    """The numba type of sixteen elements of one kind: "floats", "ints" or "mask"."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(name=f"lanes[{kind}]")


floats, ints, mask = LanesType("floats"), LanesType("ints"), LanesType("mask")
_F32, _I1, _I32, _I64 = ir.FloatType(), ir.IntType(1), ir.IntType(32), ir.IntType(64)
_ELEMENT = {"floats": _F32, "ints": _I32, "mask": _I1}
_FLOATS, _INTS = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)
_ALIGN = 4  # elements may start anywhere in an array; an unaligned load of aligned data costs nothing


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: LanesType) -> None:
        super().__init__(dmm, fe_type, ir.VectorType(_ELEMENT[fe_type.kind], LANES))


# ------------------------------------------------------------------------------------- code emission


def _spread(builder: Any, scalar: Any) -> Any:
    """The scalar in every lane."""
    vector = ir.VectorType(scalar.type, LANES)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, _I32(0))
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), ir.Constant(_INTS, [_I32(0)] * LANES))


def _call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """Calls an LLVM intrinsic by its full name."""
    function_type = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), args)


def _address(context: Any, builder: Any, array_type: Any, array: Any, index_type: Any, index: Any) -> Any:
    """Pointer to flat element `index`; no wrap-around of negative indices."""
    base = arrayobj.make_array(array_type)(context, builder, array).data
    return builder.gep(base, [context.cast(builder, index, index_type, types.intp)])


def _operator(function: Any, kind: LanesType, scalar: types.Type, result: LanesType, emit: Callable[..., Any]) -> None:
    """Types and lowers a binary operator for lanes with lanes, and with a scalar on either side."""
    cases = [(kind, kind), (kind, scalar), (scalar, kind)]

    class Template(ConcreteTemplate):
        pass

    Template.cases = [signature(result, *case) for case in cases]
    infer_global(function)(Template)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        left, right = (
            arg if type_ == kind else _spread(builder, arg) for type_, arg in zip(sig.args, args, strict=True)
        )
        return emit(builder, left, right)

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
_operator(operator.add, ints, types.int32, ints, lambda b, x, y: b.add(x, y))
_operator(operator.sub, ints, types.int32, ints, lambda b, x, y: b.sub(x, y))
_operator(operator.and_, ints, types.int32, ints, lambda b, x, y: b.and_(x, y))
_operator(operator.lshift, ints, types.int32, ints, lambda b, x, y: b.shl(x, y))
_operator(operator.rshift, ints, types.int32, ints, lambda b, x, y: b.ashr(x, y))
_operator(operator.and_, mask, types.boolean, mask, lambda b, x, y: b.and_(x, y))
_operator(operator.or_, mask, types.boolean, mask, lambda b, x, y: b.or_(x, y))


# ------------------------------------------------------------------------------------ making vectors


@intrinsic
def spread(typing, value):
    """`value` in every lane, as floats."""

    def emit(context, builder, sig, args):
        return _spread(builder, context.cast(builder, args[0], sig.args[0], types.float32))

    return floats(value), emit


@intrinsic
def spread_int(typing, value):
    """`value` in every lane, as ints."""

    def emit(context, builder, sig, args):
        return _spread(builder, context.cast(builder, args[0], sig.args[0], types.int32))

    return ints(value), emit


@intrinsic
def lane_numbers(typing):
    """0, 1, ... 15 as ints."""

    def emit(context, builder, sig, args):
        return ir.Constant(_INTS, [_I32(i) for i in range(LANES)])

    return ints(), emit


@intrinsic
def load(typing, array, index):
    """Sixteen elements of a float32 or int32 array from flat element `index` on."""
    kind = floats if array.dtype == types.float32 else ints

    def emit(context, builder, sig, args):
        pointer = _address(context, builder, sig.args[0], args[0], sig.args[1], args[1])
        vector = ir.VectorType(_ELEMENT[kind.kind], LANES)
        return builder.load(builder.bitcast(pointer, vector.as_pointer()), align=_ALIGN)

    return kind(array, index), emit


@intrinsic
def load_spread(typing, array, index):
    """The element at flat `index` in every lane."""
    kind = floats if array.dtype == types.float32 else ints

    def emit(context, builder, sig, args):
        pointer = _address(context, builder, sig.args[0], args[0], sig.args[1], args[1])
        return _spread(builder, builder.load(pointer, align=_ALIGN))

    return kind(array, index), emit


@intrinsic
def store(typing, array, index, value):
    """Writes sixteen elements from flat element `index` on."""

    def emit(context, builder, sig, args):
        pointer = _address(context, builder, sig.args[0], args[0], sig.args[1], args[1])
        builder.store(args[2], builder.bitcast(pointer, args[2].type.as_pointer()), align=_ALIGN)
        return context.get_dummy_value()

    return types.void(array, index, value), emit


# ----------------------------------------------------------------------------------------- functions


def _unary(name: str, doc: str) -> Any:
    def function(typing, x):
        def emit(context, builder, sig, args):
            return _call(builder, f"llvm.{name}.v16f32", _FLOATS, args[0])

        return floats(floats), emit

    function.__doc__ = doc
    return intrinsic(function)


def _extreme(name: str, sign: str, doc: str) -> Any:
    def function(typing, x, y):
        def emit(context, builder, sig, args):
            x, y = (
                v if t == floats else _spread(builder, context.cast(builder, v, t, types.float32))
                for t, v in zip(sig.args, args, strict=True)
            )
            return builder.select(builder.fcmp_ordered(sign, x, y), x, y)

        return floats(x, y), emit

    function.__name__ = name
    function.__doc__ = doc
    return intrinsic(function)


square_root = _unary("sqrt", "Square root of each lane.")
ceiling = _unary("ceil", "The smallest whole number not below each lane.")
absolute = _unary("fabs", "Each lane without its sign.")
minimum = _extreme("minimum", "<", "The smaller of two; the second where either is NaN.")
maximum = _extreme("maximum", ">", "The larger of two; the second where either is NaN.")


@intrinsic
def multiply_add(typing, x, y, z):
    """x * y + z, fused where the processor can; any of them may be a scalar."""

    def emit(context, builder, sig, args):
        vectors = [
            v if t == floats else _spread(builder, context.cast(builder, v, t, types.float32))
            for t, v in zip(sig.args, args, strict=True)
        ]
        return _call(builder, "llvm.fmuladd.v16f32", _FLOATS, *vectors)

    return floats(x, y, z), emit


@intrinsic
def select(typing, where, x, y):
    """x in the lanes where the mask is true, else y."""

    def emit(context, builder, sig, args):
        return builder.select(*args)

    return x(where, x, y), emit


@intrinsic
def bits_of(typing, x):
    """The bit patterns of floats, as ints."""
    return ints(floats), lambda context, builder, sig, args: builder.bitcast(args[0], _INTS)


@intrinsic
def from_bits(typing, x):
    """Floats with the given bit patterns."""
    return floats(ints), lambda context, builder, sig, args: builder.bitcast(args[0], _FLOATS)


@intrinsic
def to_floats(typing, x):
    """Ints converted to floats."""
    return floats(ints), lambda context, builder, sig, args: builder.sitofp(args[0], _FLOATS)


@intrinsic
def mask_bits(typing, x):
    """A mask as an int64 whose bit i is lane i."""

    def emit(context, builder, sig, args):
        return builder.zext(builder.bitcast(args[0], ir.IntType(LANES)), _I64)

    return types.int64(mask), emit


@intrinsic
def totals(typing, v0, v1, v2, v3, v4, v5, v6, v7, v8):
    """Lane i of the result is the sum over all lanes of v_i, i = 0 ... 8; the other lanes hold copies or zeros.

    Two vectors are halved into one at a time, so nine sums take 16 additions instead of 36. The order of
    additions is fixed by the code, whatever the processor.
    """

    def emit(context, builder, sig, args):
        zero = ir.Constant(_FLOATS, [_F32(0.0)] * LANES)
        # Halving by `step` puts the first vector where bit `step` of the lane is 0, the second where it is 1:
        # v_i ends in lane i when pairs differ first in bit 8, then 4, 2, 1 of i.
        vectors = [*args, *[zero] * (LANES - len(args))]
        for step in (8, 4, 2, 1):
            half = len(vectors) // 2
            low = ir.Constant(_INTS, [_I32(i if i & step == 0 else LANES + i - step) for i in range(LANES)])
            high = ir.Constant(_INTS, [_I32(i + step if i & step == 0 else LANES + i) for i in range(LANES)])
            vectors = [
                builder.fadd(builder.shuffle_vector(x, y, low), builder.shuffle_vector(x, y, high))
                for x, y in zip(vectors[:half], vectors[half:], strict=True)
            ]
        return vectors[0]

    return floats(v0, v1, v2, v3, v4, v5, v6, v7, v8), emit


# ------------------------------------------------------------------------------------------- scalars


@intrinsic
def at(typing, array, index):
    """Flat element `index` as it is; indexing with brackets would add a wrap-around test."""

    def emit(context, builder, sig, args):
        return builder.load(_address(context, builder, sig.args[0], args[0], sig.args[1], args[1]))

    return array.dtype(array, index), emit


@intrinsic
def put(typing, array, index, value):
    """Writes flat element `index`, converted to the array's type."""

    def emit(context, builder, sig, args):
        pointer = _address(context, builder, sig.args[0], args[0], sig.args[1], args[1])
        builder.store(context.cast(builder, args[2], sig.args[2], sig.args[0].dtype), pointer)
        return context.get_dummy_value()

    return types.void(array, index, value), emit


@intrinsic
def float_bits(typing, value):
    """The bit pattern of a float32 as uint32."""
    return types.uint32(types.float32), lambda context, builder, sig, args: builder.bitcast(args[0], _I32)


@intrinsic
def first_bit(typing, word):
    """Number of the lowest set bit of a non-zero int64."""

    def emit(context, builder, sig, args):
        return _call(builder, "llvm.cttz.i64", _I64, args[0], _I1(1))

    return types.int64(types.int64), emit


@intrinsic
def take_number(typing, counter):
    """Adds one to counter[0] (int64) atomically and returns what it was: how workers share a queue."""

    def emit(context, builder, sig, args):
        pointer = arrayobj.make_array(sig.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", pointer, _I64(1), "monotonic")

    return types.int64(counter), emit


@intrinsic
def count_bits(typing, word):
    """Number of set bits of an int64."""
    return types.int64(types.int64), lambda context, builder, sig, args: _call(builder, "llvm.ctpop.i64", _I64, args[0])
