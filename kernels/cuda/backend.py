"""Offers the GPU as a `Backend` that takes and returns NumPy arrays, for the window, the command line and tests.

- Every call waits for the GPU once, because it returns arrays. Callers that must not wait use `renderer.py` directly;
  read it next.
- `show` is for a window: it returns the picture as bytes, and fetches the frame's other arrays when asked for.
- Training does not call this file at each step: `training_step` makes a `TrainingStep`, whose loss and optimiser are
  kernels of the GPU.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.backend import Span
from splatscope.kernels.cuda.pictures import DeviceFrame, PinnedReadback, RgbaConverter, copy_to_host
from splatscope.kernels.cuda.plan.passes import Scene, frame_dtype
from splatscope.kernels.cuda.renderer import Renderer
from splatscope.kernels.cuda.step.splats import DeviceGaussians
from splatscope.kernels.cuda.training_step import TrainingStep
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy
from splatscope.kernels.primitive import Primitive
from splatscope.kernels.schedule.rules import CostModel, Machine
from splatscope.kernels.types import Camera, Float32, Frame, Gaussians, Gradients, Int32, RenderSettings

_DEFAULT_SETTINGS, _DEFAULT_POLICY = RenderSettings(), Policy()
_LOCK = threading.RLock()


@dataclass(frozen=True, eq=False)
class Saved:
    """Names the forward pass that `backward` may differentiate, and keeps its scene's number of harmonics rows."""

    number: int
    sh_rows: int


class Showing:
    """Holds a picture that the GPU may still be drawing; see `CudaBackend.begin_show`."""

    def __init__(self, backend: CudaBackend, asked: Any, copies: PinnedReadback, tensors: dict[str, Any]) -> None:
        self._backend, self._asked, self._copies, self._tensors = backend, asked, copies, tensors

    @property
    def ready(self) -> bool:
        """Returns True once the GPU has finished the picture."""
        return self._copies.ready

    def finish(self) -> tuple[NDArray[np.uint8], Frame]:
        """Returns the picture and its frame. Waits for the GPU; draws again if the picture did not fit its buffers."""
        rgba, starts, frame = self._copies.arrays()
        record, renderer = frame.view(frame_dtype())[0], self._backend.renderer
        with _LOCK:
            if record["overflow"]:
                renderer.grow(record)
                return self._backend.show(*self._asked)
            renderer.map_choice.note(record)
            counts = _tile_counts(starts, self._asked[1])
            recording = renderer.read_recording()
            return rgba, DeviceFrame.of(self._tensors, counts, record, renderer.stage_times(), recording)


