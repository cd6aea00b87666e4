"""Turns rows of sums into the gradients of all raw parameters. A worker takes a chunk of the scene at a time.

Adds the rows of a splat in the order of its tiles. Then runs the chain rule backwards through `project.py` for sixteen
neighbouring splats at once: colour and harmonics, mean on the image, covariance, Jacobian (with the exact derivative of
its clamp), scales, rotation, opacity. Writes every row of the output, with zeros for unseen splats. Read `backend.py`
next.
"""

from __future__ import annotations

import numpy as np

from splatscope.kernels.constants import COMPENSATION_MIN
from splatscope.kernels.cpu import harmonics
from splatscope.kernels.cpu.bin import CHUNK, COUNT_BITS, COUNT_MASK
from splatscope.kernels.cpu.blend_backward import (
    ROW,
    SUM_ABSOLUTE_X,
    SUM_ABSOLUTE_Y,
    SUM_G,
    SUM_RED,
    SUM_U,
    SUM_UU,
    SUM_UV,
    SUM_V,
    SUM_VV,
)
from splatscope.kernels.cpu.compile import inline, kernel
from splatscope.kernels.cpu.functions import LN_2
from splatscope.kernels.cpu.geometry import (
    axes_px,
    held_ratios,
    jacobian_rows,
    logit_tail,
    offset_from_camera,
    rotation_rows,
    scales_of,
    stage_columns,
    to_view,
    to_world,
    unit_direction,
    unit_quaternion,
)
from splatscope.kernels.cpu.harmonics import differentiate, slopes, stage_harmonics, store_basis, write_gradient
from splatscope.kernels.cpu.lane_io import at, load, prefetch, put, store, store_columns, transpose
from splatscope.kernels.cpu.lanes import LANES, bits_mask, select, spread
from splatscope.kernels.cpu.records import (
    COMPENSATES,
    FLAT,
    FOCAL_X,
    FOCAL_Y,
    HELD_BOTTOM,
    HELD_LEFT,
    HELD_RIGHT,
    HELD_TOP,
    PRIMITIVE,
    RECORD,
    RED,
    WIDENING,
    A,
    B,
    C,
)
from splatscope.kernels.cpu.thread_pool import draw_turn, report_turns
from splatscope.kernels.cpu.tilted_backward import chain_tilted

F = np.float32
# Scratch of a worker, in floats: columns of raw values; sums and records as rows, then as columns; results.
SUM_ROWS, RECORD_ROWS, SUMS, RECORDS, RESULTS = (i * LANES for i in (16, 32, 48, 64, 80))
MEAN, LOG_SCALE, QUAT, LOGIT, MEAN_PX, RESULT_COUNT = 0, 3, 6, 10, 11, 13
SCRATCH = 96 * LANES
WORKER_SCRATCH = SCRATCH + harmonics.SCRATCH
AHEAD = 24  # distance in instances between prefetching a row and reading it


@inline
def whiten_axis(scratch, widening, ax, ay, bx, by, cx, cy):
    """Returns (u, v) of a splat's axis (ax, ay) in px; its length is at most 1. The other two axes are b and c.

    u = A (ax - ay xy / yy) would cancel for the long axis of a needle, and lose its gradient. Written with xx, xy, yy
    as sums over the axes, u = A / yy (by (ax by - bx ay) + cy (ax cy - cx ay) + widening ax).
    """
    a, c = load(scratch, RECORDS + A * LANES), load(scratch, RECORDS + C * LANES)
    yy = ay * ay + by * by + cy * cy + widening
    across = by * (ax * by - bx * ay) + cy * (ax * cy - cx * ay) + ax * widening
    return across * (a / yy), ay * c


