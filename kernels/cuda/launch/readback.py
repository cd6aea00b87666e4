"""Copies tensors from the GPU to the host while later training steps run.

`Held` copies on the GPU, in the order of launches, so that the next launch may change the originals: half a millisecond
for a gigabyte. Another thread then takes the copy to the host on a stream of its own, through a little pinned memory.
Locking pages for all of it would take longer than the copy, and hold up launches of other threads meanwhile. `on_host`
does the same without the copy on the GPU, and waits. Both copy tensors that are on the host at once.
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

CHUNK = 16 << 20  # bytes of pinned memory that are filled while as many are emptied
SPARE = 8  # times the copy's size that must be free on the GPU, so that growth and a step's buffers find room
ALIGNED = 512  # bytes; tensors begin at multiples in the copy


_streams: dict[str, tuple[Any, Any]] = {}  # CuPy's, which is destroyed with its object, and torch's view of it
_streams_lock = threading.Lock()


def own_stream(purpose: str) -> Any:
    """Returns a stream that nobody else is given, for as long as the process lives.

    Torch hands its own streams round: a graph may be captured on a stream just when another thread copies on it.
    """
    import cupy  # pyright: ignore[reportMissingImports]

    with _streams_lock:
        if purpose not in _streams:
            made = cupy.cuda.Stream(non_blocking=True)
            _streams[purpose] = made, torch.cuda.ExternalStream(made.ptr)
        return _streams[purpose][1]


class Held:
    """Holds tensors as they are at this point of the current stream, whatever is launched later."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Copies the tensors without waiting. Raises NoRoomError where that would leave the GPU too little memory."""
        self._parts: dict[str, Tensor] = {}
        self._ready: Any = None  # event: the copy is made
        sizes = {name: -(-t.nbytes // ALIGNED) * ALIGNED for name, t in tensors.items() if t.is_cuda}
        flat = _room_for(sum(sizes.values())) if sizes else None  # one piece: one search for memory
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
        """Returns the tensors, contiguous, on the host, and frees the copy on the GPU.

        Call it once, from any thread. It waits for what was launched before the copy and for nothing later.
        """
        copies = self._parts
        if self._ready is not None:
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(self._ready)
                copies = on_host(self._parts)
        self._parts = {}  # `on_host` has waited for the last byte, so this memory may be written again
        return copies


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns contiguous copies on the host, after everything launched on the current stream so far. Waits for it."""
    copies: dict[str, Tensor] = {}
    pairs: list[tuple[Tensor, Tensor]] = []
    for name, tensor in tensors.items():
        if not tensor.is_cuda:
            copies[name] = tensor.clone(memory_format=torch.contiguous_format)
            continue
        # NumPy asks for large pages, of which fewer must be made than torch would touch.
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
    # An event that blocks leaves the processor to others; the usual one asks again and again.
    slots = [
        (torch.empty(largest, dtype=torch.uint8, pin_memory=True), torch.cuda.Event(blocking=True)) for _ in range(2)
    ]
    coming: deque[tuple[Any, Tensor, Tensor]] = deque()

    def land() -> None:
        event, pinned, target = coming.popleft()
        event.synchronize()
        np.copyto(target.numpy(), pinned.numpy())  # one thread, and Python's lock is free meanwhile

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
        stream.synchronize()  # also after an error: sources are freed, and must not be read any more


def _room_for(size: int) -> Tensor:
    """Returns `size` bytes on the GPU. Raises NoRoomError unless SPARE times as much is free."""
    free, _ = torch.cuda.mem_get_info()
    free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # had from the system, and not in use
    if SPARE * size > free:
        raise NoRoomError(f"The GPU has no room to hold {size / 2**30:.2f} GiB twice: {free / 2**30:.2f} GiB free.")
    try:
        return torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        raise NoRoomError(f"The GPU has no room to hold {size / 2**30:.2f} GiB twice.") from error
