"""Runs training steps on a GPU, each as one captured graph that the host queues without waiting.

`_prepare` lists a step from top to bottom: forward -> loss -> blend_backward -> project_backward -> Adam and
statistics. A step commits on the device or changes no splat (cuda/source/step.cuh):

- A step that did not fit its buffers is queued again once they have grown, together with the steps behind it, so that
  the outcome does not depend on when the host noticed.
- A step whose loss is not finite leaves the splats as they were, and later steps do nothing until `resume`.

Losses are read some steps later. All work runs on the stream that was torch's current one when the object was made.

Read next: `step/splats.py` (splats), `step/photographs.py`, `step/records.py` (records between host and device),
`step/loss.py`, `step/adam.py`, `plan/planner.py` (stages of a frame), `replay.py` (graphs).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from splatscope.kernels.cuda.blend_choice import MapChoice
from splatscope.kernels.cuda.kernel_store import KernelStore
from splatscope.kernels.cuda.launch.buffers import Capacity, TorchMemory
from splatscope.kernels.cuda.launch.launcher import Launcher, StageTimer
from splatscope.kernels.cuda.plan.operations import Launch
from splatscope.kernels.cuda.plan.passes import Pass, Scene, constant
from splatscope.kernels.cuda.plan.planner import Pipeline, Plan
from splatscope.kernels.cuda.queue_depth import MOST, QueueDepth
from splatscope.kernels.cuda.replay import PlanCache, Replay
from splatscope.kernels.cuda.step.adam import LAZY_TABLE, catch_up, fused_backward, separate_adam, with_optimiser
from splatscope.kernels.cuda.step.exposure import ExposureMaps, add_exposure
from splatscope.kernels.cuda.step.loss import measure_loss
from splatscope.kernels.cuda.step.noise import shake_means
from splatscope.kernels.cuda.step.photographs import Target, TargetStore
from splatscope.kernels.cuda.step.records import StepRecords, step_dtype
from splatscope.kernels.cuda.step.request import AdamRates, StepOutcome, StepRequest, write_inputs
from splatscope.kernels.cuda.step.splats import SHAPES, SplatBuffers
from splatscope.kernels.errors import NoRoomError
from splatscope.kernels.policy import Policy, toggle_table
from splatscope.kernels.primitive import Primitive
from splatscope.kernels.types import Gaussians

UPLOADS = 8  # slots for photographs that are uploaded for a step
KEPT_PLANS = 64
# Bits of Frame::overflow.
DOES_NOT_FIT = constant("frame.cuh", "OVERFLOW_VISIBLE") | constant("frame.cuh", "OVERFLOW_INSTANCES")
NEWEST_VIEW = 1 / 16  # weight of the newest view in the running mean by which `MapChoice` predicts the next view
_DEFAULT_POLICY = Policy()

# Callers import a step's requests and outcomes from this file too.
__all__ = ["AdamRates", "StepOutcome", "StepRequest", "TrainingStep"]


def _pass(policy: Policy, request: StepRequest, primitive: Primitive) -> Pass:
    rows, columns = request.camera.tiles
    is_separate, is_lazy = (policy.adam == name for name in ("separate", "lazy_sh"))
    return Pass(policy, True, False, rows * columns, is_separate, is_lazy, request.absolute, primitive=primitive)


@dataclass(frozen=True)
class _Wanted:
    """Lists the kernels of a step for a `KernelStore`."""

    found: dict[str, tuple[str, str]]

    def kernels(self) -> dict[str, tuple[str, str]]:
        return self.found


@dataclass(frozen=True, eq=False)
class _Prepared:
    """Holds the operations of a step for one image size under one policy."""

    plan: Plan
    replay: Replay


@dataclass(frozen=True, eq=False)
class _Pending:
    """Holds a queued step."""

    request: StepRequest
    sequence: int
    event: Any


class TrainingStep:
    """Trains splats that live on the GPU; the host queues one step at a time. Serves one thread at a time.

    Tests replace `memory`, `kernels` and `launcher`.
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
        """Copies the splats to the GPU and prepares to train.

        - `rows`: number of splats for which there is room at first.
        - `target_budget`: bytes of photographs kept on the GPU.
        - `timed_every`: every how many steps stages are timed; 0: never.
        - `nvtx`: stages get names for profilers.
        """
        kernels = kernels or KernelStore()
        policy.check("cuda")
        self.policy = policy
        self.refusal = ""  # why wanted toggles are not used, in a sentence; the caller empties it
        self._wanted: Policy | None = None  # the policy that steps change to once it is compiled
        self.memory = memory or TorchMemory()
        self.launcher: Any = launcher or Launcher(nvtx=nvtx)
        self._timeline, self._timed_every = StageTimer(), timed_every
        self.plans: PlanCache[_Prepared] = PlanCache(KEPT_PLANS, self.memory.wait)
        self.pipeline = Pipeline(self.memory, kernels, self.forget)
        self.splats = SplatBuffers(self.memory, gaussians, rows, self.forget, policy.project.sh_dtype)
        self.targets = TargetStore(self.memory, target_budget, UPLOADS)
        self.exposures: ExposureMaps | None = None  # set it before the first step
        self.map_choice = MapChoice(self.memory.multiprocessors, NEWEST_VIEW)
        self.stage_ms: dict[str, float] = {}  # newest known time of each stage
        self._kernels = kernels
        self._pending: deque[_Pending] = deque()
        self._depth = QueueDepth()
        self._outcomes: list[StepOutcome] = []
        self._events: list[Any] = []
        self._sequence = 0
        self._records = StepRecords(self.memory, MOST + 2)
        self.pipeline.frame, self._inputs = self._records.frame, self._records.inputs
        self._stream = self.memory.stream()
        self._numbers: dict[Policy, int] = {}  # a number for each policy, because hashing a policy is slow
        self._numbered, self._number, self._roomy_rows = _DEFAULT_POLICY, -1, 0
        self._shared = {"frame": self.pipeline.frame, "inputs": self._inputs}  # arguments of all kernels
        self._state = self.memory.empty("step state", (step_dtype("StepState").itemsize,), "u1")
        self._reach = self.memory.empty("reach", (2, 2, LAZY_TABLE), "f4")
        self._own = {**self._shared, "state": self._state, "reach": self._reach}
        self._behind = False  # true while lazy_sh has left out steps of some splats' harmonics
        self.set_steps(0, 0.9, 0.999)

    def set_steps(self, steps: int, beta1: float, beta2: float) -> None:
        """Sets the number of steps made so far, which corrects Adam's bias, for a run that continues from a
        checkpoint."""
        self.flush()
        self._reach.zero_()
        record = np.zeros(1, step_dtype("StepState"))
        record["steps"], record["beta1_power"], record["beta2_power"] = steps, beta1**steps, beta2**steps
        self.memory.write(self._state, record)

    def want(self, policy: Policy) -> None:
        """Changes later steps to these toggles as soon as their kernels are compiled on other threads.

        - Before the first step the change is immediate, because that step waits for the compiler anyway.
        - Toggles that change the picture stay as they are: splats are trained for one way of drawing them.
        - project.sh_dtype is the exception: harmonics are converted when it changes.
        - Nothing changes if the toggles exclude each other.
        """
        for row in toggle_table("cuda"):
            if row.identity == "Q" and row.key != "project.sh_dtype":
                policy = policy.with_value(row.stage, row.name, self.policy.value(row.stage, row.name))
        self._wanted = policy if policy != self.policy and not policy.problems("cuda") else None
        if self._wanted is not None and self._sequence == 0:
            self._change_to(self._wanted)

    @property
    def capacity(self) -> Capacity:
        """Returns the room that all plans have for visible splats and pairs."""
        return self.plans.capacity

    @property
    def plan_count(self) -> int:
        """Returns the number of plans: one for each image size, kind of photograph and policy."""
        return len(self.plans)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Returns the stages whose toggles change once the compiler is done. Ask while steps are queued."""
        wanted = self._wanted
        if wanted is None:  # nearly always
            return ()
        return tuple(f.name for f in fields(Policy) if getattr(wanted, f.name) != getattr(self.policy, f.name))

    def run(self, request: StepRequest) -> None:
        """Queues one step. Waits only while as many steps are queued as `QueueDepth` allows.

        Raises InputError if the GPU has no room.
        """
        if not self._pending:
            self._depth.restart()
        while len(self._pending) >= self._depth.steps:
            self._finish_oldest()
        self._submit(request)

    def outcomes(self, wait: bool = False) -> list[StepOutcome]:
        """Returns outcomes of the steps finished since the last call, in order. `wait`: waits for all queued steps."""
        while self._pending and (wait or self._pending[0].event is None or self._pending[0].event.query()):
            self._finish_oldest()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def resume(self) -> None:
        """Allows steps to commit again after a step whose loss was not finite. Call it while no step is queued."""
        self._write_halted(0)

    def flush(self) -> None:
        """Applies the steps that lazy_sh has left out, so that other code may read the harmonics."""
        if not self._behind:
            return
        self._behind = False
        catch_up(self._kernels, self.splats, self._own).run(self.launcher)

    def assign(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Replaces the splats, as `SplatBuffers.assign` does. Call it while no step is queued."""
        if not self.splats.holds(state, "sh"):
            self.flush()
        self.splats.assign(state)

    def forget(self) -> None:
        """Drops all plans and graphs. Waits for the GPU first, because graphs may be running."""
        self.plans.forget()

    # ---- Queueing ----------------------------------------------------------------------------------------------------

    def _submit(self, request: StepRequest) -> None:
        if self._wanted is not None and self._is_compiled(self._wanted, request):
            self._change_to(self._wanted)
        is_lazy = self.policy.adam == "lazy_sh"
        if not is_lazy:
            self.flush()
        prepared = self._prepared(request)
        if is_lazy and not self._behind:  # from this step on harmonics may miss steps: notes that all are up to date
            fields: Any = step_dtype("StepState").fields
            offset = fields["steps"][1]
            self.splats.stepped.copy_(self._state[offset : offset + 4].view(self.splats.stepped.dtype))
            self._behind = True
        scene = self.splats.scene
        epoch, sequence = self.pipeline.next_epoch(), self._sequence
        inputs = self._records.write(sequence, scene, request.camera, request.settings, self.capacity, epoch)
        with self.targets.placed(request.target) as address, self.launcher.range("training step"):
            write_inputs(inputs, request, address, sequence, self.splats.count)
            self._records.send(sequence)
            self._run(prepared)
        event = self._events.pop() if self._events else self.memory.event()
        if event is not None:
            event.record(self._stream)
        self._pending.append(_Pending(request, self._sequence, event))
        self._sequence += 1

    def _change_to(self, policy: Policy) -> None:
        """Changes later steps to these toggles. Keeps project.sh_dtype if there is no room to convert harmonics."""
        self._wanted, sh_dtype = None, self.splats.sh_dtype
        if policy.project.sh_dtype != sh_dtype:
            self.flush()
            try:
                self.splats.keep_harmonics_as(policy.project.sh_dtype)
            except NoRoomError as error:
                self.refusal = f"Training continues with project.sh_dtype = {sh_dtype}. {error}"
                policy = policy.with_value("project", "sh_dtype", sh_dtype)
        if not policy.problems("cuda"):
            self.policy = policy

    def _run(self, prepared: _Prepared) -> None:
        """Starts a step, and keeps the newest stage times that are known."""
        is_timed = self._timed_every > 0 and self._sequence % self._timed_every == 0
        self.launcher.timeline = self._timeline if is_timed else None
        is_direct = self.launcher.nvtx or self.policy.launch.mode == "direct"
        replayed = prepared.replay.run(self.launcher, is_direct, is_timed)
        if replayed is not None:
            self.stage_ms = replayed.stage_ms or self.stage_ms
            return
        if is_timed:
            self._timeline.end_frame()
        for times in self._timeline.read_finished():
            self.stage_ms = times

    def _finish_oldest(self) -> None:
        """Waits for the oldest step and notes its outcome. If it did not fit, makes room and queues steps again."""
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
            self._pending.clear()  # the device has refused all later steps

    def _queue_again(self, result: Mapping[str, Any]) -> None:
        """Makes room and queues all pending steps again: the first did not fit, so none of them has committed."""
        self.memory.wait()
        requests = [pending.request for pending in self._pending]
        self._events += [pending.event for pending in self._pending if pending.event is not None]
        self._pending.clear()
        wanted = result["visible_wanted"], result["instances_wanted"]
        self.plans.make_room(self.capacity.grown(*wanted, count=self.splats.count))
        self._write_halted(0)
        for request in requests:
            self._submit(request)

    def _write_halted(self, value: int) -> None:
        fields: Any = step_dtype("StepState").fields
        offset = fields["halted"][1]
        self.memory.write(self._state[offset : offset + 4], np.array([value], np.uint32))

    # ---- Plans -------------------------------------------------------------------------------------------------------

    def _prepared(self, request: StepRequest) -> _Prepared:
        """Returns the operations of a step; plans them if there are none."""
        if self.splats.rows != self._roomy_rows:  # new splats keep the plans as long as rows suffice
            self.plans.make_room(Capacity.of(self.splats.rows))
            self._roomy_rows = self.splats.rows
        camera, target = request.camera, request.target
        kind = target.has_coverage, target.has_weights, request.absolute, request.noise is not None
        is_wide = self.map_choice.is_wide_for(self.policy)
        key = (camera.width, camera.height, kind, self._policy_number(), is_wide)
        return self.plans.find(key, lambda: self._prepare(request, is_wide))

    def _policy_number(self) -> int:
        if self.policy is not self._numbered or self._number < 0:
            self._numbered = self.policy
            self._number = self._numbers.setdefault(self.policy, len(self._numbers))
        return self._number

    def _is_compiled(self, policy: Policy, request: StepRequest) -> bool:
        """Returns True if the kernels for this policy are compiled; otherwise begins to compile on other threads."""
        made_for = _pass(policy, request, self.splats.primitive)
        return self._kernels.start(_Wanted(with_optimiser(made_for.kernels(), policy)))

    def _prepare(self, request: StepRequest, is_wide: bool) -> _Prepared:
        """Plans a step for the request's image size: forward, loss, backward with Adam, noise."""
        policy, splats, camera = self.policy, self.splats, request.camera
        made_for = replace(_pass(policy, request, splats.primitive), is_wide=is_wide)
        arrays = {name: splats.array("raw", name) for name in SHAPES if name != "sh"}
        kept = {"sh": splats.harmonics, "sh_dtype": splats.sh_dtype, "primitive": splats.primitive}
        everything = Scene(splats.rows, 3, **kept, **arrays)
        if made_for.lazy_sh:
            moments = {kind: splats.array(kind, "sh") for kind in ("first", "second")}
            everything.lazy.update(moments, stepped=splats.stepped, reach=self._reach, state=self._state)
        plan = self.pipeline.plan(everything, camera.width, camera.height, made_for, self.capacity)
        given = self._kernels, policy, splats, self._own, plan
        loss = self._compare(plan, request.target)
        backward = [*plan.backward, separate_adam(*given)] if made_for.gradients else fused_backward(*given)
        noise = [shake_means(self._kernels, self._shared, arrays)] if request.noise is not None else []
        return _Prepared(plan, Replay([*plan.forward, *loss, *backward, *noise]))

    def _compare(self, plan: Plan, target: Target) -> list[Launch]:
        """Returns the launches of the loss; if exposures are learned, also the exposure's launches around it."""
        provide, buffers, image = self._kernels, self.pipeline.buffers, plan.outputs.image
        gradient = plan.outputs.image_gradient
        own = {
            "state": self._state,
            "results": self._records.results,
            "reach": self._reach if self.policy.adam == "lazy_sh" else None,
            "gradient": gradient,
        }
        kind = target.has_coverage, target.has_weights
        if self.exposures is None:
            return measure_loss(provide, buffers, self._shared, own, image, kind)
        multiprocessors = self.memory.multiprocessors
        exposure = add_exposure(self.exposures, provide, buffers, self._shared, image, gradient, multiprocessors)
        loss = measure_loss(provide, buffers, self._shared, own, exposure.exposed, kind)
        return [*exposure.before, *loss, *exposure.after]
