"""Guesses which way is up, from the cameras or, without cameras, from the splats.

Data is never rotated.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from splatscope.kernels.types import Camera, Float32

DEFAULT_UP = (0.0, -1.0, 0.0)  # image y points down in the OpenCV frame that most scenes inherit
SLICES = 32  # layers into which a scene is cut along an axis
SLICED_SAMPLE = 100_000  # positions used
GROUND_SHARE = 0.25  # share of positions in two neighbouring slices that may be a ground ...
OUTSTANDING = 2.0  # ... if no other axis has slices half as full
LOPSIDED = 2.0  # how many times more positions must be on one side of the ground, which is up


def guess_up(cameras: Iterable[Camera]) -> tuple[tuple[float, float, float], float]:
    """Returns (up, confidence): the unit mean of the cameras' upward axes in the world, and that mean's length.

    Photographers hold cameras level on average. The confidence is in [0, 1]. Below 0.5 the cameras disagree (rolled, or
    looking straight down). Without cameras: `DEFAULT_UP` and 0.
    """
    upward = [-camera.matrix[1, :3] for camera in cameras]  # row 1 is the camera's y axis (down) in the world
    mean = np.mean(upward, axis=0) if upward else np.zeros(3)
    length = float(np.linalg.norm(mean))
    if not length > 1e-6:
        return DEFAULT_UP, 0.0
    x, y, z = (float(v) for v in mean / length)
    return (x, y, z), min(length, 1.0)


def guess_up_of_splats(positions: Float32) -> tuple[float, float, float]:
    """Returns the axis perpendicular to a scene's ground, for positions [N, 3] without cameras.

    A ground is a thin layer across an axis, far fuller than any layer across the others, with most other positions on
    one side. Without a ground: `DEFAULT_UP`.
    """
    sample = positions[:: 1 + len(positions) // SLICED_SAMPLE]
    sample = sample[np.isfinite(sample).all(axis=1)].astype(np.float64)
    if len(sample) < SLICES:
        return DEFAULT_UP
    low, high = np.percentile(sample, (2, 98), axis=0)
    slices = []
    for axis in range(3):
        inside = sample[(sample[:, axis] >= low[axis]) & (sample[:, axis] <= high[axis]), axis]
        slices.append(np.histogram(inside, SLICES, (low[axis], max(high[axis], low[axis] + 1e-12)))[0] / len(sample))
    layers = np.array([shares[:-1] + shares[1:] for shares in slices])  # [3, SLICES - 1]
    axis = int(layers.max(axis=1).argmax())
    fullest, other = layers[axis].max(), np.delete(layers.max(axis=1), axis).max()
    if fullest < GROUND_SHARE or fullest < OUTSTANDING * other:
        return DEFAULT_UP
    k = int(layers[axis].argmax())
    below, above = slices[axis][: max(0, k - 1)].sum(), slices[axis][k + 3 :].sum()
    if max(below, above) < LOPSIDED * min(below, above):
        return DEFAULT_UP
    up = [0.0, 0.0, 0.0]
    up[axis] = 1.0 if above > below else -1.0
    return up[0], up[1], up[2]
