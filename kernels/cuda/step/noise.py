"""Plans random moves of all means after a training step. Kernel: cuda/source/noise.cuh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from splatscope.kernels.cuda.launch.buffers import DeviceArray
from splatscope.kernels.cuda.plan.operations import Launch
from splatscope.kernels.cuda.plan.passes import constant
from splatscope.kernels.cuda.plan.planner import Provider
from splatscope.kernels.noise import Noise

SHAKE_THREADS = constant("noise.cuh", "SHAKE_THREADS")


def shake_means(provide: Provider, shared: Mapping[str, Any], raw: Mapping[str, DeviceArray]) -> Launch:
    """Returns the launch that moves all means at random.

    `shared` are the step's frame and inputs, `raw` the arrays of parameters by name, with all rows.
    """
    kernel = provide("noise.cuh", ["shake"])["shake"]
    names = ("means", "log_scales", "quats", "logit_opacities")
    arguments = kernel.arguments.pack(**shared, **{name: raw[name] for name in names})
    return Launch("noise", kernel, (-(-len(raw["means"]) // SHAKE_THREADS),), (SHAKE_THREADS,), arguments)


def write_noise(row: np.void, noise: Noise | None) -> None:
    """Fills in the noise of a record of StepInputs; without noise it stays as it is."""
    if noise is not None:
        row["noise"], row["noise_centre"], row["noise_steepness"] = noise.amount, noise.centre, noise.steepness
        row["noise_seed"], row["noise_iteration"] = noise.seed, noise.iteration
