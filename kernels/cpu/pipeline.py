"""Runs the stages as plain calls: each takes the results of earlier stages and returns its arrays.

All arrays belong to the pipeline's buffers and are valid until the same stage runs again, except the picture, which
belongs to the caller. This file does no locking, timing or checking of input. Read the stages' files next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.constants import ALPHA_CAPS
from splatscope.kernels.cpu import bin as binning
from splatscope.kernels.cpu import blend, project, sort
from splatscope.kernels.cpu.buffers import Buffers, Lender
from splatscope.kernels.cpu.records import PRIMITIVE, RECORD, pack_camera
from splatscope.kernels.cpu.thread_pool import CREW
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import BlendPolicy
from splatscope.kernels.types import Camera, Float32, Gaussians, Int32

_BOUNDS = {"row_span": project.ROW_SPAN, "aabb_o": project.BOX, "circle3s": project.CIRCLE}
_DEFAULT_BLENDING = BlendPolicy()
_BUDGET_BYTES = 8 << 30  # limit of all arrays that have an entry for each instance
_LIST_BYTES, _ROW_BYTES = (12, 64)  # bytes of an instance in the lists, and of its row of sums in the backward pass


@dataclass(frozen=True, eq=False)
class Projected:
    """Holds the visible splats by slot; a chunk's slots start at chunk * CHUNK."""

    camera: Float32  # packed
    sh_used: int
    visible: int
    instances: int
    skipped: int
    records: Float32  # [N * RECORD]
    depth_bits: NDArray[np.uint32]  # [N]
    spans: NDArray[np.int64]  # [N] place of each slot's tiles in `tiles` (bin.COUNT_BITS)
    slot_splats: Int32  # [N]
    tiles: Int32  # tiles of all spans
    chunk_visible: NDArray[np.int64]  # [chunks]


@dataclass(frozen=True, eq=False)
class Ordered:
    """Holds the visible splats, nearest first."""

    slots: Int32  # [V]
    spans: NDArray[np.int64]  # [V]


@dataclass(frozen=True, eq=False)
class Lists:
    """Holds the slots that each tile blends."""

    tile_start: NDArray[np.int64]  # [T + 1]
    tile_slots: Int32  # [I]
    tile_order: Int32  # [T] longest list first
    places: Int32  # position in `tile_slots` of each entry of `tiles`; empty if not wanted


@dataclass(frozen=True, eq=False)
class Blended:
    """Holds the picture, and what the backward pass needs of it."""

    image: Float32  # [H, W, 3]
    depth: Float32  # [H, W]
    transmittance: Float32  # [H, W]
    last_index: Int32  # [H, W]
    background: Float32  # [3]
    rule: Float32  # [4] see blend.blend
    units: NDArray[np.int64]  # [T, 4] see blend.blend; [0, 4] if not wanted


