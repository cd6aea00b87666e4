"""Draws and differentiates on a GPU; takes and returns tensors, and does not wait for the GPU.

`forward` draws a frame: it makes room, finds the plan or makes it, writes the frame record, and runs the plan. There is
a plan for each (scene, image size, policy), and a second one where frames have a choice of blend kernels
(`blend_choice.py`). `replay.py` keeps and replays plans. Counters stay on the GPU until a caller reads them: a frame
that did not fit its buffers draws nothing and sets a flag there. `complete` reads the flag, grows the buffers and draws
again. `plan/planner.py` has the stages in order; `backend.py` offers all this with NumPy arrays.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from splatscope.kernels.cuda.blend_choice import MapChoice
from splatscope.kernels.cuda.kernel_store import KernelStore, Starter
from splatscope.kernels.cuda.launch.buffers import Capacity, DeviceArray, TorchMemory
from splatscope.kernels.cuda.launch.launcher import Event, Launcher, Marks, StageTimer
from splatscope.kernels.cuda.plan.operations import Launch, Together
from splatscope.kernels.cuda.plan.passes import SH_ROWS, Pass, Scene
from splatscope.kernels.cuda.plan.planner import Outputs, Pipeline, Plan
from splatscope.kernels.cuda.plan.schedule import costs_of, machine_of, read_recording
from splatscope.kernels.cuda.replay import PlanCache, Replay
from splatscope.kernels.cuda.step.harmonics import KEYS, convert_harmonics, copy_harmonics
from splatscope.kernels.policy import Policy
from splatscope.kernels.primitive import Primitive
from splatscope.kernels.schedule.rules import CostModel, Machine
from splatscope.kernels.schedule.timeline import Recording
from splatscope.kernels.types import Camera, Float32, Gaussians, RenderSettings

KEPT_PLANS = 256  # photographs of one capture differ in size; a plan takes some kilobytes and two graphs
SCENE_ARRAYS = ("means", "log_scales", "quats", "logit_opacities")
_DEFAULT_SETTINGS, _DEFAULT_POLICY = RenderSettings(), Policy()


@dataclass(frozen=True, eq=False)
class _Prepared:
    """Holds a plan, and a `Replay` for each half."""

    plan: Plan
    forward: Replay
    backward: Replay


class Renderer:
    """Draws and differentiates scenes on the GPU, on torch's current stream. Serves one thread at a time.

    Stages are timed only with `timed`. Tests replace `memory`, `kernels` and `launcher`.
    """

    def __init__(
        self,
        timed: bool = False,
        nvtx: bool = False,
        memory: TorchMemory | None = None,
        kernels: Starter | None = None,
        launcher: Any = None,
    ) -> None:
        self.memory = memory or TorchMemory()
        self.kernels = kernels or KernelStore()
        self.launcher: Any = launcher or Launcher(StageTimer() if timed else None, nvtx)
        self.pipeline = Pipeline(self.memory, self.kernels, self.forget)
        self._plans: PlanCache[_Prepared] = PlanCache(KEPT_PLANS)
        self.map_choice = MapChoice(self.memory.multiprocessors)
        self.stage_ms: dict[str, float] = {}  # newest known time of each stage
        self._marks = Marks([])  # stages of the newest forward pass for viewing
        self._base: Event | None = None

    def upload(self, gaussians: Gaussians) -> Scene:
        """Copies a scene to the GPU, its harmonics padded to 16 rows."""
        arrays = {name: self._tensor(getattr(gaussians, name)) for name in SCENE_ARRAYS}
        sh = self.memory.empty("the scene", (gaussians.count, SH_ROWS, 3), "f4").zero_()
        sh[:, : gaussians.sh.shape[1]] = self._tensor(gaussians.sh)
        return Scene(gaussians.count, gaussians.sh_degree, sh={"f32": sh}, primitive=gaussians.primitive, **arrays)

    def refresh(self, scene: Scene, gaussians: Gaussians) -> bool:
        """Copies splats into an existing scene, so that its plans stay valid. Returns False if number, degree or
        primitive differ."""
        kept = (scene.count, scene.sh_degree, scene.primitive)
        if kept != (gaussians.count, gaussians.sh_degree, gaussians.primitive):
            return False
        for name in SCENE_ARRAYS:
            getattr(scene, name).copy_(_from_host(getattr(gaussians, name)))
        scene.sh["f32"][:, : gaussians.sh.shape[1]] = _from_host(gaussians.sh)
        self.renew_words(scene)
        return True

    def renew_words(self, scene: Scene) -> None:
        """Converts a scene's harmonics to its other dtypes again, after the original ones have changed in place."""
        for dtype in KEYS:
            if dtype in scene.sh and dtype != scene.sh_dtype:
                copy_harmonics(scene.sh, scene.sh_dtype, scene.sh, dtype)

    def forward(
        self,
        scene: Scene,
        camera: Camera,
        settings: RenderSettings = _DEFAULT_SETTINGS,
        policy: Policy = _DEFAULT_POLICY,
        training: bool = False,
        wants_depth: bool = False,
    ) -> Outputs:
        """Starts one frame without waiting. The next frame overwrites the returned tensors.

        If the frame does not fit its buffers, the kernels set a flag on the GPU and leave the tensors unchanged. Raises
        InputError for toggles that exclude each other, and if the GPU has no room.
        """
        self._plans.make_room(Capacity.of(scene.count))
        prepared = self._prepare(scene, camera, policy, training, wants_depth)
        self.pipeline.begin(scene, camera, settings, self.capacity)
        self._run(prepared.plan, "forward", prepared.forward)
        if not training:
            self._end_frame()
        return prepared.plan.outputs

    def backward(self, image_gradient: DeviceArray | None = None) -> dict[str, DeviceArray]:
        """Starts the backward pass of the newest forward pass, which was for training. Returns dL/d(raw parameters).

        Copies `image_gradient` [H, W, 3] float32 to where the kernels read it; with None, the caller has written
        `outputs.image_gradient` already. Rows of unseen splats are zero. Gradients of harmonics in bf16 are 16-bit
        words.
        """
        prepared = self._plans.newest
        if prepared is None or prepared.plan.outputs.image_gradient is None:
            raise ValueError("There is no forward pass for training to differentiate; call forward(training=True).")
        if image_gradient is not None:
            prepared.plan.outputs.image_gradient.copy_(image_gradient)
        self._run(prepared.plan, "backward", prepared.backward)
        self._end_frame()
        return prepared.plan.outputs.gradients

    @property
    def capacity(self) -> Capacity:
        """Returns the room that all plans have for visible splats and pairs."""
        return self._plans.capacity

    @property
    def newest_plan(self) -> Plan:
        """Returns the plan of the newest forward pass, with its operations and tensors."""
        if self._plans.newest is None:
            raise ValueError("Nothing has been drawn yet.")
        return self._plans.newest.plan

    def blend_machine(self, stage: str = "blend") -> tuple[Machine, CostModel]:
        """Returns the GPU as a machine for blocks of the newest pass's blend (or blend_backward) kernel, and the costs
        of its work."""
        plan, memory = self.newest_plan, self.memory
        found = next(found for found in reversed([*plan.forward, *plan.backward]) if found.stage == stage)
        launch = found.second if isinstance(found, Together) else found
        assert isinstance(launch, Launch)
        costs = costs_of(plan.made_for.policy.schedule, plan.made_for.training, memory)
        return machine_of(launch.kernel, launch.block[0], memory), costs

    def read_recording(self, stage: str = "blend") -> Recording | None:
        """Returns the recording of the newest pass's blend or blend_backward, if there is one. Waits for the GPU."""
        if not self.newest_plan.made_for.is_recorded:
            return None
        find, frame = self.pipeline.buffers.find, self.pipeline.read_frame()
        return read_recording(self.memory, find, frame, self.blend_machine(stage)[0], stage)

    def complete(self, forward: Callable[[], Outputs]) -> tuple[Outputs, np.void]:
        """Calls `forward` until its frame fits. Returns (tensors, frame record with counters). Waits for the GPU."""
        while True:
            outputs = forward()
            record = self.pipeline.read_frame()
            if not record["overflow"]:
                self.map_choice.note(record)
                return outputs, record
            self.grow(record)

    def grow(self, record: np.void) -> None:
        """Makes room for a frame that did not fit, by the counters of its record. Raises InputError."""
        wanted = int(record["visible_wanted"]), int(record["instances_wanted"])
        self._plans.make_room(self.capacity.grown(*wanted, count=int(record["gaussians"])))

    def forget(self) -> None:
        """Drops all plans and graphs, and with them their references to scenes and buffers."""
        self._plans.forget()

    def is_ready(
        self, policy: Policy, training: bool, wants_depth: bool, camera: Camera, primitive: Primitive = "3dgs"
    ) -> bool:
        """Returns True if no kernel is left to compile; otherwise begins to compile on other threads."""
        return self.kernels.start(_pass(policy, training, wants_depth, camera, primitive))

    def compiling(
        self, policy: Policy, training: bool, wants_depth: bool, camera: Camera, primitive: Primitive = "3dgs"
    ) -> tuple[str, ...]:
        """Begins to compile missing kernels on other threads; returns the stages that wait for them."""
        wanted = _pass(policy, training, wants_depth, camera, primitive)
        return () if self.kernels.start(wanted) else self.kernels.compiling(wanted)

    def stage_times(self) -> dict[str, float]:
        """Returns milliseconds by stage of the newest forward pass for viewing; empty until the GPU has finished it."""
        return self._marks.read() or {}

    def start_clock(self) -> bool:
        """Starts the clock of `stage_spans`; wait for the GPU before. Returns False if stages are not timed."""
        timeline = getattr(self.launcher, "timeline", None)
        self._base = timeline.mark() if timeline is not None else None
        return self._base is not None

    def stage_spans(self) -> list[tuple[str, float, float]]:
        """Returns (stage, beginning, end) of the newest forward pass for viewing, in ms since `start_clock`.

        The pass must be finished.
        """
        return self._marks.spans(self._base) if self._base is not None else []

    def _prepare(self, scene: Scene, camera: Camera, policy: Policy, training: bool, wants_depth: bool) -> _Prepared:
        """Returns the plan for a view; makes it if there is none."""
        is_wide = self.map_choice.is_wide_for(policy)

        def make() -> _Prepared:
            if policy.project.sh_dtype not in scene.sh:
                scene.sh.update(convert_harmonics(scene.sh, scene.sh_dtype, policy.project.sh_dtype))
            made_for = replace(_pass(policy, training, wants_depth, camera, scene.primitive), is_wide=is_wide)
            policy.check("cuda")
            self.kernels.start(made_for)
            plan = self.pipeline.plan(scene, camera.width, camera.height, made_for, self.capacity)
            return _Prepared(plan, Replay(plan.forward), Replay(plan.backward))

        key = (scene, camera.width, camera.height, policy, training, wants_depth, is_wide)
        return self._plans.find(key, make)

    def _run(self, plan: Plan, half: str, replay: Replay) -> None:
        """Starts one half of a plan, and keeps the stage times of its replay."""
        self._marks = Marks([])
        with self.launcher.range(half):
            is_direct = self.launcher.nvtx or plan.made_for.policy.launch.mode == "direct"
            if (replayed := replay.run(self.launcher, is_direct)) is not None:
                self.stage_ms |= replayed.stage_ms
                self._marks = replayed.marks

    def _end_frame(self) -> None:
        timeline = getattr(self.launcher, "timeline", None)
        if timeline is not None:
            timeline.end_frame()
            if timeline.newest.pairs:  # kernels were launched one by one, not replayed
                self._marks = timeline.newest
            for times in timeline.read_finished():
                self.stage_ms |= times

    def _tensor(self, array: Float32) -> DeviceArray:
        return _from_host(array).to(self.memory.device, copy=True)


def _from_host(array: Float32) -> Any:
    """Returns a tensor that shares the array's memory, to copy from."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of read-only arrays (a mapped file), but we only read
        return torch.from_numpy(np.ascontiguousarray(array, np.float32))


def _pass(policy: Policy, training: bool, wants_depth: bool, camera: Camera, primitive: Primitive) -> Pass:
    rows, columns = camera.tiles
    return Pass(policy, training, wants_depth, rows * columns, primitive=primitive)
