"""Computes how cameras appear in a picture: as outlines of small pyramids, in px. Pure, no GUI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.types import Camera
from splatscope.viewer.messages.view import NamedCamera

MEASURED = 150  # cameras whose distances are measured, at most
# The depth of a pyramid is GAP_SHARE of the distance between neighbours, at most SCENE_SHARE of the scene's extent, and
# at least SPREAD_SHARE of the spread of all cameras: frames of a film are so close that their pyramids would be dots.
SCENE_SHARE, GAP_SHARE, SPREAD_SHARE = 0.05, 0.6, 0.08
MOST = 400  # cameras drawn at most; of more cameras, every second, third, ... is drawn
# Corners in the order of one line: around the image, then to the apex and back to each corner.
PATH = (1, 2, 3, 4, 1, 0, 2, 3, 0, 4)
APEX = 0


def frustums(
    cameras: Sequence[NamedCamera], seen_by: Camera, depth: float
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yields (index, points [10, 2] px) of each camera wholly in front of the eye; `depth` in world units."""
    if not cameras:
        return
    indices = range(0, len(cameras), -(-len(cameras) // MOST))
    corners = np.array([_pyramid(cameras[index].camera, depth) for index in indices])  # [C, 5, 3] world
    in_view = corners @ seen_by.matrix[:3, :3].T + seen_by.matrix[:3, 3]
    z = in_view[..., 2]
    near = 0.05 * depth
    safe = np.maximum(z, near)
    x = in_view[..., 0] / safe * seen_by.fx + seen_by.cx
    y = in_view[..., 1] / safe * seen_by.fy + seen_by.cy
    is_before = (z > near).all(axis=1)
    is_inside = (x.max(1) > 0) & (x.min(1) < seen_by.width) & (y.max(1) > 0) & (y.min(1) < seen_by.height)
    for k in np.flatnonzero(is_before & is_inside):
        yield indices[int(k)], np.stack([x[k], y[k]], axis=1)[list(PATH)]


def depth_for(cameras: Sequence[NamedCamera], extent: float) -> float:
    """Returns the depth of pyramids in world units, by the scene's extent and the distances between cameras."""
    eyes = np.array([camera.camera.position for camera in cameras[:: 1 + len(cameras) // MEASURED]])
    if len(eyes) < 2:
        return SCENE_SHARE * extent
    apart = np.linalg.norm(eyes[:, None] - eyes, axis=2) + np.where(np.eye(len(eyes)) > 0, np.inf, 0.0)
    nearest = float(np.median(apart.min(axis=1)))
    spread = float(np.median(np.linalg.norm(eyes - np.median(eyes, axis=0), axis=1)))
    return min(SCENE_SHARE * extent, max(GAP_SHARE * nearest, SPREAD_SHARE * spread)) or SCENE_SHARE * extent


def apexes(cameras: Sequence[NamedCamera], seen_by: Camera, depth: float) -> dict[int, tuple[float, float]]:
    """Returns where the eyes of these cameras appear, in px, by index."""
    first = PATH.index(APEX)
    return {index: (float(p[first, 0]), float(p[first, 1])) for index, p in frustums(cameras, seen_by, depth)}


def _pyramid(camera: Camera, depth: float) -> NDArray[np.float64]:
    """Returns the apex and the four corners of the image at a depth, [5, 3] in world units."""
    left, right = -camera.cx / camera.fx, (camera.width - camera.cx) / camera.fx
    top, bottom = -camera.cy / camera.fy, (camera.height - camera.cy) / camera.fy
    points = depth * np.array([(0, 0, 0), (left, top, 1), (right, top, 1), (right, bottom, 1), (left, bottom, 1)])
    return points @ camera.matrix[:3, :3] + camera.position
