"""Projects and blends disks (2dgs) and Gaussians along rays (3dgut) on the CPU.

`project.py` and `blend.py` call this file where flattened Gaussians have their own code. With d = pixel - mean,
N = u^2 + v^2 of the whitening, Q = 1 + tilt d and D = Q^2 + closeness N, alpha is 2^(POWER - N / D). A disk has
closeness 0; where a circle of fixed size on the image has a larger alpha than the disk, the circle's counts. Formulas:
kernels/cuda/source/tilted.cuh; the definition: kernels/reference/tilted.py. Read `tilted_backward.py` next.
"""

from __future__ import annotations

import numpy as np

from splatscope.kernels.constants import DILATION
from splatscope.kernels.cpu.compile import inline
from splatscope.kernels.cpu.functions import LN_2, LOG2_E, exp2, log2
from splatscope.kernels.cpu.geometry import (
    axes_px,
    column,
    jacobian_rows,
    largest_log_scale,
    logit_tail,
    offset_from_camera,
    placed_splats,
    rotation_rows,
    scales_of,
    to_view,
    unit_direction,
    unit_quaternion,
    usable_splats,
)
from splatscope.kernels.cpu.lane_io import at, load, load_spread, put, store
from splatscope.kernels.cpu.lanes import (
    LANES,
    absolute,
    ceiling,
    mask_bits,
    maximum,
    minimum,
    multiply_add,
    select,
    spread,
    square_root,
)
from splatscope.kernels.cpu.records import (
    AT_CENTER,
    CENTER_X,
    CENTER_Y,
    CIRCLE_X,
    CIRCLE_Y,
    CLOSENESS,
    CUTOFF,
    DEPTH,
    DISK,
    EXTREME,
    FAR_X,
    FAR_Y,
    FLAT,
    FOCAL_X,
    FOCAL_Y,
    HALF_HEIGHT,
    HALF_WIDTH,
    MEAN_X,
    MEAN_Y,
    NEAR_Z,
    OFFSET_U,
    OFFSET_V,
    POWER,
    PRIMITIVE,
    REACH,
    SLOPE,
    TILT_X,
    TILT_Y,
    A,
    B,
    C,
)

F = np.float32
CIRCLE_SIGMAS = 3.0  # a disk's circle is centred on the disk's ellipse at this many sigmas
CIRCLE_LEVEL = F(CIRCLE_SIGMAS * CIRCLE_SIGMAS)
LEAST_INSIDE = F(1e-4)  # with a smaller `inside`, a region counts as reaching through the camera plane
UNBOUNDED = F(1e9)  # px^2, variance of an ellipse that covers every picture
LEAST_AREA = F(1e-30)  # px^4, determinant below which a splat is left out, because we divide by it
LARGEST = F(3.0e38)
SCALE = F(0.84932180028801904)  # sqrt(log2(e) / 2)
HALF_LOG2_E = F(0.5 * 1.4426950408889634)
TWO_LN_2 = F(2.0) * LN_2
MARGIN_PX = F(4.0)  # room for a disk's circle and for rounding
SPHERE_SIGMAS = F(3.36)
BLOCK_SLACK = F(1.002)  # factor on the outline, so that rounding never hides a block
NEVER = F(-1e30)  # power of a splat that a pixel's ray does not meet
KEPT = (A, B, C, MEAN_X, MEAN_Y, TILT_X, TILT_Y, CLOSENESS)  # fields for blending, which replace those for tiles


@inline
def outline(ax0, ax1, ax2, ay0, ay1, ay2, determinant, tilt_x, tilt_y, level):
    """Returns the ellipse N <= level Q^2: its centre relative to the mean, then xx, xy, yy and determinant of its
    covariance at level 1. Last comes `inside`, at most LEAST_INSIDE if the region is no ellipse. Works on numbers and
    on lanes."""
    q0, q1, q2 = ax0 * tilt_x + ay0 * tilt_y, ax1 * tilt_x + ay1 * tilt_y, ax2 * tilt_x + ay2 * tilt_y
    inside = F(1.0) - level * (q0 * q0 + q1 * q1 + q2 * q2)
    w = level / inside
    x, y = w * (ax0 * q0 + ax1 * q1 + ax2 * q2), w * (ay0 * q0 + ay1 * q1 + ay2 * q2)
    xx = w * (ax0 * ax0 + ax1 * ax1 + ax2 * ax2) + x * x
    xy = w * (ax0 * ay0 + ax1 * ay1 + ax2 * ay2) + x * y
    yy = w * (ay0 * ay0 + ay1 * ay1 + ay2 * ay2) + y * y
    m0, m1, m2 = x * ay0 - y * ax0, x * ay1 - y * ax1, x * ay2 - y * ax2
    return x, y, xx, xy, yy, w * w * determinant + w * (m0 * m0 + m1 * m1 + m2 * m2), inside


