"""`CpuBackend`: stage order, buffers and timing of the numba kernels. The page to read first here.

A pass is project -> sort -> bin -> blend, and for training blend_backward -> project_backward. One
process-wide lock surrounds every call: numba's thread pool must not be entered twice. Kernels of the
backward pass are imported, and so compiled, only when first needed.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.cpu import bin as binning
from splatscope.kernels.cpu import blend, project, records, sort
from splatscope.kernels.cpu.buffers import Buffers, writable
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Camera, Float32, Frame, Gaussians, Gradients, RenderSettings

_LOCK = threading.RLock()
_BOUNDS = {"row_span": project.ROW_SPAN, "aabb_o": project.BOX, "circle3s": project.CIRCLE}
_DEFAULT_SETTINGS, _DEFAULT_POLICY = RenderSettings(), Policy()
_INSTANCE_BYTES = 12  # tile, slot and place
_ROW_BYTES = 64  # the row of sums a training pass adds
_BUDGET_BYTES = 8 << 30  # for lists of instances


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
    """What `backward` needs of the newest forward pass. The arrays are the backend's own buffers."""

    number: int  # of the pass; older ones cannot be differentiated
    splats: Gaussians
    camera: Camera
    packed_camera: Float32
    background: Float32  # [3]
    sh_used: int
    visible: int
    instances: int
    skipped: int
    records: Float32  # [slots * RECORD]
    slot_splats: NDArray[np.int32]  # [slots] splat of each slot
    slot_start: NDArray[np.int64]  # [slots] first instance of each slot
    tile_counts: NDArray[np.int32]  # [slots] instances of each slot
    chunk_visible: NDArray[np.int64]  # [chunks] slots in use
    places: NDArray[np.int32]  # [I] where each slot's instances went
    tile_start: NDArray[np.int64]  # [T + 1]
    tile_slots: NDArray[np.int32]  # [I]
    tile_order: NDArray[np.int32]  # [T]
    transmittance: Float32  # [H, W]
    last_index: NDArray[np.int32]  # [H * W]


