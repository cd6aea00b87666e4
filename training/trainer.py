"""The training loop, readable top to bottom: `Trainer.run` is the only one there is.

It is a generator of events. The command line prints them; the window's engine thread pulls one, draws a
picture, pulls the next. Between two events the state is whole, so pausing is not pulling and stopping is
closing the generator. Gradients come from the backend; there is no autograd graph. Read `strategy.py` and
`optimizer.py` for what a step does to the splats.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from splatscope.assets.capture import Capture
from splatscope.kernels.api import Backend
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Gaussians, RenderSettings
from splatscope.training import metrics, ops, output
from splatscope.training.config import TrainConfig
from splatscope.training.dataset import Dataset, Photograph
from splatscope.training.events import (
    Densified,
    Evaluated,
    Evaluating,
    Event,
    Finished,
    Loading,
    Prepared,
    Saved,
    Stepped,
)
from splatscope.training.forecast import forecast
from splatscope.training.initial import initial_points, splats_from_points
from splatscope.training.optimizer import Optimizer
from splatscope.training.strategy import AdaptiveDensity


class Trainer:
    """One run: its splats, and the generator that improves them."""

    def __init__(self, capture: Capture, config: TrainConfig, backend: Backend, out_dir: Path) -> None:
        """Places the first splats; reads no photograph and writes nothing yet."""
        config.check()
        self.capture = capture
        self.config = config
        self.backend = backend
        self.out_dir = out_dir
        self.dataset = Dataset(capture, config.data)
        self.iteration = 0
        self._rng = np.random.default_rng(config.seed)
        cameras = [view.camera for view in self.dataset.training_views]
        extent = self.dataset.extent
        on_cpu = backend.name != "cuda"
        self._points = initial_points(capture, cameras, extent, config.initial, on_cpu, self._rng)
        self._state = ops.from_gaussians(splats_from_points(self._points, extent, config.initial))
        self._optimizer = Optimizer(config.rates, extent)
        white = self.dataset.background == (1.0, 1.0, 1.0)
        self._strategy = AdaptiveDensity(config.densify, self._state.count, extent, white)
        self._epoch: list[int] = []  # training views still to come in this epoch, last first
        self._scores: list[dict[str, Any]] = []
        self._training_seconds = 0.0

    @property
    def gaussians(self) -> Gaussians:
        """The splats as they are: views on the live tensors, valid until the next event."""
        return ops.as_gaussians(self._state.raw)

    @property
    def sh_degree(self) -> int:
        """The degree trained by now; the splats have just its rows."""
        return self.gaussians.sh_degree

    @property
    def settings(self) -> RenderSettings:
        """What the run renders with."""
        return RenderSettings(self.dataset.background, self.sh_degree)

    def run(self) -> Iterator[Event]:
        """Prepares, then steps, scores and saves until the last iteration."""
        yield from self._prepare()
        while self.iteration < self.config.iterations:
            yield from self._step()
            if self._due(self.config.test_iterations, self.config.test_interval):
                yield from self._evaluate()
            if self._due(self.config.save_iterations):
                yield Saved(self.iteration, self.save())
        yield Finished(self.iteration)

    def save(self) -> Path:
        """Writes the splats of this iteration, with rows up to the run's full degree, and the scores so far."""
        full = ops.as_gaussians(self._state.raw.with_sh_degree(self.config.sh_degree))
        path = output.write_splats(self.out_dir, self.iteration, full)
        self._write_metrics()
        return path

    def _prepare(self) -> Iterator[Event]:
        output.write_start(self.out_dir, self.capture, self.config, self._points)
        for done, total in self.dataset.load():
            yield Loading(done, total)
        self.backend.warm_up(training=True)
        first = self.dataset.training[0].camera
        yield Prepared(
            training_views=len(self.dataset.training_views),
            held_out_views=len(self.dataset.held_out_views),
            width=first.width,
            height=first.height,
            count=self._state.count,
            extent=self.dataset.extent,
            background=self.dataset.background,
            label=self.dataset.label,
            warnings=self.capture.warnings,
        )
        if self.backend.name != "cuda":
            yield forecast(self.backend, self.gaussians, self.dataset, self.settings, self.config)

    def _step(self) -> Iterator[Event]:
        """One iteration. What density control owes to the step before comes first, so that scores and saved
        files never catch splats whose opacities have just been lowered."""
        start = time.perf_counter()
        densified = self._control_density()
        densify_ms = 1e3 * (time.perf_counter() - start)
        if densified:
            yield densified
        yield self._descend(self._next_view(), densify_ms)

    def _control_density(self) -> Densified | None:
        degree = min((self.iteration + 1) // self.config.sh_interval, self.config.sh_degree)
        with ops.one_thread():
            state, densified = self._strategy.after_step(self._state, self.iteration, self._rng)
            state = ops.raise_sh_degree(state, degree)
        if state.count == 0:
            raise InputError(
                f"Training stopped at iteration {self.iteration}: every splat has become transparent and would be "
                f"removed. Check that the photographs show something and that their cameras belong to them."
            )
        self._state = state
        return densified

    def _descend(self, view: Photograph, densify_ms: float) -> Stepped:
        """Forward, loss, backward, Adam on one view; the splats stay as they are if the loss is not finite."""
        iteration, start = self.iteration + 1, time.perf_counter()
        target = view.target()
        frame, saved = self.backend.forward(self.gaussians, view.camera, self.settings)
        loss_start = time.perf_counter()
        loss, image_gradient = self.backend.loss(frame.image, target, self.config.dssim_weight)
        if not math.isfinite(loss):
            raise InputError(
                f"Training stopped at iteration {iteration}: the loss on {view.name} is not a finite number. "
                f"The splats of iteration {self.iteration} are intact; check that photograph and its camera, "
                f"or lower the learning rates."
            )
        loss_ms = 1e3 * (time.perf_counter() - loss_start)
        gradients = self.backend.backward(saved, image_gradient)
        adam_start = time.perf_counter()
        self._optimizer.step(self.backend, self._state, gradients, iteration)
        self._strategy.observe(gradients, view.camera)
        end = time.perf_counter()
        self.iteration = iteration

        stages = {"densify": densify_ms, **frame.stage_ms, "loss": loss_ms, **gradients.stage_ms}
        stages["adam"] = 1e3 * (end - adam_start)
        step_ms = densify_ms + 1e3 * (end - start)
        stages["other"] = max(0.0, step_ms - sum(stages.values()))
        self._training_seconds += 1e-3 * step_ms
        return Stepped(iteration, loss, self._state.count, stages)

    def _next_view(self) -> Photograph:
        """Views in random order, each once an epoch."""
        if not self._epoch:
            self._epoch = self._rng.permutation(len(self.dataset.training)).tolist()
        return self.dataset.training[self._epoch.pop()]

    def _evaluate(self) -> Iterator[Event]:
        views = self.dataset.tested
        scores = []
        for view in views:
            frame = self.backend.render(self.gaussians, view.camera, self.settings)
            scores.append(metrics.score(frame.image, view.target(), self.backend))
            yield Evaluating(len(scores), len(views))
        psnr, ssim = (float(v) for v in np.mean(scores, axis=0))
        self._scores.append(
            {
                "iteration": self.iteration,
                "psnr": psnr,
                "ssim": ssim,
                "splats": self._state.count,
                "training_seconds": round(self._training_seconds, 3),
            }
        )
        self._write_metrics()
        yield Evaluated(self.iteration, psnr, ssim, self.dataset.label, len(views))

    def _due(self, iterations: tuple[int, ...], interval: int = 0) -> bool:
        regular = interval > 0 and self.iteration % interval == 0
        return regular or self.iteration in iterations or self.iteration == self.config.iterations

    def _write_metrics(self) -> None:
        values = {
            "label": self.dataset.label,
            "protocol": metrics.PROTOCOL,
            "views": [view.name for view in self.dataset.tested],
            "iteration": self.iteration,
            "splats": self._state.count,
            "training_seconds": round(self._training_seconds, 3),
            "scores": self._scores,
        }
        output.write_metrics(self.out_dir, values)