# ---- Projection ------------------------------------------------------------------------------------------------------


@inline
def lean(scratch, camera, rotation, ox, oy, oz, z):
    """Returns x and y of the tilt in 1/px, the closeness times 2 ln 2 (for N of the whitening), and the distance of a
    disk's plane from the camera."""
    r00, r01, r02, r10, r11, r12, r20, r21, r22 = rotation
    l0, l1, l2 = column(scratch, 3), column(scratch, 4), column(scratch, 5)
    least, low = minimum(minimum(l0, l1), l2), F(-125.0)
    n0 = exp2(maximum((least - l0) * LOG2_E, low))
    n1 = exp2(maximum((least - l1) * LOG2_E, low))
    n2 = exp2(maximum((least - l2) * LOG2_E, low))
    size = exp2(maximum(least * LOG2_E, low))
    if at(camera, PRIMITIVE) == F(DISK):
        n0, n1, n2, size = spread(F(0.0)), spread(F(0.0)), spread(F(1.0)), spread(F(0.0))
    a0 = n0 * (r00 * ox + r10 * oy + r20 * oz)
    a1 = n1 * (r01 * ox + r11 * oy + r21 * oz)
    a2 = n2 * (r02 * ox + r12 * oy + r22 * oz)
    squared = a0 * a0 + a1 * a1 + a2 * a2
    p0, p1, p2 = n0 * a0, n1 * a1, n2 * a2
    x, y, _ = to_view(
        camera, r00 * p0 + r01 * p1 + r02 * p2, r10 * p0 + r11 * p1 + r12 * p2, r20 * p0 + r21 * p1 + r22 * p2
    )
    scale = z / squared
    closeness = size * size * TWO_LN_2 / squared
    return scale * x / at(camera, FOCAL_X), scale * y / at(camera, FOCAL_Y), closeness, absolute(a2)


@inline
def splats_aside(scratch, camera, x, y, z):
    """Returns the mask of lanes whose sphere no ray through the tiles can meet."""
    fx, fy, cx, cy = at(camera, FOCAL_X), at(camera, FOCAL_Y), at(camera, CENTER_X), at(camera, CENTER_Y)
    left, right = F(0.0) - cx / fx, (at(camera, FAR_X) - cx) / fx
    top, bottom = F(0.0) - cy / fy, (at(camera, FAR_Y) - cy) / fy
    radius = exp2(maximum(minimum(largest_log_scale(scratch), F(87.0)) * LOG2_E, F(-125.0))) * SPHERE_SIGMAS
    radius = radius + z * (MARGIN_PX / min(fx, fy))
    low_x = (x - z * left) / np.sqrt(F(1.0) + left * left) + radius
    high_x = (z * right - x) / np.sqrt(F(1.0) + right * right) + radius
    low_y = (y - z * top) / np.sqrt(F(1.0) + top * top) + radius
    high_y = (z * bottom - y) / np.sqrt(F(1.0) + bottom * bottom) + radius
    return (low_x < F(0.0)) | (high_x < F(0.0)) | (low_y < F(0.0)) | (high_y < F(0.0))


