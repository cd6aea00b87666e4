"""`Renderer`: the pipeline on a GPU, tensors in and out, the host never waiting.

It keeps one plan, and with launch = graph two captured graphs, for each (scene, image size, policy), twice where frames
have a choice of blend kernels (`blend_choice.py`); the first frame of a plan is launched kernel by kernel, later ones
replay, unless profilers are to see stages. Counters stay on the GPU until someone reads them: a frame that did not fit
its buffers draws nothing and sets a flag there. `complete` reads, grows and draws again. Stages, in order:
`cuda/plan/planner.py`. NumPy in and out: `backend.py`.
"""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from splatscope.kernels.cuda.blend_choice import MapChoice
from splatscope.kernels.cuda.launch.buffers import Capacity, TorchMemory
from splatscope.kernels.cuda.launch.compiler import Kernel, compile_kernels, load, prune_cache
from splatscope.kernels.cuda.launch.launcher import Event, Graph, Launcher, Marks, StageTimer
from splatscope.kernels.cuda.plan.operations import Launch, Together, run_operations
from splatscope.kernels.cuda.plan.passes import SH_ROWS, Pass, Scene, source
from splatscope.kernels.cuda.plan.planner import Outputs, Pipeline, Plan
from splatscope.kernels.cuda.plan.schedule import costs_of, machine_of, read_recording
from splatscope.kernels.cuda.step.harmonics import KEYS, copy_harmonics, made_anew
from splatscope.kernels.policy import Policy
from splatscope.kernels.schedule.rules import CostModel, Machine
from splatscope.kernels.schedule.timeline import Recording
from splatscope.kernels.types import Camera, Float32, Gaussians, RenderSettings

KEPT_PLANS = 256  # views of one capture differ in size; each plan is some kilobytes and two graphs
SCENE_ARRAYS = ("means", "log_scales", "quats", "logit_opacities")
_DEFAULT_SETTINGS, _DEFAULT_POLICY = RenderSettings(), Policy()


# ---- Kernels ---------------------------------------------------------------------------------------------------------


class KernelStore:
    """Compiled and loaded kernels of one GPU. Compiling may happen on other threads, loading on the owner's.

    `architecture` is the current GPU's unless given; `compiler` is replaced in tests.
    """

    def __init__(self, architecture: int | None = None, compiler: Callable[..., object] = compile_kernels) -> None:
        self._architecture = architecture or _current_architecture()
        self._compiler = compiler
        self._loaded: dict[tuple[str, str], Kernel] = {}
        self._compiling: dict[tuple[str, str], Future[None]] = {}
        self.is_awaited = False  # true while someone waits for the compiler; any thread may read it
        self._threads = ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="nvrtc")
        self._threads.submit(prune_cache)

    def __call__(self, file: str, names: Sequence[str]) -> Mapping[str, Kernel]:
        """Loaded kernels; waits for the compiler. Raises CompileError."""
        for name in names:
            self._start(file, name)
        for name in names:
            if (file, name) not in self._loaded:
                self._wait_for(file, name)
                self._loaded |= {(file, n): kernel for n, kernel in load(source(file), [name]).items()}
        return {name: self._loaded[file, name] for name in names}

    def start(self, made_for: Pass) -> bool:
        """Begins to compile what a pass needs, all at once. True if nothing is left to compile."""
        wanted = list(made_for.kernels().values())
        for file, name in wanted:
            self._start(file, name)
        return all(self._compiling[key].done() for key in wanted)

    def compiling(self, made_for: Pass) -> tuple[str, ...]:
        """Stages of a pass that wait for the compiler; `start` has been called for it."""
        waiting = (kernel for kernel in made_for.kernels().values() if not self._compiling[kernel].done())
        return tuple(dict.fromkeys(_stage_of(file, name) for file, name in waiting))

    def _wait_for(self, file: str, name: str) -> None:
        compiling = self._compiling[file, name]
        self.is_awaited = not compiling.done()
        try:
            compiling.result()
        finally:
            self.is_awaited = False

    def _start(self, file: str, name: str) -> None:
        if (file, name) not in self._compiling:
            self._compiling[file, name] = self._threads.submit(self._compile, file, name)

    def _compile(self, file: str, name: str) -> None:
        self._compiler(source(file), [name], self._architecture)


def _stage_of(file: str, kernel: str) -> str:
    """The stage of the policy whose toggles a kernel takes."""
    if kernel.startswith("ranges"):  # the block that comes last in it may make the plan
        return "schedule" if kernel.startswith("ranges_plan") else "bin"
    return Path(file).stem.removesuffix("_queue")


def _current_architecture() -> int:
    import cupy  # pyright: ignore[reportMissingImports]

    return int(cupy.cuda.Device().compute_capability)


