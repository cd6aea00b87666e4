"""Takes one Adam step on every parameter, with the recipe's rates, on arrays of the host.

`HostMath` does the arithmetic; this file only knows which column has which rate. Read `strategies/base.py` next.
"""

from __future__ import annotations

import math

import numpy as np

from splatscope.kernels.backend import HostMath
from splatscope.kernels.types import Float32, Gradients
from splatscope.training.config import RateConfig
from splatscope.training.splats.rows import SplatState


class Optimizer:
    """Runs Adam with one rate a column. `SplatState` holds the moments, next to the splats."""

    def __init__(self, rates: RateConfig, extent: float) -> None:
        self._rates = rates
        self._extent = extent

    def step(
        self, host: HostMath, state: SplatState, gradients: Gradients, iteration: int, moments_since: int = 0
    ) -> None:
        """Changes the tensors of `state` in place. `iteration` counts from 1 and decides the rates. Adam's bias is
        corrected for moments that were zero after the iteration `moments_since`."""
        betas = (self._rates.beta1, self._rates.beta2)
        for name, rates in self.column_rates(iteration, state.raw.sh.shape[1]).items():
            width = rates.size
            parameter, first, second = (
                getattr(tensors, name).numpy().reshape(-1, width) for tensors in (state.raw, state.first, state.second)
            )
            gradient = getattr(gradients, name).reshape(-1, width)
            host.adam(parameter, gradient, first, second, rates, iteration - moments_since, betas, self._rates.epsilon)

    def column_rates(self, iteration: int, sh_rows: int) -> dict[str, Float32]:
        """Returns the learning rate of each column, by parameter name."""
        r, late = self._rates, late_factor(self._rates, iteration)
        sh = np.full((sh_rows, 3), late * r.sh_constant * r.sh_rest_share, np.float32)
        sh[0] = late * r.sh_constant
        return {
            "means": np.full(3, mean_rate(r, iteration) * self._extent, np.float32),
            "log_scales": np.full(3, late * r.log_scales, np.float32),
            "quats": np.full(4, late * r.quats, np.float32),
            "logit_opacities": np.full(1, late * r.opacity, np.float32),
            "sh": sh.reshape(-1),
        }


def mean_rate(rates: RateConfig, iteration: int) -> float:
    """Returns the learning rate of positions for an extent of 1: held, then log-linear from start to end, then
    constant."""
    held, steps = rates.means_hold, rates.means_steps
    return log_linear(rates.means_start, rates.means_end, iteration - held, steps - held) * late_factor(
        rates, iteration
    )


def late_factor(rates: RateConfig, iteration: int) -> float:
    """Returns the factor on all rates towards the end of a run."""
    if rates.late_after == 0:
        return 1.0
    return log_linear(1.0, rates.late_share, iteration - rates.late_after, rates.means_steps - rates.late_after)


def log_linear(start: float, end: float, step: int, steps: int) -> float:
    """Returns a value that goes from `start` at step 0 to `end` at `steps` by equal factors and is constant beyond."""
    share = min(max(step / max(steps, 1), 0.0), 1.0)
    return math.exp((1 - share) * math.log(start) + share * math.log(end))
