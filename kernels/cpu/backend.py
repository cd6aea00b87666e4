"""`CpuBackend`: the numba kernels behind the `Backend` protocol. The page to read first here.

A pass is project -> sort -> bin -> blend, and for training blend_backward -> project_backward; each stage
is a method of `pipeline.py` and timed here. One process-wide lock surrounds every call: all
backends share one crew of threads. Kernels of the backward pass, the loss and the optimiser are imported, and
so compiled, only when first needed.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from time import perf_counter

import numba
import numpy as np

from splatscope.kernels.cpu.buffers import writable
from splatscope.kernels.cpu.clock import HAS_CLOCK
from splatscope.kernels.cpu.pipeline import Blended, Lists, Pipeline, Projected
from splatscope.kernels.policy import Policy
from splatscope.kernels.schedule.rules import CostModel, Machine
from splatscope.kernels.schedule.timeline import recording_of_threads
from splatscope.kernels.types import Camera, Float32, Frame, Gaussians, Gradients, RenderSettings
from splatscope.kernels.wording import counted

_LOCK = threading.RLock()
_DEFAULT_SETTINGS, _DEFAULT_POLICY = RenderSettings(), Policy()


class _Clock:
    """Milliseconds from lap to lap."""

    def __init__(self) -> None:
        self.stage_ms: dict[str, float] = {}
        self._last = perf_counter()

    def lap(self, stage: str) -> None:
        now = perf_counter()
        self.stage_ms[stage] = 1000 * (now - self._last)
        self._last = now


@dataclass(frozen=True, eq=False)
class Saved:
    """What `backward` needs of the newest forward pass."""

    number: int  # of the pass
    splats: Gaussians
    camera: Camera
    projected: Projected
    lists: Lists
    blended: Blended


class CpuBackend:
    """Renders and differentiates on the processor. See `api.Backend` for the contract."""

    name = "cpu"

    def __init__(self) -> None:
        self.compiling = False  # true while kernels are compiled or loaded; any thread may read it
        self._pipeline = Pipeline()
        self._passes = 0
        self._ready = {"render": False, "training": False}

    @property
    def device(self) -> str:
        """What it runs on, for people."""
        threads = numba.get_num_threads()
        return counted(threads, "thread")

    def blend_machine(self) -> tuple[Machine, CostModel]:
        """Threads as multiprocessors that take a tile at a time."""
        return Machine(numba.get_num_threads(), 1), CostModel()

    def warm_up(self, training: bool = False) -> None:
        """Compiles, or loads from the cache, by rendering a small picture and, if asked, a training step on it."""
        with _LOCK:
            if self._ready["training" if training else "render"]:
                return
            self.compiling = True
            try:
                splats, camera = _sample()
                frame, saved = self._forward(splats, camera, _DEFAULT_SETTINGS, _DEFAULT_POLICY, training)
                if training:
                    _, image_gradient = self.loss(frame.image, frame.image)
                    gradients = self._backward(saved, image_gradient)
                    self.adam(
                        splats.means,
                        gradients.means,
                        np.zeros_like(splats.means),
                        np.zeros_like(splats.means),
                        np.ones(3, np.float32),
                        1,
                    )
            finally:
                self.compiling = False
            self._ready["render"] = True
            self._ready["training"] |= training

    def render(
        self,
        gaussians: Gaussians,
        camera: Camera,
        settings: RenderSettings = _DEFAULT_SETTINGS,
        policy: Policy = _DEFAULT_POLICY,
    ) -> Frame:
        """One picture."""
        with _LOCK:
            self.warm_up()
            return self._forward(gaussians, camera, settings, policy, keep=False)[0]

    def forward(
        self,
        gaussians: Gaussians,
        camera: Camera,
        settings: RenderSettings = _DEFAULT_SETTINGS,
        policy: Policy = _DEFAULT_POLICY,
    ) -> tuple[Frame, Saved]:
        """One picture and what `backward` needs; only the newest pass can be differentiated."""
        with _LOCK:
            self.warm_up(training=True)
            return self._forward(gaussians, camera, settings, policy, keep=True)

    def backward(self, saved: Saved, image_gradient: Float32, absolute: bool = False) -> Gradients:
        """dL/d(parameters) from dL/d(image) [H, W, 3]. The arrays are reused by the next call. `absolute`: means2d adds
        up |dL/d(projected mean)| of each pixel by itself.

        Raises ValueError if another picture was rendered since.
        """
        with _LOCK:
            if saved.number != self._passes:
                raise ValueError("Only the newest forward pass can be differentiated; call forward again first.")
            return self._backward(saved, image_gradient, absolute)

    def loss(self, image: Float32, target: Float32, dssim_weight: float = 0.2) -> tuple[float, Float32]:
        """(1 - w) L1 + w (1 - SSIM), both means over [H, W, 3], and its gradient with respect to `image`."""
        from splatscope.kernels.cpu.loss import loss_and_gradient

        with _LOCK:
            return loss_and_gradient(image, target, dssim_weight)

    def ssim(self, image: Float32, target: Float32) -> float:
        """Mean SSIM: 11x11 Gaussian window, sigma 1.5, zero padding."""
        from splatscope.kernels.cpu.loss import mean_ssim

        with _LOCK:
            return mean_ssim(image, target)

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
        from splatscope.kernels.cpu.adam import adam_step

        with _LOCK:
            adam_step(parameter, gradient, first, second, rates, step, *betas, epsilon)

    def _forward(
        self, gaussians: Gaussians, camera: Camera, settings: RenderSettings, policy: Policy, keep: bool
    ) -> tuple[Frame, Saved]:
        self._passes += 1
        pipeline, clock = self._pipeline, _Clock()
        splats = Gaussians(*(writable(getattr(gaussians, f.name)) for f in fields(Gaussians)))
        projected = pipeline.project(splats, camera, settings.sh_degree, policy.bin.bounds, policy.project.filter)
        clock.lap("project")
        ordered = pipeline.sort(projected)
        clock.lap("sort")
        lists = pipeline.bin(projected, ordered, camera, keep)
        clock.lap("bin")
        record = HAS_CLOCK and policy.schedule.record == "on"
        blended = pipeline.blend(projected, lists, camera, settings.background, policy.blend, record)
        counts = np.diff(lists.tile_start).astype(np.int32).reshape(camera.tiles)
        clock.lap("blend")
        frame = Frame(
            blended.image,
            blended.depth,
            blended.transmittance,
            counts,
            projected.visible,
            projected.instances,
            projected.skipped,
            clock.stage_ms,
            recording_of_threads(blended.units, counts.ravel().astype(np.int64), camera.tiles, numba.get_num_threads())
            if record
            else None,
        )
        return frame, Saved(self._passes, splats, camera, projected, lists, blended)

    def _backward(self, saved: Saved, image_gradient: Float32, absolute: bool = False) -> Gradients:
        pipeline, clock = self._pipeline, _Clock()
        rows = pipeline.blend_backward(
            saved.projected, saved.lists, saved.blended, writable(image_gradient), saved.camera, absolute
        )
        clock.lap("blend_backward")
        gradients = pipeline.project_backward(saved.splats, saved.projected, saved.lists, rows, absolute)
        clock.lap("project_backward")
        return Gradients(*gradients, stage_ms=clock.stage_ms)


def _sample() -> tuple[Gaussians, Camera]:
    """A handful of splats in front of a small camera: enough to run every kernel once."""
    count = 20
    means = np.zeros((count, 3), np.float32)
    means[:, 2] = np.linspace(2, 3, count)
    splats = Gaussians(
        means,
        np.full((count, 3), -2, np.float32),
        np.tile(np.array([1, 0, 0, 0], np.float32), (count, 1)),
        np.zeros(count, np.float32),
        np.full((count, 16, 3), 0.1, np.float32),
    )
    return splats, Camera.from_matrix(np.eye(4), 40, 24, 30, 30, 20, 12)