class CudaBackend:
    """Renders and differentiates on the GPU; takes and returns NumPy arrays. See `kernels/backend.py` for the
    contract."""

    name = "cuda"
    trains_on_device = True

    def __init__(self, renderer: Renderer | None = None, nvtx: bool = False) -> None:
        self.renderer = renderer or _first_renderer(nvtx)
        self.device = _device_name(self.renderer)
        # The scene on the GPU and the splats it was copied from; None instead of splats that may change in place.
        self._uploaded: tuple[Gaussians | None, Scene] | None = None
        self._passes = 0
        self._rgba = RgbaConverter()
        self._clock = 0.0  # time.perf_counter() when the GPU's clock was started

    @property
    def compiling(self) -> bool:
        """Returns True while a picture or a training step waits for the compiler; any thread may ask."""
        return self.renderer.kernels.is_awaited

    def warm_up(self, training: bool = False) -> None:
        """Compiles kernels or loads them from disk, by rendering one small picture."""
        splats, camera = _sample()
        if training:
            frame, saved = self.forward(splats, camera)
            self.backward(saved, np.ones_like(frame.image))
        else:
            self.show(splats, camera)  # also loads the kernels that convert a picture for the screen

    def waiting_for(self, camera: Camera, policy: Policy, primitive: Primitive = "3dgs") -> tuple[str, ...]:
        """Returns the stages for which a picture would wait for the compiler, and starts to compile them in the
        background. Raises InputError."""
        policy.check("cuda")
        return self.renderer.compiling(policy, False, True, camera, primitive)

    def show(
        self,
        gaussians: Gaussians,
        camera: Camera,
        settings: RenderSettings = _DEFAULT_SETTINGS,
        policy: Policy = _DEFAULT_POLICY,
    ) -> tuple[NDArray[np.uint8], Frame]:
        """Returns one picture for the screen, uint8 [H, W, 4], and its frame, which fetches its arrays when asked.

        Later calls do not read the arrays of `gaussians` again: do not change them in place.
        """
        return self.begin_show(gaussians, camera, settings, policy).finish()

    def begin_show(
        self,
        gaussians: Gaussians,
        camera: Camera,
        settings: RenderSettings = _DEFAULT_SETTINGS,
        policy: Policy = _DEFAULT_POLICY,
    ) -> Showing:
        """Queues a picture as `show` does, without waiting. A training run queues its next steps behind it.

        Stage times are kept for the newest picture only.
        """
        with _LOCK:
            scene, renderer = self._begin(gaussians, training=False), self.renderer
            out = renderer.forward(scene, camera, settings, policy, wants_depth=True)
            assert out.depth is not None
            copies = PinnedReadback([self._rgba(out.image), out.tile_starts, renderer.pipeline.frame])
            tensors = {name: getattr(out, name).clone() for name in ("image", "depth", "transmittance")}
        return Showing(self, (gaussians, camera, settings, policy), copies, tensors)

    def blend_machine(self) -> tuple[Machine, CostModel]:
        """Returns the GPU as a machine for blocks of the newest picture's blend kernel, and the costs of its work."""
        with _LOCK:
            return self.renderer.blend_machine()

    def start_clock(self) -> None:
        """Starts to record when stages run, for `newest_spans`. Waits for the GPU."""
        with _LOCK:
            if self.renderer.memory.device == "cuda":
                import torch

                torch.cuda.synchronize()  # so that the GPU passes the event when the host reads its clock
            self.renderer.start_clock()
            self._clock = time.perf_counter()

    def newest_spans(self) -> list[Span]:
        """Returns (stage, beginning, end) for the newest picture, in seconds of time.perf_counter."""
        with _LOCK:
            spans = self.renderer.stage_spans()
        return [(name, self._clock + start / 1e3, self._clock + end / 1e3) for name, start, end in spans]

    def render(
        self,
        gaussians: Gaussians,
        camera: Camera,
        settings: RenderSettings = _DEFAULT_SETTINGS,
        policy: Policy = _DEFAULT_POLICY,
    ) -> Frame:
        """Renders one picture. Later calls do not read the arrays of `gaussians` again: do not change them in place."""
        with _LOCK:
            return self._draw(gaussians, camera, settings, policy, training=False)

    def forward(
        self,
        gaussians: Gaussians,
        camera: Camera,
        settings: RenderSettings = _DEFAULT_SETTINGS,
        policy: Policy = _DEFAULT_POLICY,
    ) -> tuple[Frame, Saved]:
        """Renders one picture; also returns what `backward` needs. Only the newest pass can be differentiated.

        Each call reads the arrays of `gaussians` again: an optimiser may have changed them in place.
        """
        with _LOCK:
            frame = self._draw(gaussians, camera, settings, policy, training=True)
            return frame, Saved(self._passes, gaussians.sh.shape[1])

    def backward(self, saved: Saved, image_gradient: Float32, absolute: bool = False) -> Gradients:
        """Returns dL/d(parameters) for dL/d(image) [H, W, 3]."""
        import torch

        if absolute:
            raise ValueError("On a GPU only training steps add up absolute values; see training_step.py.")
        with _LOCK:
            if saved.number != self._passes:
                raise ValueError("Only the newest forward pass can be differentiated; render again first.")
            upstream = torch.from_numpy(np.ascontiguousarray(image_gradient, np.float32))
            tensors = self.renderer.backward(upstream)
            assert self._uploaded is not None
            count = self._uploaded[1].count
            arrays = {name: tensor.cpu() for name, tensor in tensors.items()}
            sh = arrays["sh"] if arrays["sh"].dtype == torch.float32 else arrays["sh"].view(torch.bfloat16).float()
            lanes = self.renderer.newest_plan.outputs.warp_slots[:, :1].cpu().numpy().view(np.uint32)
            visible = (lanes >> np.arange(32, dtype=np.uint32) & 1).astype(bool).ravel()[:count]
            return Gradients(
                arrays["means"].numpy(),
                arrays["log_scales"].numpy(),
                arrays["quats"].numpy(),
                arrays["logit_opacities"].numpy()[:, 0],
                np.ascontiguousarray(sh.numpy()[:, : saved.sh_rows]),
                arrays["means2d"].numpy(),
                visible,
                _stages(self.renderer.stage_ms, backward=True),
            )

    def training_step(
        self, gaussians: Gaussians, policy: Policy, rows: int, timed_every: int, target_share: float
    ) -> TrainingStep:
        """Makes a `TrainingStep` that trains these splats on the GPU. It shares compiled kernels with this backend.

        - `rows`: number of splats for which there is room at first.
        - `timed_every`: every how many steps stages are timed; 0: never.
        - `target_share`: share of the GPU's free memory that photographs may take.
        """
        import torch

        free, _ = torch.cuda.mem_get_info()
        return TrainingStep(
            gaussians,
            policy,
            rows=rows,
            timed_every=timed_every,
            target_budget=int(target_share * free),
            kernels=self.renderer.kernels,
            nvtx=getattr(self.renderer.launcher, "nvtx", False),
        )

    def forget(self) -> None:
        """Drops the uploaded splats, and all plans and graphs."""
        self.renderer.forget()
        self._uploaded = None

    def _begin(self, gaussians: Gaussians, training: bool) -> Scene:
        """Counts a pass; returns its scene on the GPU."""
        self._passes += 1
        return self._scene(gaussians, training)

    def _draw(
        self, gaussians: Gaussians, camera: Camera, settings: RenderSettings, policy: Policy, training: bool
    ) -> Frame:
        scene, renderer = self._begin(gaussians, training), self.renderer
        out, record = renderer.complete(
            lambda: renderer.forward(scene, camera, settings, policy, training, wants_depth=True)
        )
        image, depth, transmittance, starts = copy_to_host([out.image, out.depth, out.transmittance, out.tile_starts])
        return Frame(
            image,
            depth,
            transmittance,
            _tile_counts(starts, camera),
            int(record["visible"]),
            int(record["instances"]),
            int(record["skipped"]),
            _stages(renderer.stage_ms, backward=False) if training else renderer.stage_times(),
            renderer.read_recording(),
        )

    def _scene(self, gaussians: Gaussians, training: bool) -> Scene:
        """Returns the scene on the GPU. Uploads it if it is not the last call's, or if its arrays may have changed."""
        if isinstance(gaussians, DeviceGaussians):
            scene = gaussians.scene
            self.renderer.renew_words(scene)
            return scene
        known, may_change = self._uploaded, training
        if known is not None and known[0] is gaussians and not may_change:
            return known[1]
        if known is not None and self.renderer.refresh(known[1], gaussians):
            scene = known[1]
        else:
            self.renderer.forget()
            known = self._uploaded = None  # frees the old scene before the new one is allocated
            scene = self.renderer.upload(gaussians)
        self._uploaded = (None if may_change else gaussians, scene)
        return scene


