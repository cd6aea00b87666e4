"""Keeps the device memory of the CUDA pipeline: named buffers that only grow, and their capacity for splats and pairs.

Launch arguments and captured graphs hold addresses, so `Buffers` calls its owner before it replaces an array. `Memory`
allocates: with torch on a GPU (`TorchMemory`), as guarded NumPy arrays where tests run the kernels on the CPU. Read
`cuda/plan/planner.py` next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.errors import InputError, NoRoomError

# An array in the memory of the machine that runs the kernels: a torch tensor, or a NumPy array in tests of a pipeline.
# `Any`, because both have more methods than a protocol could name.
DeviceArray: TypeAlias = Any
Shape = tuple[int, ...]
LARGEST_COUNT = 2**32 - 1  # pairs and slots are numbered by 32-bit words
SLACK = 1.25  # room after a frame did not fit, as a multiple of the count it wanted
ROUND = 4096  # capacities are multiples of this


class Memory(Protocol):
    """Lists what the pipeline asks of the machine that runs its kernels. Arrays are NumPy's or torch's."""

    multiprocessors: int
    architecture: int  # compute capability times 10, 0 where kernels run on the processor

    def empty(self, name: str, shape: Shape, dtype: str) -> DeviceArray:
        """Returns a new array. `dtype` is as NumPy writes it: f4, u4, u8, i8, u2, u1."""
        ...

    def clear(self, array: DeviceArray) -> None:
        """Sets the array to zero, in the order of launches."""
        ...

    def write(self, array: DeviceArray, record: NDArray[Any]) -> None:
        """Copies a host record [1] over the bytes of `array`, in the order of launches."""
        ...

    def read(self, array: DeviceArray) -> NDArray[np.uint8]:
        """Returns the bytes of `array`. Waits for everything launched so far."""
        ...

    def sort(self, keys: DeviceArray, bits: int) -> DeviceArray:
        """Returns the positions of unsigned keys in ascending order of their lower `bits`; equal keys keep their
        order."""
        ...

    def gather(self, values: DeviceArray | None, places: DeviceArray, out: DeviceArray) -> None:
        """Sets out[i] = values[places[i]]; without `values`, sets out[i] = places[i]."""
        ...


@dataclass(frozen=True)
class Capacity:
    """Holds the room for visible splats and for (splat, tile) pairs."""

    visible: int
    instances: int

    @staticmethod
    def of(count: int) -> Capacity:
        """Returns the room with which a scene of `count` splats starts: enough for most frames of most scenes."""
        return Capacity(_rounded(min(count, 1 << 21)), _rounded(2 * count + (1 << 16)))

    def grown(self, visible_wanted: int, instances_wanted: int, count: int) -> Capacity:
        """Returns room for the wanted counts and a little more. Raises InputError for more pairs than 32 bits count."""
        if instances_wanted > LARGEST_COUNT - ROUND:
            raise InputError(
                f"The splats cover {instances_wanted:,} (splat, tile) pairs; at most {LARGEST_COUNT - ROUND:,} can be "
                "numbered. Use a smaller picture, or remove splats that are far too large."
            )
        visible, instances = self.visible, self.instances
        if visible_wanted > visible:
            visible = _rounded(min(count, int(SLACK * visible_wanted)))
        if instances_wanted > instances:
            instances = _rounded(min(LARGEST_COUNT - ROUND, int(SLACK * instances_wanted)))
        return Capacity(visible, instances)


def _rounded(count: int) -> int:
    return max(1, -(-count // ROUND)) * ROUND


class Buffers:
    """Keeps named arrays that grow as needed and are not freed before this object.

    Calls `before_growth` before it replaces an array: every holder of the array's address must then drop it.
    """

    def __init__(self, memory: Memory, before_growth: Callable[[], None] = lambda: None) -> None:
        self._memory = memory
        self._before_growth = before_growth
        self._arrays: dict[str, DeviceArray] = {}

    def take(self, name: str, shape: Shape, dtype: str, zeroed: bool = False) -> DeviceArray:
        """Returns the named array with the contents of its last use. `zeroed`: a new array is set to zero."""
        size = int(np.prod(shape, dtype=np.int64))
        array = self._arrays.get(name)
        if array is None or len(array) < size:
            if array is not None:
                self._before_growth()
                self._arrays.pop(name)
                del array  # frees the old array before the new one is allocated
            array = self._memory.empty(name, (max(size, 1),), dtype)
            if zeroed:
                self._memory.clear(array)
            self._arrays[name] = array
        return array[:size].reshape(shape)

    def find(self, name: str) -> DeviceArray | None:
        """Returns the whole named array, or None if there is none."""
        return self._arrays.get(name)

    def clear(self, names: tuple[str, ...]) -> None:
        """Sets the named arrays that exist to zero."""
        for name in names:
            if name in self._arrays:
                self._memory.clear(self._arrays[name])


def address(array: DeviceArray, offset: int = 0) -> int:
    """Returns the address of byte `offset` of an array."""
    return (array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr()) + offset


class TorchMemory:
    """Allocates device memory with torch, and clears, copies and sorts it on torch's current stream."""

    SLOTS = 64  # records that the host may write ahead of the GPU
    SLOT_BYTES = 1024  # largest size of a record

    def __init__(self, device: str = "cuda") -> None:
        import torch

        self.device = device
        self.multiprocessors, self.architecture = 1, 0
        if device == "cuda":
            properties = torch.cuda.get_device_properties(torch.cuda.current_device())
            self.multiprocessors = properties.multi_processor_count
            self.architecture = 10 * properties.major + properties.minor
        self._types = {
            "f4": torch.float32,
            "u4": torch.int32,
            "u8": torch.int64,
            "i8": torch.int64,
            "u2": torch.int16,
            "u1": torch.uint8,
        }
        self._slots: list[Any] = []
        self._events: list[Any] = []
        self._next = 0

    def empty(self, name: str, shape: Shape, dtype: str) -> DeviceArray:
        """Returns a new tensor on the GPU. Raises NoRoomError if the GPU has no room."""
        import torch

        try:
            return torch.empty(shape, dtype=self._types[dtype], device=self.device)
        except torch.OutOfMemoryError as error:
            wanted = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            free, total = torch.cuda.mem_get_info()
            raise NoRoomError(
                f"The GPU has no room for {name}: {wanted / 2**30:.2f} GiB more, {free / 2**30:.2f} of "
                f"{total / 2**30:.2f} GiB free. Close other programs, use a smaller picture or a smaller scene."
            ) from error

    def clear(self, array: DeviceArray) -> None:
        """Sets a tensor to zero, on the current stream."""
        array.zero_()

    def write(self, array: DeviceArray, record: NDArray[Any]) -> None:
        """Copies a record to the GPU through a pinned slot. Waits only if the GPU is SLOTS records behind."""
        import torch

        if not self._slots:
            self._slots = [torch.empty(self.SLOT_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(self.SLOTS)]
            self._events = [torch.cuda.Event() for _ in self._slots]
        slot, event = self._slots[self._next][: array.numel()], self._events[self._next]
        event.synchronize()  # returns at once for an event that was never recorded
        self._next = (self._next + 1) % self.SLOTS
        slot.numpy()[:] = record.view(np.uint8)
        array.copy_(slot, non_blocking=True)
        event.record()

    def upload(self, array: DeviceArray, pinned: Any) -> None:
        """Copies pinned memory to `array` in the order of launches. The memory must stay unchanged until then."""
        array.copy_(pinned, non_blocking=True)

    def stream(self) -> Any:
        """Returns torch's current stream, so that callers need not look it up at each step. None on a processor."""
        import torch

        return torch.cuda.current_stream() if self.device == "cuda" else None

    def shared_with_host(self, name: str, size: int) -> Any:
        """Returns the bytes [size] in pinned memory, which kernels may write and the host then read."""
        import torch

        if self.device != "cuda":
            return self.empty(name, (size,), "u1")
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def event(self) -> Any:
        """Returns an event: `record` it after launches, then `query` it or `synchronize` with it.

        Returns None on a processor, where launches have finished when they return.
        """
        import torch

        return torch.cuda.Event() if self.device == "cuda" else None

    def wait(self) -> None:
        """Waits until the GPU has finished all launches."""
        import torch

        if self.device == "cuda":
            torch.cuda.synchronize()

    def read(self, array: DeviceArray) -> NDArray[np.uint8]:
        """Returns the bytes of a tensor. Waits for the GPU."""
        return array.cpu().numpy().view(np.uint8)

    def sort(self, keys: DeviceArray, bits: int) -> DeviceArray:
        """Returns the positions of unsigned keys in ascending order, by torch.sort, which knows only signed numbers."""
        import torch

        if bits >= 8 * keys.element_size():  # the top bit is in use
            keys = keys.to(torch.int64) & ((1 << 8 * keys.element_size()) - 1)
        return torch.sort(keys, stable=True).indices

    def gather(self, values: DeviceArray | None, places: DeviceArray, out: DeviceArray) -> None:
        """Sets out[i] = values[places[i]]; without `values`, sets out[i] = places[i]."""
        out[: len(places)] = places if values is None else values[places]