@inline
def store_tile_fields(fields, camera, mean_x, mean_y, axes, determinant, tilt_x, tilt_y, closeness, squared):
    """Stores the fields that decide tiles: of the ellipse alpha >= 1/255, or of all tiles if that is no ellipse."""
    ax0, ay0, ax1, ay1, ax2, ay2 = axes
    outside = F(1.0) - squared * closeness * HALF_LOG2_E
    x, y, xx, xy, yy, area, inside = outline(
        ax0, ax1, ax2, ay0, ay1, ay2, determinant, tilt_x, tilt_y, squared / outside
    )
    if at(camera, PRIMITIVE) == F(DISK):
        cx, cy, _, _, _, _, around = outline(
            ax0, ax1, ax2, ay0, ay1, ay2, determinant, tilt_x, tilt_y, spread(CIRCLE_LEVEL)
        )
        zero = spread(F(0.0))
        cx, cy = select(around > LEAST_INSIDE, cx, zero) - x, select(around > LEAST_INSIDE, cy, zero) - y
        more = square_root(squared * F(0.5)) + square_root(cx * cx + cy * cy)
        more = more * more
        # A circle within the ellipse adds nothing. Otherwise the sum of both covariances covers ellipse and circle.
        within = (xx > more) & (yy > more) & ((xx - more) * (yy - more) > xy * xy)
        more = select(within, zero, more)
        area = area + more * (xx + yy + more)
        xx, yy = xx + more, yy + more
    bounded = (inside > LEAST_INSIDE) & (outside > LEAST_INSIDE) & (maximum(xx, yy) < UNBOUNDED)
    everything = spread(UNBOUNDED)
    x = select(bounded, mean_x + x, spread(at(camera, FAR_X) * F(0.5)))
    y = select(bounded, mean_y + y, spread(at(camera, FAR_Y) * F(0.5)))
    xy = select(bounded, xy, spread(F(0.0)))
    xx, yy = select(bounded, xx, everything), select(bounded, yy, everything)
    area = select(bounded, area, everything * UNBOUNDED)
    store(fields, MEAN_X * LANES, x)
    store(fields, MEAN_Y * LANES, y)
    store(fields, C * LANES, F(1.0) / square_root(yy))
    store(fields, CUTOFF * LANES, spread(F(1.0)))
    store(fields, HALF_WIDTH * LANES, square_root(xx))
    store(fields, HALF_HEIGHT * LANES, square_root(yy))
    store(fields, EXTREME * LANES, xy / square_root(xx))
    store(fields, SLOPE * LANES, xy / yy)
    store(fields, REACH * LANES, square_root(area / yy))


@inline
def store_square(fields, mean_x, mean_y, xx, xy, yy):
    """Stores the fields of a square around three sigma, which decides tiles if bin.bounds is circle3s."""
    half_trace, half_difference = (xx + yy) * F(0.5) + F(DILATION), (xx - yy) * F(0.5)
    largest = half_trace + square_root(half_difference * half_difference + xy * xy)
    store(fields, MEAN_X * LANES, mean_x)
    store(fields, MEAN_Y * LANES, mean_y)
    store(fields, HALF_WIDTH * LANES, ceiling(square_root(largest) * F(3.0)))
    store(fields, HALF_HEIGHT * LANES, ceiling(square_root(largest) * F(3.0)))


