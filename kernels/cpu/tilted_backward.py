"""Differentiates disks (2dgs) and Gaussians along rays (3dgut) on the CPU.

`blend_backward.py` and `project_backward.py` call this file where flattened Gaussians have their own code. Let g =
alpha dL/dalpha, D as in `tilted.py`, h = g Q^2 / D^2 and k = g N Q / D^2. A row has the sums over pixels of
- g, h u^2, h u v, h v^2, h u Q, h v Q;
- weight times image gradient, for each colour channel;
- k u, k v;
- for rays g N^2 / D^2; for disks g times the vector from the pixel to the circle's centre.

Pixels where a disk's circle decides alpha are left out of the sums with h and k; the others are left out of the last
sum. Formulas of the gradients: kernels/cuda/source/geometry_backward_tilted.cuh. Read `backend.py` next.
"""

from __future__ import annotations

import numpy as np

from splatscope.kernels.cpu.compile import inline
from splatscope.kernels.cpu.functions import LN_2, exp2
from splatscope.kernels.cpu.geometry import (
    offset_from_camera,
    rotation_rows,
    scales_of,
    to_view,
    to_world,
    unit_quaternion,
)
from splatscope.kernels.cpu.lane_io import at, load, load_spread, store
from splatscope.kernels.cpu.lanes import LANES, first_bit, minimum, multiply_add, select, spread, totals
from splatscope.kernels.cpu.records import (
    BLUE,
    CIRCLE_X,
    CIRCLE_Y,
    CLOSENESS,
    DISK,
    FOCAL_X,
    FOCAL_Y,
    GREEN,
    PRIMITIVE,
    RED,
    TILT_X,
    TILT_Y,
    A,
    B,
    C,
)
from splatscope.kernels.cpu.tilted import CIRCLE_LEVEL, LEAST_INSIDE, falloff_tilted

F = np.float32
I32 = np.int32
# Fields of a row of sums; colours have the same places as for flattened Gaussians.
SUM_G, SUM_UU, SUM_UV, SUM_VV, SUM_UQ, SUM_VQ = range(6)
SUM_KU, SUM_KV, SUM_J, SUM_Y = 9, 10, 11, 12
SUM_X = SUM_J  # a disk's sum of g times x towards the circle's centre; SUM_Y: y
MORE_SUMS = 4  # fields from SUM_KU on