def _tile_counts(starts: NDArray[Any], camera: Camera) -> Int32:
    """Returns the number of pairs of each tile [Ty, Tx], from the starts of the tiles' lists (32-bit words)."""
    return np.diff(starts.view(np.uint32).astype(np.int64)).reshape(camera.tiles).astype(np.int32)


def _stages(stage_ms: dict[str, float], backward: bool) -> dict[str, float]:
    """Returns those of the newest stage times that belong to the backward or to the forward half of a pass."""
    own = ("zero", "blend_backward", "project_backward")
    return {name: ms for name, ms in stage_ms.items() if (name in own) == backward}


def need_gpu() -> None:
    """Raises InputError if this machine has no GPU, or if the installation cannot use it."""
    for package in ("torch", "cupy"):
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"The CUDA backend needs {package}, which is not installed; pip install torch cupy-cuda13x, or use "
                "--backend cpu."
            )
    import torch

    if not torch.cuda.is_available():
        raise InputError("The CUDA backend found no NVIDIA GPU that torch can use; use --backend cpu, or bench cpu.")
    try:
        import cupy  # pyright: ignore[reportMissingImports]

        cupy.cuda.Device().compute_capability  # noqa: B018  (finds the driver and its libraries)
    except Exception as error:  # whatever a broken installation raises
        raise InputError(f"CuPy cannot use the GPU ({error}); repair its installation or use --backend cpu.") from error


def _first_renderer(nvtx: bool) -> Renderer:
    need_gpu()
    return Renderer(timed=True, nvtx=nvtx)


def _device_name(renderer: Renderer) -> str:
    import torch

    return torch.cuda.get_device_name() if renderer.memory.device == "cuda" else renderer.memory.device


def _sample() -> tuple[Gaussians, Camera]:
    """Returns a few splats in front of a small camera, enough to run every kernel once."""
    count = 20
    means = np.zeros((count, 3), np.float32)
    means[:, 2] = np.linspace(2, 3, count)
    quats = np.tile(np.array([1, 0, 0, 0], np.float32), (count, 1))
    scales, logits = np.full((count, 3), -2, np.float32), np.zeros(count, np.float32)
    splats = Gaussians(means, scales, quats, logits, np.full((count, 16, 3), 0.1, np.float32))
    return splats, Camera.from_matrix(np.eye(4), 40, 24, 30, 30, 20, 12)
