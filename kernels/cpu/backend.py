"""Offers the numba kernels as a `Backend`. Read this file first in `kernels/cpu`.

A pass is project -> sort -> bin -> blend, and for training blend_backward -> project_backward. Each stage is a method
of `pipeline.py`; this file times it. One process-wide lock surrounds every call, because all backends share one pool
of threads. Kernels of the backward pass, the loss and the optimiser (`training.py`) are imported and compiled only
when they are first needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numba
import numpy as np

from splatscope.kernels.cpu.buffers import writable
from splatscope.kernels.cpu.clock import HAS_CLOCK
from splatscope.kernels.cpu.pipeline import Blended, Lists, Pipeline, Projected
from splatscope.kernels.cpu.thread_pool import CREW_LOCK
from splatscope.kernels.policy import Policy
from splatscope.kernels.schedule.rules import CostModel, Machine
from splatscope.kernels.schedule.timeline import recording_of_threads
from splatscope.kernels.types import Camera, Float32, Frame, Gaussians, Gradients, RenderSettings
from splatscope.kernels.wording import counted

_DEFAULT_SETTINGS, _DEFAULT_POLICY = RenderSettings(), Policy()


class _Clock:
    """Measures the milliseconds of each stage, from one call of `lap` to the next."""

    def __init__(self) -> None:
        self.stage_ms: dict[str, float] = {}
        self._last = perf_counter()

    def lap(self, stage: str) -> None:
        now = perf_counter()
        self.stage_ms[stage] = 1000 * (now - self._last)
        self._last = now


@dataclass(frozen=True, eq=False)
class Saved:
    """Keeps what `backward` needs of the newest forward pass."""

    number: int  # counts forward passes
    splats: Gaussians
    camera: Camera
    projected: Projected
    lists: Lists
    blended: Blended


class CpuBackend:
    """Renders and differentiates on the processor. See `kernels/backend.py` for the contract."""

    name = "cpu"
    trains_on_device = False

    def __init__(self) -> None:
        self.compiling = False  # true while kernels are compiled or loaded; any thread may read it
        self._pipeline = Pipeline()
        self._passes = 0
        self._ready = {"render": False, "training": False}

    @property
    def device(self) -> str:
        """Names the hardware by its number of threads: "2 threads"."""
        threads = numba.get_num_threads()
        return counted(threads, "thread")

    def blend_machine(self) -> tuple[Machine, CostModel]:
        """Returns the threads as multiprocessors that take one tile at a time, and the default costs."""
        return Machine(numba.get_num_threads(), 1), CostModel()

    def warm_up(self, training: bool = False) -> None:
        """Compiles kernels or loads them from the cache: renders a small picture and, if asked, takes a training step
        on it."""
        with CREW_LOCK:
            if self._ready["training" if training else "render"]:
                return
            self.compiling = True
            try:
                splats, camera = _sample()
                frame, saved = self._forward(splats, camera, _DEFAULT_SETTINGS, _DEFAULT_POLICY, training)
                if training:
                    from splatscope.kernels.cpu import training as steps  # compiles the loss and the optimiser

                    _, image_gradient = steps.loss(frame.image, frame.image)
                    gradients = self._backward(saved, image_gradient)
                    steps.adam(
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
        """Renders one picture."""
        with CREW_LOCK:
            self.warm_up()
            return self._forward(gaussians, camera, settings, policy, keep=False)[0]

    def forward(
        self,
        gaussians: Gaussians,
        camera: Camera,
        settings: RenderSettings = _DEFAULT_SETTINGS,
        policy: Policy = _DEFAULT_POLICY,
    ) -> tuple[Frame, Saved]:
        """Renders one picture; also returns the values that `backward` needs. Only the newest pass can be
        differentiated."""
        with CREW_LOCK:
            self.warm_up(training=True)
            return self._forward(gaussians, camera, settings, policy, keep=True)

    def backward(self, saved: Saved, image_gradient: Float32, absolute: bool = False) -> Gradients:
        """Returns dL/d(parameters) for dL/d(image) [H, W, 3]. The next call reuses the arrays. With `absolute`, means2d
        is the sum of |dL/d(projected mean)| over pixels.

        Raises ValueError if another picture was rendered since.
        """
        with CREW_LOCK:
            if absolute and saved.splats.primitive != "3dgs":
                raise ValueError(f"Absolute values are added up for 3dgs splats, not for {saved.splats.primitive}.")
            if saved.number != self._passes:
                raise ValueError("Only the newest forward pass can be differentiated; call forward again first.")
            return self._backward(saved, image_gradient, absolute)

    def _forward(
        self, gaussians: Gaussians, camera: Camera, settings: RenderSettings, policy: Policy, keep: bool
    ) -> tuple[Frame, Saved]:
        self._passes += 1
        pipeline, clock = self._pipeline, _Clock()
        splats = gaussians.with_arrays({name: writable(array) for name, array in gaussians.arrays.items()})
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
    """Returns a few splats in front of a small camera, enough to run every kernel once."""
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
