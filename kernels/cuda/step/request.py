"""Defines a training step's request and outcome, and makes the `StepInputs` record that kernels read.

The record's layout: cuda/source/step.cuh. Read `cuda/training_step.py` next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from splatscope.kernels.cuda.step.noise import write_noise
from splatscope.kernels.cuda.step.photographs import Target
from splatscope.kernels.noise import Noise
from splatscope.kernels.types import Camera, RenderSettings


@dataclass(frozen=True)
class AdamRates:
    """Holds the learning rates of one step, and Adam's constants."""

    means: float
    log_scales: float
    quats: float
    logit_opacities: float
    sh_constant: float
    sh_rest: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-15


@dataclass(frozen=True, eq=False)
class StepRequest:
    """Asks for one step on one photograph."""

    camera: Camera
    settings: RenderSettings  # background behind the photograph; degree in use
    target: Target
    rates: AdamRates
    dssim_weight: float = 0.2
    opacity_penalty: float = 0.0  # times the mean opacity, added to the loss; the reported loss is without it
    scale_penalty: float = 0.0  # times the mean half axis, added to the loss; the reported loss is without it
    collects: bool = True  # collect statistics for density control
    absolute: bool = False  # the statistics add up the pull of each pixel by itself (Ye et al. 2024)
    photograph: int = 0  # number of the photograph's exposure, if exposures are learned
    exposure_rate: float = 0.0
    noise: Noise | None = None  # a random step of all means, after Adam's


@dataclass(frozen=True)
class StepOutcome:
    """Reports what became of a request."""

    request: StepRequest
    loss: float
    l1: float
    ssim: float
    steps: int  # committed so far, this step included
    visible: int
    instances: int
    skipped: dict[str, int]  # parameter -> numbers whose gradient was not finite and that stayed, before this step

    @property
    def is_finite(self) -> bool:
        """Returns False if the step did nothing; later steps do nothing before `TrainingStep.resume`."""
        return math.isfinite(self.loss)


def write_inputs(row: np.void, request: StepRequest, target: int, sequence: int, splats: int) -> None:
    """Fills in a record of StepInputs, which is zero so far.

    `target` is the device address of the photograph, `splats` the number of splats that penalties are means over.
    """
    rates = request.rates
    row["target"], row["dssim_weight"] = target, request.dssim_weight
    row["beta1"], row["beta2"], row["epsilon"] = rates.beta1, rates.beta2, rates.epsilon
    for name in ("means", "log_scales", "quats", "logit_opacities", "sh_constant", "sh_rest"):
        row[name] = getattr(rates, name)
    count = max(splats, 1)
    row["opacity_penalty"] = request.opacity_penalty / count
    row["scale_penalty"] = request.scale_penalty / (3 * count)
    row["collects"], row["sequence"] = request.collects, sequence
    row["photograph"], row["exposure_rate"] = request.photograph, request.exposure_rate
    write_noise(row, request.noise)
