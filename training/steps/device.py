"""Queues training steps on a GPU: splats, loss, gradients and optimiser stay there, and the host runs ahead.

- `take` queues a step. Its loss is known some steps later, and so is an error in it: no later step changes anything,
  and the trainer goes back to the iteration that the error names.
- The trainer's state is made of views on the live tensors, whose rows strategies change in place. Harmonics kept in
  16-bit words become float32 for a caller that asks for them.

Read `kernels/cuda/training_step.py` for the step itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor

from splatscope.kernels.cuda.backend import CudaBackend
from splatscope.kernels.cuda.step.exposure import ExposureMaps
from splatscope.kernels.cuda.step.photographs import PHOTOGRAPH_SHARE, Target
from splatscope.kernels.cuda.step.splats import DeviceGaussians, SplatBuffers
from splatscope.kernels.cuda.training_step import AdamRates, StepOutcome, StepRequest
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Gaussians
from splatscope.training.config import RateConfig, TrainConfig
from splatscope.training.data.dataset import Photograph
from splatscope.training.errors import NotFiniteError
from splatscope.training.splats import rows as ops
from splatscope.training.splats.optimizer import late_factor, mean_rate
from splatscope.training.splats.rows import SplatState, SplatTensors
from splatscope.training.steps.exposure import Exposures
from splatscope.training.steps.protocol import StepInput, Stepper, Taken
from splatscope.training.strategies.base import Strategy

TIMED_EVERY = 64  # the stages of one step in 64 are timed; events in every step would cost some percent
ROOM = 3  # times the number of first splats: the rows allocated at the start
KINDS = ("raw", "first", "second")


class LiveTensors(SplatTensors):
    """Holds raw parameters as views on the live tensors.

    Harmonics are looked up at each access: their place can change from step to step, and harmonics kept in words cost
    a copy.
    """

    splats: SplatBuffers

    def __init__(self, splats: SplatBuffers, **views: Tensor) -> None:
        for name, view in views.items():
            object.__setattr__(self, name, view)
        object.__setattr__(self, "splats", splats)

    @property
    def sh(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.splats.view("raw")["sh"]

    def changed(self, **changes: Tensor) -> SplatTensors:
        """Returns the tensors with some replaced. Harmonics stay live unless they are among the changes."""
        views = _tensors(self, without="sh") | changes
        return SplatTensors(**views) if "sh" in changes else LiveTensors(self.splats, **views)


class DeviceStep(Stepper):
    """Queues the steps of one run on a GPU."""

    def __init__(
        self,
        backend: CudaBackend,
        config: TrainConfig,
        extent: float,
        state: SplatState,
        exposures: Exposures | None = None,
    ) -> None:
        self._config, self._extent, self._exposures = config, extent, exposures
        first, rows = ops.as_gaussians(state.raw, config.primitive), ROOM * state.count
        self.training = backend.training_step(first, config.policy, rows, TIMED_EVERY, PHOTOGRAPH_SHARE)
        self._splats = self.training.splats
        if exposures is not None:
            exposures.move_to(self.training.memory.device)
            self.training.exposures = ExposureMaps(**exposures.state())
        self._targets: dict[int, tuple[Photograph, Target]] = {}
        self._queued: deque[tuple[int, str]] = deque()  # iterations and views of steps whose outcome is not known
        self._steps: int | None = None  # Adam steps, queued ones included; None: to be set on the GPU
        self._skipped: dict[str, int] = {}
        self._loss = 0.0
        self._losses: list[tuple[int, float]] = []  # iteration and loss of finished steps, since the last `losses`
        self._newest = (0, "")  # iteration and view of the newest step known
        self._used: Policy | None = None  # toggles of the newest `use`
        self._lent: Tensor | None = None  # the tensor of pulls that a strategy was given
        self.adopt(state, None)

    def adopt(self, state: SplatState, strategy: Strategy | None) -> SplatState:
        """Trains other splats from now on, and resets the statistics if the strategy has reset its own. Returns the
        state as views on the live tensors."""
        groups = {kind: _tensors(getattr(state, kind)) for kind in KINDS[1:]}
        is_own = isinstance(state.raw, LiveTensors) and state.raw.splats is self._splats
        self.training.assign(groups | {"raw": _tensors(state.raw, without="sh" if is_own else "")})
        pulls = None if strategy is None else strategy.pulls
        if pulls is not None and self._lent is not None and pulls.pull is not self._lent:
            self._splats.forget()
        self._lent = None
        return self.state()

    def state(self) -> SplatState:
        """Returns views on the live tensors."""
        moments = (SplatTensors(**self._splats.view(kind)) for kind in KINDS[1:])
        return SplatState(LiveTensors(self._splats, **self._splats.geometry()), *moments, live=self)

    # The methods of ops.InPlace. Callers have settled: no step is in flight, and harmonics are flushed.

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
        self._note(self.training.outcomes(wait=True))
        self.training.flush()
        if strategy.pulls is not None:
            self._lent = lent = self._splats.pull
            strategy.restore({**strategy.statistics(), "pull": lent, "seen": self._splats.seen})

    def resume(self, strategy: Strategy) -> None:
        """Begins with the statistics that the strategy has from a checkpoint."""
        pulls = strategy.pulls
        if pulls is not None and len(pulls.pull) == self._splats.count:
            self._splats.pull.copy_(pulls.pull)
            self._splats.seen.copy_(pulls.seen)

    @property
    def sh_dtype(self) -> str:
        """Returns the type in which harmonics are kept (kernels/cuda/step/harmonics.py)."""
        return self._splats.sh_dtype

    @property
    def pairs(self) -> int:
        """Returns the number of (splat, tile) pairs that fit: those of the heaviest view so far, and a few more."""
        return self.training.capacity.instances

    def use(self, policy: Policy) -> tuple[str, ...]:
        """Has later steps run with these toggles once they are compiled. Toggles that would change the outcome stay as
        they are, except how harmonics are kept. Returns the stages that wait for the compiler. Raises InputError once
        if earlier toggles could not be used; the run continues without them."""
        if policy is not self._used:
            self._used = policy
            self.training.want(policy)
        refusal, self.training.refusal = self.training.refusal, ""
        if refusal:
            raise InputError(refusal)
        return self.training.waiting

    def gaussians(self, state: SplatState) -> Gaussians:
        """Returns the live splats for pictures; their arrays are copied to the host when asked for."""
        return DeviceGaussians(self._splats.scene, self._splats.sh_rows, self.training.flush)

    def take(self, state: SplatState, step: StepInput, strategy: Strategy) -> Taken:
        """Queues the step. Loss and times returned are those of the newest step known.

        Raises NotFiniteError about an earlier step; the splats are then those before that step.
        """
        start, iteration = time.perf_counter(), step.iteration
        done = iteration - 1 - step.moments_since
        if self._steps != done:
            self.settle(strategy)
            self.training.set_steps(done, self._config.rates.beta1, self._config.rates.beta2)
            self._skipped = {}
        c, gathers = self._config, strategy.gathers(iteration)
        request = StepRequest(
            step.view.camera,
            step.settings,
            self._target(step.index, step.view),
            adam_rates(self._config.rates, self._extent, iteration),
            c.dssim_weight,
            c.opacity_penalty,
            c.scale_penalty,
            collects=gathers,
            absolute=gathers and strategy.absolute,
            photograph=step.index,
            exposure_rate=0.0 if self._exposures is None else self._exposures.rate(iteration),
            noise=strategy.noise(iteration, c.seed),
        )
        self.training.run(request)
        self._steps = done + 1
        self._queued.append((iteration, step.view.name))
        self._note(self.training.outcomes(wait=self._loss == 0.0))
        # The host waits in here for the GPU whenever it is far enough ahead, so this is the time of a step.
        step_ms, stages = 1e3 * (time.perf_counter() - start), self.training.stage_ms
        return Taken(self._loss, {**stages, "other": max(0.0, step_ms - sum(stages.values()))})

    def losses(self) -> list[tuple[int, float]]:
        """Returns iteration and loss of each step found to be over since the last call."""
        losses, self._losses = self._losses, []
        return losses

    def expect(self, views: Sequence[Photograph]) -> None:
        """Has threads bring photographs to where steps will read them, before the steps come to them."""
        for index, view in enumerate(views):
            self._target(index, view)

    def _target(self, index: int, view: Photograph) -> Target:
        """Returns the photograph where steps read it, or on its way there. Another size of it is removed first."""
        known = self._targets.get(index)
        if known is None or known[0] is not view:
            if known is not None:
                self.training.targets.remove(known[1])
            self._targets[index] = (view, self.training.targets.add(view.pixels, view.coverage, view.weight))
        return self._targets[index][1]

    def _note(self, outcomes: list[StepOutcome]) -> None:
        """Notes the losses of finished steps. Raises NotFiniteError about the first number that was not finite."""
        for outcome in outcomes:
            iteration, view = self._queued.popleft()
            if not outcome.is_finite:
                self._queued.clear()
                self._steps = None
                self.training.resume()
                raise NotFiniteError("loss", view, iteration)
            self._loss = outcome.loss
            self._losses.append((iteration, outcome.loss))
            worse = [name for name, count in outcome.skipped.items() if count > self._skipped.get(name, 0)]
            if worse:
                self._skipped = outcome.skipped
                raise self._left_out(worse[0])
            self._newest = iteration, view

    def _left_out(self, name: str) -> NotFiniteError:
        """Makes the error about a gradient of the step before the newest noted: the numbers of that gradient were left
        out of the step, all other numbers have moved."""
        iteration, view = self._newest
        error = NotFiniteError(f"gradient of {name}", view, iteration, ", and its numbers stay as they were")
        self.training.outcomes(wait=True)
        error.reached = self._queued[-1][0] if self._queued else iteration + 1
        self._queued.clear()
        self._steps = None
        return error


def adam_rates(rates: RateConfig, extent: float, iteration: int) -> AdamRates:
    """Returns the learning rates of one step, in a scene of this extent (world units)."""
    late = late_factor(rates, iteration)
    return AdamRates(
        mean_rate(rates, iteration) * extent,
        late * rates.log_scales,
        late * rates.quats,
        late * rates.opacity,
        late * rates.sh_constant,
        late * rates.sh_constant * rates.sh_rest_share,
        rates.beta1,
        rates.beta2,
        rates.epsilon,
    )


def _tensors(group: SplatTensors, without: str = "") -> dict[str, torch.Tensor]:
    return {f.name: getattr(group, f.name) for f in fields(group) if f.name != without}
