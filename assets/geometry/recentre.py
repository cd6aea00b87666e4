"""Moves scenes that are far from the origin near it, in float64, because float32 cannot tell their points apart.

A survey's coordinates have seven digits before the point, as many as float32 has in all. The offset that was subtracted
is kept (`Capture.offset`, `SplatFile.offset`), and writers add it back. Nothing is rotated or scaled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.capture import NO_OFFSET, Capture, Offset, View
from splatscope.assets.geometry.extent import near_plane, scene_extent
from splatscope.kernels.constants import NEAR
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, Gaussians
from splatscope.kernels.wording import counted

FAR = 100.0  # distance from the origin, in radii of the scene, above which float32 errors start to show
FARTHEST = 1e13  # world units; beyond, float64 cannot hold millimetres, and squares overflow float32
FAR_AT_LEAST = 1e3  # world units; cameras next to each other do not tell the size of their scene


def far_offset(positions: NDArray[Any]) -> Offset:
    """Returns the offset to subtract from positions [P, 3] so that they are about the origin; zero unless they are far
    from it.

    Far means more than `FAR` times the scene's radius and more than `FAR_AT_LEAST`. The offset is a multiple of a power
    of two below that radius. float32 therefore holds the rest of a float32 position exactly.
    """
    finite = np.asarray(positions, np.float64)
    finite = finite[np.isfinite(finite).all(axis=1)]
    if len(finite) == 0:
        return NO_OFFSET
    centre = np.median(finite, axis=0)
    with np.errstate(over="ignore"):
        radius = float(np.percentile(np.linalg.norm(finite - centre, axis=1), 90))
        distance = float(np.linalg.norm(centre))
    if not max(FAR * radius, FAR_AT_LEAST) < distance < math.inf:
        return NO_OFFSET
    step = 2.0 ** math.floor(math.log2(radius)) if radius > 1e-9 * distance else 1.0
    x, y, z = (float(v) for v in np.round(centre / step) * step)
    return x, y, z


def recentred(capture: Capture) -> Capture:
    """Returns the capture about the origin, with near planes that suit its size.

    If it was far from the origin, it has a warning and its offset.
    """
    views = (*capture.views, *capture.test_views)
    positions = np.array([view.camera.position for view in views])
    beyond = ~(np.abs(positions) < FARTHEST).all(axis=1)
    if beyond.any():
        raise InputError(
            f"{capture.path} has {beyond.sum()} of {counted(len(views), 'camera')} more than {FARTHEST:g} units from "
            "the origin, "
            f"for example that of {views[int(beyond.argmax())].name}; its poses are damaged. Export them again."
        )
    if capture.points is not None:
        positions = np.concatenate((positions, capture.points.positions))
    offset = far_offset(positions)
    near = near_plane(scene_extent([view.camera for view in views], capture.points))
    if near != NEAR:
        capture = replace(capture, views=_near(capture.views, near), test_views=_near(capture.test_views, near))
    if offset == NO_OFFSET:
        return capture
    said = (
        f"The scene lies far from the origin, about ({', '.join(f'{v:,.0f}' for v in offset)}); it is trained near "
        "the origin and saved where it was."
    )
    points = capture.points
    return replace(
        capture,
        views=_moved(capture.views, offset),
        test_views=_moved(capture.test_views, offset),
        points=None if points is None else replace(points, positions=points.positions - offset),
        offset=offset,
        warnings=(*capture.warnings, said),
    )


def camera_less(camera: Camera, offset: Offset) -> Camera:
    """Returns a camera for the same picture after `offset` has been subtracted from every position of the world."""
    if offset == NO_OFFSET:
        return camera
    matrix = camera.matrix.copy()
    matrix[:3, 3] += matrix[:3, :3] @ offset
    return replace(camera, view_from_world=tuple(tuple(float(v) for v in row) for row in matrix))


def rebased(gaussians: Gaussians, held: Offset, wanted: Offset) -> Gaussians:
    """Returns splats about the offset `held` as splats about `wanted`; the same object if the two are equal."""
    if held == wanted:
        return gaussians
    means = gaussians.means.astype(np.float64) + (np.array(held) - wanted)
    return replace(gaussians, means=means.astype(np.float32))


def _near(views: Iterable[View], near: float) -> tuple[View, ...]:
    return tuple(replace(view, camera=replace(view.camera, near=near)) for view in views)


def _moved(views: Iterable[View], offset: Offset) -> tuple[View, ...]:
    return tuple(replace(view, camera=camera_less(view.camera, offset)) for view in views)
