"""Runs the CUDA pipeline on the CPU: guarded NumPy memory, kernels built by g++, one frame forward and backward.

Not a test; `kernels/test_cuda_pipeline.py` is. The machine the kernels run on is cuda_on_cpu/.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from splatscope.kernels.cuda.kernel_store import HasKernels
from splatscope.kernels.cuda.launch.buffers import Capacity, TorchMemory
from splatscope.kernels.cuda.launch.compiler import Kernel
from splatscope.kernels.cuda.launch.launcher import Marks
from splatscope.kernels.cuda.plan.operations import run_operations
from splatscope.kernels.cuda.plan.passes import Pass, Scene, source
from splatscope.kernels.cuda.plan.planner import Pipeline, Plan
from splatscope.kernels.cuda.renderer import Renderer
from splatscope.kernels.cuda.step.harmonics import words_of
from splatscope.kernels.policy import Policy
from splatscope.kernels.primitive import Primitive
from splatscope.kernels.types import Camera, Float32, Gaussians, Gradients, RenderSettings
from tests.support.cuda_on_cpu.run import Device, build


class GuardedMemory:
    """Allocates guarded NumPy arrays as a `Memory`: an access beyond an array traps."""

    multiprocessors = 2
    architecture = 0

    def __init__(self, device: Device) -> None:
        self._device = device

    def empty(self, name: str, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        return self._device.empty(name, shape, dtype)

    def clear(self, array: NDArray[Any]) -> None:
        array[...] = 0

    def write(self, array: NDArray[Any], record: NDArray[Any]) -> None:
        array[...] = record.view(np.uint8)

    def read(self, array: NDArray[Any]) -> NDArray[np.uint8]:
        return array.copy()

    def sort(self, keys: NDArray[Any], bits: int) -> NDArray[np.intp]:
        return np.argsort(keys, kind="stable")

    def gather(self, values: NDArray[Any] | None, places: NDArray[np.intp], out: NDArray[Any]) -> None:
        out[: len(places)] = places if values is None else values[places]


class Kernels:
    """Builds everything that some passes need, all kernels of a file in one library."""

    def __init__(self, passes: Sequence[Pass]) -> None:
        self._names: dict[str, dict[str, None]] = {}
        for file, name in (kernel for made_for in passes for kernel in made_for.kernels().values()):
            self._names.setdefault(file, {})[name] = None

    def __call__(self, file: str, names: Sequence[str]) -> Mapping[str, Kernel]:
        assert set(names) <= set(self._names[file])
        return build(source(file), list(self._names[file]))

    is_awaited = False

    def start(self, made_for: HasKernels) -> bool:
        """Does nothing: here no kernel is compiled ahead."""
        return True

    def compiling(self, made_for: HasKernels) -> tuple[str, ...]:
        """Returns nothing."""
        return ()


def scene_in(device: Device, gaussians: Gaussians) -> Scene:
    """Returns the scene in guarded memory, harmonics padded to 16 rows, in all dtypes."""
    rows = np.zeros((gaussians.count, 16, 3), np.float32)
    rows[:, : gaussians.sh.shape[1]] = gaussians.sh
    names = ("means", "log_scales", "quats", "logit_opacities")
    sh = {"f32": device.upload("sh", rows)}
    for dtype in ("bf16", "split"):
        sh[dtype] = device.upload(f"sh {dtype}", words_of(torch.from_numpy(rows), dtype)[dtype].numpy().view(np.uint16))
    arrays: dict[str, Any] = {name: device.upload(name, getattr(gaussians, name)) for name in names}
    return Scene(gaussians.count, gaussians.sh_degree, sh=sh, primitive=gaussians.primitive, **arrays)


@dataclass(frozen=True, eq=False)
class Result:
    """Holds one frame, copied out."""

    frame: np.void
    image: Float32
    transmittance: Float32
    depth: Float32 | None
    tile_counts: NDArray[np.int64]  # [T]
    gradients: Gradients | None


class Emulated:
    """Draws one scene on one emulated device; all frames use the same buffers."""

    def __init__(self, kernels: Kernels, gaussians: Gaussians, seed: int = 0) -> None:
        self.device = Device(seed, seconds=60)
        self.gaussians = gaussians
        self.scene = scene_in(self.device, gaussians)
        self.pipeline = Pipeline(GuardedMemory(self.device), kernels)

    def plan(self, camera: Camera, made_for: Pass, capacity: Capacity) -> Plan:
        return self.pipeline.plan(self.scene, camera.width, camera.height, made_for, capacity)

    def run(
        self,
        plan: Plan,
        camera: Camera,
        settings: RenderSettings,
        upstream: Float32 | None = None,
    ) -> Result:
        """Draws one frame, and given dL/d(image) its gradients."""
        self.pipeline.begin(self.scene, camera, settings, plan.capacity)
        run_operations(plan.forward, self.device)
        out, gradients = plan.outputs, None
        image, transmittance = out.image.copy(), out.transmittance.copy()
        if upstream is not None:
            assert out.image_gradient is not None
            out.image_gradient[...] = upstream
            run_operations(plan.backward, self.device)
            gradients = self._gradients(plan)
        depth = None if out.depth is None else out.depth.copy()
        counts = np.diff(out.tile_starts.astype(np.int64))
        return Result(self.pipeline.read_frame(), image, transmittance, depth, counts, gradients)

    def _gradients(self, plan: Plan) -> Gradients:
        arrays = {name: array.copy() for name, array in plan.outputs.gradients.items()}
        sh = arrays["sh"]
        if sh.dtype == np.uint16:
            sh = (sh.astype(np.uint32) << 16).view(np.float32)
        lanes = plan.outputs.warp_slots[:, :1] >> np.arange(32, dtype=np.uint32) & 1
        visible = lanes.astype(bool).ravel()[: self.gaussians.count]
        used = self.gaussians.sh.shape[1]
        assert self.pipeline.read_frame()["overflow"] or not sh[:, used:].any()
        logits = arrays["logit_opacities"][:, 0]
        return Gradients(
            arrays["means"],
            arrays["log_scales"],
            arrays["quats"],
            logits,
            sh[:, :used],
            arrays["means2d"],
            visible,
        )


class HostMemory(TorchMemory):
    """Allocates torch tensors in guarded memory of this processor, where emulated kernels can reach them."""

    def __init__(self, device: Device) -> None:
        super().__init__(device="cpu")
        self.multiprocessors = 2
        self._guarded = device

    def empty(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        signed = dtype.replace("u", "i") if dtype != "u1" else dtype  # torch does little with unsigned words
        return torch.from_numpy(self._guarded.empty(name, shape, dtype).view(signed))

    def write(self, array: Any, record: NDArray[Any]) -> None:
        array.copy_(torch.from_numpy(record.view(np.uint8)))


class EmulatedLauncher(Device):
    """Launches emulated kernels, and replays a graph by running the captured work again."""

    captured = replayed = 0
    nvtx = False
    told: tuple[str, ...] = ()  # to profilers

    def range(self, name: str) -> AbstractContextManager[None]:
        """Notes names for profilers, which a test may check."""
        self.told += (name,)
        return nullcontext()

    def capture(self, work: Callable[[], None]) -> EmulatedGraph:
        self.captured += 1
        return EmulatedGraph(self, work)


@dataclass(frozen=True, eq=False)
class EmulatedGraph:
    """Stands for a captured graph."""

    launcher: EmulatedLauncher
    work: Callable[[], None]
    marks: Marks = field(default_factory=lambda: Marks([]))  # nothing is timed

    def replay(self) -> None:
        self.launcher.replayed += 1
        self.work()


def emulated_renderer(kernels: Kernels) -> Renderer:
    """Returns the renderer of a GPU, with its kernels on this processor."""
    device = EmulatedLauncher(seconds=60)
    return Renderer(memory=HostMemory(device), kernels=kernels, launcher=device)


def pass_for(policy: Policy, camera: Camera, training: bool, wants_depth: bool, primitive: Primitive = "3dgs") -> Pass:
    """Returns the pass of a policy at a camera's size."""
    rows, columns = camera.tiles
    return Pass(policy, training, wants_depth, rows * columns, primitive=primitive)
