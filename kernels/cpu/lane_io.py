"""Moves lanes and scalars between registers and arrays, and rearranges lanes on the way.

Arrays are addressed by flat element index and must be C-contiguous. Nothing is bounds-checked, and a negative index
does not wrap around: numba's code for both costs more than the access. Elements may start anywhere; an unaligned load
of aligned data costs nothing. Read `functions.py` next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np import arrayobj

from splatscope.kernels.cpu.lanes import I32, I64, LANES, call_llvm, floats, ints, operation, shuffle, spread_value

_ALIGN = 4


def _literal_operation(function: Callable[..., Any]) -> Any:
    """Makes an operation whose emitter reads some arguments as literal numbers."""
    return intrinsic(prefer_literal=True)(function)


class _Places:
    """Computes addresses in the arrays among an operation's arguments."""

    def __init__(self, context: Any, builder: Any, sig: Any, args: Any) -> None:
        self.context, self.builder, self.types, self.args = context, builder, sig.args, args

    def index(self, i: int) -> Any:
        """Returns argument i as a machine integer."""
        return self.context.cast(self.builder, self.args[i], self.types[i], types.intp)

    def element(self, i: int, index: Any) -> Any:
        """Returns a pointer to flat element `index` of the array that is argument i."""
        base = arrayobj.make_array(self.types[i])(self.context, self.builder, self.args[i]).data
        return self.builder.gep(base, [index])

    def row(self, i: int, number: int) -> Any:
        """Returns a pointer to sixteen elements of the array that is argument i, at index + number * step.

        Arguments i + 1 and i + 2 are index and step.
        """
        return self._wide(
            self.element(i, self.builder.add(self.index(i + 1), self.builder.mul(self.index(i + 2), I64(number)))),
            LANES,
        )

    def stretch(self, i: int, size: int) -> Any:
        """Returns a pointer to `size` elements of the array that is argument i, from the index in argument i + 1 on."""
        return self._wide(self.element(i, self.index(i + 1)), size)

    def _wide(self, pointer: Any, size: int) -> Any:
        return self.builder.bitcast(pointer, ir.VectorType(pointer.type.pointee, size).as_pointer())


def _procedure(*arguments: Any, body: Callable[[Any, _Places], None]) -> Any:
    """Returns signature and emitter of an operation that returns nothing."""

    def emit(context, builder, sig, args):
        body(builder, _Places(context, builder, sig, args))
        return context.get_dummy_value()

    return types.void(*arguments), emit


# ------------------------------------------------------------------------------------------- scalars


@operation
def at(typing, array, index):
    """Returns flat element `index`."""

    def emit(context, builder, sig, args):
        places = _Places(context, builder, sig, args)
        return builder.load(places.element(0, places.index(1)))

    return array.dtype(array, index), emit


@operation
def put(typing, array, index, value):
    """Writes flat element `index`, converted to the array's type."""

    def body(builder, places):
        element = places.context.cast(builder, places.args[2], places.types[2], places.types[0].dtype)
        builder.store(element, places.element(0, places.index(1)))

    return _procedure(array, index, value, body=body)


@operation
def add_to(typing, array, index, amount):
    """Adds to an int64 that several threads share; returns its old value.

    A thread that sees the new value also sees this thread's earlier writes.
    """

    def emit(context, builder, sig, args):
        places = _Places(context, builder, sig, args)
        return builder.atomic_rmw("add", places.element(0, places.index(1)), places.index(2), "seq_cst")

    return types.int64(array, index, amount), emit


@operation
def read_shared(typing, array, index):
    """Reads an int64 that other threads write with `add_to`."""

    def emit(context, builder, sig, args):
        places = _Places(context, builder, sig, args)
        return builder.load_atomic(places.element(0, places.index(1)), ordering="seq_cst", align=8)

    return types.int64(array, index), emit


@operation
def prefetch(typing, array, index):
    """Starts to fetch the cache line of flat element `index`; any index is safe."""

    def body(builder, places):
        pointer = builder.bitcast(places.element(0, places.index(1)), ir.IntType(8).as_pointer())
        call_llvm(builder, "llvm.prefetch.p0i8", ir.VoidType(), pointer, I32(0), I32(3), I32(1))

    return _procedure(array, index, body=body)


# --------------------------------------------------------------------------------------------- lanes


