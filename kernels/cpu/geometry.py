"""Computes the geometry of sixteen splats at once, for the forward and the backward pass.

Camera values come packed (`records.py`). Means, and all values computed from them, are relative to the camera, so that
scenes far from the origin lose no precision. Formulas: Zwicker et al. 2002 (EWA), with x/z clamped inside the Jacobian
only. Read `project.py` next.
"""

from __future__ import annotations

import numpy as np

from splatscope.kernels.constants import DILATION, SPHERE_SIGMAS
from splatscope.kernels.cpu.compile import inline
from splatscope.kernels.cpu.functions import LOG2_E, exp2
from splatscope.kernels.cpu.lane_io import at, load, load_columns, put, store
from splatscope.kernels.cpu.lanes import LANES, absolute, lane_numbers, maximum, minimum, square_root
from splatscope.kernels.cpu.records import (
    CENTER_X,
    CENTER_Y,
    FAR_X,
    FAR_Y,
    FOCAL_X,
    FOCAL_Y,
    HELD_BOTTOM,
    HELD_LEFT,
    HELD_RIGHT,
    HELD_TOP,
    POSITION,
    POSITION_REST,
    ROTATION,
)

F = np.float32
COLUMNS = 11  # mean 3, log scale 3, quaternion 4, logit opacity 1
LARGEST_LOG_SCALE = F(88.0)  # exp beyond it is not a float32


@inline
def stage_columns(means, log_scales, quats, logits, first, count, scratch):
    """Copies `count` splats from `first` on as columns: scratch[column * 16 + lane]. Repeats the last splat to fill the
    lanes."""
    if count == LANES:
        load_columns(means, first * 3, 3, scratch, 0)
        load_columns(log_scales, first * 3, 3, scratch, 3 * LANES)
        load_columns(quats, first * 4, 4, scratch, 6 * LANES)
        store(scratch, 10 * LANES, load(logits, first))
        return
    for lane in range(LANES):
        n = first + min(lane, count - 1)
        for k in range(3):
            put(scratch, k * LANES + lane, at(means, n * 3 + k))
            put(scratch, (3 + k) * LANES + lane, at(log_scales, n * 3 + k))
        for k in range(4):
            put(scratch, (6 + k) * LANES + lane, at(quats, n * 4 + k))
        put(scratch, 10 * LANES + lane, at(logits, n))


@inline
def column(scratch, k):
    """Returns column k of the staged splats."""
    return load(scratch, k * LANES)


@inline
def defects(scratch, first, end):
    """Returns 0 in lanes whose columns first ... end - 1 are finite, NaN in the other lanes."""
    # x - x is 0 for finite x and NaN otherwise, so the sum of all differences needs only one comparison.
    defect = column(scratch, first) - column(scratch, first)
    for k in range(first + 1, end):
        defect += column(scratch, k) - column(scratch, k)
    return defect


@inline
def largest_log_scale(scratch):
    """Returns the largest of the three log scales."""
    return maximum(maximum(column(scratch, 3), column(scratch, 4)), column(scratch, 5))


@inline
def placed_splats(scratch):
    """Returns the mask of lanes whose position and scales are finite."""
    return (defects(scratch, 0, 6) >= F(0.0)) & (largest_log_scale(scratch) <= LARGEST_LOG_SCALE)


@inline
def usable_splats(scratch, count):
    """Returns the mask of the lanes among the first `count` whose values are usable.

    An infinite opacity logit is usable: the opacity is 0 or 1.
    """
    qw, qx, qy, qz = column(scratch, 6), column(scratch, 7), column(scratch, 8), column(scratch, 9)
    logit = column(scratch, 10)
    usable = placed_splats(scratch) & (defects(scratch, 6, 10) >= F(0.0)) & (logit <= F(np.inf))
    length = maximum(maximum(absolute(qw), absolute(qx)), maximum(absolute(qy), absolute(qz)))
    return usable & (length > F(0.0)) & (lane_numbers() < np.int32(count))


@inline
def offset_from_camera(scratch, camera):
    """Returns mean minus camera centre, world axes."""
    return (
        column(scratch, 0) - at(camera, POSITION) - at(camera, POSITION_REST),
        column(scratch, 1) - at(camera, POSITION + 1) - at(camera, POSITION_REST + 1),
        column(scratch, 2) - at(camera, POSITION + 2) - at(camera, POSITION_REST + 2),
    )


@inline
def to_view(camera, x, y, z):
    """Rotates world axes into camera axes."""
    return (
        x * at(camera, ROTATION) + y * at(camera, ROTATION + 1) + z * at(camera, ROTATION + 2),
        x * at(camera, ROTATION + 3) + y * at(camera, ROTATION + 4) + z * at(camera, ROTATION + 5),
        x * at(camera, ROTATION + 6) + y * at(camera, ROTATION + 7) + z * at(camera, ROTATION + 8),
    )


@inline
def to_world(camera, x, y, z):
    """Rotates camera axes into world axes, the transpose of `to_view`, for gradients."""
    return (
        x * at(camera, ROTATION) + y * at(camera, ROTATION + 3) + z * at(camera, ROTATION + 6),
        x * at(camera, ROTATION + 1) + y * at(camera, ROTATION + 4) + z * at(camera, ROTATION + 7),
        x * at(camera, ROTATION + 2) + y * at(camera, ROTATION + 5) + z * at(camera, ROTATION + 8),
    )


