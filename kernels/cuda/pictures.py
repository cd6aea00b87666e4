"""Brings device tensors to a screen and to callers: as RGBA, as pinned copies, as arrays fetched when asked for.

Torch's kernels are fast enough for conversions that read each number once. `backend.py` uses this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.cuda.launch.buffers import DeviceArray
from splatscope.kernels.schedule.timeline import Recording
from splatscope.kernels.types import Frame, Int32

OPAQUE = 255


class DeviceFrame(Frame):
    """Keeps image, depth and transmittance on the GPU until a caller, on any thread, reads them."""

    @staticmethod
    def of(
        tensors: Mapping[str, DeviceArray],
        tile_counts: Int32,
        record: np.void,
        stage_ms: dict[str, float],
        recording: Recording | None = None,
    ) -> DeviceFrame:
        """Makes a frame that owns `tensors`: array name -> tensor. `record` is the GPU's `Frame` with its counters."""
        frame = object.__new__(DeviceFrame)
        counters = {name: int(record[name]) for name in ("visible", "instances", "skipped")}
        values = {"tile_counts": tile_counts, "stage_ms": stage_ms, "recording": recording, **counters}
        values["_tensors"] = dict(tensors)
        for name, value in values.items():
            object.__setattr__(frame, name, value)
        return frame

    def tensor(self, name: str) -> DeviceArray:
        """Returns one of the frame's arrays as the tensor on the GPU."""
        return self.__dict__["_tensors"][name]

    def __getattr__(self, name: str) -> Any:
        """Fetches an array from the GPU the first time a caller asks for it."""
        tensors = self.__dict__.get("_tensors", {})
        if name not in tensors:
            raise AttributeError(name)
        array = tensors[name].cpu().numpy()
        object.__setattr__(self, name, array)
        return array


class RgbaConverter:
    """Converts float [H, W, 3] on the device to uint8 [H, W, 4]: clamped to [0, 1], rounded, opaque; NaN becomes 0."""

    def __init__(self) -> None:
        self._rgba: DeviceArray | None = None

    def __call__(self, image: DeviceArray) -> DeviceArray:
        """Returns the converted image, in a tensor that the next call overwrites."""
        import torch

        height, width, _ = image.shape
        if self._rgba is None or self._rgba.shape[:2] != (height, width):
            self._rgba = torch.full((height, width, 4), OPAQUE, dtype=torch.uint8, device=image.device)
        self._rgba[..., :3] = image.clamp(0.0, 1.0).mul_(255.0).round_()
        return self._rgba


class PinnedReadback:
    """Copies tensors to pinned memory, after the work already queued on the current stream.

    Torch keeps pinned memory for reuse, so that a picture as large as an earlier one costs no allocation.
    """

    def __init__(self, tensors: Sequence[DeviceArray]) -> None:
        import torch

        self._event: Any = None
        if not tensors[0].is_cuda:
            self._copies = [tensor.clone() for tensor in tensors]
            return
        self._copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    @property
    def ready(self) -> bool:
        """Returns True if `arrays` does not wait."""
        return self._event is None or self._event.query()

    def arrays(self) -> list[NDArray[Any]]:
        """Returns the copies. Waits for them, but not for work queued later."""
        if self._event is not None:
            self._event.synchronize()
        return [copy.numpy() for copy in self._copies]


def copy_to_host(tensors: Sequence[DeviceArray]) -> list[NDArray[Any]]:
    """Returns copies of all tensors, made through pinned memory. Waits once for the GPU."""
    return PinnedReadback(tensors).arrays()
