"""`TrainingStep`: one step of training on a GPU, as one captured graph, the host never waiting.

forward -> loss -> blend_backward -> project_backward -> Adam and statistics. A step commits on the device or does
nothing (cuda/source/step.cuh): one that did not fit its buffers is queued again once they have grown, together with
those behind it, so that the outcome does not depend on when the host noticed; one whose loss is not finite leaves the
splats of the step before it, and nothing moves until `resume`. Losses are read some steps later. Everything runs on the
stream that is torch's current one when the step is made. Splats: `cuda/step/splats.py`; photographs:
`cuda/step/photographs.py`; what host and device tell each other: `cuda/step/records.py`; the stages before and after:
`cuda/plan/planner.py`.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from splatscope.kernels.cuda.blend_choice import MapChoice
from splatscope.kernels.cuda.launch.buffers import Capacity, TorchMemory
from splatscope.kernels.cuda.launch.launcher import Launcher, StageTimer
from splatscope.kernels.cuda.plan.operations import Launch, Operation, run_operations
from splatscope.kernels.cuda.plan.passes import Pass, Scene
from splatscope.kernels.cuda.plan.planner import Pipeline, Plan
from splatscope.kernels.cuda.queue_depth import MOST, QueueDepth
from splatscope.kernels.cuda.step.adam import LAZY_TABLE, catching_up, fused_backward, separate_adam, with_optimiser
from splatscope.kernels.cuda.step.loss import loss_grid, loss_kernels
from splatscope.kernels.cuda.step.options import ExposureMaps, exposing, record_noise, shaking
from splatscope.kernels.cuda.step.photographs import Target, TargetStore
from splatscope.kernels.cuda.step.records import StepRecords, step_dtype
from splatscope.kernels.cuda.step.splats import SHAPES, SplatBuffers
from splatscope.kernels.errors import NoRoomError
from splatscope.kernels.noise import Noise
from splatscope.kernels.policy import Policy, toggle_table
from splatscope.kernels.types import Camera, Gaussians, RenderSettings

UPLOADS = 8  # photographs on their way to the GPU at once
KEPT_PLANS = 64
DOES_NOT_FIT = 3  # bits of Frame::overflow
NEWEST_VIEW = 1 / 16  # weight of the newest view in what the next ones are expected to be like
_DEFAULT_POLICY = Policy()


# ---- What goes in and comes out --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AdamRates:
    """Learning rates of one step, and Adam's constants."""

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
    """One step on one photograph."""

    camera: Camera
    settings: RenderSettings  # background that the photograph is over; degree in use
    target: Target
    rates: AdamRates
    dssim_weight: float = 0.2
    opacity_penalty: float = 0.0  # times the mean opacity, added to the loss; its value is not reported
    scale_penalty: float = 0.0  # times the mean half axis, likewise
    collects: bool = True  # statistics of density control
    absolute: bool = False  # those add up the pulls of pixels each by itself (Ye et al. 2024)
    photograph: int = 0  # whose exposure this is, if exposures are learned
    exposure_rate: float = 0.0
    noise: Noise | None = None  # a random step of all means, after Adam's


@dataclass(frozen=True)
class StepOutcome:
    """What became of a request."""

    request: StepRequest
    loss: float
    l1: float
    ssim: float
    steps: int  # committed so far, with this one
    visible: int
    instances: int
    skipped: dict[str, int]  # parameter -> numbers whose gradient was not finite and that stayed, before this step

    @property
    def is_finite(self) -> bool:
        """False: the step did nothing, and neither will later ones before `TrainingStep.resume`."""
        return math.isfinite(self.loss)


def _pass(policy: Policy, request: StepRequest) -> Pass:
    rows, columns = request.camera.tiles
    is_separate, is_lazy = (policy.adam == name for name in ("separate", "lazy_sh"))
    return Pass(policy, True, False, rows * columns, is_separate, is_lazy, request.absolute)