@inline
def compensation_gradient(scratch, camera, ax0, ay0, ax1, ay1, ax2, ay2):
    """Returns dL/d(axes) through the opacity that makes up for the widening: x and y of each of the three axes.

    Let x and y be the rows of the axes, n their cross product and D the widening. The determinant is |n|^2 before
    widening, and |n|^2 + D (|x|^2 + |y|^2) + D^2 after it. In terms of n, nothing cancels for needles.
    """
    zero = spread(F(0.0))
    if at(camera, COMPENSATES) == F(0.0):
        return zero, zero, zero, zero, zero, zero
    n0, n1, n2 = ax1 * ay2 - ax2 * ay1, ax2 * ay0 - ax0 * ay2, ax0 * ay1 - ax1 * ay0
    thin, widening = n0 * n0 + n1 * n1 + n2 * n2, at(camera, WIDENING)
    trace = ax0 * ax0 + ax1 * ax1 + ax2 * ax2 + ay0 * ay0 + ay1 * ay1 + ay2 * ay2
    grown = trace * widening + widening * widening
    determinant = thin + grown
    free = thin > determinant * F(COMPENSATION_MIN * COMPENSATION_MIN)
    each = select(free, load(scratch, SUMS + SUM_G * LANES) / determinant, zero)
    across, along = select(free, each * grown / thin, zero), each * widening
    return (
        across * (ay1 * n2 - ay2 * n1) - along * ax0,
        across * (n1 * ax2 - n2 * ax1) - along * ay0,
        across * (ay2 * n0 - ay0 * n2) - along * ax1,
        across * (n2 * ax0 - n0 * ax2) - along * ay1,
        across * (ay0 * n1 - ay1 * n0) - along * ax2,
        across * (n0 * ax1 - n1 * ax0) - along * ay2,
    )


@inline
def axis_gradient(scratch, u, v, ax, ay, more_x, more_y, result):
    """Stores dL/d(log scale) of an axis and returns dL/d(axis), from the axis's (u, v).

    Let covariance = axes axes^T + widening, W the whitening and M the splat's moments in (u, v). Then dL/d(axis) is
    4 ln(2)^2 W^T M W axis, plus the gradient through the compensation (more_x, more_y).
    """
    a, b, c = (
        load(scratch, RECORDS + A * LANES),
        load(scratch, RECORDS + B * LANES),
        load(scratch, RECORDS + C * LANES),
    )
    uv = load(scratch, SUMS + SUM_UV * LANES)
    by_u = (load(scratch, SUMS + SUM_UU * LANES) * u + uv * v) * (F(4.0) * LN_2 * LN_2)
    by_v = (uv * u + load(scratch, SUMS + SUM_VV * LANES) * v) * (F(4.0) * LN_2 * LN_2)
    store(scratch, RESULTS + result * LANES, by_u * u + by_v * v + more_x * ax + more_y * ay)
    return a * by_u + more_x, b * by_u + c * by_v + more_y


@inline
def mean_px_gradient(scratch):
    """Returns dL/d(projected mean), per px."""
    a, b, c = (
        load(scratch, RECORDS + A * LANES),
        load(scratch, RECORDS + B * LANES),
        load(scratch, RECORDS + C * LANES),
    )
    u, v = load(scratch, SUMS + SUM_U * LANES), load(scratch, SUMS + SUM_V * LANES)
    return a * u * (F(2.0) * LN_2), (b * u + c * v) * (F(2.0) * LN_2)


@inline
def quaternion_gradient(scratch, w, x, y, z, inverse_length, d):
    """Stores dL/dq from the nine dL/dR of a unit quaternion, back through the division by its length."""
    d00, d01, d02, d10, d11, d12, d20, d21, d22 = d
    gw = (x * (d21 - d12) + y * (d02 - d20) + z * (d10 - d01)) * F(2.0)
    gx = (y * (d01 + d10) + z * (d02 + d20) + w * (d21 - d12) - x * (d11 + d22) * F(2.0)) * F(2.0)
    gy = (x * (d01 + d10) + z * (d12 + d21) + w * (d02 - d20) - y * (d00 + d22) * F(2.0)) * F(2.0)
    gz = (x * (d02 + d20) + y * (d12 + d21) + w * (d10 - d01) - z * (d00 + d11) * F(2.0)) * F(2.0)
    along = gw * w + gx * x + gy * y + gz * z
    store(scratch, RESULTS + QUAT * LANES, (gw - w * along) * inverse_length)
    store(scratch, RESULTS + (QUAT + 1) * LANES, (gx - x * along) * inverse_length)
    store(scratch, RESULTS + (QUAT + 2) * LANES, (gy - y * along) * inverse_length)
    store(scratch, RESULTS + (QUAT + 3) * LANES, (gz - z * along) * inverse_length)


@inline
def direction_gradient(colors, ox, oy, oz):
    """Returns dL/d(mean) through the direction in which the colour is evaluated."""
    x, y, z, inverse = unit_direction(ox, oy, oz)
    dx, dy, dz = slopes(x, y, z, colors)
    along = dx * x + dy * y + dz * z
    return (dx - x * along) * inverse, (dy - y * along) * inverse, (dz - z * along) * inverse


