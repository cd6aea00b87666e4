"""From raw parameters to records: culling, projection, colour. Forward only; see `project_backward.py`.

A worker takes chunks of the scene, sixteen splats at a time as lanes. A splat that is behind the near
plane, too faint, off the image or not finite costs no colour: spherical harmonics are read only for
splats listed in a tile. Slots of a chunk start at chunk * CHUNK, so nothing is compacted afterwards and
the result does not depend on the number of workers. Read `sort.py` next.
"""

from __future__ import annotations

import math

import numpy as np

from splatscope.kernels.constants import ALPHA_MIN, DILATION
from splatscope.kernels.cpu import harmonics
from splatscope.kernels.cpu.bin import CHUNK, COUNT_BITS, list_splat, span_tiles
from splatscope.kernels.cpu.compile import inline, kernel
from splatscope.kernels.cpu.crew import draw_turn, report_turns
from splatscope.kernels.cpu.functions import log2
from splatscope.kernels.cpu.geometry import (
    held_ratios,
    jacobian_rows,
    logit_tail,
    offset_from_camera,
    rotation_rows,
    scales_of,
    stage_columns,
    to_view,
    unit_quaternion,
    usable_splats,
)
from splatscope.kernels.cpu.harmonics import evaluate, stage_harmonics, store_basis
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
from splatscope.kernels.cpu.memory import add_to, at, load, put, store, transpose
from splatscope.kernels.cpu.records import (
    BLUE,
    CENTER_X,
    CENTER_Y,
    CUTOFF,
    DEPTH,
    EXTREME,
    FOCAL_X,
    FOCAL_Y,
    GREEN,
    HALF_HEIGHT,
    HALF_WIDTH,
    MEAN_X,
    MEAN_Y,
    NEAR_Z,
    POWER,
    REACH,
    RECORD,
    RED,
    SLOPE,
    A,
    B,
    C,
)

F = np.float32
ROW_SPAN, BOX, CIRCLE = 0, 1, 2  # BinPolicy.bounds
LOG2_ALPHA_MIN = F(math.log2(ALPHA_MIN))
HALF_LOG2_E = F(0.5 * math.log2(math.e))
ROUNDING = F(4.0 * 2.0**-23)  # of the determinant against the product of the variances
LARGEST = F(3.0e38)
ROOM = 4096  # places in the list of tiles a worker takes at once
# Scratch of a worker, in floats: columns of raw values, fields as columns, records as rows, directions.
FIELDS, STAGED, DIRECTIONS = 16 * LANES, 32 * LANES, 48 * LANES
SCRATCH = 52 * LANES
WORKER_SCRATCH = SCRATCH + harmonics.SCRATCH


def scratch_ints(tile_rows: int) -> int:
    """Int32 a worker needs: rows and tiles of sixteen splats, then the spans of their rows."""
    return 2 * LANES * (1 + tile_rows)


