"""`Renderer`: the pipeline on a GPU, tensors in and out, the host never waiting.

It keeps one plan, and with launch = graph two captured graphs, for each (scene, image size, policy); the first frame
of a plan is launched kernel by kernel, later ones replay. Counters stay on the GPU until someone reads them: a frame
that did not fit its buffers draws nothing and sets a flag there. `complete` reads, grows and draws again. Stages, in
order: `pipeline.py`. NumPy in and out: `cuda.py`.
"""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from splatscope.kernels.compiler import Kernel, compile_kernels, load
from splatscope.kernels.cuda_buffers import Capacity, TorchMemory
from splatscope.kernels.launcher import Graph, Launcher, Timeline
from splatscope.kernels.passes import SH_ROWS, Pass, Scene, source
from splatscope.kernels.pipeline import Outputs, Pipeline, Plan, run_steps
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Camera, Float32, Gaussians, RenderSettings

KEPT_PLANS = 256  # views of one capture differ in size; each plan is some kilobytes and two graphs
_DEFAULT_SETTINGS, _DEFAULT_POLICY = RenderSettings(), Policy()


# ---- Kernels ---------------------------------------------------------------------------------------------------------


class KernelStore:
    """Compiled and loaded kernels of the current GPU. Compiling may happen on other threads, loading on the owner's."""

    def __init__(self) -> None:
        import cupy  # pyright: ignore[reportMissingImports]

        self._architecture = int(cupy.cuda.Device().compute_capability)
        self._loaded: dict[tuple[str, str], Kernel] = {}
        self._compiling: dict[tuple[str, str], Future[None]] = {}
        self._threads = ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="nvrtc")

    def __call__(self, file: str, names: Sequence[str]) -> Mapping[str, Kernel]:
        """Loaded kernels; waits for the compiler. Raises CompileError."""
        for name in names:
            self._start(file, name)
        for name in names:
            if (file, name) not in self._loaded:
                self._compiling[file, name].result()
                self._loaded |= {(file, n): kernel for n, kernel in load(source(file), [name]).items()}
        return {name: self._loaded[file, name] for name in names}

    def start(self, made_for: Pass) -> bool:
        """Begins to compile what a pass needs, all at once. True if nothing is left to compile."""
        wanted = list(made_for.kernels().values())
        for file, name in wanted:
            self._start(file, name)
        return all(self._compiling[key].done() for key in wanted)

    def _start(self, file: str, name: str) -> None:
        if (file, name) not in self._compiling:
            self._compiling[file, name] = self._threads.submit(self._compile, file, name)

    def _compile(self, file: str, name: str) -> None:
        compile_kernels(source(file), [name], self._architecture)


class Starter(Protocol):
    """`KernelStore`, or what builds kernels for the CPU in tests."""

    def __call__(self, file: str, names: Sequence[str]) -> Mapping[str, Kernel]: ...
    def start(self, made_for: Pass) -> bool: ...


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
        self.launcher: Any = launcher or Launcher(Timeline() if timed else None, nvtx)
        self.pipeline = Pipeline(self.memory, self.kernels, self.forget)
        self.capacity = Capacity(0, 0)
        self.stage_ms: dict[str, float] = {}  # newest known time of each stage
        self._plans: OrderedDict[Any, _Prepared] = OrderedDict()
        self._newest: _Prepared | None = None

    def upload(self, gaussians: Gaussians) -> Scene:
        """Copies a scene to the GPU, its harmonics padded to 16 rows."""
        arrays = {n: self._tensor(getattr(gaussians, n)) for n in ("means", "log_scales", "quats", "logit_opacities")}
        sh = self.memory.empty("the scene", (gaussians.count, SH_ROWS, 3), "f4").zero_()
        sh[:, : gaussians.sh.shape[1]] = self._tensor(gaussians.sh)
        return Scene(gaussians.count, gaussians.sh_degree, sh={"f32": sh}, **arrays)

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

    def complete(self, forward: Callable[[], Outputs]) -> tuple[Outputs, np.void]:
        """Calls `forward` until its frame fits: (tensors, the frame record with its counters). Waits for the GPU."""
        while True:
            outputs = forward()
            record = self.pipeline.read_frame()
            if not record["overflow"]:
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

    def _make_room(self, wanted: Capacity) -> None:
        room = Capacity(max(self.capacity.visible, wanted.visible), max(self.capacity.instances, wanted.instances))
        if room != self.capacity:
            self.forget()
            self.capacity = room

    def _prepared(self, scene: Scene, camera: Camera, policy: Policy, training: bool, wants_depth: bool) -> _Prepared:
        key = (scene, camera.width, camera.height, policy, training, wants_depth)
        if key not in self._plans:
            if policy.project.sh_dtype == "bf16" and "bf16" not in scene.sh:
                scene.sh["bf16"] = _bf16_words(scene.sh["f32"])
            made_for = _pass(policy, training, wants_depth, camera)
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
            run_steps(steps, self.launcher)

        prepared.runs[half] += 1
        if prepared.plan.made_for.policy.launch.launch == "direct" or prepared.runs[half] == 1:
            work()
            return
        if half not in prepared.graphs:
            prepared.graphs[half] = self.launcher.capture(work)
        if times := prepared.graphs[half].replay():
            self.stage_ms |= times

    def _end_frame(self) -> None:
        timeline = getattr(self.launcher, "timeline", None)
        if timeline is not None:
            timeline.end_frame()
            for times in timeline.read_finished():
                self.stage_ms |= times

    def _tensor(self, array: Float32) -> Any:
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a mapped file is read-only; we only read
            return torch.from_numpy(np.ascontiguousarray(array, np.float32)).to(self.memory.device, copy=True)


def _pass(policy: Policy, training: bool, wants_depth: bool, camera: Camera) -> Pass:
    rows, columns = camera.tiles
    return Pass(policy, training, wants_depth, rows * columns)


def _bf16_words(sh: Any) -> Any:
    """The nearest bfloat16 of each number, as a 16-bit word."""
    import torch

    return sh.to(torch.bfloat16).view(torch.int16)
