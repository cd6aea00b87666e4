"""Turns raw parameters into records: culling, projection, colour. `project_backward.py` differentiates this.

A worker takes chunks of the scene, and sixteen splats at a time as lanes. Spherical harmonics are read only for splats
listed in a tile: no time is spent on colours of splats that are behind the near plane, too faint, outside the image or
not finite. A chunk's slots start at chunk * CHUNK, so that no later pass compacts them, and the result does not depend
on the number of workers. Read `sort.py` next.
"""

from __future__ import annotations

import math

import numpy as np

from splatscope.kernels.constants import ALPHA_MIN, COMPENSATION_MIN
from splatscope.kernels.cpu import harmonics
from splatscope.kernels.cpu.bin import CHUNK, COUNT_BITS, list_splat, span_tiles
from splatscope.kernels.cpu.compile import inline, kernel
from splatscope.kernels.cpu.functions import log2
from splatscope.kernels.cpu.geometry import (
    axes_px,
    held_ratios,
    jacobian_rows,
    logit_tail,
    offset_from_camera,
    placed_splats,
    rotation_rows,
    scales_of,
    splats_outside,
    stage_columns,
    to_view,
    unit_direction,
    unit_quaternion,
    usable_splats,
)
from splatscope.kernels.cpu.harmonics import evaluate, stage_harmonics, store_basis
from splatscope.kernels.cpu.lane_io import add_to, at, load, put, store, transpose
from splatscope.kernels.cpu.lanes import (
    LANES,
    absolute,
    add_up,
    ceiling,
    count_bits,
    first_bit,
    float_bits,
    mask_bits,
    maximum,
    square_root,
)
from splatscope.kernels.cpu.records import (
    BLUE,
    CENTER_X,
    CENTER_Y,
    COMPENSATES,
    CUTOFF,
    DEPTH,
    EXTREME,
    FLAT,
    FOCAL_X,
    FOCAL_Y,
    GREEN,
    HALF_HEIGHT,
    HALF_WIDTH,
    MEAN_X,
    MEAN_Y,
    NEAR_Z,
    POWER,
    PRIMITIVE,
    REACH,
    RECORD,
    RED,
    SLOPE,
    WIDENING,
    A,
    B,
    C,
)
from splatscope.kernels.cpu.thread_pool import draw_turn, report_turns
from splatscope.kernels.cpu.tilted import keep_fields, project_tilted

F = np.float32
ROW_SPAN, BOX, CIRCLE = 0, 1, 2  # BinPolicy.bounds
LOG2_ALPHA_MIN = F(math.log2(ALPHA_MIN))
HALF_LOG2_E = F(0.5 * math.log2(math.e))
ROUNDING = F(4.0 * 2.0**-23)  # error of the determinant relative to the product of the variances
LARGEST = F(3.0e38)
ROOM = 4096  # entries of `tiles` that a worker reserves at once
# Scratch of a worker, in floats: columns of raw values, fields as columns, records as rows, directions.
FIELDS, STAGED, DIRECTIONS = 16 * LANES, 32 * LANES, 48 * LANES
KEPT = 52 * LANES  # fields of tilted splats that replace others once tiles are known
SCRATCH = 60 * LANES
WORKER_SCRATCH = SCRATCH + harmonics.SCRATCH


def scratch_ints(tile_rows: int) -> int:
    """Returns the number of int32 that a worker needs: row and tile counts of sixteen splats, then their spans."""
    return 2 * LANES * (1 + tile_rows)


@inline
def covariance_px(camera, scratch, held_x, held_y, inverse_z):
    """Returns xx, xy, yy of the widened covariance on the image, and its determinant after and before widening."""
    qw, qx, qy, qz, _ = unit_quaternion(scratch)
    jacobian, rotation = jacobian_rows(camera, held_x, held_y, inverse_z), rotation_rows(qw, qx, qy, qz)
    ax0, ay0, ax1, ay1, ax2, ay2 = axes_px(jacobian, rotation, scales_of(scratch))
    xx, yy = ax0 * ax0 + ax1 * ax1 + ax2 * ax2, ay0 * ay0 + ay1 * ay1 + ay2 * ay2
    xy = ax0 * ay0 + ax1 * ay1 + ax2 * ay2
    # Lagrange's identity: the determinant as a sum of squares, so that nothing cancels for needles.
    m0, m1, m2 = ax0 * ay1 - ax1 * ay0, ax1 * ay2 - ax2 * ay1, ax2 * ay0 - ax0 * ay2
    thin, widening = m0 * m0 + m1 * m1 + m2 * m2, at(camera, WIDENING)
    determinant = thin + (xx + yy) * widening + widening * widening
    return xx + widening, xy, yy + widening, determinant, thin