@inline
def project_lanes(scratch, count, camera, bounds):
    """Projects the staged splats; fields go to scratch. Returns bits of (seen, unusable) lanes."""
    usable = usable_splats(scratch, count)
    ox, oy, oz = offset_from_camera(scratch, camera)
    x, y, z = to_view(camera, ox, oy, oz)
    inverse_z = F(1.0) / z
    ratio_x, ratio_y = x * inverse_z, y * inverse_z
    mean_x = ratio_x * at(camera, FOCAL_X) + at(camera, CENTER_X)
    mean_y = ratio_y * at(camera, FOCAL_Y) + at(camera, CENTER_Y)

    held_x, held_y = held_ratios(camera, ratio_x, ratio_y)
    jx0, jx1, jx2, jy0, jy1, jy2 = jacobian_rows(camera, held_x, held_y, inverse_z)
    qw, qx, qy, qz, _ = unit_quaternion(scratch)
    r00, r01, r02, r10, r11, r12, r20, r21, r22 = rotation_rows(qw, qx, qy, qz)
    s0, s1, s2 = scales_of(scratch)
    # Axes of the splat in pixels: covariance = axes axes^T + dilation.
    ax0, ay0 = ((jx0 * r00 + jx1 * r10 + jx2 * r20) * s0, (jy0 * r00 + jy1 * r10 + jy2 * r20) * s0)
    ax1, ay1 = ((jx0 * r01 + jx1 * r11 + jx2 * r21) * s1, (jy0 * r01 + jy1 * r11 + jy2 * r21) * s1)
    ax2, ay2 = ((jx0 * r02 + jx1 * r12 + jx2 * r22) * s2, (jy0 * r02 + jy1 * r12 + jy2 * r22) * s2)
    thin_xx, thin_yy = (ax0 * ax0 + ax1 * ax1 + ax2 * ax2, ay0 * ay0 + ay1 * ay1 + ay2 * ay2)
    xy = ax0 * ay0 + ax1 * ay1 + ax2 * ay2
    xx, yy = thin_xx + F(DILATION), thin_yy + F(DILATION)
    # Lagrange's identity: the determinant as a sum of squares, so that nothing cancels for needles.
    m0, m1, m2 = ax0 * ay1 - ax1 * ay0, ax1 * ay2 - ax2 * ay1, ax2 * ay0 - ax0 * ay2
    determinant = m0 * m0 + m1 * m1 + m2 * m2 + (thin_xx + thin_yy) * F(DILATION) + F(DILATION * DILATION)

    power = F(0.0) - log2(logit_tail(scratch) + F(1.0))
    cutoff = maximum(power - LOG2_ALPHA_MIN, F(0.0))
    reach = square_root(determinant / (yy * HALF_LOG2_E))
    slope = xy / yy
    squared_reach = cutoff * (F(1.0) / HALF_LOG2_E)
    half_width, half_height = (square_root(squared_reach * xx), square_root(squared_reach * yy))
    if bounds == CIRCLE:
        half_trace, half_difference = (xx + yy) * F(0.5), (xx - yy) * F(0.5)
        largest = half_trace + square_root(half_difference * half_difference + xy * xy)
        half_width = ceiling(square_root(largest) * F(3.0))
        half_height = half_width

    finite = (absolute(mean_x) <= LARGEST) & (absolute(mean_y) <= LARGEST)
    finite = finite & (xx <= LARGEST) & (yy <= LARGEST) & (determinant <= LARGEST)
    candidate = usable & (z > at(camera, NEAR_Z)) & (power >= LOG2_ALPHA_MIN)
    base = FIELDS
    store(scratch, base + A * LANES, F(1.0) / reach)
    store(scratch, base + B * LANES, F(0.0) - slope / reach)
    store(scratch, base + C * LANES, square_root(HALF_LOG2_E / yy))
    store(scratch, base + POWER * LANES, power)
    store(scratch, base + DEPTH * LANES, z)
    store(scratch, base + MEAN_X * LANES, mean_x)
    store(scratch, base + MEAN_Y * LANES, mean_y)
    store(scratch, base + CUTOFF * LANES, cutoff * (F(1.0) + ROUNDING * (xx * yy / determinant)))
    store(scratch, base + HALF_WIDTH * LANES, half_width)
    store(scratch, base + HALF_HEIGHT * LANES, half_height)
    store(scratch, base + EXTREME * LANES, xy * square_root(squared_reach / xx))
    store(scratch, base + SLOPE * LANES, slope)
    store(scratch, base + REACH * LANES, reach)

    inverse = F(1.0) / square_root(ox * ox + oy * oy + oz * oz)
    store(scratch, DIRECTIONS, ox * inverse)
    store(scratch, DIRECTIONS + LANES, oy * inverse)
    store(scratch, DIRECTIONS + 2 * LANES, oz * inverse)
    seen = mask_bits(candidate & finite)
    unusable = ((np.int64(1) << count) - 1) & ~mask_bits(usable)
    return seen, unusable | (mask_bits(candidate) & ~mask_bits(finite))


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
    rows,  # of tiles
    columns,
    bounds,
    next_free,  # [1] next free place in `tiles`, zero at the start
    scratches,  # [workers, WORKER_SCRATCH]
    scratches_int,  # [workers, 2 * LANES * (rows + 1)]
    records,  # out [N * RECORD] by slot
    depth_bits,  # out [N] uint32 by slot
    spans,  # out [N] by slot: where its tiles are listed, start << COUNT_BITS | count
    slot_splats,  # out [N] splat of each slot
    tiles,  # out, the tiles of all spans with gaps; too small if next_free ends beyond it
    chunk_visible,  # out [chunks] slots used
    chunk_instances,  # out [chunks] tiles listed
    chunk_skipped,  # out [chunks] splats that were not finite
):
    """Projects every splat, fills one slot for each that reaches a tile, and lists its tiles."""
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
            transpose(scratch, FIELDS, LANES, scratch, STAGED, RECORD)
            stage_harmonics(sh, group, listed, sh.shape[1], sh_used, colors)
            x, y, z = (
                load(scratch, DIRECTIONS),
                load(scratch, DIRECTIONS + LANES),
                load(scratch, DIRECTIONS + 2 * LANES),
            )
            store_basis(x, y, z, colors)
            red, green, blue = evaluate(colors, sh_used)
            colored = listed & mask_bits(absolute(red) + absolute(green) + absolute(blue) <= LARGEST)
            skipped += count_bits(listed & ~colored)
            store(scratch, FIELDS + RED * LANES, maximum(red, F(0.0)))
            store(scratch, FIELDS + GREEN * LANES, maximum(green, F(0.0)))
            store(scratch, FIELDS + BLUE * LANES, maximum(blue, F(0.0)))
            while colored != 0:
                lane = first_bit(colored)
                colored &= colored - 1
                base = slot * RECORD
                store(records, base, load(scratch, STAGED + lane * RECORD))
                for i in range(3):
                    put(records, base + RED + i, at(scratch, FIELDS + (RED + i) * LANES + lane))
                put(depth_bits, slot, float_bits(at(scratch, FIELDS + DEPTH * LANES + lane)))
                put(slot_splats, slot, group + lane)
                length = np.int64(at(counts, LANES + lane))
                put(spans, slot, (free << COUNT_BITS) | length)
                if free + length + LANES <= tiles.size:
                    list_splat(row_spans, lane, at(counts, lane), tiles, free)
                free += length
                instances += length
                slot += 1
        chunk_visible[chunk], chunk_instances[chunk] = (slot - chunk * CHUNK, instances)
        chunk_skipped[chunk] = skipped
        done += 1
    report_turns(board, done)
