"""`CudaBackend`: the GPU behind the protocol of `backend.py`, NumPy in and out, for the window, the command line and
tests.

Every call waits for the GPU once: it has to hand out arrays. `show` is for a window: the picture comes as bytes, the
rest of the frame when asked for. Who must not wait uses `renderer.py` itself; read it next. Loss and optimiser are
the CPU's until they have kernels of their own.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.backend import Backend, Span
from splatscope.kernels.cuda.pictures import DeviceFrame, PinnedReadback, RgbaConverter, copy_to_host
from splatscope.kernels.cuda.plan.passes import Scene, frame_dtype
from splatscope.kernels.cuda.renderer import Renderer
from splatscope.kernels.cuda.step.splats import DeviceGaussians
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy
from splatscope.kernels.schedule.rules import CostModel, Machine
from splatscope.kernels.types import Camera, Float32, Frame, Gaussians, Gradients, Int32, RenderSettings

_DEFAULT_SETTINGS, _DEFAULT_POLICY = RenderSettings(), Policy()
_LOCK = threading.RLock()


@dataclass(frozen=True, eq=False)
class Saved:
    """Which forward pass `backward` may differentiate, and how many rows of harmonics the scene has."""

    number: int
    sh_rows: int


class Showing:
    """A picture that the GPU was handed; see `CudaBackend.begin_show`."""

    def __init__(self, backend: CudaBackend, asked: Any, copies: PinnedReadback, tensors: dict[str, Any]) -> None:
        self._backend, self._asked, self._copies, self._tensors = backend, asked, copies, tensors

    @property
    def ready(self) -> bool:
        """True once the GPU is done with it."""
        return self._copies.ready

    def finish(self) -> tuple[NDArray[np.uint8], Frame]:
        """The picture and its frame. Waits for the GPU, and draws again if the picture did not fit its buffers."""
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
    """Renders and differentiates on the GPU, with NumPy arrays for callers. See `api.Backend` for the contract."""

    name = "cuda"

    def __init__(self, renderer: Renderer | None = None, nvtx: bool = False) -> None:
        self.renderer = renderer or _first_renderer(nvtx)
        self.device = _device_name(self.renderer)
        self._uploaded: tuple[Gaussians | None, Scene] | None = None  # None for arrays that may change in place
        self._passes = 0
        self._rgba = RgbaConverter()
        self._clock = 0.0  # time.perf_counter() when the GPU's clock was started

    @property
    def compiling(self) -> bool:
        """True while someone waits for the compiler, a training step included; any thread may ask."""
        return self.renderer.kernels.is_awaited

    def warm_up(self, training: bool = False) -> None:
        """Compiles, or loads from disk, by rendering one small picture."""
        splats, camera = _sample()
        if training:
            frame, saved = self.forward(splats, camera)
            self.backward(saved, np.ones_like(frame.image))
        else:
            self.show(splats, camera)  # what brings a picture to the screen is loaded as well

    def waiting_for(self, camera: Camera, policy: Policy) -> tuple[str, ...]:
        """Stages for which a picture would wait for the compiler, which begins beside it. Raises InputError."""
        policy.check("cuda")
        return self.renderer.compiling(policy, False, True, camera)

    def show(
        self,
        gaussians: Gaussians,
        camera: Camera,
        settings: RenderSettings = _DEFAULT_SETTINGS,
        policy: Policy = _DEFAULT_POLICY,
    ) -> tuple[NDArray[np.uint8], Frame]:
        """One picture for the screen, uint8 [H, W, 4], and its frame, whose float arrays are fetched when asked for.

        The arrays of `gaussians` are read once: do not change them between calls.
        """
        return self.begin_show(gaussians, camera, settings, policy).finish()

    def begin_show(
        self,
        gaussians: Gaussians,
        camera: Camera,
        settings: RenderSettings = _DEFAULT_SETTINGS,
        policy: Policy = _DEFAULT_POLICY,
    ) -> Showing:
        """`show` that queues the picture and does not wait for it: who trains meanwhile queues steps behind it.

        Of two at a time the stage times are the newer one's.
        """
        with _LOCK:
            scene, renderer = self._begin(gaussians, training=False), self.renderer
            out = renderer.forward(scene, camera, settings, policy, wants_depth=True)
            assert out.depth is not None
            copies = PinnedReadback([self._rgba(out.image), out.tile_starts, renderer.pipeline.frame])
            tensors = {name: getattr(out, name).clone() for name in ("image", "depth", "transmittance")}
        return Showing(self, (gaussians, camera, settings, policy), copies, tensors)

    def blend_machine(self) -> tuple[Machine, CostModel]:
        """The GPU as the blend kernel of the newest picture finds it, and what units of work cost there."""
        with _LOCK:
            return self.renderer.blend_machine()

    def start_clock(self) -> None:
        """From now on `newest_spans` tells when stages ran."""
        with _LOCK:
            if self.renderer.memory.device == "cuda":
                import torch

                torch.cuda.synchronize()  # so that the event passes at the moment that the host reads its clock
            self.renderer.start_clock()
            self._clock = time.perf_counter()

    def newest_spans(self) -> list[Span]:
        """(stage, beginning, end) of the newest picture in seconds of time.perf_counter."""
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
        """One picture. The arrays of `gaussians` are read once: do not change them between calls."""
        with _LOCK:
            return self._draw(gaussians, camera, settings, policy, training=False)

    def forward(
        self,
        gaussians: Gaussians,
        camera: Camera,
        settings: RenderSettings = _DEFAULT_SETTINGS,
        policy: Policy = _DEFAULT_POLICY,
    ) -> tuple[Frame, Saved]:
        """One picture and what `backward` needs; only the newest pass can be differentiated.

        The arrays of `gaussians` are read anew at each call: an optimiser may have changed them in place.
        """
        with _LOCK:
            frame = self._draw(gaussians, camera, settings, policy, training=True)
            return frame, Saved(self._passes, gaussians.sh.shape[1])

    def backward(self, saved: Saved, image_gradient: Float32, absolute: bool = False) -> Gradients:
        """dL/d(parameters) from dL/d(image) [H, W, 3]."""
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

    def loss(self, image: Float32, target: Float32, dssim_weight: float = 0.2) -> tuple[float, Float32]:
        """(1 - w) L1 + w (1 - SSIM), both means over [H, W, 3], and its gradient with respect to `image`."""
        return self._cpu.loss(image, target, dssim_weight)

    def ssim(self, image: Float32, target: Float32) -> float:
        """Mean SSIM: 11x11 Gaussian window, sigma 1.5, zero padding."""
        return self._cpu.ssim(image, target)

    def adam(
        self,
        parameter: Float32,
        gradient: Float32,
        first: Float32,
        second: Float32,
        rates: Float32,
        step: int,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-15,
    ) -> None:
        """One Adam step in place on [N, D] arrays; `rates` [D] is the learning rate of each column."""
        self._cpu.adam(parameter, gradient, first, second, rates, step, betas, epsilon)

    @cached_property
    def _cpu(self) -> Backend:
        from splatscope.kernels.cpu import CpuBackend

        return CpuBackend()

    def forget(self) -> None:
        """Lets go of the splats drawn so far and of all that was made for drawing them."""
        self.renderer.forget()
        self._uploaded = None

    def _begin(self, gaussians: Gaussians, training: bool) -> Scene:
        """Before each pass: the scene on the GPU."""
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
        """The scene on the GPU; brought there when it is another one than last time, or may have changed."""
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
            known = self._uploaded = None  # before the new one is allocated
            scene = self.renderer.upload(gaussians)
        self._uploaded = (None if may_change else gaussians, scene)
        return scene


def _tile_counts(starts: NDArray[Any], camera: Camera) -> Int32:
    """[Ty, Tx] of the starts of the tiles' lists, 32-bit words."""
    return np.diff(starts.view(np.uint32).astype(np.int64)).reshape(camera.tiles).astype(np.int32)


