"""Plans learned exposures in a training step: one map of colours for each photograph.

`add_exposure` returns launches for `cuda/training_step.py` to place before and after the loss. Kernels:
cuda/source/exposure.cuh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from splatscope.kernels.cuda.launch.buffers import Buffers, DeviceArray
from splatscope.kernels.cuda.plan.operations import Launch
from splatscope.kernels.cuda.plan.passes import constant
from splatscope.kernels.cuda.plan.planner import Provider

EXPOSURE_THREADS = constant("exposure.cuh", "EXPOSURE_THREADS")  # of a block, in all three kernels
EXPOSURE_BLOCKS = 4  # on a multiprocessor
EXPOSURE_NAMES = ["expose", "expose_backward", "step_exposures"]
MAP = constant("exposure.cuh", "MAP")  # numbers of a map of colours


@dataclass(frozen=True, eq=False)
class ExposureMaps:
    """Holds the maps of colours of V photographs, colour' = colour @ A + b, and their optimiser's state.

    Training steps change all four tensors.
    """

    values: DeviceArray  # [V, 4, 3] A above b
    first: DeviceArray  # [V, 4, 3]
    second: DeviceArray  # [V, 4, 3]
    steps: DeviceArray  # [V] int64


@dataclass(frozen=True, eq=False)
class Exposure:
    """Holds what exposures add to a training step."""

    exposed: DeviceArray  # [H, W, 3] the picture that the loss compares
    before: list[Launch]  # in front of the loss
    after: list[Launch]  # behind the loss


def add_exposure(
    maps: ExposureMaps,
    provide: Provider,
    buffers: Buffers,
    shared: Mapping[str, Any],
    image: DeviceArray,
    gradient: DeviceArray,
    multiprocessors: int,
) -> Exposure:
    """Returns the launches that apply and learn exposures.

    - `shared`: the step's frame and inputs.
    - `image` [H, W, 3]: the picture.
    - `gradient` [H, W, 3]: dL/d(exposed picture), which becomes dL/d(picture).
    """
    kernels = provide("exposure.cuh", EXPOSURE_NAMES)
    pixels = image.shape[0] * image.shape[1]
    all_blocks = -(-pixels // EXPOSURE_THREADS)
    blocks = min(all_blocks, EXPOSURE_BLOCKS * multiprocessors)
    exposed = buffers.take("exposed", tuple(image.shape), "f4")
    sums = buffers.take("exposure sums", (blocks, MAP), "f4")

    def launch(name: str, grid: int, **own: Any) -> Launch:
        arguments = kernels[name].arguments.pack(**shared, values=maps.values, **own)
        return Launch("loss", kernels[name], (grid,), (EXPOSURE_THREADS,), arguments)

    state = {"first": maps.first, "second": maps.second, "steps": maps.steps}
    return Exposure(
        exposed,
        [launch("expose", all_blocks, image=image, exposed=exposed)],
        [
            launch("expose_backward", blocks, image=image, gradient=gradient, sums=sums),
            launch("step_exposures", 1, sums=sums, sum_count=blocks, views=len(maps.values), **state),
        ],
    )
