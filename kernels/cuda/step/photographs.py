"""Photographs for training, 8 bits a channel: on the GPU while a budget lasts, the others in pinned memory.

Either way threads bring them there, beside the steps: a step waits for its photograph only if it comes before that.
Those in pinned memory are uploaded by a stream of their own into one of a few slots, as soon as their step is queued;
the host queues steps ahead of the GPU, so that the upload runs beside earlier steps. Read `cuda/training_step.py` next.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.cuda.launch.buffers import TorchMemory

WORKERS = 4  # threads that bring photographs; each copies a few gigabytes a second into pinned memory
Parts = list[NDArray[np.uint8]]  # colours [3 H W], coverage [H W] if any, weights [H W] if any


@dataclass(frozen=True, eq=False)
class Target:
    """One photograph that the store has, or soon will."""

    size: int  # bytes
    arriving: Future[Any]  # of its parts, one after the other: uint8 on the GPU or in pinned memory
    is_on_gpu: bool
    has_coverage: bool = False
    has_weights: bool = False

    @property
    def bytes(self) -> Any:
        """uint8 [3 H W] colours, [H W] coverage if any, [H W] weights if any. Waits until they are there."""
        return self.arriving.result()


@dataclass
class _Slot:
    """Where one photograph at a time is uploaded to."""

    bytes: Any  # uint8
    used: Any  # event: the step that read it is over


class TargetStore:
    """`budget` bytes may be kept on the GPU; `slots` uploads may wait for their steps. One thread at a time."""

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
        """Takes a photograph [H, W, 3] in, which is not waited for and must stay as it is. With `coverage` [H, W], its
        alpha, it is over black; `weights` [H, W] say how much each pixel counts, of 255."""
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
        # Had here, so that it goes back to this thread's stream, in whose order steps read it; what that stream did
        # before with the same memory is over at the event.
        place, free = self._memory.empty("a photograph", (size,), "u1"), torch.cuda.Event()
        free.record()
        return Target(size, self._workers.submit(_brought, parts, place, free), True, **kind)

    def remove(self, target: Target) -> None:
        """Its room on the GPU may be used for another one."""
        if not target.arriving.cancel():
            target.arriving.exception()  # waits: nothing may be written there any more
        if target.is_on_gpu:
            self._budget += target.size

    @contextmanager
    def placed(self, target: Target) -> Iterator[int]:
        """The address at which kernels launched in the body find the photograph."""
        if target.is_on_gpu:
            yield target.bytes.data_ptr()
            return
        import torch

        if self._copies is None:
            self._copies = torch.cuda.Stream()
        slot, size = self._slots[self._next], target.size
        if slot is None or slot.bytes.numel() < size:
            torch.cuda.synchronize()  # the old one may be in use; hardly ever
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


def _joined(parts: Parts, is_pinned: bool = False) -> Any:
    """The parts one after the other, on the host."""
    import torch

    joined = torch.empty(sum(part.size for part in parts), dtype=torch.uint8, pin_memory=is_pinned)
    np.concatenate(parts, out=joined.numpy())
    return joined


def _brought(parts: Parts, place: Any, free: Any) -> Any:
    """`place` on the GPU once the parts have come there; `free` is the event from which on it may be written."""
    import torch

    from splatscope.kernels.cuda.launch.readback import own_stream

    pinned, stream, arrived = _joined(parts, is_pinned=True), own_stream("to the GPU"), torch.cuda.Event(blocking=True)
    stream.wait_event(free)
    with torch.cuda.stream(stream):
        place.copy_(pinned, non_blocking=True)
        arrived.record(stream)
    arrived.synchronize()  # so that steps need not wait for it on the GPU, nor does anybody for freed memory
    return place


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
