"""Takes one training step on one photograph: picture, loss, gradients, Adam. The splats change in place, or not at all.

Gradients come from the backend; there is no autograd graph. `trainer.py` decides which photograph is next and at which
size, `growth.py` what becomes of the splats between two steps.
"""

from __future__ import annotations

import time

import torch

from splatscope.kernels.backend import Backend
from splatscope.kernels.backends import host_math
from splatscope.kernels.noise import normal_numbers
from splatscope.kernels.types import Gaussians, Gradients
from splatscope.training.config import TrainConfig
from splatscope.training.metrics import weighted
from splatscope.training.splats import rows
from splatscope.training.splats.optimizer import Optimizer
from splatscope.training.splats.rows import SplatState
from splatscope.training.steps.exposure import Exposures
from splatscope.training.steps.finite_check import check_gradients, check_loss
from splatscope.training.steps.protocol import StepInput, Stepper, Taken
from splatscope.training.strategies.base import Strategy


class HostStep(Stepper):
    """Takes steps whose loss and optimiser run on arrays of the host, whatever renders."""

    def __init__(self, backend: Backend, config: TrainConfig, extent: float, exposures: Exposures | None) -> None:
        self._backend = backend
        self._math = host_math(backend)
        self._config, self._policy = config, config.policy
        self._optimizer = Optimizer(config.rates, extent)
        self._exposures = exposures

    def gaussians(self, state: SplatState) -> Gaussians:
        """Returns the splats for pictures: views on the live tensors."""
        return rows.as_gaussians(state.raw, self._config.primitive)

    def take(self, state: SplatState, step: StepInput, strategy: Strategy) -> Taken:
        """Takes the step at once. Raises NotFiniteError, and then nothing has changed, if the loss or a gradient is not
        finite."""
        view, iteration = step.view, step.iteration
        start, gathers = time.perf_counter(), strategy.gathers(iteration)
        target, weights = view.target(step.settings.background), view.weights()
        frame, saved = self._backend.forward(self.gaussians(state), view.camera, step.settings, self._policy)
        loss_start = time.perf_counter()
        exposures = self._exposures
        picture = frame.image if exposures is None else exposures.apply(step.index, frame.image)
        compared = weighted(picture, weights), weighted(target, weights)
        loss, image_gradient = self._math.loss(*compared, self._config.dssim_weight)
        check_loss(loss, view.name, iteration)
        image_gradient = weighted(image_gradient, weights)
        below = image_gradient if exposures is None else exposures.through(step.index, image_gradient)
        loss_ms = 1e3 * (time.perf_counter() - loss_start)
        gradients = self._backend.backward(saved, below, absolute=strategy.absolute and gathers)
        adam_start = time.perf_counter()
        self._add_penalties(state, gradients)
        check_gradients(gradients, view.name, iteration)
        self._optimizer.step(self._math, state, gradients, iteration, step.moments_since)
        if exposures is not None:
            exposures.step(step.index, frame.image, image_gradient, iteration)
        if gathers:
            strategy.observe(gradients, view.camera)
        self._shake(state, strategy, iteration)
        end = time.perf_counter()
        stages = {**frame.stage_ms, "loss": loss_ms, **gradients.stage_ms, "adam": 1e3 * (end - adam_start)}
        stages["other"] = max(0.0, 1e3 * (end - start) - sum(stages.values()))
        return Taken(loss, stages)

    def _shake(self, state: SplatState, strategy: Strategy, iteration: int) -> None:
        """Takes the strategy's random step of all means."""
        noise = strategy.noise(iteration, self._config.seed)
        if noise is not None:
            numbers = torch.from_numpy(normal_numbers(noise.seed, noise.iteration, state.count))
            state.raw.means.copy_(rows.shaken_means(state.raw, numbers, noise.amount, noise.centre, noise.steepness))

    def _add_penalties(self, state: SplatState, gradients: Gradients) -> None:
        """Adds the gradients of the penalties on opacity and scale."""
        c = self._config
        if c.opacity_penalty or c.scale_penalty:
            by_logit, by_scale = rows.penalty_gradients(state.raw, c.opacity_penalty, c.scale_penalty)
            torch.as_tensor(gradients.logit_opacities).add_(by_logit)
            torch.as_tensor(gradients.log_scales).add_(by_scale)