class CpuBackend:
    """Renders and differentiates on the processor. See `api.Backend` for the contract."""

    name = "cpu"

    def __init__(self) -> None:
        self.device = f"{numba.get_num_threads()} threads"
        self.compiling = False  # true while kernels are compiled or loaded; any thread may read it
        self._buffers = Buffers()
        self._passes = 0
        self._warm: set[bool] = set()

    def warm_up(self, training: bool = False) -> None:
        """Compiles, or loads from the cache, by rendering one small picture."""
        with _LOCK:
            if training in self._warm:
                return
            self.compiling = True
            try:
                splats, camera = _sample()
                frame, saved = self._forward(splats, camera, _DEFAULT_SETTINGS, _DEFAULT_POLICY)
                if training:
                    self._backward(saved, np.ones_like(frame.image))
            finally:
                self.compiling = False
            self._warm |= {False, training}

    def render(
        self,
        gaussians: Gaussians,
        camera: Camera,
        settings: RenderSettings = _DEFAULT_SETTINGS,
        policy: Policy = _DEFAULT_POLICY,
    ) -> Frame:
        """One picture."""
        return self.forward(gaussians, camera, settings, policy)[0]

    def forward(
        self,
        gaussians: Gaussians,
        camera: Camera,
        settings: RenderSettings = _DEFAULT_SETTINGS,
        policy: Policy = _DEFAULT_POLICY,
    ) -> tuple[Frame, Saved]:
        """One picture and what `backward` needs; only the newest pass can be differentiated."""
        with _LOCK:
            self.warm_up()
            return self._forward(gaussians, camera, settings, policy)

    def backward(self, saved: Saved, image_gradient: Float32) -> Gradients:
        """dL/d(parameters) from dL/d(image) [H, W, 3]. The arrays are reused by the next call."""
        with _LOCK:
            if saved.number != self._passes:
                raise ValueError("Only the newest forward pass can be differentiated; render again first.")
            if True not in self._warm:
                raise_later = saved.number
                self.compiling = True
            try:
                return self._backward(saved, image_gradient)
            finally:
                self.compiling = False

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

    # ------------------------------------------------------------------------------------ the stages

    def _forward(
        self, gaussians: Gaussians, camera: Camera, settings: RenderSettings, policy: Policy
    ) -> tuple[Frame, Saved]:
        self._passes += 1
        take, workers, clock = self._buffers.take, numba.get_num_threads(), _Clock()
        splats = Gaussians(
            *(
                writable(a)
                for a in (
                    gaussians.means,
                    gaussians.log_scales,
                    gaussians.quats,
                    gaussians.logit_opacities,
                    gaussians.sh,
                )
            )
        )
        count, (rows, columns) = splats.count, camera.tiles
        chunks = -(-count // binning.CHUNK)
        bounds = _BOUNDS[policy.bin.bounds]
        packed = records.pack_camera(camera)
        sh_used = (min(settings.sh_degree, splats.sh_degree) + 1) ** 2
        background = np.array(settings.background, np.float32)

        record = take("records", count * records.RECORD, np.float32)
        depth_bits = take("depth_bits", count, np.uint32)
        tile_counts = take("tile_counts", count, np.int32)
        slot_splats = take("slot_splats", count, np.int32)
        chunk_visible = take("chunk_visible", chunks, np.int64)
        chunk_instances = take("chunk_instances", chunks, np.int64)
        chunk_skipped = take("chunk_skipped", chunks, np.int64)
        project.project(
            splats.means,
            splats.log_scales,
            splats.quats,
            splats.logit_opacities,
            splats.sh,
            sh_used,
            packed,
            rows,
            columns,
            bounds,
            workers,
            self._queue(),
            self._scratch("project", workers, project.SCRATCH, np.float32),
            record,
            depth_bits,
            tile_counts,
            slot_splats,
            chunk_visible,
            chunk_instances,
            chunk_skipped,
        )
        visible, instances, skipped = (int(a.sum()) for a in (chunk_visible, chunk_instances, chunk_skipped))
        clock.lap("project")

        order = take("order", visible, np.int32)
        sort.sort_by_depth(
            depth_bits,
            chunk_visible,
            visible,
            take("pairs", visible, np.int64),
            take("spare_pairs", visible, np.int64),
            order,
        )
        clock.lap("sort")

        _check_budget(instances, _INSTANCE_BYTES, camera)
        parts = 2 * workers
        instance_start = np.cumsum(chunk_instances) - chunk_instances
        slot_start = take("slot_start", count, np.int64)
        tiles = take("tiles", instances, np.int32)
        tile_slots, places = take("tile_slots", instances, np.int32), take("places", instances, np.int32)
        histogram = take("histogram", parts * rows * columns, np.int32).reshape(parts, rows * columns)
        tile_start = take("tile_start", rows * columns + 1, np.int64)
        row_span = bounds == project.ROW_SPAN
        binning.emit_tiles(
            record, tile_counts, chunk_visible, instance_start, rows, columns, row_span, slot_start, tiles
        )
        binning.count_tiles(order, visible, tile_counts, slot_start, tiles, parts, histogram)
        binning.place_tiles(histogram, tile_start)
        binning.fill_tiles(order, visible, tile_counts, slot_start, tiles, parts, histogram, tile_slots, places)
        clock.lap("bin")

        tile_order = take("tile_order", rows * columns, np.int32)
        blend.order_tiles(tile_start, take("length_classes", 64, np.int64), tile_order)
        image = np.empty((camera.height, camera.width, 3), np.float32)
        depth, transmittance = np.empty((2, camera.height, camera.width), np.float32)
        last_index = take("last_index", camera.height * camera.width, np.int32)
        blend.blend(
            record,
            tile_start,
            tile_slots,
            tile_order,
            background,
            workers,
            self._queue(),
            self._scratch("blend", workers, blend.SCRATCH, np.float32),
            self._scratch("blend_int", workers, blend.SCRATCH_INT, np.int32),
            image,
            depth,
            transmittance,
            last_index,
        )
        counts = np.diff(tile_start).astype(np.int32).reshape(rows, columns)
        clock.lap("blend")
        frame = Frame(image, depth, transmittance, counts, visible, instances, skipped, clock.stage_ms)
        saved = Saved(
            self._passes,
            splats,
            camera,
            packed,
            background,
            sh_used,
            visible,
            instances,
            skipped,
            record,
            slot_splats,
            slot_start,
            tile_counts,
            chunk_visible,
            places,
            tile_start,
            tile_slots,
            tile_order,
            transmittance,
            last_index,
        )
        return frame, saved

    def _backward(self, saved: Saved, image_gradient: Float32) -> Gradients:
        from splatscope.kernels.cpu import blend_backward, project_backward

        take, workers, clock = self._buffers.take, numba.get_num_threads(), _Clock()
        splats, count, sh_rows = saved.splats, saved.splats.count, saved.splats.sh.shape[1]
        _check_budget(saved.instances, _INSTANCE_BYTES + _ROW_BYTES, saved.camera)
        rows = take("rows", saved.instances * blend_backward.ROW, np.float32)
        blend_backward.blend_backward(
            saved.records,
            saved.tile_start,
            saved.tile_slots,
            saved.tile_order,
            saved.background,
            writable(np.asarray(image_gradient, np.float32)),
            saved.transmittance,
            saved.last_index,
            workers,
            self._queue(),
            self._scratch("blend_backward", workers, blend_backward.SCRATCH, np.float32),
            self._scratch("blend_backward_int", workers, blend_backward.SCRATCH_INT, np.int32),
            rows,
        )
        clock.lap("blend_backward")

        means, log_scales, means2d = (
            take(f"gradient_{name}", count * width, np.float32).reshape(count, width)
            for name, width in (("means", 3), ("log_scales", 3), ("means2d", 2))
        )
        quats = take("gradient_quats", count * 4, np.float32).reshape(count, 4)
        logits = take("gradient_logits", count, np.float32)
        sh = take("gradient_sh", count * sh_rows * 3, np.float32).reshape(count, sh_rows, 3)
        seen = take("seen", count, np.uint8)
        project_backward.project_backward(
            splats.means,
            splats.log_scales,
            splats.quats,
            splats.logit_opacities,
            splats.sh,
            saved.sh_used,
            saved.packed_camera,
            saved.records,
            saved.slot_splats,
            saved.slot_start,
            saved.tile_counts,
            saved.places,
            rows,
            saved.chunk_visible,
            workers,
            self._queue(),
            self._scratch("project_backward", workers, project_backward.SCRATCH, np.float32),
            means,
            log_scales,
            quats,
            logits,
            sh,
            means2d,
            seen,
        )
        clock.lap("project_backward")
        return Gradients(means, log_scales, quats, logits, sh, means2d, seen.view(np.bool_), clock.stage_ms)

    def _queue(self) -> NDArray[np.int64]:
        """The counter from which workers take their turns, at zero."""
        queue = self._buffers.take("queue", 1, np.int64)
        queue[0] = 0
        return queue

    def _scratch(self, name: str, workers: int, size: int, dtype: Any) -> NDArray[Any]:
        """Working memory [workers, size]."""
        return self._buffers.take(f"scratch_{name}", workers * size, dtype).reshape(workers, size)


def _check_budget(instances: int, bytes_each: int, camera: Camera) -> None:
    """Refuses a pass whose lists would not fit, before anything is allocated."""
    limit = min(_BUDGET_BYTES // bytes_each, 2**31 - 1)
    if instances > limit:
        raise InputError(
            f"At {camera.width}x{camera.height} the splats cover {instances:,} (splat, tile) pairs; "
            f"the CPU backend takes at most {limit:,}. Use a smaller picture, or remove splats that are far too large."
        )


def _sample() -> tuple[Gaussians, Camera]:
    """A handful of splats in front of a small camera: enough to run every kernel once."""
    count = 20
    means = np.zeros((count, 3), np.float32)
    means[:, 2] = np.linspace(2, 3, count)
    splats = Gaussians(
        means,
        np.full((count, 3), -2, np.float32),
        np.tile(np.float32([1, 0, 0, 0]), (count, 1)),
        np.zeros(count, np.float32),
        np.full((count, 16, 3), 0.1, np.float32),
    )
    return splats, Camera.from_matrix(np.eye(4), 40, 24, 30, 30, 20, 12)