@inline
def held_ratios(camera, ratio_x, ratio_y):
    """Returns x/z and y/z clamped to the image plus a margin, as the Jacobian uses them."""
    return (
        minimum(maximum(ratio_x, at(camera, HELD_LEFT)), at(camera, HELD_RIGHT)),
        minimum(maximum(ratio_y, at(camera, HELD_TOP)), at(camera, HELD_BOTTOM)),
    )


@inline
def splats_outside(scratch, camera, ratio_x, ratio_y, held_x, held_y, inverse_z):
    """Returns the mask of lanes whose sphere, projected to a disc, lies outside all tiles."""
    sigma = exp2(minimum(largest_log_scale(scratch), LARGEST_LOG_SCALE) * LOG2_E) * inverse_z
    sigma = sigma * max(at(camera, FOCAL_X), at(camera, FOCAL_Y))
    variance = sigma * sigma * (held_x * held_x + held_y * held_y + F(1.0)) + F(DILATION)
    reach = square_root(variance) * F(SPHERE_SIGMAS) + F(1.0)
    x = ratio_x * at(camera, FOCAL_X) + at(camera, CENTER_X)
    y = ratio_y * at(camera, FOCAL_Y) + at(camera, CENTER_Y)
    outside_x = (x + reach < F(0.0)) | (x - reach > at(camera, FAR_X))
    return outside_x | (y + reach < F(0.0)) | (y - reach > at(camera, FAR_Y))


@inline
def jacobian_rows(camera, held_x, held_y, inverse_z):
    """Returns the rows of d(pixel) / d(mean in world axes): three vectors of lanes for x, three for y."""
    scale_x, scale_y = inverse_z * at(camera, FOCAL_X), inverse_z * at(camera, FOCAL_Y)
    x0, x1, x2 = at(camera, ROTATION), at(camera, ROTATION + 1), at(camera, ROTATION + 2)
    y0, y1, y2 = at(camera, ROTATION + 3), at(camera, ROTATION + 4), at(camera, ROTATION + 5)
    z0, z1, z2 = at(camera, ROTATION + 6), at(camera, ROTATION + 7), at(camera, ROTATION + 8)
    return (
        scale_x * (x0 - held_x * z0),
        scale_x * (x1 - held_x * z1),
        scale_x * (x2 - held_x * z2),
        scale_y * (y0 - held_y * z0),
        scale_y * (y1 - held_y * z1),
        scale_y * (y2 - held_y * z2),
    )


@inline
def unit_direction(x, y, z):
    """Returns (x, y, z) / length, and 1 / length."""
    inverse = F(1.0) / square_root(x * x + y * y + z * z)
    return x * inverse, y * inverse, z * inverse, inverse


@inline
def unit_quaternion(scratch):
    """Returns (w, x, y, z, 1 / length). Divides by the largest component first, so that squares cannot overflow."""
    w, x, y, z = column(scratch, 6), column(scratch, 7), column(scratch, 8), column(scratch, 9)
    shrink = F(1.0) / maximum(maximum(absolute(w), absolute(x)), maximum(absolute(y), absolute(z)))
    w, x, y, z = w * shrink, x * shrink, y * shrink, z * shrink
    inverse = F(1.0) / square_root(w * w + x * x + y * y + z * z)
    return w * inverse, x * inverse, y * inverse, z * inverse, shrink * inverse


@inline
def rotation_rows(w, x, y, z):
    """Returns the rotation matrix of a unit quaternion: nine vectors of lanes, row by row."""
    two = F(2.0)
    return (
        F(1.0) - (y * y + z * z) * two,
        (x * y - w * z) * two,
        (x * z + w * y) * two,
        (x * y + w * z) * two,
        F(1.0) - (x * x + z * z) * two,
        (y * z - w * x) * two,
        (x * z - w * y) * two,
        (y * z + w * x) * two,
        F(1.0) - (x * x + y * y) * two,
    )


@inline
def scales_of(scratch):
    """Returns exp of the three log scales; a scale below 1e-38 counts as zero."""
    low = F(-125.0)
    return (
        exp2(maximum(column(scratch, 3) * LOG2_E, low)),
        exp2(maximum(column(scratch, 4) * LOG2_E, low)),
        exp2(maximum(column(scratch, 5) * LOG2_E, low)),
    )


@inline
def logit_tail(scratch):
    """Returns the tail exp(-logit), where opacity = 1 / (1 + tail). Limits logits to ±30, where float32 has 0 or 1."""
    logit = minimum(maximum(column(scratch, 10), F(-30.0)), F(30.0))
    return exp2(logit * -LOG2_E)


@inline
def axes_px(jacobian, rotation, scales):
    """Returns x and y of each of a splat's three axes in px: covariance = axes axes^T + dilation."""
    jx0, jx1, jx2, jy0, jy1, jy2 = jacobian
    r00, r01, r02, r10, r11, r12, r20, r21, r22 = rotation
    s0, s1, s2 = scales
    return (
        (jx0 * r00 + jx1 * r10 + jx2 * r20) * s0,
        (jy0 * r00 + jy1 * r10 + jy2 * r20) * s0,
        (jx0 * r01 + jx1 * r11 + jx2 * r21) * s1,
        (jy0 * r01 + jy1 * r11 + jy2 * r21) * s1,
        (jx0 * r02 + jx1 * r12 + jx2 * r22) * s2,
        (jy0 * r02 + jy1 * r12 + jy2 * r22) * s2,
    )