@operation
def load(typing, array, index):
    """Returns sixteen elements of a float32 or int32 array, from flat element `index` on."""

    def emit(context, builder, sig, args):
        return builder.load(_Places(context, builder, sig, args).stretch(0, LANES), align=_ALIGN)

    return (floats if array.dtype == types.float32 else ints)(array, index), emit


@operation
def load_spread(typing, array, index):
    """Returns the element at flat `index` of a float32 array, in every lane."""

    def emit(context, builder, sig, args):
        places = _Places(context, builder, sig, args)
        return spread_value(builder, builder.load(places.element(0, places.index(1))))

    return floats(array, index), emit


@operation
def store(typing, array, index, value):
    """Writes sixteen elements from flat element `index` on."""

    def body(builder, places):
        builder.store(places.args[2], places.stretch(0, LANES), align=_ALIGN)

    return _procedure(array, index, value, body=body)


# ------------------------------------------------------------------------------------ rearrangements


@operation
def transpose(typing, source, index, step, target, to, to_step):
    """Turns sixteen rows of floats into columns: target[to + j * to_step + i] = source[index + i * step + j]."""

    def body(builder, places):
        rows = [builder.load(places.row(0, i), align=_ALIGN) for i in range(LANES)]
        for half in (8, 4, 2, 1):
            low = [i if i & half == 0 else LANES + i - half for i in range(LANES)]
            high = [i + half if i & half == 0 else LANES + i for i in range(LANES)]
            for i in range(LANES):
                if i & half == 0:
                    x, y = rows[i], rows[i + half]
                    rows[i], rows[i + half] = shuffle(builder, x, low, y), shuffle(builder, x, high, y)
        for i in range(LANES):
            builder.store(rows[i], places.row(3, i), align=_ALIGN)

    return _procedure(source, index, step, target, to, to_step, body=body)


def _reordered(order: Sequence[int], *arguments: Any) -> Any:
    """Makes an operation that copies len(order) elements from source[index] to target[to] in the given order.

    The arguments are source, index, width, target and to.
    """

    def body(builder, places):
        values = builder.load(places.stretch(0, len(order)), align=_ALIGN)
        builder.store(shuffle(builder, values, order), places.stretch(3, len(order)), align=_ALIGN)

    return _procedure(*arguments, body=body)


@_literal_operation
def load_columns(typing, source, index, width, target, to):
    """Splits sixteen rows of `width` elements: target[to + k * 16 + i] = source[index + i * width + k]."""
    n = width.literal_value
    return _reordered([i * n + k for k in range(n) for i in range(LANES)], source, index, width, target, to)


@_literal_operation
def store_columns(typing, source, index, width, target, to):
    """Undoes `load_columns`: target[to + i * width + k] = source[index + k * 16 + i]."""
    n = width.literal_value
    return _reordered([k * LANES + i for i in range(LANES) for k in range(n)], source, index, width, target, to)


# Four rows of sixteen pixels are four blocks of 4x4: pixel (row r, column c) is lane 4 r + c % 4 of block c // 4.
_ROWS_FROM_BLOCKS = [[(c // 4) * LANES + 4 * r + c % 4 for c in range(LANES)] for r in range(4)]
_BLOCKS_FROM_ROWS = [(i // 4) * LANES + 4 * block + i % 4 for block in range(4) for i in range(LANES)]


@operation
def blocks_to_rows(typing, source, index, target, to, step):
    """Turns four neighbouring blocks at source[index ...] into four rows of 16 at target[to + r * step]."""

    def body(builder, places):
        blocks = builder.load(places.stretch(0, 4 * LANES), align=_ALIGN)
        for r, order in enumerate(_ROWS_FROM_BLOCKS):
            builder.store(shuffle(builder, blocks, order), places.row(2, r), align=_ALIGN)

    return _procedure(source, index, target, to, step, body=body)


@operation
def rows_to_blocks(typing, source, index, step, target, to):
    """Undoes `blocks_to_rows`: rows at source[index + r * step] become blocks at target[to ...]."""

    def body(builder, places):
        rows = [builder.load(places.row(0, r), align=_ALIGN) for r in range(4)]
        halves = [shuffle(builder, x, range(2 * LANES), y) for x, y in ((rows[0], rows[1]), (rows[2], rows[3]))]
        joined = shuffle(builder, halves[0], range(4 * LANES), halves[1])
        builder.store(shuffle(builder, joined, _BLOCKS_FROM_ROWS), places.stretch(3, 4 * LANES), align=_ALIGN)

    return _procedure(source, index, step, target, to, body=body)
