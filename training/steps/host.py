"""One training step on one photograph: picture, loss, gradients, Adam. The splats change in place, or not at all.

Gradients come from the backend; there is no autograd graph. What a step does not decide is in `trainer.py`: which
photograph, at which size, and what becomes of the splats between two steps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from splatscope.kernels.backend import Backend
from splatscope.kernels.noise import normal_numbers
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Gaussians, Gradients, RenderSettings
from splatscope.training.config import TrainConfig
from splatscope.training.data.dataset import Photograph
from splatscope.training.metrics import weighted
from splatscope.training.splats import rows
from splatscope.training.splats.optimizer import Optimizer
from splatscope.training.splats.rows import SplatState
from splatscope.training.steps.exposure import Exposures
from splatscope.training.steps.finite_check import check_gradients, check_loss
from splatscope.training.strategies.base import Strategy


@dataclass(frozen=True)
class Taken:
    """What a step measured."""

    loss: float  # without penalties
    stage_ms: dict[str, float]  # in order


class HostStep:
    """Steps whose loss and optimiser run on arrays of the host, whatever renders."""

    def __init__(self, backend: Backend, config: TrainConfig, extent: float, exposures: Exposures | None) -> None:
        self._backend = backend
        self._config, self._policy = config, config.policy
        self._optimizer = Optimizer(config.rates, extent)
        self._exposures = exposures

    def adopt(self, state: SplatState, strategy: Strategy | None) -> SplatState:
        """Takes note that other splats are trained from now on. Returns them as `take` wants them."""
        return state

    def settle(self, strategy: Strategy) -> None:
        """Until all steps are over and the strategy knows of them: they are."""

    def resume(self, strategy: Strategy) -> None:
        """Begins with what the strategy has from a checkpoint."""

    def expect(self, views: Sequence[Photograph]) -> None:
        """Steps will be on these photographs: they are at hand."""

    @property
    def sh_dtype(self) -> str:
        """As which harmonics are kept: here as they are."""
        return "f32"

    @property
    def pairs(self) -> int:
        """Not known here."""
        return 0

    def losses(self) -> list[tuple[int, float]]:
        """Of steps whose loss was not known when they were taken: here there are none."""
        return []

    def use(self, policy: Policy) -> tuple[str, ...]:
        """Later steps run with these toggles, as far as they leave the outcome alone: the host has none of those.
        Returns stages that wait for a compiler."""
        return ()

    def gaussians(self, state: SplatState) -> Gaussians:
        """The splats for pictures: views on the live tensors."""
        return rows.as_gaussians(state.raw)

    def take(
        self,
        state: SplatState,
        view: Photograph,
        index: int,
        settings: RenderSettings,
        iteration: int,
        moments_since: int,
        strategy: Strategy,
    ) -> Taken:
        """The step `iteration`, counted from 1, on training view number `index`; `strategy` sees its gradients.

        Raises NotFiniteError, and then nothing has changed, if the loss or a gradient is not finite.
        """
        start, gathers = time.perf_counter(), strategy.gathers(iteration)
        target, weights = view.target(settings.background), view.weights()
        frame, saved = self._backend.forward(rows.as_gaussians(state.raw), view.camera, settings, self._policy)
        loss_start = time.perf_counter()
        exposures = self._exposures
        picture = frame.image if exposures is None else exposures.apply(index, frame.image)
        compared = weighted(picture, weights), weighted(target, weights)
        loss, image_gradient = self._backend.loss(*compared, self._config.dssim_weight)
        check_loss(loss, view.name, iteration)
        image_gradient = weighted(image_gradient, weights)
        below = image_gradient if exposures is None else exposures.through(index, image_gradient)
        loss_ms = 1e3 * (time.perf_counter() - loss_start)
        gradients = self._backend.backward(saved, below, absolute=strategy.absolute and gathers)
        adam_start = time.perf_counter()
        self._add_penalties(state, gradients)
        check_gradients(gradients, view.name, iteration)
        self._optimizer.step(self._backend, state, gradients, iteration, moments_since)
        if exposures is not None:
            exposures.step(index, frame.image, image_gradient, iteration)
        if gathers:
            strategy.observe(gradients, view.camera)
        self._shake(state, strategy, iteration)
        end = time.perf_counter()
        stages = {**frame.stage_ms, "loss": loss_ms, **gradients.stage_ms, "adam": 1e3 * (end - adam_start)}
        stages["other"] = max(0.0, 1e3 * (end - start) - sum(stages.values()))
        return Taken(loss, stages)

    def _shake(self, state: SplatState, strategy: Strategy, iteration: int) -> None:
        """The strategy's random step of all means."""
        noise = strategy.noise(iteration, self._config.seed)
        if noise is not None:
            numbers = torch.from_numpy(normal_numbers(noise.seed, noise.iteration, state.count))
            state.raw.means.copy_(rows.shaken_means(state.raw, numbers, noise.amount, noise.centre, noise.steepness))

    def _add_penalties(self, state: SplatState, gradients: Gradients) -> None:
        c = self._config
        if c.opacity_penalty or c.scale_penalty:
            by_logit, by_scale = rows.penalty_gradients(state.raw, c.opacity_penalty, c.scale_penalty)
            torch.as_tensor(gradients.logit_opacities).add_(by_logit)
            torch.as_tensor(gradients.log_scales).add_(by_scale)
