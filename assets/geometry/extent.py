"""Measures how large a scene is. Learning rates, sizes of splats and the near plane are stated for a scene of about one
unit.

The measure is that of the 2023 release: how far cameras are from their middle. It means nothing if all cameras are in
one place, as those of a panorama cut into pictures. Then the distance of the nearer points is used.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.capture import PointCloud
from splatscope.kernels.constants import NEAR
from splatscope.kernels.types import Camera

FAR_CAMERA = 5.0  # times the median distance to the middle; a camera beyond is an outlier
_NEARER = 0.1  # share of the points that counts as near; in many scenes most others are sky
_LOOKED_AT = 100_000  # about so many points are used, because every change of a recipe asks
_ONE_PLACE = 0.002  # of the distance to the near points; between such cameras a picture moves by a pixel or two
_ROUNDING = 1e-9  # of the cameras' coordinates; smaller differences are rounding
_NOTHING = 1e-12  # world units; smaller differences count as none
_SMALL = 0.1  # world units; in smaller scenes, lengths stated in units shrink with the scene


def scene_extent(cameras: Sequence[Camera], points: PointCloud | None = None) -> float:
    """Returns 1.1 times the largest distance of a camera from their centroid, world units, without stray cameras.

    For cameras in one place, returns the distance of the nearer points, or one unit if there are none.
    """
    if (depth := depth_from_one_place(cameras, points)) is not None:
        return depth
    centres = np.array([camera.position for camera in cameras])
    extent = 1.1 * _spread(centres, centres.mean(axis=0))
    return extent if extent > max(_ROUNDING * np.abs(centres).max(), _NOTHING) else 1.0


def depth_from_one_place(cameras: Sequence[Camera], points: PointCloud | None) -> float | None:
    """Returns the distance of the nearer points, world units, if all cameras but stray ones are in nearly one place.

    Returns None otherwise, and if there are too few points to tell.
    """
    if points is None or points.lack:
        return None
    centres = np.array([camera.position for camera in cameras])
    middle = np.median(centres, axis=0)
    some = points.positions[:: 1 + len(points.positions) // _LOOKED_AT]
    with np.errstate(over="ignore", invalid="ignore"):  # damaged points may have any distance
        distances = np.linalg.norm(some - middle, axis=1)
    finite = distances[np.isfinite(distances)]
    depth = float(np.quantile(finite, _NEARER)) if len(finite) else 0.0
    return depth if _spread(centres, middle) < _ONE_PLACE * depth else None


def _spread(centres: NDArray[np.float64], middle: NDArray[np.float64]) -> float:
    """Returns the largest distance of centres [C, 3] from their middle, without stray ones."""
    distances = np.linalg.norm(centres - middle, axis=1)
    return float(distances[distances <= FAR_CAMERA * np.median(distances)].max(initial=0))


def smallness(extent: float) -> float:
    """Returns the factor for lengths stated in world units in a scene of that extent: 1, less in a very small one."""
    return min(1.0, extent / _SMALL)


def near_plane(extent: float) -> float:
    """Returns the near plane for a scene of that extent, world units."""
    return NEAR * smallness(extent)
