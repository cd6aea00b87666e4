"""Arrays that are kept from frame to frame, so that a training step allocates nothing."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

LINE = 64  # bytes of a cache line
IDLE_ARRAYS = 4  # that a lender keeps although nobody asks for their shape


def aligned(size: int, dtype: Any) -> NDArray[Any]:
    """An uninitialised array [size] that starts on a cache line."""
    dtype = np.dtype(dtype)
    raw = np.empty(size * dtype.itemsize + LINE, np.uint8)
    offset = -raw.ctypes.data % LINE
    return raw[offset : offset + size * dtype.itemsize].view(dtype)


class Buffers:
    """Named scratch arrays that grow and are never given back while the owner lives.

    Pages that no kernel writes are never backed by memory, so growing by half costs nothing.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}

    def take(self, name: str, size: int, dtype: Any) -> NDArray[Any]:
        """The array of that name, exactly `size` elements; its contents are those of the last use."""
        array = self._arrays.get(name)
        if array is None or array.size < size:
            array = aligned(max(size + size // 2, LINE), dtype)
            self._arrays[name] = array
        return array[:size]


def _references(arrays: list[NDArray[Any]], i: int) -> int:
    """How many hold the array, as this function sees it."""
    return sys.getrefcount(arrays[i])


_UNUSED = _references([np.empty(1)], 0)


class Lender:
    """Arrays that belong to whoever was given them, and are given again once nobody holds them.

    Fresh memory for a picture costs as much as blending it: the system clears every page. Arrays own their
    data, so that a slice counts as a holder too.
    """

    def __init__(self) -> None:
        self._arrays: list[NDArray[Any]] = []

    def give(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """An uninitialised float32 array."""
        unused = [i for i in range(len(self._arrays)) if _references(self._arrays, i) == _UNUSED]
        for i in unused:
            if self._arrays[i].shape == shape:
                return self._arrays[i]
        for i in reversed(unused[: max(0, len(unused) - IDLE_ARRAYS)]):  # of sizes no longer asked for
            del self._arrays[i]
        array = np.empty(shape, np.float32)
        self._arrays.append(array)
        return array


class _Writable:
    """Presents memory to NumPy as writable."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}
        self._owner = array


def writable(array: NDArray[Any]) -> NDArray[Any]:
    """The same values as a float32 array that numba need not compile for anew; copied only if it has to be.

    numba has other types for read-only arrays (a mapped file) and for unaligned ones. Kernels do not write
    to their input.
    """
    array = np.require(array, np.float32, ["C_CONTIGUOUS", "ALIGNED"])
    return array if array.flags.writeable else np.asarray(_Writable(array))