@inline
def half_extent(xx, xy, yy, squared_reach, bounds):
    """Returns half width and half height in px of the box within which a splat is listed."""
    if bounds == CIRCLE:
        half_trace, half_difference = (xx + yy) * F(0.5), (xx - yy) * F(0.5)
        largest = half_trace + square_root(half_difference * half_difference + xy * xy)
        radius = ceiling(square_root(largest) * F(3.0))
        return radius, radius
    return square_root(squared_reach * xx), square_root(squared_reach * yy)


@inline
def project_lanes(scratch, count, camera, bounds):
    """Projects the staged splats: writes fields and directions to scratch.

    Returns bits of the lanes that are seen, and bits of the lanes that are unusable.
    """
    if at(camera, PRIMITIVE) != F(FLAT):
        is_square, places = bounds == CIRCLE, (scratch[FIELDS:], scratch[KEPT:], scratch[DIRECTIONS:])
        return project_tilted(scratch, count, camera, is_square, LOG2_ALPHA_MIN, ROUNDING, places)
    usable = usable_splats(scratch, count)
    ox, oy, oz = offset_from_camera(scratch, camera)
    x, y, z = to_view(camera, ox, oy, oz)
    inverse_z = F(1.0) / z
    ratio_x, ratio_y = x * inverse_z, y * inverse_z
    mean_x = ratio_x * at(camera, FOCAL_X) + at(camera, CENTER_X)
    mean_y = ratio_y * at(camera, FOCAL_Y) + at(camera, CENTER_Y)
    held_x, held_y = held_ratios(camera, ratio_x, ratio_y)
    xx, xy, yy, determinant, thin = covariance_px(camera, scratch, held_x, held_y, inverse_z)

    power = F(0.0) - log2(logit_tail(scratch) + F(1.0))
    if at(camera, COMPENSATES) != F(0.0):  # a splat loses in opacity what it gains in area
        power += log2(maximum(thin / determinant, F(COMPENSATION_MIN * COMPENSATION_MIN))) * F(0.5)
    cutoff = maximum(power - LOG2_ALPHA_MIN, F(0.0))
    squared_reach = cutoff * (F(1.0) / HALF_LOG2_E)
    reach = square_root(determinant / (yy * HALF_LOG2_E))
    slope = xy / yy
    half_width, half_height = half_extent(xx, xy, yy, squared_reach, bounds)
    store(scratch, FIELDS + A * LANES, F(1.0) / reach)
    store(scratch, FIELDS + B * LANES, F(0.0) - slope / reach)
    store(scratch, FIELDS + C * LANES, square_root(HALF_LOG2_E / yy))
    store(scratch, FIELDS + POWER * LANES, power)
    store(scratch, FIELDS + DEPTH * LANES, z)
    store(scratch, FIELDS + MEAN_X * LANES, mean_x)
    store(scratch, FIELDS + MEAN_Y * LANES, mean_y)
    store(scratch, FIELDS + CUTOFF * LANES, cutoff * (F(1.0) + ROUNDING * (xx * yy / determinant)))
    store(scratch, FIELDS + HALF_WIDTH * LANES, half_width)
    store(scratch, FIELDS + HALF_HEIGHT * LANES, half_height)
    store(scratch, FIELDS + EXTREME * LANES, xy * square_root(squared_reach / xx))
    store(scratch, FIELDS + SLOPE * LANES, slope)
    store(scratch, FIELDS + REACH * LANES, reach)
    x, y, z_, _ = unit_direction(ox, oy, oz)
    store(scratch, DIRECTIONS, x)
    store(scratch, DIRECTIONS + LANES, y)
    store(scratch, DIRECTIONS + 2 * LANES, z_)

    finite = (absolute(mean_x) <= LARGEST) & (absolute(mean_y) <= LARGEST)
    finite = finite & (xx <= LARGEST) & (yy <= LARGEST) & (determinant <= LARGEST)
    front = z > at(camera, NEAR_Z)
    candidate = usable & front & (power >= LOG2_ALPHA_MIN)
    # Counts splats without a finite place or size, and splats whose place and size bring them near the image.
    outside = splats_outside(scratch, camera, ratio_x, ratio_y, held_x, held_y, inverse_z)
    counted = ~mask_bits(placed_splats(scratch)) | (mask_bits(front) & ~mask_bits(outside))
    unusable = ((np.int64(1) << count) - 1) & ~mask_bits(usable) & counted
    return mask_bits(candidate & finite), unusable | (mask_bits(candidate) & ~mask_bits(finite))


