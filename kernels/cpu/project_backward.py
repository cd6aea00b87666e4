"""From rows of sums to the gradient of every raw parameter, one worker per chunk of the scene.

Rows of a splat are added in the order of its tiles, then the chain rule runs backwards through
`project.py` for sixteen neighbouring splats at once: colour and harmonics, mean on the image, covariance,
Jacobian (with the exact derivative of its clamp), scales, rotation, opacity. Every row of the output is
written, zeros for splats that were not seen. Read `backend.py` next.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from splatscope.kernels.constants import SH_C0
from splatscope.kernels.cpu.bin import CHUNK
from splatscope.kernels.cpu.blend_backward import (
    ROW,
    SUM_BLUE,
    SUM_G,
    SUM_GREEN,
    SUM_RED,
    SUM_U,
    SUM_UU,
    SUM_UV,
    SUM_V,
    SUM_VV,
)
from splatscope.kernels.cpu.compile import inline, parallel_kernel
from splatscope.kernels.cpu.functions import LN_2, sh_slopes, store_sh_basis
from splatscope.kernels.cpu.geometry import (
    held_ratios,
    jacobian_rows,
    logit_tail,
    offset_from_camera,
    rotation_rows,
    scales_of,
    stage_columns,
    to_view,
    to_world,
    unit_quaternion,
)
from splatscope.kernels.cpu.lanes import (
    LANES,
    at,
    load,
    put,
    select,
    spread,
    square_root,
    store,
    take_number,
)
from splatscope.kernels.cpu.records import (
    FOCAL_X,
    FOCAL_Y,
    HELD_BOTTOM,
    HELD_LEFT,
    HELD_RIGHT,
    HELD_TOP,
    RECORD,
    RED,
    A,
    B,
    C,
)

F = np.float32
# Scratch of a worker, in lanes: staged columns, sums, whitening, harmonics and their weights, results.
SUMS, WHITENING = 11 * LANES, 20 * LANES
BASIS, WEIGHTS = 23 * LANES, 39 * LANES
RESULTS = 55 * LANES  # mean 3, log scale 3, quaternion 4, logit 1, mean on the image 2
MEAN, LOG_SCALE, QUAT, LOGIT, MEAN_PX, RESULT_COUNT = 0, 3, 6, 10, 11, 13
SCRATCH = (55 + RESULT_COUNT) * LANES


@inline
def covariance_gradient(scratch):
    """dL/d(covariance) as xx, xy, yy of a symmetric matrix: 2 ln(2)^2 W^T M W for whitening W, moments M."""
    a, b, c = load(scratch, WHITENING), load(scratch, WHITENING + LANES), load(scratch, WHITENING + 2 * LANES)
    uu, uv, vv = (
        load(scratch, SUMS + SUM_UU * LANES),
        load(scratch, SUMS + SUM_UV * LANES),
        load(scratch, SUMS + SUM_VV * LANES),
    )
    scale = F(2.0) * LN_2 * LN_2
    right = b * uu + c * uv
    return a * a * uu * scale, a * right * scale, (b * right + c * (b * uv + c * vv)) * scale


@inline
def mean_px_gradient(scratch):
    """dL/d(projected mean), per px."""
    a, b, c = load(scratch, WHITENING), load(scratch, WHITENING + LANES), load(scratch, WHITENING + 2 * LANES)
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
def direction_gradient(scratch, ox, oy, oz):
    """dL/d(mean) through the direction in which the colour is looked up."""
    inverse = F(1.0) / square_root(ox * ox + oy * oy + oz * oz)
    x, y, z = ox * inverse, oy * inverse, oz * inverse
    dx, dy, dz = sh_slopes(x, y, z, scratch, WEIGHTS)
    along = dx * x + dy * y + dz * z
    return (dx - x * along) * inverse, (dy - y * along) * inverse, (dz - z * along) * inverse


@inline
def chain_lanes(scratch, camera):
    """The chain rule for the staged splats: from sums to the thirteen results in scratch."""
    ox, oy, oz = offset_from_camera(scratch, camera)
    x, y, z = to_view(camera, ox, oy, oz)
    inverse_z = F(1.0) / z
    ratio_x, ratio_y = x * inverse_z, y * inverse_z
    held_x, held_y = held_ratios(camera, ratio_x, ratio_y)
    jx0, jx1, jx2, jy0, jy1, jy2 = jacobian_rows(camera, held_x, held_y, inverse_z)
    qw, qx, qy, qz, inverse_length = unit_quaternion(scratch)
    r00, r01, r02, r10, r11, r12, r20, r21, r22 = rotation_rows(qw, qx, qy, qz)
    s0, s1, s2 = scales_of(scratch)
    ax0, ay0 = (jx0 * r00 + jx1 * r10 + jx2 * r20) * s0, (jy0 * r00 + jy1 * r10 + jy2 * r20) * s0
    ax1, ay1 = (jx0 * r01 + jx1 * r11 + jx2 * r21) * s1, (jy0 * r01 + jy1 * r11 + jy2 * r21) * s1
    ax2, ay2 = (jx0 * r02 + jx1 * r12 + jx2 * r22) * s2, (jy0 * r02 + jy1 * r12 + jy2 * r22) * s2

    # covariance = axes axes^T, so d(axes) = 2 d(covariance) axes; `a` are the axes, `ga` their gradient.
    xx, xy, yy = covariance_gradient(scratch)
    two = F(2.0)
    gx0, gy0 = (xx * ax0 + xy * ay0) * two, (xy * ax0 + yy * ay0) * two
    gx1, gy1 = (xx * ax1 + xy * ay1) * two, (xy * ax1 + yy * ay1) * two
    gx2, gy2 = (xx * ax2 + xy * ay2) * two, (xy * ax2 + yy * ay2) * two
    store(scratch, RESULTS + LOG_SCALE * LANES, gx0 * ax0 + gy0 * ay0)
    store(scratch, RESULTS + (LOG_SCALE + 1) * LANES, gx1 * ax1 + gy1 * ay1)
    store(scratch, RESULTS + (LOG_SCALE + 2) * LANES, gx2 * ax2 + gy2 * ay2)

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

    # Jacobian rows are focal / z (view row - held ratio * view z row): towards 1 / z and the held ratio.
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
    by_ratio_x = (mean_x - select(free_x, along_x * inverse_z, zero)) * at(camera, FOCAL_X)
    by_ratio_y = (mean_y - select(free_y, along_y * inverse_z, zero)) * at(camera, FOCAL_Y)
    view_z = (zero - by_depth - ratio_x * by_ratio_x - ratio_y * by_ratio_y) * inverse_z
    world_x, world_y, world_z = to_world(camera, by_ratio_x * inverse_z, by_ratio_y * inverse_z, view_z)
    turn_x, turn_y, turn_z = direction_gradient(scratch, ox, oy, oz)
    store(scratch, RESULTS + MEAN * LANES, world_x + turn_x)
    store(scratch, RESULTS + (MEAN + 1) * LANES, world_y + turn_y)
    store(scratch, RESULTS + (MEAN + 2) * LANES, world_z + turn_z)

    tail = logit_tail(scratch)  # dopacity / opacity = (1 - opacity) dlogit
    store(scratch, RESULTS + LOGIT * LANES, load(scratch, SUMS + SUM_G * LANES) * (tail / (tail + F(1.0))))


@inline
def gather_sums(rows, places, start, count, records, base, scratch, lane):
    """Adds the rows of one splat in the order of its tiles; stages sums and whitening in its lane."""
    sums = spread(F(0.0))
    for k in range(start, start + count):
        sums += load(rows, np.int64(at(places, k)) * ROW)
    store(scratch, RESULTS, sums)  # not in use yet
    for i in range(9):
        put(scratch, SUMS + i * LANES + lane, at(scratch, RESULTS + i))
    # A channel clamped at 0 does not move.
    for i in range(3):
        if not at(records, base + RED + i) > F(0.0):
            put(scratch, SUMS + (SUM_RED + i) * LANES + lane, F(0.0))
    put(scratch, WHITENING + lane, at(records, base + A))
    put(scratch, WHITENING + LANES + lane, at(records, base + B))
    put(scratch, WHITENING + 2 * LANES + lane, at(records, base + C))


@inline
def sh_gradient(sh, n, sh_rows, sh_used, scratch, lane, out):
    """Writes dL/d(sh) of splat n and stages how much each harmonic pulls on the direction."""
    base = n * sh_rows * 3
    red = at(scratch, SUMS + SUM_RED * LANES + lane)
    green = at(scratch, SUMS + SUM_GREEN * LANES + lane)
    blue = at(scratch, SUMS + SUM_BLUE * LANES + lane)
    put(out, base, red * F(SH_C0))
    put(out, base + 1, green * F(SH_C0))
    put(out, base + 2, blue * F(SH_C0))
    for k in range(1, sh_used):
        weight = at(scratch, BASIS + k * LANES + lane)
        i = base + 3 * k
        put(out, i, red * weight)
        put(out, i + 1, green * weight)
        put(out, i + 2, blue * weight)
        pull = red * at(sh, i) + green * at(sh, i + 1) + blue * at(sh, i + 2)
        put(scratch, WEIGHTS + k * LANES + lane, pull)
    for i in range(base + 3 * sh_used, base + 3 * sh_rows):
        put(out, i, F(0.0))


@inline
def clear_rows(first, count, sh_size, g_means, g_log_scales, g_quats, g_logits, g_sh, g_means2d, seen):
    """Zero gradients for splats first ... first + count."""
    for i in range(first * 3, (first + count) * 3):
        put(g_means, i, F(0.0))
        put(g_log_scales, i, F(0.0))
    for i in range(first * 4, (first + count) * 4):
        put(g_quats, i, F(0.0))
    for i in range(first, first + count):
        put(g_logits, i, F(0.0))
        put(g_means2d, 2 * i, F(0.0))
        put(g_means2d, 2 * i + 1, F(0.0))
        put(seen, i, 0)
    for i in range(first * sh_size, (first + count) * sh_size):
        put(g_sh, i, F(0.0))


@parallel_kernel
def project_backward(
    means,  # [N, 3] and so on, as in Gaussians
    log_scales,
    quats,
    logits,
    sh,  # [N, K, 3]
    sh_used,
    camera,  # packed
    records,  # [slots * RECORD]
    slot_splats,  # [slots]
    slot_start,  # [slots]
    tile_counts,  # [slots]
    places,  # [I]
    rows,  # [I * ROW]
    chunk_visible,  # [chunks]
    workers,
    queue,  # [1] zero at the start
    scratches,  # [workers, SCRATCH]
    g_means,  # out, as in Gradients
    g_log_scales,
    g_quats,
    g_logits,
    g_sh,
    g_means2d,
    seen,
):
    """Fills the gradients of every splat."""
    sh_rows = sh.shape[1]
    for worker in prange(workers):
        scratch = scratches[worker]
        while True:
            chunk = take_number(queue)
            if chunk >= chunk_visible.size:
                break
            slot = chunk * CHUNK
            end_slot = slot + chunk_visible[chunk]
            for group in range(chunk * CHUNK, min((chunk + 1) * CHUNK, means.shape[0]), LANES):
                count = min(LANES, means.shape[0] - group)
                clear_rows(group, count, sh_rows * 3, g_means, g_log_scales, g_quats, g_logits, g_sh, g_means2d, seen)
                if slot == end_slot or at(slot_splats, slot) >= group + count:
                    continue
                stage_columns(means, log_scales, quats, logits, group, count, scratch)
                for i in range(SUMS, RESULTS, LANES):
                    store(scratch, i, spread(F(0.0)))
                ox, oy, oz = offset_from_camera(scratch, camera)
                inverse = F(1.0) / square_root(ox * ox + oy * oy + oz * oz)
                store_sh_basis(ox * inverse, oy * inverse, oz * inverse, scratch, BASIS)
                first_slot = slot
                while slot < end_slot and at(slot_splats, slot) < group + count:
                    n = np.int64(at(slot_splats, slot))
                    lane = n - group
                    gather_sums(
                        rows, places, at(slot_start, slot), at(tile_counts, slot), records, slot * RECORD, scratch, lane
                    )
                    sh_gradient(sh, n, sh_rows, sh_used, scratch, lane, g_sh)
                    slot += 1
                chain_lanes(scratch, camera)
                for s in range(first_slot, slot):
                    n = np.int64(at(slot_splats, s))
                    result = RESULTS + n - group
                    for k in range(3):
                        put(g_means, n * 3 + k, at(scratch, result + (MEAN + k) * LANES))
                        put(g_log_scales, n * 3 + k, at(scratch, result + (LOG_SCALE + k) * LANES))
                    for k in range(4):
                        put(g_quats, n * 4 + k, at(scratch, result + (QUAT + k) * LANES))
                    put(g_logits, n, at(scratch, result + LOGIT * LANES))
                    put(g_means2d, n * 2, at(scratch, result + MEAN_PX * LANES))
                    put(g_means2d, n * 2 + 1, at(scratch, result + (MEAN_PX + 1) * LANES))
                    put(seen, n, 1)
