"""Training steps on a GPU: splats, loss, gradients and optimiser stay there, and the host runs ahead.

`DeviceStep` has the methods of `step.HostStep`. A step is queued when it is taken; its loss is known some steps later,
and so is whatever went wrong with it: nothing moves after that, and the trainer goes back to the iteration named. The
trainer's state is made of views on the live tensors, whose rows strategies change in place; harmonics that lie there in
16-bit words become float32 for whoever asks for them. Read `kernels/cuda/training_step.py` for the step itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from splatscope.kernels.cuda.backend import CudaBackend
from splatscope.kernels.cuda.step.exposure import ExposureMaps
from splatscope.kernels.cuda.step.photographs import PHOTOGRAPH_SHARE, Target
from splatscope.kernels.cuda.step.splats import DeviceGaussians, SplatBuffers
from splatscope.kernels.cuda.training_step import AdamRates, StepOutcome, StepRequest, TrainingStep
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Gaussians, RenderSettings
from splatscope.training.config import TrainConfig
from splatscope.training.data.dataset import Photograph
from splatscope.training.errors import NotFiniteError
from splatscope.training.splats import rows as ops
from splatscope.training.splats.optimizer import late_factor, mean_rate
from splatscope.training.splats.rows import SplatState, SplatTensors
from splatscope.training.steps.exposure import Exposures
from splatscope.training.steps.host import Taken
from splatscope.training.strategies.base import PullStatistics, Strategy

TIMED_EVERY = 64  # steps; events around the stages of all would cost some percent
ROOM = 3  # times the first splats that there is room for at once
KINDS = ("raw", "first", "second")


class LiveTensors(SplatTensors):
    """Raw parameters as views on the live tensors. Harmonics are looked up when they are asked for: where they lie can
    change from step to step, and those in words cost a copy."""

    splats: SplatBuffers

    def __init__(self, splats: SplatBuffers, **views: Tensor) -> None:
        for name, view in views.items():
            object.__setattr__(self, name, view)
        object.__setattr__(self, "splats", splats)

    @property
    def sh(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.splats.view("raw")["sh"]

    def changed(self, **changes: Tensor) -> SplatTensors:
        """Harmonics are live still unless they are among the changes."""
        views = _tensors(self, without="sh") | changes
        return SplatTensors(**views) if "sh" in changes else LiveTensors(self.splats, **views)


class DeviceStep:
    """Steps of one run. `training` is replaced in tests."""

    def __init__(
        self,
        backend: Any,
        config: TrainConfig,
        extent: float,
        state: SplatState,
        exposures: Exposures | None = None,
        training: Any = None,
    ) -> None:
        self._config, self._extent, self._exposures = config, extent, exposures
        self._training: TrainingStep = training or _training_step(backend, state, config.policy)
        self._splats = self._training.splats
        if exposures is not None:
            exposures.move_to(self._training.memory.device)
            self._training.exposures = ExposureMaps(**exposures.state())
        self._targets: dict[int, tuple[Photograph, Target]] = {}
        self._queued: deque[tuple[int, str]] = deque()  # iterations and views of steps whose outcome is not known
        self._steps: int | None = None  # of Adam, those queued included; None: to be set
        self._skipped: dict[str, int] = {}
        self._loss = 0.0
        self._losses: list[tuple[int, float]] = []  # of steps that are over, since they were last asked for
        self._newest = (0, "")  # iteration and view of the newest step known
        self._used: Policy | None = None  # that was asked for
        self._lent: Any = None  # the statistics a strategy was given
        self.adopt(state, None)

    def adopt(self, state: SplatState, strategy: Strategy | None) -> SplatState:
        """Makes other splats the ones that are trained, and begins statistics anew if the strategy has. Returns the
        state as views on the live tensors."""
        groups = {kind: _tensors(getattr(state, kind)) for kind in KINDS[1:]}
        is_own = isinstance(state.raw, LiveTensors) and state.raw.splats is self._splats
        self._training.assign(groups | {"raw": _tensors(state.raw, without="sh" if is_own else "")})
        if isinstance(strategy, PullStatistics) and self._lent is not None and strategy.pull is not self._lent:
            self._splats.forget()
        self._lent = None
        return self.state()

    def state(self) -> SplatState:
        """Views on the live tensors."""
        moments = (SplatTensors(**self._splats.view(kind)) for kind in KINDS[1:])
        return SplatState(LiveTensors(self._splats, **self._splats.geometry()), *moments, live=self)

    # Of ops.InPlace; steps in flight are over, and harmonics flushed.

    def replace_rows(self, kept: Tensor, born: SplatTensors) -> SplatState:
        self._splats.replace_rows(kept, _tensors(born))
        return self.state()

    def written_rows(self, rows: Tensor, raw: SplatTensors, with_momentum: bool) -> SplatState:
        self._splats.write_rows(rows, _tensors(raw), with_momentum)
        return self.state()

    def with_room(self, count: int) -> SplatState:
        self._splats.make_room(count)
        return self.state()

    def raise_sh_degree(self, degree: int) -> SplatState:
        self._splats.raise_sh_rows((degree + 1) ** 2)
        return self.state()

    def reordered(self, order: Tensor) -> SplatState:
        self._splats.reorder(order)
        return self.state()

    def settle(self, strategy: Strategy) -> None:
        """Waits for the steps in flight and hands their statistics to the strategy. Raises NotFiniteError."""
        self._note(self._training.outcomes(wait=True))
        self._training.flush()
        if isinstance(strategy, PullStatistics):
            self._lent = self._splats.pull
            strategy.restore({**strategy.statistics(), "pull": self._lent, "seen": self._splats.seen})

    def resume(self, strategy: Strategy) -> None:
        """Begins with statistics that the strategy has from a checkpoint."""
        if isinstance(strategy, PullStatistics) and len(strategy.pull) == self._splats.count:
            self._splats.pull.copy_(strategy.pull)
            self._splats.seen.copy_(strategy.seen)

    @property
    def sh_dtype(self) -> str:
        """As which the harmonics are kept (kernels/cuda/step/harmonics.py)."""
        return self._splats.sh_dtype

    @property
    def pairs(self) -> int:
        """(splat, tile) pairs there is room for: those of the heaviest view so far, and a few more."""
        return self._training.capacity.instances

    def use(self, policy: Policy) -> tuple[str, ...]:
        """Later steps run with these toggles, once they are compiled; those that would change the outcome stay, but
        for how harmonics are kept. Returns the stages that wait for the compiler. Raises InputError once if toggles of
        before could not be used: they are not."""
        if policy is not self._used:
            self._used = policy
            self._training.want(policy)
        refusal, self._training.refusal = self._training.refusal, ""
        if refusal:
            raise InputError(refusal)
        return self._training.waiting

    def gaussians(self, state: SplatState) -> Gaussians:
        """The live splats for pictures; their arrays are copied to the host when asked for."""
        return DeviceGaussians(self._splats.scene, self._splats.sh_rows, self._training.flush)

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
        """Queues the step `iteration` on training view number `index`. What it returns is of the newest step known.

        Raises NotFiniteError about an earlier step; the splats are then those before that one.
        """
        start = time.perf_counter()
        done = iteration - 1 - moments_since
        if self._steps != done:
            self.settle(strategy)
            self._training.set_steps(done, self._config.rates.beta1, self._config.rates.beta2)
            self._skipped = {}
        c, gathers = self._config, strategy.gathers(iteration)
        request = StepRequest(
            view.camera,
            settings,
            self._target(index, view),
            self._rates(iteration),
            c.dssim_weight,
            c.opacity_penalty,
            c.scale_penalty,
            collects=gathers,
            absolute=gathers and strategy.absolute,
            photograph=index,
            exposure_rate=0.0 if self._exposures is None else self._exposures.rate(iteration),
            noise=strategy.noise(iteration, c.seed),
        )
        self._training.run(request)
        self._steps = done + 1
        self._queued.append((iteration, view.name))
        self._note(self._training.outcomes(wait=self._loss == 0.0))
        # The host waits in here for the GPU whenever it is far enough ahead, so this is what a step takes.
        step_ms, stages = 1e3 * (time.perf_counter() - start), self._training.stage_ms
        return Taken(self._loss, {**stages, "other": max(0.0, step_ms - sum(stages.values()))})

    def losses(self) -> list[tuple[int, float]]:
        """Iteration and loss of each step that has turned out to be over since the last call."""
        losses, self._losses = self._losses, []
        return losses

    def _rates(self, iteration: int) -> AdamRates:
        r, late = self._config.rates, late_factor(self._config.rates, iteration)
        return AdamRates(
            mean_rate(r, iteration) * self._extent,
            late * r.log_scales,
            late * r.quats,
            late * r.opacity,
            late * r.sh_constant,
            late * r.sh_constant * r.sh_rest_share,
            r.beta1,
            r.beta2,
            r.epsilon,
        )

    def expect(self, views: Sequence[Photograph]) -> None:
        """Has photographs brought to where steps will read them, by threads, before the steps come to them."""
        for index, view in enumerate(views):
            self._target(index, view)

    def _target(self, index: int, view: Photograph) -> Target:
        """The photograph where steps read it, or on its way there; another size of it makes room first."""
        known = self._targets.get(index)
        if known is None or known[0] is not view:
            if known is not None:
                self._training.targets.remove(known[1])
            self._targets[index] = (view, self._training.targets.add(view.pixels, view.coverage, view.weight))
        return self._targets[index][1]

    def _note(self, outcomes: list[StepOutcome]) -> None:
        """Keeps the newest loss. Raises NotFiniteError about the first number that was not finite."""
        for outcome in outcomes:
            iteration, view = self._queued.popleft()
            if not outcome.is_finite:
                self._queued.clear()
                self._steps = None
                self._training.resume()
                raise NotFiniteError("loss", view, iteration)
            self._loss = outcome.loss
            self._losses.append((iteration, outcome.loss))
            worse = [name for name, count in outcome.skipped.items() if count > self._skipped.get(name, 0)]
            if worse:
                self._skipped = outcome.skipped
                raise self._left_out(worse[0])
            self._newest = iteration, view

    def _left_out(self, name: str) -> NotFiniteError:
        """About a gradient of the step before the one just noted: its numbers were left out, others have moved."""
        iteration, view = self._newest
        error = NotFiniteError(f"gradient of {name}", view, iteration, ", and its numbers stay as they were")
        self._training.outcomes(wait=True)
        error.reached = self._queued[-1][0] if self._queued else iteration + 1
        self._queued.clear()
        self._steps = None
        return error


def _training_step(backend: CudaBackend, state: SplatState, policy: Policy) -> TrainingStep:
    """Kernels are shared with the backend that draws."""
    free, _ = torch.cuda.mem_get_info()
    return TrainingStep(
        ops.as_gaussians(state.raw),
        policy,
        rows=ROOM * state.count,
        timed_every=TIMED_EVERY,
        target_budget=int(PHOTOGRAPH_SHARE * free),
        kernels=backend.renderer.kernels,
        nvtx=getattr(backend.renderer.launcher, "nvtx", False),
    )


def _tensors(group: SplatTensors, without: str = "") -> dict[str, torch.Tensor]:
    return {f.name: getattr(group, f.name) for f in fields(group) if f.name != without}