def _stages(stage_ms: dict[str, float], backward: bool) -> dict[str, float]:
    """The newest times of one half of a pass."""
    own = ("zero", "blend_backward", "project_backward")
    return {name: ms for name, ms in stage_ms.items() if (name in own) == backward}


def need_gpu() -> None:
    """Raises InputError where this machine or installation has no GPU to draw with."""
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
        raise InputError(f"CuPy cannot use the GPU ({error}); mend the installation, or use --backend cpu.") from error


def _first_renderer(nvtx: bool) -> Renderer:
    need_gpu()
    return Renderer(timed=True, nvtx=nvtx)


def _device_name(renderer: Renderer) -> str:
    import torch

    return torch.cuda.get_device_name() if renderer.memory.device == "cuda" else renderer.memory.device


def _sample() -> tuple[Gaussians, Camera]:
    """A few splats in front of a small camera: enough to run every kernel once."""
    count = 20
    means = np.zeros((count, 3), np.float32)
    means[:, 2] = np.linspace(2, 3, count)
    quats = np.tile(np.array([1, 0, 0, 0], np.float32), (count, 1))
    scales, logits = np.full((count, 3), -2, np.float32), np.zeros(count, np.float32)
    splats = Gaussians(means, scales, quats, logits, np.full((count, 16, 3), 0.1, np.float32))
    return splats, Camera.from_matrix(np.eye(4), 40, 24, 30, 30, 20, 12)
