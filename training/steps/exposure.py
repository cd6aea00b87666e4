"""Learns an exposure for each training photograph, together with the splats: colour' = colour @ A + b.

Photographs of one scene differ in exposure and white balance; without this, splats learn the differences as haze
or as colours that change with direction. The mean of all transforms is kept at the identity. So the splats keep the
colours of the set as a whole, and held-out views, which have no transform, are scored as they are.
Read `trainer.py` next.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from splatscope.kernels.types import Float32
from splatscope.training.config import ExposureConfig, RateConfig
from splatscope.training.splats.optimizer import log_linear


class Exposures:
    """Keeps the transforms [V, 4, 3] of V photographs (A above b) and their Adam moments."""

    def __init__(self, config: ExposureConfig, rates: RateConfig, views: int, iterations: int) -> None:
        self._config = config
        self._rates = rates
        self.iterations = iterations  # length of the run, at whose end the rate has fallen
        self.values = torch.eye(4, 3).repeat(views, 1, 1)
        self._first = torch.zeros_like(self.values)
        self._second = torch.zeros_like(self.values)
        self._steps = torch.zeros(views, dtype=torch.int64)  # each photograph has its own clock

    def apply(self, index: int, image: Float32) -> Float32:
        """Returns the picture [H, W, 3] as photograph `index` would show it."""
        matrix = self.values[index].cpu().numpy()
        return image @ matrix[:3] + matrix[3]

    def through(self, index: int, gradient: Float32) -> Float32:
        """Returns dL/d(picture) for dL/d(result of `apply`), both [H, W, 3]."""
        return np.ascontiguousarray(gradient @ self.values[index, :3].numpy().T)

    def step(self, index: int, image: Float32, gradient: Float32, iteration: int) -> None:
        """Takes one Adam step on the transform of photograph `index`, from the picture given to `apply` and
        dL/d(result of `apply`)."""
        flat, above = image.reshape(-1, 3), gradient.reshape(-1, 3)
        by_matrix = torch.from_numpy(np.concatenate((flat.T @ above, above.sum(axis=0, keepdims=True))))
        r, first, second = self._rates, self._first[index], self._second[index]
        self._steps[index] += 1
        steps = int(self._steps[index])
        first.mul_(r.beta1).add_((1 - r.beta1) * by_matrix)
        second.mul_(r.beta2).add_((1 - r.beta2) * by_matrix * by_matrix)
        rate = self.rate(iteration)
        variance = second / (1 - r.beta2**steps)
        self.values[index] -= rate * (first / (1 - r.beta1**steps)) / (variance.sqrt() + r.epsilon)
        self.values -= self.values.mean(dim=0) - torch.eye(4, 3)

    def rate(self, iteration: int) -> float:
        """Returns the learning rate of this iteration: log-linear, and held back by the delay at first."""
        c = self._config
        risen = math.sin(math.pi / 2 * min(1.0, iteration / c.delay_steps)) if c.delay_steps else 1.0
        delay = c.delay_share + (1 - c.delay_share) * risen
        return delay * log_linear(c.rate_start, c.rate_end, iteration, self.iterations)

    def move_to(self, device: str) -> None:
        """Moves everything to a device, where steps on a GPU change it (kernels/cuda/step/exposure.py)."""
        self.values, self._first, self._second = (t.to(device) for t in (self.values, self._first, self._second))
        self._steps = self._steps.to(device)

    def state(self) -> dict[str, Tensor]:
        """Returns the live tensors that a checkpoint keeps."""
        return {"values": self.values, "first": self._first, "second": self._second, "steps": self._steps}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continues from a checkpoint."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