class Pipeline:
    """Runs the stages with one set of buffers."""

    def __init__(self) -> None:
        self._buffers, self._pictures = Buffers(), Lender()
        self._room = 0  # number of entries of `tiles` that sufficed last time

    def project(self, splats: Gaussians, camera: Camera, degree: int, bounds: str, filter: str = "plain") -> Projected:
        """Returns records and tiles of the visible splats. Raises InputError for too many instances."""
        take, workers, count = self._buffers.take, numba.get_num_threads(), splats.count
        chunks = -(-count // binning.CHUNK)
        packed, sh_used = pack_camera(camera, filter, splats.primitive), (min(degree, splats.sh_degree) + 1) ** 2
        records = take("records", count * RECORD, np.float32)
        depth_bits, spans = (take("depth_bits", count, np.uint32), take("spans", count, np.int64))
        slot_splats = take("slot_splats", count, np.int32)
        visible, instances, skipped = take("chunk_sums", 3 * chunks, np.int64).reshape(3, chunks)
        self._room = max(self._room, 2 * count + workers * project.ROOM)
        while True:
            tiles = take("tiles", self._room, np.int32)
            next_free = np.zeros(1, np.int64)
            CREW.run(
                project.project,
                chunks,
                splats.means,
                splats.log_scales,
                splats.quats,
                splats.logit_opacities,
                splats.sh,
                sh_used,
                packed,
                *camera.tiles,
                _BOUNDS[bounds],
                next_free,
                self._scratch("project", workers, project.WORKER_SCRATCH, np.float32),
                self._scratch("project_int", workers, project.scratch_ints(camera.tiles[0]), np.int32),
                records,
                depth_bits,
                spans,
                slot_splats,
                tiles,
                visible,
                instances,
                skipped,
            )
            total = int(instances.sum())
            _check_budget(total, _LIST_BYTES, camera)
            if next_free[0] <= tiles.size:
                break
            # Some splats' tiles found no room. Runs again with a quarter more room than was asked for.
            self._room = int(next_free[0]) * 5 // 4 + workers * project.ROOM
        return Projected(
            packed,
            sh_used,
            int(visible.sum()),
            total,
            int(skipped.sum()),
            records,
            depth_bits,
            spans,
            slot_splats,
            tiles,
            visible,
        )

    def sort(self, projected: Projected) -> Ordered:
        """Returns the visible splats, nearest first."""
        take, visible, chunk_visible = self._buffers.take, projected.visible, projected.chunk_visible
        ordered = Ordered(take("order", visible, np.int32), take("ordered_spans", visible, np.int64))
        if visible == 0:
            return ordered
        pairs, moved = take("pairs", visible, np.int64), take("moved_pairs", visible, np.int64)
        bounds = take("depth_bounds", 2 * chunk_visible.size, np.int64).reshape(2, chunk_visible.size)
        chunk_start = np.cumsum(chunk_visible) - chunk_visible
        CREW.run(
            sort.collect_pairs, chunk_visible.size, projected.depth_bits, chunk_visible, chunk_start, pairs, bounds
        )
        low = int(bounds[0].min())
        bits = (int(bounds[1].max()) - low).bit_length()
        passes = max(1, -(-bits // sort.DIGIT))
        digit = -(-bits // passes)
        turns = max(1, min(2 * numba.get_num_threads(), visible // sort.STRETCH))
        histogram = take("digit_histogram", turns << digit, np.int64).reshape(turns, 1 << digit)
        for number in range(passes):
            CREW.run(sort.count_digits, turns, pairs, low, number * digit, histogram)
            sort.place_digits(histogram)
            target = moved if number < passes - 1 else moved[:0]
            CREW.run(
                sort.move_pairs,
                turns,
                pairs,
                low,
                number * digit,
                histogram,
                target,
                projected.spans,
                ordered.slots,
                ordered.spans,
            )
            pairs, moved = moved, pairs
        return ordered

    def bin(self, projected: Projected, ordered: Ordered, camera: Camera, keep_places: bool) -> Lists:
        """Returns tile lists in depth order; with `keep_places` also each instance's place, for the backward pass."""
        take, parts = self._buffers.take, 2 * numba.get_num_threads()
        tile_count = camera.tiles[0] * camera.tiles[1]
        tile_slots = take("tile_slots", projected.instances, np.int32)
        places = take("places", projected.tiles.size if keep_places else 0, np.int32)
        histogram = take("histogram", parts * tile_count, np.int32).reshape(parts, tile_count)
        tile_start, tile_order = (
            take("tile_start", tile_count + 1, np.int64),
            take("tile_order", tile_count, np.int32),
        )
        CREW.run(binning.count_tiles, parts, ordered.spans, projected.tiles, histogram)
        binning.place_tiles(histogram, tile_start)
        CREW.run(
            binning.fill_tiles, parts, ordered.slots, ordered.spans, projected.tiles, histogram, tile_slots, places
        )
        blend.order_tiles(tile_start, take("length_classes", 64, np.int64), tile_order)
        return Lists(tile_start, tile_slots, tile_order, places)

    def blend(
        self,
        projected: Projected,
        lists: Lists,
        camera: Camera,
        background: tuple[float, float, float],
        policy: BlendPolicy = _DEFAULT_BLENDING,
        record: bool = False,
    ) -> Blended:
        """Returns the picture; with `record` also each tile's times and thread."""
        workers, shape = numba.get_num_threads(), (camera.height, camera.width)
        blended = Blended(
            self._pictures.give((*shape, 3)),
            self._pictures.give(shape),
            self._pictures.give(shape),
            self._buffers.take("last_index", shape[0] * shape[1], np.int32).reshape(shape),
            np.array(background, np.float32),
            np.array(
                [ALPHA_CAPS[policy.alpha_cap], policy.stop == "inclusive", projected.camera[PRIMITIVE], camera.near],
                np.float32,
            ),
            self._buffers.take("units", 4 * lists.tile_order.size * record, np.int64).reshape(-1, 4),
        )
        CREW.run(
            blend.blend,
            lists.tile_order.size,
            projected.records,
            lists.tile_start,
            lists.tile_slots,
            lists.tile_order,
            blended.background,
            blended.rule,
            self._scratch("blend", workers, blend.SCRATCH, np.float32),
            self._scratch("blend_int", workers, blend.SCRATCH_INT, np.int32),
            blended.image,
            blended.depth,
            blended.transmittance,
            blended.last_index,
            blended.units,
        )
        return blended

    def blend_backward(
        self,
        projected: Projected,
        lists: Lists,
        blended: Blended,
        image_gradient: Float32,
        camera: Camera,
        absolute: bool = False,
    ) -> Float32:
        """Returns a row of sums for each instance, in list order; with `absolute` also sums of absolute values. Raises
        InputError for too many instances."""
        from splatscope.kernels.cpu import blend_backward

        _check_budget(projected.instances, _LIST_BYTES + _ROW_BYTES, camera)
        workers = numba.get_num_threads()
        rows = self._buffers.take("rows", projected.instances * blend_backward.ROW, np.float32)
        CREW.run(
            blend_backward.blend_backward,
            lists.tile_order.size,
            projected.records,
            lists.tile_start,
            lists.tile_slots,
            lists.tile_order,
            blended.background,
            blended.rule,
            absolute,
            image_gradient,
            blended.transmittance,
            blended.last_index,
            self._scratch("blend_backward", workers, blend_backward.SCRATCH, np.float32),
            self._scratch("blend_backward_int", workers, blend_backward.SCRATCH_INT, np.int32),
            rows,
        )
        return rows

    def project_backward(
        self, splats: Gaussians, projected: Projected, lists: Lists, rows: Float32, absolute: bool = False
    ) -> tuple[NDArray[Any], ...]:
        """Returns the arrays of `Gradients`, in the order of its fields."""
        from splatscope.kernels.cpu import project_backward

        workers, count, sh_rows = (numba.get_num_threads(), splats.count, splats.sh.shape[1])
        shapes = ((count, 3), (count, 3), (count, 4), (count,), (count, sh_rows, 3), (count, 2))
        gradients = [
            self._buffers.take(f"gradient_{i}", int(np.prod(shape)), np.float32).reshape(shape)
            for i, shape in enumerate(shapes)
        ]
        visible = self._buffers.take("gradient_visible", count, np.uint8)
        CREW.run(
            project_backward.project_backward,
            projected.chunk_visible.size,
            splats.means,
            splats.log_scales,
            splats.quats,
            splats.logit_opacities,
            splats.sh,
            projected.sh_used,
            projected.camera,
            projected.records,
            projected.slot_splats,
            projected.spans,
            lists.places,
            rows,
            absolute,
            projected.chunk_visible,
            self._scratch("project_backward", workers, project_backward.WORKER_SCRATCH, np.float32),
            *gradients,
            visible,
        )
        return *gradients, visible.view(np.bool_)

    def _scratch(self, name: str, workers: int, size: int, dtype: Any) -> NDArray[Any]:
        """Returns working memory [workers, size]."""
        return self._buffers.take(f"scratch_{name}", workers * size, dtype).reshape(workers, size)


def _check_budget(instances: int, bytes_each: int, camera: Camera) -> None:
    """Raises InputError if arrays of `bytes_each` for each instance would exceed the budget. Allocates nothing."""
    limit = min(_BUDGET_BYTES // bytes_each, 2**31 - 1)
    if instances > limit:
        raise InputError(
            f"At {camera.width}x{camera.height} the splats cover {instances:,} (splat, tile) pairs; the CPU backend "
            f"takes at most {limit:,}. Use a smaller picture, or remove splats that are far too large."
        )