@dataclass(frozen=True)
class _Wanted:
    """Kernels of a step, as a store takes a pass."""

    found: dict[str, tuple[str, str]]

    def kernels(self) -> dict[str, tuple[str, str]]:
        return self.found


# ---- The step --------------------------------------------------------------------------------------------------------


@dataclass
class _Prepared:
    """The steps for one image size under one policy; from the second run on a graph stands for them."""

    plan: Plan
    steps: list[Operation]
    runs: int = 0
    graphs: dict[bool, Any] = field(default_factory=dict)  # whether stages are timed -> launcher.Graph


@dataclass(frozen=True, eq=False)
class _Pending:
    """A queued step."""

    request: StepRequest
    sequence: int
    event: Any


class TrainingStep:
    """Splats that live on the GPU and are improved there. One thread at a time.

    `memory`, `kernels` and `launcher` are replaced in tests.
    """

    def __init__(
        self,
        gaussians: Gaussians,
        policy: Policy = _DEFAULT_POLICY,
        rows: int = 0,
        target_budget: int = 1 << 33,
        timed_every: int = 0,
        memory: TorchMemory | None = None,
        kernels: Any = None,
        launcher: Any = None,
        nvtx: bool = False,
    ) -> None:
        """`rows`: splats to have room for at first; `target_budget`: bytes of photographs kept on the GPU;
        `timed_every`: one in so many steps has its stages timed, 0: none; `nvtx`: profilers are told of stages."""
        if kernels is None:
            from splatscope.kernels.cuda.renderer import KernelStore

            kernels = KernelStore()
        policy.check("cuda")
        self.policy = policy
        self.refusal = ""  # why toggles that were wanted are not used: one sentence, for the caller to take away
        self._wanted: Policy | None = None  # what steps change to once it is compiled
        self.memory = memory or TorchMemory()
        self.launcher: Any = launcher or Launcher(nvtx=nvtx)
        self._timeline, self._timed_every = StageTimer(), timed_every
        self.pipeline = Pipeline(self.memory, kernels, self.forget)
        self.splats = SplatBuffers(self.memory, gaussians, rows, self.forget, policy.project.sh_dtype)
        self.targets = TargetStore(self.memory, target_budget, UPLOADS)
        self.exposures: ExposureMaps | None = None  # to be set before the first step
        self.capacity = Capacity(0, 0)
        self.map_choice = MapChoice(self.memory.multiprocessors, NEWEST_VIEW)
        self.stage_ms: dict[str, float] = {}  # newest known time of each stage
        self._kernels = kernels
        self._plans: OrderedDict[Any, _Prepared] = OrderedDict()
        self._pending: deque[_Pending] = deque()
        self._depth = QueueDepth()
        self._outcomes: list[StepOutcome] = []
        self._events: list[Any] = []
        self._sequence = 0
        self._records = StepRecords(self.memory, MOST + 2)
        self.pipeline.frame, self._inputs = self._records.frame, self._records.inputs
        self._stream = self.memory.stream()
        self._numbers: dict[Policy, int] = {}  # of policies, whose hash is slow
        self._numbered, self._number, self._roomy_rows = _DEFAULT_POLICY, -1, 0
        self._shared = {"frame": self.pipeline.frame, "inputs": self._inputs}  # of all kernels
        self._state = self.memory.empty("step state", (step_dtype("StepState").itemsize,), "u1")
        self._reach = self.memory.empty("reach", (2, 2, LAZY_TABLE), "f4")
        self._own = {**self._shared, "state": self._state, "reach": self._reach}
        self._behind = False  # harmonics of some splats
        self.set_steps(0, 0.9, 0.999)

    def set_steps(self, steps: int, beta1: float, beta2: float) -> None:
        """So many steps have been made: what corrects Adam's bias. For a run that goes on from a checkpoint."""
        self.flush()
        self._reach.zero_()
        record = np.zeros(1, step_dtype("StepState"))
        record["steps"], record["beta1_power"], record["beta2_power"] = steps, beta1**steps, beta2**steps
        self.memory.write(self._state, record)

    def want(self, policy: Policy) -> None:
        """Steps change to these toggles as soon as their kernels are compiled, which happens beside them; before the
        first step at once, as that waits for the compiler anyway.

        What changes the picture is left as it is: splats are trained for one way of drawing them. Not so how their
        harmonics are kept: they are brought into the other arrays then. Nothing happens if the toggles do not go
        together.
        """
        for row in toggle_table("cuda"):
            if row.identity == "Q" and row.key != "project.sh_dtype":
                policy = policy.with_value(row.stage, row.name, self.policy.value(row.stage, row.name))
        self._wanted = policy if policy != self.policy and not policy.problems("cuda") else None
        if self._wanted is not None and self._sequence == 0:
            self._change_to(self._wanted)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Stages whose toggles steps change once the compiler is done; to be asked while steps are queued."""
        wanted = self._wanted
        if wanted is None:  # as before almost every step
            return ()
        return tuple(f.name for f in fields(Policy) if getattr(wanted, f.name) != getattr(self.policy, f.name))

    def run(self, request: StepRequest) -> None:
        """Queues one step. Waits only while as many are queued as `QueueDepth` allows. Raises InputError where there is
        no room."""
        if not self._pending:
            self._depth.restart()
        while len(self._pending) >= self._depth.steps:
            self._finish_oldest()
        self._submit(request)

    def outcomes(self, wait: bool = False) -> list[StepOutcome]:
        """Of the steps finished since the last call, in order; `wait` waits for all that are queued."""
        while self._pending and (wait or self._pending[0].event is None or self._pending[0].event.query()):
            self._finish_oldest()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def resume(self) -> None:
        """Lets steps commit again after one whose loss was not finite. Nothing may be queued."""
        self._write_halted(0)

    def flush(self) -> None:
        """Brings all harmonics up to date, for whoever else reads them."""
        if not self._behind:
            return
        self._behind = False
        launch = catching_up(self._kernels, self.splats, self._own)
        self.launcher.launch(launch.kernel, launch.grid, launch.block, launch.arguments)

    def assign(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Other splats, as `SplatBuffers.assign` takes them. Steps in flight should be over."""
        if not self.splats.holds(state, "sh"):
            self.flush()
        self.splats.assign(state)

    def forget(self) -> None:
        """Drops all plans and graphs. Waits for the GPU: they may be running."""
        if self._plans:
            self.memory.wait()
        self._plans.clear()

    # ---- Queueing ----------------------------------------------------------------------------------------------------

    def _submit(self, request: StepRequest) -> None:
        if self._wanted is not None and self._is_compiled(self._wanted, request):
            self._change_to(self._wanted)
        is_lazy = self.policy.adam == "lazy_sh"
        if not is_lazy:
            self.flush()
        prepared = self._prepared(request)
        if is_lazy and not self._behind:  # from here on splats may fall behind
            fields: Any = step_dtype("StepState").fields
            offset = fields["steps"][1]
            self.splats.stepped.copy_(self._state[offset : offset + 4].view(self.splats.stepped.dtype))
            self._behind = True
        scene = self.splats.scene
        epoch, sequence = self.pipeline.next_epoch(), self._sequence
        inputs = self._records.write(sequence, scene, request.camera, request.settings, self.capacity, epoch)
        with self.targets.placed(request.target) as address, self.launcher.range("training step"):
            self._fill(inputs, request, address)
            self._records.send(sequence)
            self._run(prepared)
        event = self._events.pop() if self._events else self.memory.event()
        if event is not None:
            event.record(self._stream)
        self._pending.append(_Pending(request, self._sequence, event))
        self._sequence += 1

    def _change_to(self, policy: Policy) -> None:
        """Later steps run with these toggles; harmonics stay as they are kept if there is no room to change that."""
        self._wanted, sh_dtype = None, self.splats.sh_dtype
        if policy.project.sh_dtype != sh_dtype:
            self.flush()
            try:
                self.splats.keep_harmonics_as(policy.project.sh_dtype)
            except NoRoomError as error:
                self.refusal = f"Training goes on with project.sh_dtype = {sh_dtype}. {error}"
                policy = policy.with_value("project", "sh_dtype", sh_dtype)
        if not policy.problems("cuda"):
            self.policy = policy

    def _fill(self, row: np.void, request: StepRequest, target: int) -> None:
        """A record of StepInputs, zeros so far."""
        rates = request.rates
        row["target"], row["dssim_weight"] = target, request.dssim_weight
        row["beta1"], row["beta2"], row["epsilon"] = rates.beta1, rates.beta2, rates.epsilon
        for name in ("means", "log_scales", "quats", "logit_opacities", "sh_constant", "sh_rest"):
            row[name] = getattr(rates, name)
        count = max(self.splats.count, 1)
        row["opacity_penalty"] = request.opacity_penalty / count
        row["scale_penalty"] = request.scale_penalty / (3 * count)
        row["collects"], row["sequence"] = request.collects, self._sequence
        row["photograph"], row["exposure_rate"] = request.photograph, request.exposure_rate
        record_noise(row, request.noise)

    def _run(self, prepared: _Prepared) -> None:
        def work() -> None:
            run_operations(prepared.steps, self.launcher)

        prepared.runs += 1
        is_timed = self._timed_every > 0 and self._sequence % self._timed_every == 0
        self.launcher.timeline = self._timeline if is_timed else None
        if self.launcher.nvtx or self.policy.launch.mode == "direct" or prepared.runs == 1:
            work()
            if is_timed:
                self._timeline.end_frame()
            for times in self._timeline.read_finished():
                self.stage_ms = times
            return
        if is_timed not in prepared.graphs:
            prepared.graphs[is_timed] = self.launcher.capture(work)
        if times := prepared.graphs[is_timed].replay():
            self.stage_ms = times

    def _finish_oldest(self) -> None:
        """Waits for the oldest step and notes its outcome; makes room and queues again if it did not fit."""
        oldest = self._pending[0]
        if oldest.event is not None:
            oldest.event.synchronize()
        result = self._records.result(oldest.sequence)
        if result["overflow"] & DOES_NOT_FIT:
            self._queue_again(result)
            return
        self._pending.popleft()
        self._depth.finished(time.perf_counter())
        if oldest.event is not None:
            self._events.append(oldest.event)
        self.map_choice.note(result)
        outcome = StepOutcome(
            oldest.request,
            loss=result["loss"],
            l1=result["l1"],
            ssim=result["ssim"],
            steps=result["steps"],
            visible=result["visible"],
            instances=result["instances"],
            skipped=dict(zip(SHAPES, result["skipped"].tolist(), strict=True)),
        )
        self._outcomes.append(outcome)
        if not outcome.is_finite:
            self.memory.wait()
            self._pending.clear()  # refused, all of them

    def _queue_again(self, result: Mapping[str, Any]) -> None:
        """The steps in flight, the first of which did not fit. All of them have done nothing."""
        self.memory.wait()
        requests = [pending.request for pending in self._pending]
        self._events += [pending.event for pending in self._pending if pending.event is not None]
        self._pending.clear()
        wanted = result["visible_wanted"], result["instances_wanted"]
        self._make_room(self.capacity.grown(*wanted, count=self.splats.count))
        self._write_halted(0)
        for request in requests:
            self._submit(request)

    def _write_halted(self, value: int) -> None:
        fields: Any = step_dtype("StepState").fields
        offset = fields["halted"][1]
        self.memory.write(self._state[offset : offset + 4], np.array([value], np.uint32))

    def _make_room(self, wanted: Capacity) -> None:
        room = Capacity(max(self.capacity.visible, wanted.visible), max(self.capacity.instances, wanted.instances))
        if room != self.capacity:
            self.forget()
            self.capacity = room

    # ---- Plans -------------------------------------------------------------------------------------------------------

    def _prepared(self, request: StepRequest) -> _Prepared:
        if self.splats.rows != self._roomy_rows:  # no plan is dropped while splats have room
            self._make_room(Capacity.of(self.splats.rows))
            self._roomy_rows = self.splats.rows
        camera, target = request.camera, request.target
        kind = target.has_coverage, target.has_weights, request.absolute, request.noise is not None
        is_wide = self.map_choice.is_wide_for(self.policy)
        key = (camera.width, camera.height, kind, self._policy_number(), is_wide)
        if key not in self._plans:
            self._plans[key] = self._prepare(request, is_wide)
            if len(self._plans) > KEPT_PLANS:
                self.memory.wait()
                self._plans.popitem(last=False)
        self._plans.move_to_end(key)
        return self._plans[key]

    def _policy_number(self) -> int:
        if self.policy is not self._numbered or self._number < 0:
            self._numbered = self.policy
            self._number = self._numbers.setdefault(self.policy, len(self._numbers))
        return self._number

    def _is_compiled(self, policy: Policy, request: StepRequest) -> bool:
        """True if a step with this policy need not wait for the compiler, which else begins beside."""
        made_for = _pass(policy, request)
        return self._kernels.start(_Wanted(with_optimiser(made_for.kernels(), policy)))

    def _prepare(self, request: StepRequest, is_wide: bool) -> _Prepared:
        """Compiles and allocates what is missing for an image size."""
        policy, splats, camera = self.policy, self.splats, request.camera
        made_for = replace(_pass(policy, request), is_wide=is_wide)
        arrays = {name: splats.array("raw", name) for name in SHAPES if name != "sh"}
        everything = Scene(splats.rows, 3, sh=splats.harmonics, sh_dtype=splats.sh_dtype, **arrays)
        if made_for.lazy_sh:
            moments = {kind: splats.array(kind, "sh") for kind in ("first", "second")}
            everything.lazy.update(moments, stepped=splats.stepped, reach=self._reach, state=self._state)
        plan = self.pipeline.plan(everything, camera.width, camera.height, made_for, self.capacity)
        given = self._kernels, policy, splats, self._own, plan
        adam = [*plan.backward, separate_adam(*given)] if made_for.gradients else fused_backward(*given)
        if request.noise is not None:
            adam.append(shaking(self._kernels, self._shared, arrays))
        return _Prepared(plan, [*plan.forward, *self._compared(plan, camera, request.target), *adam])

    def _compared(self, plan: Plan, camera: Camera, target: Target) -> list[Operation]:
        """The loss, and around it the photograph's exposure if that is learned."""
        image, gradient = plan.outputs.image, plan.outputs.image_gradient
        if self.exposures is None:
            return self._loss_steps(plan, image, camera, target)
        buffers, multiprocessors = self.pipeline.buffers, self.memory.multiprocessors
        parts = exposing(self.exposures, self._kernels, buffers, self._shared, image, gradient, multiprocessors)
        return [*parts.before, *self._loss_steps(plan, parts.exposed, camera, target), *parts.after]

    def _loss_steps(self, plan: Plan, image: Any, camera: Camera, target: Target) -> list[Operation]:
        take, grid = self.pipeline.buffers.take, loss_grid(camera.width, camera.height)
        names = loss_kernels(target.has_coverage, target.has_weights)
        kernels = self._kernels("loss.cuh", names)
        shared = {
            **self._shared,
            "image": image,
            "derivatives": take("loss derivatives", grid.derivatives, "f4"),
            "sums": take("loss sums", (grid.blocks, 2), "f4"),
        }
        own = {
            "state": self._state,
            "results": self._records.results,
            "reach": self._reach if self.policy.adam == "lazy_sh" else None,
            "gradient": plan.outputs.image_gradient,
            "sum_count": grid.blocks,
        }
        arguments = (shared, shared | own)
        return [
            Launch("loss", kernels[name], (count,), (grid.threads,), kernels[name].arguments.pack(**values))
            for name, count, values in zip(names, (grid.blocks, grid.blocks + 1), arguments, strict=True)
        ]
