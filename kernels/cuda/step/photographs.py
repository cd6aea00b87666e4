"""Keeps photographs for training, 8 bits a channel: on the GPU while a budget lasts, the others in pinned memory.

Threads bring them there while steps run: a step waits for its photograph only if it has not arrived yet. A photograph
in pinned memory is uploaded on a separate stream into one of a few slots, as soon as its step is queued. The host
queues steps ahead of the GPU, so the upload runs during earlier steps. Read `cuda/training_step.py` next.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.cuda.launch.buffers import DeviceArray, TorchMemory

PHOTOGRAPH_SHARE = 0.25  # share of the GPU's free memory that photographs may take; the others are uploaded by step
WORKERS = 4  # threads that bring photographs; each copies a few gigabytes a second into pinned memory
Parts = list[NDArray[np.uint8]]  # colours [3 H W], coverage [H W] if any, weights [H W] if any


@dataclass(frozen=True, eq=False)
class Target:
    """Holds one photograph that the store has, or soon will have."""

    size: int  # bytes
    arriving: Future[DeviceArray]  # its parts, one after the other: uint8 on the GPU or in pinned memory
    is_on_gpu: bool
    has_coverage: bool = False
    has_weights: bool = False

    @property
    def bytes(self) -> DeviceArray:
        """Returns colours [3 H W], coverage [H W] if any, weights [H W] if any, uint8. Waits until they arrive."""
        return self.arriving.result()


@dataclass
class _Slot:
    """Holds memory that one photograph at a time is uploaded to."""

    bytes: DeviceArray  # uint8
    used: Any  # event: the step that read it is over


class TargetStore:
    """Keeps photographs near the GPU. One thread at a time.

    `budget` bytes may be on the GPU; `slots` uploads may wait for their steps.
    """

    def __init__(self, memory: TorchMemory, budget: int, slots: int) -> None:
        self._memory, self._budget = memory, budget
        self._slots: list[_Slot | None] = [None] * slots
        self._next = 0
        self._copies: Any = None  # stream
        self._workers: ThreadPoolExecutor | None = None

    def add(
        self,
        pixels: NDArray[np.uint8],
        coverage: NDArray[np.uint8] | None = None,
        weights: NDArray[np.uint8] | None = None,
    ) -> Target:
        """Takes in a photograph [H, W, 3] without waiting for its copy; the arrays must stay as they are.

        `coverage` [H, W] is its alpha, over black. `weights` [H, W] say how much each pixel counts, out of 255.
        """
        parts = [part.ravel() for part in (pixels, coverage, weights) if part is not None]
        size = sum(part.size for part in parts)
        kind = {"has_coverage": coverage is not None, "has_weights": weights is not None}
        if self._memory.device != "cuda":
            return Target(size, _done(_joined(parts)), True, **kind)
        if self._workers is None:
            self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="photographs")
        if size > self._budget:
            return Target(size, self._workers.submit(_joined, parts, is_pinned=True), False, **kind)
        import torch

        self._budget -= size
        # Allocated here, so that the memory goes back to this thread's stream, in whose order steps read it. What that
        # stream did before with the same memory is over at the event.
        place, free = self._memory.empty("a photograph", (size,), "u1"), torch.cuda.Event()
        free.record()
        return Target(size, self._workers.submit(_bring, parts, place, free), True, **kind)

    def remove(self, target: Target) -> None:
        """Frees the photograph's share of the budget on the GPU."""
        if not target.arriving.cancel():
            target.arriving.exception()  # waits: nothing may be written there any more
        if target.is_on_gpu:
            self._budget += target.size

    @contextmanager
    def placed(self, target: Target) -> Iterator[int]:
        """Yields the address at which kernels launched in the body find the photograph."""
        if target.is_on_gpu:
            yield target.bytes.data_ptr()
            return
        import torch

        if self._copies is None:
            self._copies = torch.cuda.Stream()
        slot, size = self._slots[self._next], target.size
        if slot is None or slot.bytes.numel() < size:
            torch.cuda.synchronize()  # the old memory may be in use; happens hardly ever
            slot = _Slot(self._memory.empty("a photograph", (size,), "u1"), torch.cuda.Event())
            self._slots[self._next] = slot
        self._next = (self._next + 1) % len(self._slots)
        self._copies.wait_event(slot.used)
        with torch.cuda.stream(self._copies):
            slot.bytes[:size].copy_(target.bytes, non_blocking=True)
        torch.cuda.current_stream().wait_stream(self._copies)
        try:
            yield slot.bytes.data_ptr()
        finally:
            slot.used.record()


def _joined(parts: Parts, is_pinned: bool = False) -> DeviceArray:
    """Returns the parts one after the other, on the host."""
    import torch

    joined = torch.empty(sum(part.size for part in parts), dtype=torch.uint8, pin_memory=is_pinned)
    np.concatenate(parts, out=joined.numpy())
    return joined


def _bring(parts: Parts, place: DeviceArray, free: Any) -> DeviceArray:
    """Copies the parts to `place` on the GPU and returns it. `place` may be written after the event `free`."""
    import torch

    from splatscope.kernels.cuda.launch.readback import own_stream

    pinned, stream, arrived = _joined(parts, is_pinned=True), own_stream("to the GPU"), torch.cuda.Event(blocking=True)
    stream.wait_event(free)
    with torch.cuda.stream(stream):
        place.copy_(pinned, non_blocking=True)
        arrived.record(stream)
    arrived.synchronize()  # so that steps need not wait on the GPU, nor anybody for freed memory
    return place


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
