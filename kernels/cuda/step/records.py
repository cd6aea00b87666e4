"""Exchanges records between host and GPU for each training step, at little cost to either side.

Frame and inputs of a step are next to each other in one slot of a ring in pinned memory, and one copy brings both to
the GPU. Results come back in pinned memory. A camera's part of a frame is worked out once. The ring has more slots than
steps may be queued, so that a slot is free again when its turn comes. Read `cuda/training_step.py` next.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.cuda.launch.arguments import struct_layout
from splatscope.kernels.cuda.launch.buffers import Capacity, TorchMemory
from splatscope.kernels.cuda.plan.passes import Scene, constant, frame_dtype, frame_record, source
from splatscope.kernels.types import Camera, RenderSettings

RESULT_SLOTS = constant("step.cuh", "RESULT_SLOTS")
KEPT_CAMERAS = 1 << 14


@cache
def step_dtype(name: str) -> np.dtype[Any]:
    """Returns the layout of a struct of step.cuh."""
    return struct_layout(source("step.cuh").text, name).dtype


class StepRecords:
    """Keeps the records of steps; `slots` steps may be on their way."""

    def __init__(self, memory: TorchMemory, slots: int) -> None:
        frame, inputs = frame_dtype(), step_dtype("StepInputs")
        self._memory, self._frame_bytes = memory, frame.itemsize
        size = frame.itemsize + inputs.itemsize
        self._on_device = memory.empty("step records", (size,), "u1")
        self.frame, self.inputs = self._on_device[: frame.itemsize], self._on_device[frame.itemsize :]
        pinned = memory.shared_with_host("step records", slots * size).reshape(slots, size)
        rows = pinned.numpy()
        self._slots = [
            (slot, row, row[: frame.itemsize].view(frame)[0], row[frame.itemsize :].view(inputs)[0])
            for slot, row in zip(pinned, rows, strict=True)
        ]
        self._cameras: dict[int, tuple[Camera, NDArray[np.uint8]]] = {}  # by identity
        self.results = memory.shared_with_host("step results", RESULT_SLOTS * step_dtype("StepResult").itemsize)
        self._results = self.results.numpy().view(step_dtype("StepResult"))

    def write(self, sequence: int, scene: Scene, camera: Camera, settings: RenderSettings, capacity: Capacity,
              epoch: int) -> np.void:  # fmt: skip
        """Fills in the frame of a step. Returns its StepInputs, all zero, for the caller to fill in before `send`."""
        _, row, frame, inputs = self._slots[sequence % len(self._slots)]
        known = self._cameras.get(id(camera))
        if known is None:
            if len(self._cameras) >= KEPT_CAMERAS:
                self._cameras.clear()
            record = frame_record(scene, camera, settings, capacity, epoch).view(np.uint8)
            known = self._cameras[id(camera)] = camera, record
        row[: self._frame_bytes] = known[1]
        row[self._frame_bytes :] = 0
        frame["background"] = settings.background
        frame["sh_degree"] = min(settings.sh_degree, scene.sh_degree)
        frame["gaussians"], frame["epoch"] = scene.count, epoch
        frame["visible_capacity"], frame["instance_capacity"] = capacity.visible, capacity.instances
        return inputs

    def send(self, sequence: int) -> None:
        """Copies frame and inputs to the GPU, in the order of launches."""
        self._memory.upload(self._on_device, self._slots[sequence % len(self._slots)][0])

    def result(self, sequence: int) -> dict[str, Any]:
        """Returns the StepResult of a step that is over."""
        row = self._results[sequence % RESULT_SLOTS]
        found = dict(zip(row.dtype.names, row.item(), strict=True))
        assert found["sequence"] == sequence
        return found
