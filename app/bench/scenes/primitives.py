"""Turns the splats of a scene into those of another primitive, so that the same scene is measured as all three."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from splatscope.kernels.primitive import FLAT_LOG_SCALE, Primitive
from splatscope.kernels.types import Float32, Gaussians

# Quaternions (w, x, y, z) that turn axes round: the first two make x, then y, the third axis.
_THIRD_AXIS = np.array([[0.5, 0.5, 0.5, 0.5], [0.5, -0.5, -0.5, -0.5], [1.0, 0.0, 0.0, 0.0]], np.float32)


def as_primitive(gaussians: Gaussians, primitive: Primitive) -> Gaussians:
    """Returns the splats as another primitive. A disk lies across the shortest axis of its Gaussian, which it loses."""
    if primitive == gaussians.primitive:
        return gaussians
    if primitive != "2dgs":
        return replace(gaussians, primitive=primitive)
    shortest = np.argmin(gaussians.log_scales, axis=1)
    order = (shortest[:, None] + np.array([1, 2, 0])) % 3  # the axes in turn, the shortest last
    log_scales = np.take_along_axis(gaussians.log_scales, order, 1)
    log_scales[:, 2] = FLAT_LOG_SCALE
    quats = _product(gaussians.quats, _THIRD_AXIS[shortest])
    return replace(gaussians, log_scales=log_scales, quats=quats, primitive=primitive)


def _product(a: Float32, b: Float32) -> Float32:
    """Returns the products [N, 4] of quaternions: the rotation `b`, then `a`."""
    aw, ax, ay, az = a.T
    bw, bx, by, bz = b.T
    rows = (
        aw * bw - ax * bx - ay * by - az * bz,
        aw * bx + ax * bw + ay * bz - az * by,
        aw * by - ax * bz + ay * bw + az * bx,
        aw * bz + ax * by - ay * bx + az * bw,
    )
    return np.stack(rows, 1).astype(np.float32)