@inline
def store_mean_and_logit(scratch, colors, ox, oy, oz, world_x, world_y, world_z):
    """Stores dL/d(mean), adding its part through the colour, and dL/d(logit)."""
    turn_x, turn_y, turn_z = direction_gradient(colors, ox, oy, oz)
    store(scratch, RESULTS + MEAN * LANES, world_x + turn_x)
    store(scratch, RESULTS + (MEAN + 1) * LANES, world_y + turn_y)
    store(scratch, RESULTS + (MEAN + 2) * LANES, world_z + turn_z)
    tail = logit_tail(scratch)  # dopacity / opacity = (1 - opacity) dlogit
    store(scratch, RESULTS + LOGIT * LANES, load(scratch, SUMS + SUM_G * LANES) * (tail / (tail + F(1.0))))


@inline
def store_tilted(scratch, colors, camera, ox, oy, oz):
    """Runs the chain rule for disks and Gaussians along rays: stores the thirteen results."""
    mean, mean_px, log_scales, rotation_gradient = chain_tilted(scratch, SUMS, RECORDS, camera)
    qw, qx, qy, qz, inverse_length = unit_quaternion(scratch)
    quaternion_gradient(scratch, qw, qx, qy, qz, inverse_length, rotation_gradient)
    for k in range(3):
        store(scratch, RESULTS + (LOG_SCALE + k) * LANES, log_scales[k])
    store(scratch, RESULTS + MEAN_PX * LANES, mean_px[0])
    store(scratch, RESULTS + (MEAN_PX + 1) * LANES, mean_px[1])
    store_mean_and_logit(scratch, colors, ox, oy, oz, mean[0], mean[1], mean[2])


@inline
def chain_lanes(scratch, colors, camera, absolute):
    """Runs the chain rule for the staged splats, from sums to the thirteen results in scratch.

    With `absolute`, the gradient of the projected mean comes from the sums of absolute values.
    """
    ox, oy, oz = offset_from_camera(scratch, camera)
    if at(camera, PRIMITIVE) != F(FLAT):
        store_tilted(scratch, colors, camera, ox, oy, oz)
        return
    x, y, z = to_view(camera, ox, oy, oz)
    inverse_z = F(1.0) / z
    ratio_x, ratio_y = x * inverse_z, y * inverse_z
    held_x, held_y = held_ratios(camera, ratio_x, ratio_y)
    qw, qx, qy, qz, inverse_length = unit_quaternion(scratch)
    jacobian, rotation = jacobian_rows(camera, held_x, held_y, inverse_z), rotation_rows(qw, qx, qy, qz)
    scales = scales_of(scratch)
    jx0, jx1, jx2, jy0, jy1, jy2 = jacobian
    r00, r01, r02, r10, r11, r12, r20, r21, r22 = rotation
    s0, s1, s2 = scales
    ax0, ay0, ax1, ay1, ax2, ay2 = axes_px(jacobian, rotation, scales)
    widening = at(camera, WIDENING)
    u0, v0 = whiten_axis(scratch, widening, ax0, ay0, ax1, ay1, ax2, ay2)
    u1, v1 = whiten_axis(scratch, widening, ax1, ay1, ax2, ay2, ax0, ay0)
    u2, v2 = whiten_axis(scratch, widening, ax2, ay2, ax0, ay0, ax1, ay1)
    mx0, my0, mx1, my1, mx2, my2 = compensation_gradient(scratch, camera, ax0, ay0, ax1, ay1, ax2, ay2)
    gx0, gy0 = axis_gradient(scratch, u0, v0, ax0, ay0, mx0, my0, LOG_SCALE)
    gx1, gy1 = axis_gradient(scratch, u1, v1, ax1, ay1, mx1, my1, LOG_SCALE + 1)
    gx2, gy2 = axis_gradient(scratch, u2, v2, ax2, ay2, mx2, my2, LOG_SCALE + 2)
    gx0, gy0, gx1, gy1, gx2, gy2 = gx0 * s0, gy0 * s0, gx1 * s1, gy1 * s1, gx2 * s2, gy2 * s2
    rotation_gradient = (
        jx0 * gx0 + jy0 * gy0,
        jx0 * gx1 + jy0 * gy1,
        jx0 * gx2 + jy0 * gy2,
        jx1 * gx0 + jy1 * gy0,
        jx1 * gx1 + jy1 * gy1,
        jx1 * gx2 + jy1 * gy2,
        jx2 * gx0 + jy2 * gy0,
        jx2 * gx1 + jy2 * gy1,
        jx2 * gx2 + jy2 * gy2,
    )
    quaternion_gradient(scratch, qw, qx, qy, qz, inverse_length, rotation_gradient)

    # Jacobian rows are focal / z (view row - held ratio * view z row). Gradients by 1 / z and by the held ratio:
    gj0, gj1, gj2 = (
        r00 * gx0 + r01 * gx1 + r02 * gx2,
        r10 * gx0 + r11 * gx1 + r12 * gx2,
        r20 * gx0 + r21 * gx1 + r22 * gx2,
    )
    hj0, hj1, hj2 = (
        r00 * gy0 + r01 * gy1 + r02 * gy2,
        r10 * gy0 + r11 * gy1 + r12 * gy2,
        r20 * gy0 + r21 * gy1 + r22 * gy2,
    )
    by_depth = gj0 * jx0 + gj1 * jx1 + gj2 * jx2 + hj0 * jy0 + hj1 * jy1 + hj2 * jy2
    _, _, along_x = to_view(camera, gj0, gj1, gj2)
    _, _, along_y = to_view(camera, hj0, hj1, hj2)
    zero = spread(F(0.0))
    free_x = (ratio_x >= at(camera, HELD_LEFT)) & (ratio_x <= at(camera, HELD_RIGHT))
    free_y = (ratio_y >= at(camera, HELD_TOP)) & (ratio_y <= at(camera, HELD_BOTTOM))
    mean_x, mean_y = mean_px_gradient(scratch)
    store(scratch, RESULTS + MEAN_PX * LANES, mean_x)
    store(scratch, RESULTS + (MEAN_PX + 1) * LANES, mean_y)
    if absolute:
        store(scratch, RESULTS + MEAN_PX * LANES, load(scratch, SUMS + SUM_ABSOLUTE_X * LANES) * (F(2.0) * LN_2))
        store(scratch, RESULTS + (MEAN_PX + 1) * LANES, load(scratch, SUMS + SUM_ABSOLUTE_Y * LANES) * (F(2.0) * LN_2))
    by_ratio_x = (mean_x - select(free_x, along_x * inverse_z, zero)) * at(camera, FOCAL_X)
    by_ratio_y = (mean_y - select(free_y, along_y * inverse_z, zero)) * at(camera, FOCAL_Y)
    view_z = (zero - by_depth - ratio_x * by_ratio_x - ratio_y * by_ratio_y) * inverse_z
    world_x, world_y, world_z = to_world(camera, by_ratio_x * inverse_z, by_ratio_y * inverse_z, view_z)
    store_mean_and_logit(scratch, colors, ox, oy, oz, world_x, world_y, world_z)


