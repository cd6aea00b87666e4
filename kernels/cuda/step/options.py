"""Parts of a training step that only some runs have: photographs' own exposures, and random steps of means.

Each function returns launches for `cuda/training_step.py` to place. What the kernels do: cuda/source/exposure.cuh,
cuda/source/noise.cuh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from splatscope.kernels.cuda.launch.buffers import Buffers
from splatscope.kernels.cuda.plan.operations import Launch
from splatscope.kernels.cuda.plan.planner import Provider
from splatscope.kernels.noise import Noise

THREADS = 256  # a block, of all these kernels
EXPOSURE_BLOCKS = 4  # on a multiprocessor
EXPOSURE_NAMES = ["expose", "expose_backward", "step_exposures"]
MAP = 12  # numbers of a map of colours


@dataclass(frozen=True, eq=False)
class ExposureMaps:
    """Maps of colours of V photographs, colour' = colour @ A + b, and their optimiser's state; steps change them."""

    values: Any  # [V, 4, 3] A above b
    first: Any  # [V, 4, 3]
    second: Any  # [V, 4, 3]
    steps: Any  # [V] int64


@dataclass(frozen=True)
class Exposing:
    """What a step adds for exposures."""

    exposed: Any  # [H, W, 3] the picture that the loss compares
    before: list[Launch]  # of the loss
    after: list[Launch]


def exposing(
    maps: ExposureMaps,
    provide: Provider,
    buffers: Buffers,
    shared: Mapping[str, Any],
    image: Any,
    gradient: Any,
    multiprocessors: int,
) -> Exposing:
    """`shared`: frame and inputs; `image` and `gradient` [H, W, 3]: the picture, and dL/d(what the loss saw), which
    becomes dL/d(picture)."""
    kernels = provide("exposure.cuh", EXPOSURE_NAMES)
    pixels = image.shape[0] * image.shape[1]
    all_blocks = -(-pixels // THREADS)
    blocks = min(all_blocks, EXPOSURE_BLOCKS * multiprocessors)
    exposed = buffers.take("exposed", tuple(image.shape), "f4")
    sums = buffers.take("exposure sums", (blocks, MAP), "f4")

    def launch(name: str, grid: int, **own: Any) -> Launch:
        arguments = kernels[name].arguments.pack(**shared, values=maps.values, **own)
        return Launch("loss", kernels[name], (grid,), (THREADS,), arguments)

    state = {"first": maps.first, "second": maps.second, "steps": maps.steps}
    return Exposing(
        exposed,
        [launch("expose", all_blocks, image=image, exposed=exposed)],
        [
            launch("expose_backward", blocks, image=image, gradient=gradient, sums=sums),
            launch("step_exposures", 1, sums=sums, sum_count=blocks, views=len(maps.values), **state),
        ],
    )


def shaking(provide: Provider, shared: Mapping[str, Any], raw: Mapping[str, Any]) -> Launch:
    """A random step of all means; `raw`: arrays of parameters by name, with all rows."""
    kernel = provide("noise.cuh", ["shake"])["shake"]
    names = ("means", "log_scales", "quats", "logit_opacities")
    arguments = kernel.arguments.pack(**shared, **{name: raw[name] for name in names})
    return Launch("noise", kernel, (-(-len(raw["means"]) // THREADS),), (THREADS,), arguments)


def record_noise(row: np.void, noise: Noise | None) -> None:
    """Fills in a record of StepInputs."""
    if noise is not None:
        row["noise"], row["noise_centre"], row["noise_steepness"] = noise.amount, noise.centre, noise.steepness
        row["noise_seed"], row["noise_iteration"] = noise.seed, noise.iteration
