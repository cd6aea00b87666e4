"""Photographs for training, 8 bits a channel: on the GPU while a budget lasts, the others in pinned memory.

Those in pinned memory are uploaded by a stream of their own into one of a few slots, as soon as their step is queued;
the host queues steps ahead of the GPU, so that the upload runs beside earlier steps. Read `training_step.py` next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.cuda_buffers import TorchMemory


@dataclass(frozen=True, eq=False)
class Target:
    """One photograph where the store has put it."""

    bytes: Any  # uint8 [3 H W] colours, [H W] coverage if any, [H W] weights if any; on the GPU or in pinned memory
    is_on_gpu: bool
    has_coverage: bool = False
    has_weights: bool = False


@dataclass
class _Slot:
    """Where one photograph at a time is uploaded to."""

    bytes: Any  # uint8
    used: Any  # event: the step that read it is over


class TargetStore:
    """`budget` bytes may be kept on the GPU; `slots` uploads may wait for their steps."""

    def __init__(self, memory: TorchMemory, budget: int, slots: int) -> None:
        self._memory, self._budget = memory, budget
        self._slots: list[_Slot | None] = [None] * slots
        self._next = 0
        self._copies: Any = None  # stream

    def add(
        self,
        pixels: NDArray[np.uint8],
        coverage: NDArray[np.uint8] | None = None,
        weights: NDArray[np.uint8] | None = None,
    ) -> Target:
        """Takes a photograph [H, W, 3] in. With `coverage` [H, W], its alpha, it is over black; `weights` [H, W] say
        how much each pixel counts, of 255."""
        import torch

        parts = [part.ravel() for part in (pixels, coverage, weights) if part is not None]
        host = torch.from_numpy(np.concatenate(parts))
        kind = {"has_coverage": coverage is not None, "has_weights": weights is not None}
        if self._memory.device != "cuda":
            return Target(host, True, **kind)
        if host.numel() <= self._budget:
            self._budget -= host.numel()
            return Target(host.cuda(), True, **kind)
        return Target(host.pin_memory(), False, **kind)

    def remove(self, target: Target) -> None:
        """Its room on the GPU may be used for another one."""
        if target.is_on_gpu:
            self._budget += target.bytes.numel()

    @contextmanager
    def placed(self, target: Target) -> Iterator[int]:
        """The address at which kernels launched in the body find the photograph."""
        if target.is_on_gpu:
            yield target.bytes.data_ptr()
            return
        import torch

        if self._copies is None:
            self._copies = torch.cuda.Stream()
        slot, size = self._slots[self._next], target.bytes.numel()
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