@inline
def gather_splat(rows, places, span, records, slot, scratch, lane):
    """Adds the rows of one splat in the order of its tiles; stages them and its record as rows."""
    start = span >> COUNT_BITS
    sums = spread(F(0.0))
    for k in range(start, start + (span & COUNT_MASK)):
        # Rows are in list order, so a splat's rows are scattered. Spans follow each other, so the rows needed next are
        # known; prefetching beyond the last span is useless but harmless.
        if k + AHEAD < places.size:
            prefetch(rows, np.int64(at(places, k + AHEAD)) * ROW)
        sums += load(rows, np.int64(at(places, k)) * ROW)
    store(scratch, SUM_ROWS + lane * ROW, sums)
    store(scratch, RECORD_ROWS + lane * RECORD, load(records, slot * RECORD))


@inline
def color_gradient(scratch, seen, channel):
    """Returns dL/d(colour) of one channel: zero if the colour was clamped at 0 or the splat was not seen."""
    free = (load(scratch, RECORDS + (RED + channel) * LANES) > F(0.0)) & bits_mask(seen)
    return select(free, load(scratch, SUMS + (SUM_RED + channel) * LANES), spread(F(0.0)))


@inline
def write_columns(scratch, group, count, seen, g_means, g_log_scales, g_quats, g_logits, g_means2d):
    """Writes the results of `count` splats from `group` on, zeros for unseen splats."""
    if seen != harmonics.ALL:
        kept = bits_mask(seen)
        for i in range(RESULTS, RESULTS + RESULT_COUNT * LANES, LANES):
            store(scratch, i, select(kept, load(scratch, i), spread(F(0.0))))
    if count == LANES:
        store_columns(scratch, RESULTS + MEAN * LANES, 3, g_means, group * 3)
        store_columns(scratch, RESULTS + LOG_SCALE * LANES, 3, g_log_scales, group * 3)
        store_columns(scratch, RESULTS + QUAT * LANES, 4, g_quats, group * 4)
        store_columns(scratch, RESULTS + MEAN_PX * LANES, 2, g_means2d, group * 2)
        store(g_logits, group, load(scratch, RESULTS + LOGIT * LANES))
        return
    for lane in range(count):
        n, result = group + lane, RESULTS + lane
        for k in range(3):
            put(g_means, n * 3 + k, at(scratch, result + (MEAN + k) * LANES))
            put(g_log_scales, n * 3 + k, at(scratch, result + (LOG_SCALE + k) * LANES))
        for k in range(4):
            put(g_quats, n * 4 + k, at(scratch, result + (QUAT + k) * LANES))
        put(g_logits, n, at(scratch, result + LOGIT * LANES))
        for k in range(2):
            put(g_means2d, n * 2 + k, at(scratch, result + (MEAN_PX + k) * LANES))


