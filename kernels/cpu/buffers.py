"""Keeps arrays from frame to frame, so that a training step allocates no memory."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

LINE = 64  # bytes of a cache line
IDLE_ARRAYS = 4  # unused arrays of other shapes that a `Lender` keeps


def aligned(size: int, dtype: Any) -> NDArray[Any]:
    """Returns an uninitialised array [size] that starts on a cache line."""
    dtype = np.dtype(dtype)
    raw = np.empty(size * dtype.itemsize + LINE, np.uint8)
    offset = -raw.ctypes.data % LINE
    return raw[offset : offset + size * dtype.itemsize].view(dtype)


class Buffers:
    """Keeps named scratch arrays. They grow as needed, and are freed only with this object.

    An array gets half as much room again as asked for: pages that no kernel writes take no memory.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}

    def take(self, name: str, size: int, dtype: Any) -> NDArray[Any]:
        """Returns the first `size` elements of the named array, with their old contents unless it had to grow."""
        array = self._arrays.get(name)
        if array is None or array.size < size:
            array = aligned(max(size + size // 2, LINE), dtype)
            self._arrays[name] = array
        return array[:size]


def _references(arrays: list[NDArray[Any]], i: int) -> int:
    """Returns the number of references to array `i`, this function's own included."""
    return sys.getrefcount(arrays[i])


_UNUSED = _references([np.empty(1)], 0)


class Lender:
    """Lends arrays to callers, and lends each again once nobody holds it.

    Fresh memory for a picture costs as much time as blending it, because the system clears every page. Arrays own their
    data, so that a slice counts as a reference too.
    """

    def __init__(self) -> None:
        self._arrays: list[NDArray[Any]] = []

    def give(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Returns an uninitialised float32 array."""
        unused = [i for i in range(len(self._arrays)) if _references(self._arrays, i) == _UNUSED]
        for i in unused:
            if self._arrays[i].shape == shape:
                return self._arrays[i]
        for i in reversed(unused[: max(0, len(unused) - IDLE_ARRAYS)]):  # nobody asks for their shapes any more
            del self._arrays[i]
        array = np.empty(shape, np.float32)
        self._arrays.append(array)
        return array


class _Writable:
    """Presents a read-only array's memory to NumPy as writable."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}
        self._owner = array


def writable(array: NDArray[Any]) -> NDArray[Any]:
    """Returns the values as an aligned, writable float32 array; copies only if necessary.

    numba would compile each kernel again for read-only arrays (a mapped file) and for unaligned ones. Kernels do not
    write to their input.
    """
    array = np.require(array, np.float32, ["C_CONTIGUOUS", "ALIGNED"])
    return array if array.flags.writeable else np.asarray(_Writable(array))
