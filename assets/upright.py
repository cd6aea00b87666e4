"""A guess which way is up, from the cameras that took the photographs. Data is never rotated."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from splatscope.kernels.types import Camera

DEFAULT_UP = (0.0, -1.0, 0.0)  # image y points down in the OpenCV frame that most scenes inherit


def guess_up(cameras: Iterable[Camera]) -> tuple[tuple[float, float, float], float]:
    """(up, confidence): the unit mean of the cameras' upward axes in the world, and that mean's length.

    Photographers hold cameras level on average. The confidence lies in [0, 1]; below 0.5 the cameras
    disagree (rolled, or looking straight down). Without cameras: `DEFAULT_UP` and 0.
    """
    upward = [-camera.matrix[1, :3] for camera in cameras]  # row 1 is the camera's y axis (down) in the world
    mean = np.mean(upward, axis=0) if upward else np.zeros(3)
    length = float(np.linalg.norm(mean))
    if not length > 1e-6:
        return DEFAULT_UP, 0.0
    x, y, z = (float(v) for v in mean / length)
    return (x, y, z), min(length, 1.0)
