"""Copies tensors from the GPU to the host while later training steps run.

`Held` copies on the GPU, in the order of launches, so that the next launch may change the originals. That takes half a
millisecond for a gigabyte. Another thread then copies to the host on a separate stream, through a little pinned memory:
pinning all of the memory would take longer than the copy and hold up launches of other threads. `on_host` does the same
without the copy on the GPU, and waits. Both copy tensors that are already on the host immediately.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splatscope.kernels.errors import NoRoomError

CHUNK = 16 << 20  # bytes in each of two pieces of pinned memory: one is filled while the other is emptied
SPARE = 8  # memory that must be free on the GPU, as a multiple of the copy's size: growth and steps need room too
ALIGNED = 512  # bytes; each tensor begins at a multiple of this in the copy


_streams: dict[str, tuple[Any, Any]] = {}  # CuPy's stream, kept because it ends with its object, and torch's view of it
_streams_lock = threading.Lock()


def own_stream(purpose: str) -> Any:
    """Returns a stream that serves one purpose as long as the process lives.

    Torch gives the same stream to several callers: one thread could copy on it while another captures a graph there.
    """
    import cupy  # pyright: ignore[reportMissingImports]

    with _streams_lock:
        if purpose not in _streams:
            made = cupy.cuda.Stream(non_blocking=True)
            _streams[purpose] = made, torch.cuda.ExternalStream(made.ptr)
        return _streams[purpose][1]


class Held:
    """Holds copies of tensors as they are at this point of the current stream."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Copies the tensors without waiting. Raises NoRoomError if that would leave the GPU too little memory."""
        self._parts: dict[str, Tensor] = {}
        self._ready: Any = None  # event after the copy
        sizes = {name: -(-t.nbytes // ALIGNED) * ALIGNED for name, t in tensors.items() if t.is_cuda}
        flat = _room_for(sum(sizes.values())) if sizes else None  # one allocation for all tensors
        place = 0
        for name, tensor in tensors.items():
            if flat is None or name not in sizes:
                self._parts[name] = tensor.clone(memory_format=torch.contiguous_format)
                continue
            part = flat[place : place + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            self._parts[name] = part.copy_(tensor)
            place += sizes[name]
        if flat is not None:
            self._stream, self._ready = own_stream("to the host"), torch.cuda.Event()
            self._ready.record()

    def to_host(self) -> dict[str, Tensor]:
        """Returns the tensors on the host, contiguous, and frees the copy on the GPU.

        Call it once, from any thread. It waits for work launched before the copy, but not for later work.
        """
        copies = self._parts
        if self._ready is not None:
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(self._ready)
                copies = on_host(self._parts)
        self._parts = {}  # frees the memory; `on_host` has waited for the last byte
        return copies


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns contiguous copies on the host. Waits for all work launched on the current stream so far."""
    copies: dict[str, Tensor] = {}
    pairs: list[tuple[Tensor, Tensor]] = []
    for name, tensor in tensors.items():
        if not tensor.is_cuda:
            copies[name] = tensor.clone(memory_format=torch.contiguous_format)
            continue
        # Allocates with NumPy, which asks the system for large pages: fewer page faults than with torch.
        array = np.empty(tensor.shape, torch.empty(0, dtype=tensor.dtype).numpy().dtype)
        copies[name] = torch.from_numpy(array)
        pairs += _chunks(tensor, copies[name])
    if pairs:
        _move(pairs)
    return copies


def _chunks(source: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields both tensors cut along their first axis into pieces of at most CHUNK bytes, or of one row."""
    if source.dim() == 0:
        source, target = source.reshape(1), target.reshape(1)
    rows = max(1, CHUNK // max(1, source[:1].nbytes))
    for start in range(0, len(source), rows):
        yield source[start : start + rows], target[start : start + rows]


def _move(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copies through two pieces of pinned memory: the GPU fills one while the other is emptied here."""
    stream = torch.cuda.current_stream()
    largest = max(source.nbytes for source, _ in pairs)
    # Waiting for a blocking event leaves the processor to other threads; waiting for a usual event polls.
    slots = [
        (torch.empty(largest, dtype=torch.uint8, pin_memory=True), torch.cuda.Event(blocking=True)) for _ in range(2)
    ]
    coming: deque[tuple[Any, Tensor, Tensor]] = deque()

    def land() -> None:
        event, pinned, target = coming.popleft()
        event.synchronize()
        np.copyto(target.numpy(), pinned.numpy())  # releases Python's lock, and uses one thread

    try:
        for number, (source, target) in enumerate(pairs):
            if len(coming) == len(slots):
                land()
            slot, event = slots[number % len(slots)]
            pinned = slot[: source.nbytes].view(source.dtype).view(source.shape)
            pinned.copy_(source, non_blocking=True)
            event.record(stream)
            coming.append((event, pinned, target))
        while coming:
            land()
    finally:
        stream.synchronize()  # also after an error: the caller frees the sources, so no copy may read them any more


def _room_for(size: int) -> Tensor:
    """Returns `size` bytes on the GPU. Raises NoRoomError unless SPARE times as much is free."""
    free, _ = torch.cuda.mem_get_info()
    free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # torch has reserved it, but does not use it
    if SPARE * size > free:
        raise NoRoomError(f"The GPU has no room to hold {size / 2**30:.2f} GiB twice: {free / 2**30:.2f} GiB free.")
    try:
        return torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        raise NoRoomError(f"The GPU has no room to hold {size / 2**30:.2f} GiB twice.") from error