@inline
def project_tilted(scratch, count, camera, is_square, least_power, rounding, places):
    """Projects the staged splats as `project.project_lanes` does. With `is_square`, a square around three sigma decides
    tiles. `places` is three parts of the scratch: fields for tiles, fields for blending, which `keep_fields` copies
    later, and directions."""
    fields, kept, directions = places
    usable = usable_splats(scratch, count)
    ox, oy, oz = offset_from_camera(scratch, camera)
    x, y, z = to_view(camera, ox, oy, oz)
    inverse_z = F(1.0) / z
    ratio_x, ratio_y = x * inverse_z, y * inverse_z
    mean_x = ratio_x * at(camera, FOCAL_X) + at(camera, CENTER_X)
    mean_y = ratio_y * at(camera, FOCAL_Y) + at(camera, CENTER_Y)
    qw, qx, qy, qz, _ = unit_quaternion(scratch)
    rotation = rotation_rows(qw, qx, qy, qz)
    is_disk = at(camera, PRIMITIVE) == F(DISK)
    s0, s1, s2 = scales_of(scratch)
    s2 = s2 * (F(0.0) if is_disk else F(1.0))
    axes = axes_px(jacobian_rows(camera, ratio_x, ratio_y, inverse_z), rotation, (s0, s1, s2))
    ax0, ay0, ax1, ay1, ax2, ay2 = axes
    tilt_x, tilt_y, closeness, plane = lean(scratch, camera, rotation, ox, oy, oz, z)
    xx, yy = ax0 * ax0 + ax1 * ax1 + ax2 * ax2, ay0 * ay0 + ay1 * ay1 + ay2 * ay2
    xy = ax0 * ay0 + ax1 * ay1 + ax2 * ay2
    m0, m1, m2 = ax0 * ay1 - ax1 * ay0, ax1 * ay2 - ax2 * ay1, ax2 * ay0 - ax0 * ay2
    determinant = m0 * m0 + m1 * m1 + m2 * m2
    if is_disk:  # uses the same plane distance as the tilt: an error of the distance then only moves the disk
        area = s0 * s1 * (plane * inverse_z) * (inverse_z * at(camera, FOCAL_X)) * (inverse_z * at(camera, FOCAL_Y))
        determinant = area * area
    power = F(0.0) - log2(logit_tail(scratch) + F(1.0))
    thin = minimum(xx * yy / determinant, F(1e9))
    squared = maximum(power - least_power, F(0.0)) * TWO_LN_2 * (F(1.0) + rounding * thin)
    store_tile_fields(
        fields, camera, mean_x, mean_y, axes, determinant, tilt_x, tilt_y, closeness, maximum(squared, F(1e-12))
    )
    if is_square:
        store_square(fields, mean_x, mean_y, xx, xy, yy)
    a = square_root(yy) / square_root(determinant) * SCALE
    store(kept, 0, a)
    store(kept, LANES, F(0.0) - a * xy / yy)
    store(kept, 2 * LANES, SCALE / square_root(yy))
    store(kept, 3 * LANES, mean_x)
    store(kept, 4 * LANES, mean_y)
    store(kept, 5 * LANES, tilt_x)
    store(kept, 6 * LANES, tilt_y)
    store(kept, 7 * LANES, closeness)
    store(fields, POWER * LANES, power)
    store(fields, DEPTH * LANES, z)
    dx, dy, dz, _ = unit_direction(ox, oy, oz)
    store(directions, 0, dx)
    store(directions, LANES, dy)
    store(directions, 2 * LANES, dz)

    finite = (absolute(mean_x) <= LARGEST) & (absolute(mean_y) <= LARGEST) & (xx <= LARGEST) & (yy <= LARGEST)
    finite = finite & (determinant <= LARGEST) & (absolute(tilt_x) <= LARGEST) & (absolute(tilt_y) <= LARGEST)
    front = z > at(camera, NEAR_Z)
    # A splat of no area on the image is left out, and nothing is wrong with it.
    candidate = usable & front & (power >= least_power) & (determinant > LEAST_AREA)
    aside = splats_aside(scratch, camera, x, y, z)
    counted = ~mask_bits(placed_splats(scratch)) | (mask_bits(front) & ~mask_bits(aside))
    unusable = ((np.int64(1) << count) - 1) & ~mask_bits(usable) & counted
    return mask_bits(candidate & finite), unusable | (mask_bits(candidate) & ~mask_bits(finite))


@inline
def keep_fields(fields, kept, camera):
    """Replaces the fields for tiles by the fields for blending. Does nothing for flattened Gaussians."""
    if at(camera, PRIMITIVE) == F(FLAT):
        return
    store(fields, A * LANES, load(kept, 0))
    store(fields, B * LANES, load(kept, LANES))
    store(fields, C * LANES, load(kept, 2 * LANES))
    store(fields, MEAN_X * LANES, load(kept, 3 * LANES))
    store(fields, MEAN_Y * LANES, load(kept, 4 * LANES))
    store(fields, TILT_X * LANES, load(kept, 5 * LANES))
    store(fields, TILT_Y * LANES, load(kept, 6 * LANES))
    store(fields, CLOSENESS * LANES, load(kept, 7 * LANES))


# ---- Blending --------------------------------------------------------------------------------------------------------


