"""Draws first points inside the visual hull of cut-out photographs: where no photograph is transparent.

As in Faster-GS: a random point that any photograph shows as empty is dropped, and another is drawn, so that all first
splats lie where something may be. The colour of a point is the median of what the photographs show there, whatever
hides it.
Read `initial.py` for the points of other captures.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from splatscope.assets.capture import Capture, PointCloud, View
from splatscope.assets.photographs.view_pixels import read_view
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera

VIEWS = 24  # photographs used, evenly spaced
WIDTH = 200  # px that photographs are reduced to; a pixel counts as covered if anything in it is
ROUNDS = 100  # most rounds of drawing; a hull below a thousandth of the cube is not filled


@dataclass(frozen=True, eq=False)
class Silhouette:
    """Holds a small cut-out photograph."""

    camera: Camera
    covered: NDArray[np.bool_]  # [H, W], one pixel wider than what is opaque
    colors: NDArray[np.uint8]  # [H, W, 3]


def points_in_hull(capture: Capture, half_width: float, count: int, rng: np.random.Generator) -> PointCloud | None:
    """Returns `count` points, uniform in the part of the cube [-half_width, half_width]^3 that no photograph shows as
    empty; None if the photographs are not cut out, or all of the cube is empty."""
    views = [view for view in capture.views if view.has_alpha]
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="photographs") as pool:
        made = pool.map(_silhouette_or_none, views[:: max(1, len(views) // VIEWS)])
        silhouettes = [silhouette for silhouette in made if silhouette is not None]
    if not silhouettes:
        return None
    found: list[NDArray[np.float64]] = []
    for _ in range(ROUNDS):
        candidates = rng.uniform(-half_width, half_width, (count, 3))
        found.append(inside(candidates, silhouettes))
        if sum(map(len, found)) >= count:
            break
    positions = np.concatenate(found)[:count]
    if len(positions) == 0:
        return None
    return PointCloud(positions, median_colors(positions, silhouettes))


def _silhouette_or_none(view: View) -> Silhouette | None:
    """Returns the silhouette of a view; None if it is damaged, which is reported when all photographs are read."""
    try:
        return silhouette(view)
    except InputError:
        return None


def silhouette(view: View) -> Silhouette:
    """Returns a view reduced to `WIDTH` pixels or its own width."""
    pixels = read_view(view).pixels
    width = min(WIDTH, pixels.shape[1])
    camera = view.camera.resized(width, max(1, round(pixels.shape[0] * width / pixels.shape[1])))
    small = np.asarray(Image.fromarray(pixels).resize((camera.width, camera.height), Image.Resampling.BOX))
    covered = np.pad(small[..., 3] > 0, 1)
    rows = covered[:-2] | covered[1:-1] | covered[2:]
    return Silhouette(camera, rows[:, :-2] | rows[:, 1:-1] | rows[:, 2:], small[..., :3])


def inside(positions: NDArray[np.float64], silhouettes: list[Silhouette]) -> NDArray[np.float64]:
    """Returns the positions, of [P, 3], that every silhouette covers or does not see."""
    for s in silhouettes:
        rows, columns, seen = _pixels(positions, s.camera)
        positions = positions[~seen | s.covered[rows, columns]]
    return positions


def median_colors(positions: NDArray[np.float64], silhouettes: list[Silhouette]) -> NDArray[np.uint8]:
    """Returns the lower median colour over the silhouettes that see each position, uint8 [P, 3]; mid-grey where none
    does."""
    unseen = 256  # sorts behind all colours
    colors = np.full((len(positions), 3, len(silhouettes)), unseen, np.int16)
    for i, s in enumerate(silhouettes):
        rows, columns, seen = _pixels(positions, s.camera)
        colors[seen, :, i] = s.colors[rows[seen], columns[seen]]
    colors.sort(axis=2)
    middle = np.maximum((colors < unseen).sum(axis=2) - 1, 0) // 2
    median = np.take_along_axis(colors, middle[..., None], axis=2)[..., 0]
    return np.where(median == unseen, 128, median).astype(np.uint8)


def _pixels(
    positions: NDArray[np.float64], camera: Camera
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
    """Returns (row, column, seen) of each position; row and column are 0 where it is not seen."""
    view_from_world = camera.matrix.astype(np.float32)
    x, y, z = view_from_world[:3, :3] @ positions.T.astype(np.float32) + view_from_world[:3, 3:]
    depth = np.maximum(z, np.float32(camera.near))
    columns = np.float32(camera.fx) * x / depth + np.float32(camera.cx)
    rows = np.float32(camera.fy) * y / depth + np.float32(camera.cy)
    seen = (z > camera.near) & (columns >= 0) & (columns < camera.width) & (rows >= 0) & (rows < camera.height)
    return np.where(seen, rows, 0).astype(np.int32), np.where(seen, columns, 0).astype(np.int32), seen