@inline
def clear_rows(group, count, sh_size, g_means, g_log_scales, g_quats, g_logits, g_sh, g_means2d):
    """Writes zero gradients for `count` splats from `group` on."""
    for i in range(group * 3, (group + count) * 3):
        put(g_means, i, F(0.0))
        put(g_log_scales, i, F(0.0))
    for i in range(group * 4, (group + count) * 4):
        put(g_quats, i, F(0.0))
    for i in range(group, group + count):
        put(g_logits, i, F(0.0))
        put(g_means2d, 2 * i, F(0.0))
        put(g_means2d, 2 * i + 1, F(0.0))
    for i in range(group * sh_size, (group + count) * sh_size):
        put(g_sh, i, F(0.0))


@kernel
def project_backward(
    board,  # turns are chunks of the scene
    turns,
    worker,
    means,  # [N, 3] and so on, as in Gaussians
    log_scales,
    quats,
    logits,
    sh,  # [N, K, 3]
    sh_used,
    camera,  # packed
    records,  # [slots * RECORD]
    slot_splats,  # [slots]
    spans,  # [slots]
    places,  # row of each listed tile
    rows,  # [I * ROW]
    absolute,  # true if rows have sums of absolute values: g_means2d is computed from them
    chunk_visible,  # [chunks]
    scratches,  # [workers, WORKER_SCRATCH]
    g_means,  # out, as in Gradients
    g_log_scales,
    g_quats,
    g_logits,
    g_sh,
    g_means2d,
    visible,
):
    """Writes the gradients of every splat."""
    sh_rows, done = sh.shape[1], 0
    scratch, colors = scratches[worker, :SCRATCH], scratches[worker, SCRATCH:]
    while True:
        chunk = draw_turn(board)
        if chunk >= turns:
            break
        slot = chunk * CHUNK
        end_slot = slot + chunk_visible[chunk]
        for group in range(chunk * CHUNK, min((chunk + 1) * CHUNK, means.shape[0]), LANES):
            count = min(LANES, means.shape[0] - group)
            seen = np.int64(0)
            while slot < end_slot and at(slot_splats, slot) < group + count:
                lane = np.int64(at(slot_splats, slot)) - group
                gather_splat(rows, places, at(spans, slot), records, slot, scratch, lane)
                seen |= np.int64(1) << lane
                slot += 1
            for lane in range(count):
                put(visible, group + lane, (seen >> lane) & 1)
            if seen == 0:
                clear_rows(group, count, sh_rows * 3, g_means, g_log_scales, g_quats, g_logits, g_sh, g_means2d)
                continue
            transpose(scratch, SUM_ROWS, ROW, scratch, SUMS, LANES)
            transpose(scratch, RECORD_ROWS, RECORD, scratch, RECORDS, LANES)
            stage_columns(means, log_scales, quats, logits, group, count, scratch)
            stage_harmonics(sh, group, seen, sh_rows, sh_used, colors)
            ox, oy, oz = offset_from_camera(scratch, camera)
            x, y, z, _ = unit_direction(ox, oy, oz)
            store_basis(x, y, z, colors)
            red, green, blue = (
                color_gradient(scratch, seen, 0),
                color_gradient(scratch, seen, 1),
                color_gradient(scratch, seen, 2),
            )
            differentiate(colors, sh_used, red, green, blue)
            write_gradient(colors, group, count, seen, sh_rows, sh_used, g_sh)
            chain_lanes(scratch, colors, camera, absolute)
            write_columns(scratch, group, count, seen, g_means, g_log_scales, g_quats, g_logits, g_means2d)
        done += 1
    report_turns(board, done)
