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
from splatscope.kernels.cpu.buffers import Buffers
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Camera, Float32, Frame, Gaussians, Gradients, RenderSettings

_LOCK = threading.RLock()
_BOUNDS = {"row_span": project.ROW_SPAN, "aabb_o": project.BOX, "circle3s": project.CIRCLE}
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
class Lists:
    """What projection and binning made, valid until the next pass."""

    visible: int
    instances: int
    skipped: int
    tile_start: NDArray[np.int64]  # [T + 1]
    tile_slots: NDArray[np.int32]  # [I]


class CpuBackend:
    """Renders and differentiates on the processor. See `api.Backend` for the contract."""

    name = "cpu"

    def __init__(self) -> None:
        self.compiling = False
        self._buffers = Buffers()

    def warm_up(self, training: bool = False) -> None:
        """Compiles, or loads from the cache, by rendering one small picture."""

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
    ) -> tuple[Frame, Any]:
        with _LOCK:
            clock = _Clock()
            take = self._buffers.take
            workers = numba.get_num_threads()
            count = gaussians.count
            chunks = -(-count // binning.CHUNK)
            queue = take("queue", 1, np.int64)
            rec = take("records", count * records.RECORD, np.float32)
            depth_bits = take("depth_bits", count, np.uint32)
            tile_counts = take("tile_counts", count, np.int32)
            slot_splats = take("slot_splats", count, np.int32)
            chunk_visible = take("chunk_visible", chunks, np.int64)
            chunk_instances = take("chunk_instances", chunks, np.int64)
            chunk_skipped = take("chunk_skipped", chunks, np.int64)
            scratches = take("project_scratch", workers * project.SCRATCH, np.float32).reshape(workers, -1)
            packed = records.pack_camera(camera)
            degree = min(settings.sh_degree, gaussians.sh_degree)
            queue[0] = 0
            bounds = _BOUNDS[policy.bin.bounds]
            project.project(
                gaussians.means,
                gaussians.log_scales,
                gaussians.quats,
                gaussians.logit_opacities,
                gaussians.sh,
                (degree + 1) ** 2,
                packed,
                camera.width,
                camera.height,
                bounds,
                workers,
                queue,
                scratches,
                rec,
                depth_bits,
                tile_counts,
                slot_splats,
                chunk_visible,
                chunk_instances,
                chunk_skipped,
            )
            clock.lap("project")
            visible, instances, skipped = (int(a.sum()) for a in (chunk_visible, chunk_instances, chunk_skipped))
            pairs, spare = take("pairs", visible, np.int64), take("spare", visible, np.int64)
            order = take("order", visible, np.int32)
            sort.sort_by_depth(depth_bits, chunk_visible, visible, pairs, spare, order)
            clock.lap("sort")
            rows, columns = camera.tiles
            parts = 2 * workers
            slot_start = take("slot_start", count, np.int64)
            tiles = take("tiles", instances, np.int32)
            tile_slots = take("tile_slots", instances, np.int32)
            places = take("places", instances, np.int32)
            histogram = take("histogram", parts * rows * columns, np.int32).reshape(parts, -1)
            tile_start = take("tile_start", rows * columns + 1, np.int64)
            instance_start = np.zeros(chunks, np.int64)
            np.cumsum(chunk_instances[:-1], out=instance_start[1:])
            binning.emit_tiles(
                rec,
                tile_counts,
                chunk_visible,
                instance_start,
                rows,
                columns,
                bounds == project.ROW_SPAN,
                slot_start,
                tiles,
            )
            binning.count_tiles(order, visible, tile_counts, slot_start, tiles, parts, histogram)
            binning.place_tiles(histogram, tile_start)
            binning.fill_tiles(order, visible, tile_counts, slot_start, tiles, parts, histogram, tile_slots, places)
            clock.lap("bin")
            tile_order = take("tile_order", rows * columns, np.int32)
            blend.order_tiles(tile_start, take("classes", 64, np.int64), tile_order)
            image = np.empty((camera.height, camera.width, 3), np.float32)
            depth = np.empty((camera.height, camera.width), np.float32)
            transmittance = np.empty((camera.height, camera.width), np.float32)
            last = take("last", camera.height * camera.width, np.int32)
            queue[0] = 0
            blend.blend(
                rec,
                tile_start,
                tile_slots,
                tile_order,
                np.array(settings.background, np.float32),
                workers,
                queue,
                take("blend_scratch", workers * blend.SCRATCH, np.float32).reshape(workers, -1),
                take("blend_scratch_int", workers * blend.SCRATCH_INT, np.int32).reshape(workers, -1),
                image,
                depth,
                transmittance,
                last,
            )
            clock.lap("blend")
            counts = np.diff(tile_start).astype(np.int32).reshape(rows, columns)
            return Frame(image, depth, transmittance, counts, visible, instances, skipped, clock.stage_ms), None