@inline
def tilted_sums(staged, base, blocks, index, cap, least_power, is_disk, positions, state, planes, last):
    """Walks the `blocks` that a splat reaches; returns the first nine sums of its row and then the other sums, and
    updates T and light from behind of their pixels to the values in front of the splat. `planes` are the places of T,
    light from behind and image gradient in the state."""
    left_plane, behind_plane, red_plane, green_plane, blue_plane = planes
    red, green = load_spread(staged, base + RED), load_spread(staged, base + GREEN)
    blue = load_spread(staged, base + BLUE)
    zero = spread(F(0.0))
    g, uu, uv, vv, uq, vq = zero, zero, zero, zero, zero, zero
    ku, kv, along_x, along_y = zero, zero, zero, zero
    to_red, to_green, to_blue = zero, zero, zero
    while blocks != 0:
        at_block = first_bit(blocks) * LANES
        blocks &= blocks - 1
        x, y = load(positions, at_block), load(positions, positions.size // 2 + at_block)
        power, u, v, q, inverse, on_ray = falloff_tilted(staged, base, x, y, is_disk)
        blended = (power >= least_power) & (load(last, at_block) > I32(index))
        uncapped = select(blended, exp2(power), zero)
        alpha = minimum(uncapped, cap)
        light = load(state, left_plane + at_block) / (F(1.0) - alpha)
        store(state, left_plane + at_block, light)
        by_red, by_green = load(state, red_plane + at_block), load(state, green_plane + at_block)
        by_blue, behind = load(state, blue_plane + at_block), load(state, behind_plane + at_block)
        gain = multiply_add(red, by_red, multiply_add(green, by_green, blue * by_blue)) - behind
        store(state, behind_plane + at_block, multiply_add(alpha, gain, behind))
        weight = alpha * light
        to_red = multiply_add(weight, by_red, to_red)
        to_green = multiply_add(weight, by_green, to_green)
        to_blue = multiply_add(weight, by_blue, to_blue)
        here = uncapped * light * gain
        g += here
        if is_disk:
            of_circle = select(on_ray, zero, here)
            along_x += of_circle * (load_spread(staged, base + CIRCLE_X) - x)
            along_y += of_circle * (load_spread(staged, base + CIRCLE_Y) - y)
        # These may be infinite at pixels whose ray does not meet the splat.
        blended = blended & on_ray
        u, v = select(blended, u, zero), select(blended, v, zero)
        q, inverse = select(blended, q, zero), select(blended, inverse, zero)
        q_share, n_share = q * inverse, multiply_add(u, u, v * v) * inverse
        by_q = here * q_share
        h, k = by_q * q_share, by_q * n_share
        h_u, h_v = h * u, h * v
        uu, uv, vv = multiply_add(h_u, u, uu), multiply_add(h_u, v, uv), multiply_add(h_v, v, vv)
        uq, vq = multiply_add(h_u, q, uq), multiply_add(h_v, q, vq)
        ku, kv = multiply_add(k, u, ku), multiply_add(k, v, kv)
        if not is_disk:
            along_x += here * n_share * n_share
    sums = totals(g, uu, uv, vv, uq, vq, to_red, to_green, to_blue)
    return sums, totals(ku, kv, along_x, along_y, zero, zero, zero, zero, zero)


@inline
def scaled_sum(a, ax, ay, az, b, bx, by, bz, c, cx, cy, cz):
    """Returns a (ax, ay, az) + b (bx, by, bz) + c (cx, cy, cz)."""
    return a * ax + b * bx + c * cx, a * ay + b * by + c * cy, a * az + b * bz + c * cz


@inline
def circle_gradient(axes, z, by_x, by_y):
    """Turns dL/d(circle's centre) into gradients: of rows x, y and z of a disk's two axes (six vectors of lanes), of
    the projected mean (two) and of the mean's z. Rows x and y of the axes are in z times px, row z in world units."""
    x0, y0, z0, x1, y1, z1 = axes
    across = (z0 * z0 + z1 * z1) * CIRCLE_LEVEL
    squared = z * z
    is_ellipse = across < squared * (F(1.0) - LEAST_INSIDE)
    zero, one = spread(F(0.0)), spread(F(1.0))
    inverse = select(is_ellipse, F(1.0) / (across - squared), zero)
    center_x = (z0 * x0 + z1 * x1) * CIRCLE_LEVEL * inverse
    center_y = (z0 * y0 + z1 * y1) * CIRCLE_LEVEL * inverse
    along = by_x * center_x + by_y * center_y
    w0, w1, each = z0 * CIRCLE_LEVEL * inverse, z1 * CIRCLE_LEVEL * inverse, inverse * CIRCLE_LEVEL
    depth0 = each * (by_x * x0 + by_y * y0) - along * w0 * F(2.0)
    depth1 = each * (by_x * x1 + by_y * y1) - along * w1 * F(2.0)
    share = select(is_ellipse, F(0.0) - squared * inverse, one)
    by_z = along * inverse * z * F(2.0)
    return w0 * by_x, w0 * by_y, depth0, w1 * by_x, w1 * by_y, depth1, share * by_x, share * by_y, by_z


@inline
def chain_tilted(scratch, sums, records, camera):
    """Returns for the staged splats dL/d(mean) in world axes without its part through the colour; dL/d(projected mean),
    per px, as density control reads it; dL/d(log scales); and the nine dL/dR of the rotation.

    `sums` and `records` are the places in the scratch where their columns begin.
    """
    ox, oy, oz = offset_from_camera(scratch, camera)
    x, y, z = to_view(camera, ox, oy, oz)
    inverse_z = F(1.0) / z
    ratio_x, ratio_y = x * inverse_z, y * inverse_z
    is_disk = at(camera, PRIMITIVE) == F(DISK)
    qw, qx, qy, qz, _ = unit_quaternion(scratch)
    r00, r01, r02, r10, r11, r12, r20, r21, r22 = rotation_rows(qw, qx, qy, qz)
    s0, s1, s2 = scales_of(scratch)
    s2 = s2 * (F(0.0) if is_disk else F(1.0))
    vx0, vy0, vz0 = rows_of(camera, ratio_x, ratio_y, r00, r10, r20)
    vx1, vy1, vz1 = rows_of(camera, ratio_x, ratio_y, r01, r11, r21)
    vx2, vy2, vz2 = rows_of(camera, ratio_x, ratio_y, r02, r12, r22)
    a, b, c = load(scratch, records + A * LANES), load(scratch, records + B * LANES), load(scratch, records + C * LANES)
    tx, ty = load(scratch, records + TILT_X * LANES), load(scratch, records + TILT_Y * LANES)
    closeness = load(scratch, records + CLOSENESS * LANES)
    uu, uv = load(scratch, sums + SUM_UU * LANES), load(scratch, sums + SUM_UV * LANES)
    vv, ku = load(scratch, sums + SUM_VV * LANES), load(scratch, sums + SUM_KU * LANES)
    kv, j = load(scratch, sums + SUM_KV * LANES), load(scratch, sums + SUM_J * LANES)
    zero = spread(F(0.0))
    to_x, to_y = zero, zero
    if is_disk:
        to_x, to_y = j * F(-2.0), load(scratch, sums + SUM_Y * LANES) * F(-2.0)
        j = zero
    factor = inverse_z * inverse_z * (F(4.0) * LN_2 * LN_2)
    g0 = axis_gradient_tilted(a, b, c, tx, ty, uu, uv, vv, ku, kv, j, factor * s0, vx0, vy0, vz0)
    g1 = axis_gradient_tilted(a, b, c, tx, ty, uu, uv, vv, ku, kv, j, factor * s1, vx1, vy1, vz1)
    g2 = axis_gradient_tilted(a, b, c, tx, ty, uu, uv, vv, ku, kv, j, factor * s2, vx2, vy2, vz2)
    gx0, gy0, gz0 = g0
    gx1, gy1, gz1 = g1
    gx2, gy2, gz2 = g2
    each = inverse_z * (F(2.0) * LN_2)
    by_u = each * (load(scratch, sums + SUM_UQ * LANES) + closeness * ku)
    by_v = each * (load(scratch, sums + SUM_VQ * LANES) + closeness * kv)
    by_q = F(0.0) - each * (uu + vv + closeness * j)
    # dL/d(mean) by rows x, y and depth.
    mx, my, mz = a * by_u + tx * by_q, b * by_u + c * by_v + ty * by_q, by_q
    px, py = mx * z, my * z  # dL/d(mean) in camera axes times z / focal length, without a disk's circle
    if is_disk:
        w0x, w0y, w0z, w1x, w1y, w1z, cx, cy, cz = circle_gradient(
            (vx0 * s0, vy0 * s0, vz0 * s0, vx1 * s1, vy1 * s1, vz1 * s1), z, to_x, to_y
        )
        gx0, gy0, gz0, gx1, gy1, gz1 = gx0 + w0x, gy0 + w0y, gz0 + w0z, gx1 + w1x, gy1 + w1y, gz1 + w1z
        mx, my, mz = mx + cx * inverse_z, my + cy * inverse_z, mz + cz
    log_scales = (
        (gx0 * vx0 + gy0 * vy0 + gz0 * vz0) * s0,
        (gx1 * vx1 + gy1 * vy1 + gz1 * vz1) * s1,
        (gx2 * vx2 + gy2 * vy2 + gz2 * vz2) * s2,
    )
    d00, d10, d20 = row_to_world(camera, ratio_x, ratio_y, gx0 * s0, gy0 * s0, gz0 * s0)
    d01, d11, d21 = row_to_world(camera, ratio_x, ratio_y, gx1 * s1, gy1 * s1, gz1 * s1)
    d02, d12, d22 = row_to_world(camera, ratio_x, ratio_y, gx2 * s2, gy2 * s2, gz2 * s2)
    mean = row_to_world(camera, ratio_x, ratio_y, mx, my, mz)
    return mean, (px, py), log_scales, (d00, d01, d02, d10, d11, d12, d20, d21, d22)


@inline
def axis_gradient_tilted(a, b, c, tx, ty, uu, uv, vv, ku, kv, j, factor, x, y, z):
    """Returns dL/d(axis) by rows x, y and z, from rows x, y and z of the axis divided by its scale."""
    a1, a2, a3 = factor * (a * x + b * y), factor * (c * y), factor * (tx * x + ty * y + z)
    along_u, along_v = uu * a1 + uv * a2 - ku * a3, uv * a1 + vv * a2 - kv * a3
    along_q = j * a3 - ku * a1 - kv * a2
    return a * along_u + tx * along_q, b * along_u + c * along_v + ty * along_q, along_q


@inline
def rows_of(camera, ratio_x, ratio_y, x, y, z):
    """Turns a vector in world axes into rows x, y and depth: x and y are z times d(pixel)/d(mean) times the vector."""
    x, y, z = to_view(camera, x, y, z)
    return (x - ratio_x * z) * at(camera, FOCAL_X), (y - ratio_y * z) * at(camera, FOCAL_Y), z


@inline
def row_to_world(camera, ratio_x, ratio_y, x, y, z):
    """Turns a gradient by rows x, y and depth (`rows_of`) into a gradient by world axes."""
    by_x, by_y = x * at(camera, FOCAL_X), y * at(camera, FOCAL_Y)
    return to_world(camera, by_x, by_y, z - ratio_x * by_x - ratio_y * by_y)