class Starter(Protocol):
    """`KernelStore`, or what builds kernels for the CPU in tests."""

    is_awaited: bool

    def __call__(self, file: str, names: Sequence[str]) -> Mapping[str, Kernel]: ...
    def start(self, made_for: Pass) -> bool: ...
    def compiling(self, made_for: Pass) -> tuple[str, ...]: ...


# ---- Tensors in, tensors out -----------------------------------------------------------------------------------------


@dataclass
class _Prepared:
    """A plan and how often its halves ran; from the second time on a graph may stand for a half."""

    plan: Plan
    runs: dict[str, int] = field(default_factory=lambda: {"forward": 0, "backward": 0})
    graphs: dict[str, Graph] = field(default_factory=dict)


class Renderer:
    """Draws and differentiates scenes that live on the GPU. One thread at a time; everything on the current stream.

    Without `timed` no events are recorded. `memory`, `kernels` and `launcher` are replaced in tests.
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
        self.capacity = Capacity(0, 0)
        self.map_choice = MapChoice(self.memory.multiprocessors)
        self.stage_ms: dict[str, float] = {}  # newest known time of each stage
        self._plans: OrderedDict[Any, _Prepared] = OrderedDict()
        self._newest: _Prepared | None = None
        self._marks = Marks([])  # of the newest forward pass for viewing
        self._base: Event | None = None

    def upload(self, gaussians: Gaussians) -> Scene:
        """Copies a scene to the GPU, its harmonics padded to 16 rows."""
        arrays = {name: self._tensor(getattr(gaussians, name)) for name in SCENE_ARRAYS}
        sh = self.memory.empty("the scene", (gaussians.count, SH_ROWS, 3), "f4").zero_()
        sh[:, : gaussians.sh.shape[1]] = self._tensor(gaussians.sh)
        return Scene(gaussians.count, gaussians.sh_degree, sh={"f32": sh}, **arrays)

    def refresh(self, scene: Scene, gaussians: Gaussians) -> bool:
        """Copies splats over a scene, whose plans go on; False if number or degree differ and it cannot be done."""
        if (scene.count, scene.sh_degree) != (gaussians.count, gaussians.sh_degree):
            return False
        for name in SCENE_ARRAYS:
            getattr(scene, name).copy_(_from_host(getattr(gaussians, name)))
        scene.sh["f32"][:, : gaussians.sh.shape[1]] = _from_host(gaussians.sh)
        self.renew_words(scene)
        return True

    def renew_words(self, scene: Scene) -> None:
        """Brings a scene's harmonics in other dtypes up to date, after those that are kept have changed in place."""
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
        """Starts one frame. The tensors are overwritten by the next one; nothing is waited for.

        If the frame does not fit, its flag is set on the GPU and the tensors keep what they had. Raises InputError
        for a policy whose toggles do not go together, and for what the GPU has no room for.
        """
        self._make_room(Capacity.of(scene.count))
        prepared = self._prepared(scene, camera, policy, training, wants_depth)
        self.pipeline.begin(scene, camera, settings, self.capacity)
        self._newest = prepared
        self._run(prepared, "forward")
        if not training:
            self._end_frame()
        return prepared.plan.outputs

    def backward(self, image_gradient: Any = None) -> dict[str, Any]:
        """dL/d(raw parameters) of the newest forward pass, which was for training.

        `image_gradient` [H, W, 3] float32 is copied to where the kernels read it, unless None: then the caller has
        written `outputs.image_gradient` already. Rows of unseen splats are zero; harmonics in bf16 are 16-bit words.
        """
        prepared = self._newest
        if prepared is None or prepared.plan.outputs.image_gradient is None:
            raise ValueError("There is no forward pass for training to differentiate; call forward(training=True).")
        if image_gradient is not None:
            prepared.plan.outputs.image_gradient.copy_(image_gradient)
        self._run(prepared, "backward")
        self._end_frame()
        return prepared.plan.outputs.gradients

    @property
    def newest_plan(self) -> Plan:
        """Steps, kernels and tensors of the newest forward pass."""
        if self._newest is None:
            raise ValueError("Nothing has been drawn yet.")
        return self._newest.plan

    def blend_machine(self, stage: str = "blend") -> tuple[Machine, CostModel]:
        """The GPU as the blend (or blend_backward) kernel of the newest pass finds it, and what units cost there."""
        plan, memory = self.newest_plan, self.memory
        step = next(step for step in reversed([*plan.forward, *plan.backward]) if step.stage == stage)
        launch = step.second if isinstance(step, Together) else step
        assert isinstance(launch, Launch)
        costs = costs_of(plan.made_for.policy.schedule, plan.made_for.training, memory)
        return machine_of(launch.kernel, launch.block[0], memory), costs

    def read_recording(self, stage: str = "blend") -> Recording | None:
        """What units did in a stage (or in blend_backward) of the newest pass, if it records. Waits for the GPU."""
        if not self.newest_plan.made_for.is_recorded:
            return None
        find, frame = self.pipeline.buffers.find, self.pipeline.read_frame()
        return read_recording(self.memory, find, frame, self.blend_machine(stage)[0], stage)

    def complete(self, forward: Callable[[], Outputs]) -> tuple[Outputs, np.void]:
        """Calls `forward` until its frame fits: (tensors, the frame record with its counters). Waits for the GPU."""
        while True:
            outputs = forward()
            record = self.pipeline.read_frame()
            if not record["overflow"]:
                self.map_choice.note(record)
                return outputs, record
            self.grow(record)

    def grow(self, record: np.void) -> None:
        """Makes room for what a frame record says did not fit. Raises InputError."""
        wanted = int(record["visible_wanted"]), int(record["instances_wanted"])
        self._make_room(self.capacity.grown(*wanted, count=int(record["gaussians"])))

    def forget(self) -> None:
        """Drops all plans and graphs, and with them their hold on scenes and buffers."""
        self._plans.clear()
        self._newest = None

    def is_ready(self, policy: Policy, training: bool, wants_depth: bool, camera: Camera) -> bool:
        """True if no kernel is left to compile; else compiling has begun on other threads."""
        return self.kernels.start(_pass(policy, training, wants_depth, camera))

    def compiling(self, policy: Policy, training: bool, wants_depth: bool, camera: Camera) -> tuple[str, ...]:
        """Stages that wait for the compiler, which begins on other threads; empty if all kernels are there."""
        wanted = _pass(policy, training, wants_depth, camera)
        return () if self.kernels.start(wanted) else self.kernels.compiling(wanted)

    def stage_times(self) -> dict[str, float]:
        """Milliseconds a stage of the newest forward pass for viewing; empty while the GPU is not done with it."""
        return self._marks.read() or {}

    def start_clock(self) -> bool:
        """From now on `stage_spans` counts; the caller has waited for the GPU. False if nothing is timed."""
        timeline = getattr(self.launcher, "timeline", None)
        self._base = timeline.mark() if timeline is not None else None
        return self._base is not None

    def stage_spans(self) -> list[tuple[str, float, float]]:
        """(stage, beginning, end) of the newest forward pass for viewing, in ms since `start_clock`; it is finished."""
        return self._marks.spans(self._base) if self._base is not None else []

    def _make_room(self, wanted: Capacity) -> None:
        room = Capacity(max(self.capacity.visible, wanted.visible), max(self.capacity.instances, wanted.instances))
        if room != self.capacity:
            self.forget()
            self.capacity = room

    def _prepared(self, scene: Scene, camera: Camera, policy: Policy, training: bool, wants_depth: bool) -> _Prepared:
        is_wide = self.map_choice.is_wide_for(policy)
        key = (scene, camera.width, camera.height, policy, training, wants_depth, is_wide)
        if key not in self._plans:
            if policy.project.sh_dtype not in scene.sh:
                scene.sh.update(made_anew(scene.sh, scene.sh_dtype, policy.project.sh_dtype))
            made_for = replace(_pass(policy, training, wants_depth, camera), is_wide=is_wide)
            policy.check("cuda")
            self.kernels.start(made_for)
            plan = self.pipeline.plan(scene, camera.width, camera.height, made_for, self.capacity)
            self._plans[key] = _Prepared(plan)
            if len(self._plans) > KEPT_PLANS:
                self._plans.popitem(last=False)
        self._plans.move_to_end(key)
        return self._plans[key]

    def _run(self, prepared: _Prepared, half: str) -> None:
        steps = prepared.plan.forward if half == "forward" else prepared.plan.backward

        def work() -> None:
            run_operations(steps, self.launcher)

        prepared.runs[half] += 1
        self._marks = Marks([])
        with self.launcher.range(half):
            is_direct = self.launcher.nvtx or prepared.plan.made_for.policy.launch.mode == "direct"
            if is_direct or prepared.runs[half] == 1:
                work()
                return
            if half not in prepared.graphs:
                prepared.graphs[half] = self.launcher.capture(work)
            graph = prepared.graphs[half]
            if times := graph.replay():
                self.stage_ms |= times
            self._marks = graph.marks

    def _end_frame(self) -> None:
        timeline = getattr(self.launcher, "timeline", None)
        if timeline is not None:
            timeline.end_frame()
            if timeline.newest.pairs:  # launched one by one, not replayed
                self._marks = timeline.newest
            for times in timeline.read_finished():
                self.stage_ms |= times

    def _tensor(self, array: Float32) -> Any:
        return _from_host(array).to(self.memory.device, copy=True)


def _from_host(array: Float32) -> Any:
    """A tensor in the same memory, to copy from."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a mapped file is read-only; we only read
        return torch.from_numpy(np.ascontiguousarray(array, np.float32))


def _pass(policy: Policy, training: bool, wants_depth: bool, camera: Camera) -> Pass:
    rows, columns = camera.tiles
    return Pass(policy, training, wants_depth, rows * columns)