@inline
def stage_tilted(records, source, staged, base, center_x, center_y, least_power, is_disk, near_z):
    """Writes to the staged record at `base` the values relative to the centre of a tile.

    Returns whitening, (u, v) at the centre and squared size of an ellipse that holds all pixels with alpha >= 1/255. A
    size of 0 means that any pixel may have such an alpha."""
    a, b, c = at(records, source + A), at(records, source + B), at(records, source + C)
    tilt_x, tilt_y = at(records, source + TILT_X), at(records, source + TILT_Y)
    x, y = center_x - at(records, source + MEAN_X), center_y - at(records, source + MEAN_Y)
    depth, closeness = at(records, source + DEPTH), at(records, source + CLOSENESS)
    # The columns of the whitening's inverse are axes of the splat on the image.
    ax0, ay1 = SCALE / a, SCALE / c
    ax1, zero = F(0.0) - b / a * ay1, F(0.0)
    determinant = ax0 * ay1 * (ax0 * ay1)
    squared = max(at(records, source + POWER) - least_power, F(0.0)) * TWO_LN_2 * F(1.0001) + F(1e-5)
    outside = F(1.0) - squared * closeness * HALF_LOG2_E
    mx, my, xx, xy, yy, area, inside = outline(
        ax0, ax1, zero, zero, ay1, zero, determinant, tilt_x, tilt_y, squared / outside
    )
    scale, seen_depth = F(1.0), depth
    if is_disk:
        cx, cy, _, _, _, _, around = outline(ax0, ax1, zero, zero, ay1, zero, determinant, tilt_x, tilt_y, CIRCLE_LEVEL)
        if not around > LEAST_INSIDE:
            cx, cy = F(0.0), F(0.0)
        more = np.sqrt(squared * F(0.5)) + np.sqrt((cx - mx) * (cx - mx) + (cy - my) * (cy - my))
        more = more * more
        if not (xx > more and yy > more and (xx - more) * (yy - more) > xy * xy):
            area += more * (xx + yy + more)
            xx += more
            yy += more
        put(staged, base + CIRCLE_X, cx - x)
        put(staged, base + CIRCLE_Y, cy - y)
        scale, seen_depth = near_z / depth, near_z  # scaled so that the near plane is at Q = 1
    put(staged, base + A, a * scale)
    put(staged, base + B, b * scale)
    put(staged, base + C, c * scale)
    put(staged, base + OFFSET_U, (a * x + b * y) * scale)
    put(staged, base + OFFSET_V, c * y * scale)
    put(staged, base + AT_CENTER, (F(1.0) + tilt_x * x + tilt_y * y) * scale)
    put(staged, base + TILT_X, tilt_x * scale)
    put(staged, base + TILT_Y, tilt_y * scale)
    put(staged, base + DEPTH, seen_depth)
    bounded = inside > LEAST_INSIDE and outside > LEAST_INSIDE and yy < UNBOUNDED
    wide = np.sqrt(yy / area)
    lean_x, high = F(0.0) - wide * xy / yy, F(1.0) / np.sqrt(yy)
    return wide, lean_x, high, wide * (x - mx) + lean_x * (y - my), high * (y - my), BLOCK_SLACK if bounded else F(0.0)


@inline
def falloff_tilted(staged, base, x, y, is_disk):
    """Returns log2 of a staged splat's alpha before the cap at pixels (x, y); u, v, Q and 1 / D there; and the mask of
    pixels whose ray decides alpha, not a disk's circle."""
    u = multiply_add(y, load_spread(staged, base + B), load_spread(staged, base + OFFSET_U))
    u = multiply_add(x, load_spread(staged, base + A), u)
    v = multiply_add(y, load_spread(staged, base + C), load_spread(staged, base + OFFSET_V))
    q = multiply_add(y, load_spread(staged, base + TILT_Y), load_spread(staged, base + AT_CENTER))
    q = multiply_add(x, load_spread(staged, base + TILT_X), q)
    n = multiply_add(u, u, v * v)
    inverse = F(1.0) / multiply_add(load_spread(staged, base + CLOSENESS), n, q * q)
    squared = n * inverse
    met = q > F(0.0)
    on_ray = met
    if is_disk:
        dx, dy = x - load_spread(staged, base + CIRCLE_X), y - load_spread(staged, base + CIRCLE_Y)
        circle = multiply_add(dx, dx, dy * dy) * LOG2_E
        on_ray = squared <= circle
        squared = minimum(squared, circle)
        met = met & (q <= F(1.0))
    power = select(met, load_spread(staged, base + POWER) - squared, spread(NEVER))
    return power, u, v, q, inverse, on_ray
