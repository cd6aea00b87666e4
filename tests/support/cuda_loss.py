"""Runs the loss kernels on the CPU harness: one image, one target, one decision. The tests are in
`kernels/test_cuda_loss.py`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.cuda.launch.arguments import struct_layout
from splatscope.kernels.cuda.launch.compiler import Kernel
from splatscope.kernels.cuda.plan.passes import frame_dtype, source
from splatscope.kernels.cuda.step.loss import loss_grid, loss_kernels
from splatscope.kernels.types import Float32
from tests.support.cuda_on_cpu.run import Device, build

LOSS_KINDS = [(False, False), (True, False), (False, True), (True, True)]  # coverage, weights
INPUTS, STATE, RESULT = (
    struct_layout(source("step.cuh").text, name).dtype for name in ("StepInputs", "StepState", "StepResult")
)
SLOTS = 64


@cache
def kernels() -> dict[str, Kernel]:
    return build(source("loss.cuh"), [name for kind in LOSS_KINDS for name in loss_kernels(*kind)])


@dataclass(frozen=True, eq=False)
class Loss:
    """Holds what the kernels left."""

    gradient: Float32  # [H, W, 3]
    result: np.void
    state: np.void
    overflow: int


def run_loss(
    image: Float32,
    target: NDArray[np.uint8],
    weight: float,
    seed: int = 0,
    halted: int = 0,
    kind: tuple[bool, bool] = (False, False),
    **frame_fields: Any,
) -> Loss:
    """Evaluates the loss once. `target` is the photograph in memory. The gradient is 7 where nothing was written."""
    device, (height, width) = Device(seed, seconds=60), image.shape[:2]
    frame, grid = np.zeros(1, frame_dtype()), loss_grid(width, height)
    inputs, state = np.zeros(1, INPUTS), np.zeros(1, STATE)
    for name, value in {"width": width, "height": height, **frame_fields}.items():
        frame[name] = value
    target = device.upload("target", target)
    inputs["target"], inputs["dssim_weight"], inputs["sequence"] = target.ctypes.data, weight, SLOTS + 3
    inputs["beta1"], inputs["beta2"] = 0.9, 0.999
    state["beta1_power"] = state["beta2_power"] = 1
    state["halted"] = halted
    arrays = {
        "frame": device.upload("frame", frame),
        "inputs": device.upload("inputs", inputs),
        "image": device.upload("image", image),
        "derivatives": device.empty("derivatives", grid.derivatives, "f4"),
        "sums": device.empty("sums", (grid.blocks, 2), "f4"),
    }
    more = {
        "state": device.upload("state", state),
        "results": device.upload("results", np.zeros(SLOTS, RESULT)),
        "gradient": device.upload("gradient", np.full_like(image, 7)),
        "sum_count": grid.blocks,
        "reach": None,
    }
    counts = grid.blocks, grid.blocks + 1
    for name, values, count in zip(loss_kernels(*kind), (arrays, arrays | more), counts, strict=True):
        kernel = kernels()[name]
        device.launch(kernel, (count,), (grid.threads,), kernel.arguments.pack(**values))
    return Loss(more["gradient"].copy(), more["results"][3], more["state"][0], int(arrays["frame"]["overflow"][0]))