@inline
def shade(sh, group, listed, sh_used, scratch, colors):
    """Stores the colours of the listed splats among the fields; returns bits of the splats with finite colours."""
    stage_harmonics(sh, group, listed, sh.shape[1], sh_used, colors)
    store_basis(
        load(scratch, DIRECTIONS), load(scratch, DIRECTIONS + LANES), load(scratch, DIRECTIONS + 2 * LANES), colors
    )
    red, green, blue = evaluate(colors, sh_used)
    store(scratch, FIELDS + RED * LANES, maximum(red, F(0.0)))
    store(scratch, FIELDS + GREEN * LANES, maximum(green, F(0.0)))
    store(scratch, FIELDS + BLUE * LANES, maximum(blue, F(0.0)))
    return listed & mask_bits(absolute(red) + absolute(green) + absolute(blue) <= LARGEST)


@inline
def stage_records(scratch, camera):
    """Turns the fields of sixteen splats into their records."""
    keep_fields(scratch[FIELDS:], scratch[KEPT:], camera)
    transpose(scratch, FIELDS, LANES, scratch, STAGED, RECORD)


@kernel
def project(
    board,  # turns are chunks of the scene
    turns,
    worker,
    means,  # [N, 3] and so on, as in Gaussians
    log_scales,
    quats,
    logits,
    sh,  # [N, K, 3]
    sh_used,  # rows of sh to evaluate
    camera,  # packed
    rows,  # number of rows of tiles
    columns,  # number of columns of tiles
    bounds,
    next_free,  # [1] next free place in `tiles`, zero at the start
    scratches,  # [workers, WORKER_SCRATCH]
    scratches_int,  # [workers, 2 * LANES * (rows + 1)]
    records,  # out [N * RECORD] by slot
    depth_bits,  # out [N] uint32 by slot
    spans,  # out [N] by slot: where its tiles are listed, start << COUNT_BITS | count
    slot_splats,  # out [N] splat of each slot
    tiles,  # out, the tiles of all spans, with gaps; it was too small if next_free ends beyond it
    chunk_visible,  # out [chunks] slots used
    chunk_instances,  # out [chunks] tiles listed
    chunk_skipped,  # out [chunks] splats that were not finite
):
    """Projects every splat; for each that reaches a tile, fills a slot and lists the tiles."""
    done = 0
    scratch, colors = scratches[worker, :SCRATCH], scratches[worker, SCRATCH:]
    row_spans, counts = scratches_int[worker, 2 * LANES :], scratches_int[worker, : 2 * LANES]
    free, end = 0, 0
    while True:
        chunk = draw_turn(board)
        if chunk >= turns:
            break
        slot, instances, skipped = chunk * CHUNK, 0, 0
        for group in range(chunk * CHUNK, min((chunk + 1) * CHUNK, means.shape[0]), LANES):
            count = min(LANES, means.shape[0] - group)
            stage_columns(means, log_scales, quats, logits, group, count, scratch)
            seen, unusable = project_lanes(scratch, count, camera, bounds)
            skipped += count_bits(unusable)
            row_count, tile_count = span_tiles(scratch[FIELDS:], seen, rows, columns, bounds == ROW_SPAN, row_spans)
            listed = mask_bits(tile_count > np.int32(0))
            if listed == 0:
                continue
            store(counts, 0, row_count)
            store(counts, LANES, tile_count)
            need = add_up(tile_count) + LANES
            if need > end - free:
                free = add_to(next_free, 0, max(need, ROOM))
                end = free + max(need, ROOM)
            colored = shade(sh, group, listed, sh_used, scratch, colors)
            skipped += count_bits(listed & ~colored)
            stage_records(scratch, camera)
            while colored != 0:
                lane = first_bit(colored)
                colored &= colored - 1
                store(records, slot * RECORD, load(scratch, STAGED + lane * RECORD))
                put(depth_bits, slot, float_bits(at(scratch, FIELDS + DEPTH * LANES + lane)))
                put(slot_splats, slot, group + lane)
                length = np.int64(at(counts, LANES + lane))
                put(spans, slot, (free << COUNT_BITS) | length)
                if free + length + LANES <= tiles.size:
                    list_splat(row_spans, lane, at(counts, lane), tiles, free)
                free += length
                instances += length
                slot += 1
        chunk_visible[chunk], chunk_instances[chunk] = slot - chunk * CHUNK, instances
        chunk_skipped[chunk] = skipped
        done += 1
    report_turns(board, done)
