"""How large a scene is taken to be: rates, sizes of splats and the near plane are stated for a scene of about a unit.

The measure is that of the 2023 release, how far cameras stand from their middle. It says nothing where they all stand
in one place, as those of a panorama cut into pictures do; there it is how far the nearer points are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.capture import PointCloud
from splatscope.kernels.constants import NEAR
from splatscope.kernels.types import Camera

FAR_CAMERA = 5.0  # times the median distance to the middle; a camera beyond is an outlier
_NEARER = 0.1  # share of the points that counts as near; of many scenes most of the others are sky
_LOOKED_AT = 100_000  # points, about: this is asked whenever a recipe changes
_ONE_PLACE = 0.002  # of the distance to those; a picture moves by a pixel or two between such cameras
_ROUNDING = 1e-9  # of the cameras' coordinates; differences below it are none
_NOTHING = 1e-12  # world units; nor are those below it
_SMALL = 0.1  # world units; in a scene below that, lengths stated in units shrink with it


def scene_extent(cameras: Sequence[Camera], points: PointCloud | None = None) -> float:
    """1.1 times the largest distance of a camera from their centroid, world units; stray cameras are left out.

    Of cameras in one place the distance of the nearer points. If there are none, the unit stands in.
    """
    if (depth := depth_from_one_place(cameras, points)) is not None:
        return depth
    centres = np.array([camera.position for camera in cameras])
    extent = 1.1 * _spread(centres, centres.mean(axis=0))
    return extent if extent > max(_ROUNDING * np.abs(centres).max(), _NOTHING) else 1.0


def depth_from_one_place(cameras: Sequence[Camera], points: PointCloud | None) -> float | None:
    """The distance of the nearer points, world units, if all cameras but stray ones stand in nearly one place; else,
    and where points are too few to tell, None."""
    if points is None or points.lack:
        return None
    centres = np.array([camera.position for camera in cameras])
    middle = np.median(centres, axis=0)
    some = points.positions[:: 1 + len(points.positions) // _LOOKED_AT]
    with np.errstate(over="ignore", invalid="ignore"):  # damaged points are as far as they say
        distances = np.linalg.norm(some - middle, axis=1)
    finite = distances[np.isfinite(distances)]
    depth = float(np.quantile(finite, _NEARER)) if len(finite) else 0.0
    return depth if _spread(centres, middle) < _ONE_PLACE * depth else None


def _spread(centres: NDArray[np.float64], middle: NDArray[np.float64]) -> float:
    """The largest distance of centres [C, 3] from their middle, without stray ones."""
    distances = np.linalg.norm(centres - middle, axis=1)
    return float(distances[distances <= FAR_CAMERA * np.median(distances)].max(initial=0))


def smallness(extent: float) -> float:
    """What lengths stated in world units are multiplied with in a scene of that extent: 1 but in a very small one."""
    return min(1.0, extent / _SMALL)


def near_plane(extent: float) -> float:
    """From how close a scene of that extent is drawn, world units."""
    return NEAR * smallness(extent)
