"""First points inside the visual hull of cut-out photographs: where no photograph is transparent.

As in Faster-GS: a random point that any photograph shows as empty is dropped, and another is drawn, so that all first
splats lie where something may be. Its colour is the median of what the photographs show there, whatever hides it.
Read `initial.py` for the points of other captures.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from splatscope.assets.capture import Capture, PointCloud, View
from splatscope.assets.view_image import read_view
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera

VIEWS = 24  # photographs looked at, evenly spaced
WIDTH = 200  # px they are reduced to; a pixel counts as covered if anything in it is
ROUNDS = 100  # of drawing, at most; a hull below a thousandth of the cube is not filled


@dataclass(frozen=True, eq=False)
class Silhouette:
    """A small cut-out photograph."""

    camera: Camera
    covered: NDArray[np.bool_]  # [H, W], one pixel wider than what is opaque
    colors: NDArray[np.uint8]  # [H, W, 3]


def points_in_hull(capture: Capture, half_width: float, count: int, rng: np.random.Generator) -> PointCloud | None:
    """`count` points uniform in the part of the cube [-half_width, half_width]^3 that no photograph shows as empty;
    None if the photographs are not cut out, or all of the cube is empty."""
    views = [view for view in capture.views if view.has_alpha]
    silhouettes = []
    for view in views[:: max(1, len(views) // VIEWS)]:
        with suppress(InputError):  # damaged, which is said when all photographs are read
            silhouettes.append(silhouette(view))
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


def silhouette(view: View) -> Silhouette:
    """A view reduced to `WIDTH` pixels or its own width."""
    pixels = read_view(view).pixels
    width = min(WIDTH, pixels.shape[1])
    camera = view.camera.resized(width, max(1, round(pixels.shape[0] * width / pixels.shape[1])))
    small = np.asarray(Image.fromarray(pixels).resize((camera.width, camera.height), Image.Resampling.BOX))
    covered = np.pad(small[..., 3] > 0, 1)
    rows = covered[:-2] | covered[1:-1] | covered[2:]
    return Silhouette(camera, rows[:, :-2] | rows[:, 1:-1] | rows[:, 2:], small[..., :3])


def inside(positions: NDArray[np.float64], silhouettes: list[Silhouette]) -> NDArray[np.float64]:
    """Those of the positions [P, 3] that every silhouette covers or does not see."""
    for s in silhouettes:
        rows, columns, seen = _pixels(positions, s.camera)
        positions = positions[~seen | s.covered[rows, columns]]
    return positions


def median_colors(positions: NDArray[np.float64], silhouettes: list[Silhouette]) -> NDArray[np.uint8]:
    """Median over the silhouettes that see each position, uint8 [P, 3]; mid-grey where none does."""
    colors = np.full((len(silhouettes), len(positions), 3), np.nan, np.float32)
    for row, s in zip(colors, silhouettes, strict=True):
        rows, columns, seen = _pixels(positions, s.camera)
        row[seen] = s.colors[rows[seen], columns[seen]]
    unseen = np.isnan(colors[..., 0]).all(axis=0)
    colors[:, unseen] = 128
    return np.nanmedian(colors, axis=0).astype(np.uint8)


def _pixels(
    positions: NDArray[np.float64], camera: Camera
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """(row, column, seen) of each position; row and column are 0 where it is not seen."""
    in_view = positions @ camera.matrix[:3, :3].T + camera.matrix[:3, 3]
    depth = np.maximum(in_view[:, 2], camera.near)
    columns = np.floor(camera.fx * in_view[:, 0] / depth + camera.cx)
    rows = np.floor(camera.fy * in_view[:, 1] / depth + camera.cy)
    seen = (in_view[:, 2] > camera.near) & (columns >= 0) & (columns < camera.width)
    seen &= (rows >= 0) & (rows < camera.height)
    return np.where(seen, rows, 0).astype(np.int64), np.where(seen, columns, 0).astype(np.int64), seen
