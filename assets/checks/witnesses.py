"""Measures how well cameras fit points: by where a reconstruction saw the points, by colours, and by which are seen.

Each witness scores a guess: the cameras and points of a capture as they are, or changed in some way. `agreement.py`
asks the witnesses and judges.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.capture import PointCloud, View
from splatscope.assets.lens import as_colmap
from splatscope.assets.photographs.images import read_small
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera

Matrix = NDArray[np.float64]
Points = NDArray[np.float64]

_NEAR_ENOUGH = 0.02  # of a picture's longer side; largest distance between a point and its sighting
_FEWEST_SIGHTINGS = 5  # sightings a view needs to be judged by them
_SAME_SIZE = 1.1  # times; 2D points farther apart are for a larger picture
_FILLED = (0.75, 1.1)  # share of a picture's sides that its 2D points reach if they are for its size
_COLORED = 2000  # points whose colours are compared
_FEWEST_COLORED = 20  # colored points that a view must see, and opaque pixels it must have
_COLORLESS = 6.0  # standard deviation of colours, of 255; below it they tell nothing
_VIEWS = 24  # most photographs whose colours are compared
_FEWEST_VIEWS = 4
_SMALL = 160  # px, the longer side that photographs are reduced to
_DECODED = 60e6  # about so many px are decoded
_CELL = 8  # px of a reduced photograph; a point hides points behind it in the same cell
_HIDES = 1.1  # times as far away; points farther than that are hidden


@dataclass(frozen=True, eq=False)
class Guess:
    """Holds another reading of a capture."""

    cameras: tuple[Matrix, ...]  # view_from_world [4, 4] of each view
    move: Matrix  # [3, 3] that multiplies points
    words: str = ""  # how it differs from the file


class Witness(Protocol):
    """Scores views, higher is better."""

    fits: float  # the median score from which cameras and points fit each other
    gain: float  # how much better another guess must be to be believed
    strays: float  # the score below which a single view is wrong if the others fit

    def scores(self, guess: Guess) -> NDArray[np.float64]:
        """Returns a score for each view [V]; NaN where there is nothing to judge by."""
        ...


class Tracks:
    """Compares points with where the reconstruction says that photographs show them."""

    fits, gain, strays = 0.5, 0.3, 0.5

    def __init__(self, views: Sequence[View], cloud: PointCloud) -> None:
        self._views = views
        self._seen = [_sighted(view, cloud) for view in views]
        self.can_tell = 2 * sum(len(points) >= _FEWEST_SIGHTINGS for points, _ in self._seen) > len(views)

    def scores(self, guess: Guess) -> NDArray[np.float64]:
        """Returns the share of each view's sightings that lie where the camera sees their points."""
        return np.array(list(map(self._score, self._views, guess.cameras, self._seen, [guess.move] * len(self._views))))

    def _score(self, view: View, camera: Matrix, seen: tuple[Points, Points], move: Matrix) -> float:
        points, rays = seen
        if len(points) < _FEWEST_SIGHTINGS:
            return np.nan
        in_view = points @ (camera[:3, :3] @ move).T + camera[:3, 3]
        ahead = in_view[:, 2] > 0
        shown = in_view[:, :2] / np.where(ahead, in_view[:, 2], 1.0)[:, None]
        return self._agreement(view.camera, shown, rays, ahead)

    def _agreement(self, camera: Camera, shown: Points, rays: Points, ahead: NDArray[np.bool_]) -> float:
        px = np.linalg.norm((shown - rays) * (camera.fx, camera.fy), axis=1)
        return float(np.mean(ahead & (px < _NEAR_ENOUGH * max(camera.width, camera.height))))


class ScaledTracks(Tracks):
    """Compares as `Tracks` does if the reconstruction's 2D points are for another size of the photographs.

    Some tools change the size of the cameras alone.
    """

    fits, gain, strays = 0.998, 0.3, 0.5  # correlations; successive photographs of a film reach 0.99

    def __init__(self, views: Sequence[View], cloud: PointCloud) -> None:
        super().__init__(views, cloud)
        self.can_tell = self.can_tell and not self._fill_their_pictures()

    def _fill_their_pictures(self) -> bool:
        """Returns True if the 2D points are stated for the size of the photographs, so that cameras do not fit them."""
        ends = []
        for view, (_, rays) in zip(self._views, self._seen, strict=True):
            c = view.camera
            ends.append(((rays * (c.fx, c.fy) + (c.cx, c.cy)) / (c.width, c.height)).max(axis=1, initial=0))
        low, high = _FILLED
        return low <= float(np.quantile(np.concatenate(ends), 0.99)) <= high

    def _agreement(self, camera: Camera, shown: Points, rays: Points, ahead: NDArray[np.bool_]) -> float:
        if 2 * np.count_nonzero(ahead) <= len(ahead):
            return 0.0
        shown, rays = shown[ahead], rays[ahead]
        scale = float(rays.std(axis=0).sum()) / max(float(shown.std(axis=0).sum()), 1e-12)
        is_scaled = not 1 / _SAME_SIZE < scale < _SAME_SIZE
        return _correlation(shown, rays) if is_scaled else 0.0


class Colors:
    """Compares the colours of points with those of the pixels that show them: their correlation in each view.

    On the shared captures, right cameras reach a median of 0.5 to 0.7. Wrong cameras or points reach 0.4 at most, and
    mostly less than 0.2.
    """

    fits, gain, strays = 0.4, 0.15, 0.1

    def __init__(self, views: Sequence[View], cloud: PointCloud) -> None:
        self._views = views
        step = 1 + len(cloud.positions) // _COLORED
        self._points, self._colors = cloud.positions[::step], cloud.colors[::step].astype(np.float64)
        has_colors = len(self._points) >= _FEWEST_COLORED and float(self._colors.std(axis=0).max()) > _COLORLESS
        self._small: dict[int, NDArray[np.uint8]] = _small_photographs(views) if has_colors else {}
        self.can_tell = bool(self._small)

    def scores(self, guess: Guess) -> NDArray[np.float64]:
        """Returns correlations; 0 for a view that sees hardly any points."""
        result = np.full(len(self._views), np.nan)
        for index, pixels in self._small.items():
            result[index] = self._score(self._views[index], guess.cameras[index], guess.move, pixels)
        return result

    def _score(self, view: View, camera: Matrix, move: Matrix, pixels: NDArray[np.uint8]) -> float:
        height, width = pixels.shape[:2]
        in_view = self._points @ (camera[:3, :3] @ move).T + camera[:3, 3]
        seen = np.flatnonzero(inside(in_view, view.camera))
        shares = _picture_shares(in_view[seen], view)
        shown = np.flatnonzero(np.all((shares >= 0) & (shares < 1), axis=1))
        seen, columns, rows = seen[shown], *(shares[shown] * (width, height)).astype(np.int64).T
        front = _in_front(in_view[seen, 2], rows // _CELL * width + columns // _CELL)
        opaque = pixels[rows, columns, 3] > 127 if pixels.shape[2] == 4 else np.full(len(rows), True)
        kept = front & opaque
        if np.count_nonzero(kept) < _FEWEST_COLORED:
            return 0.0
        return _correlation(self._colors[seen[kept]], pixels[rows[kept], columns[kept], :3].astype(np.float64))


def inside(in_view: Points, camera: Camera) -> NDArray[np.bool_]:
    """Returns [P], True for points [P, 3] in the camera's frame that its picture shows."""
    ahead = in_view[:, 2] > camera.near
    depth = np.where(ahead, in_view[:, 2], 1.0)
    x = in_view[:, 0] / depth * camera.fx + camera.cx
    y = in_view[:, 1] / depth * camera.fy + camera.cy
    return ahead & (x >= 0) & (x < camera.width) & (y >= 0) & (y < camera.height)


def seen_by(points: Points, camera: Camera) -> NDArray[np.bool_]:
    """Returns [P], True for world points [P, 3] that a camera's picture shows."""
    return inside(points @ camera.matrix[:3, :3].T + camera.matrix[:3, 3], camera)


def seen_in(points: Points, views: Sequence[View], guess: Guess) -> NDArray[np.bool_]:
    """Returns [V, P], True where a view shows a point of [P, 3] under a guess."""
    moved = points @ guess.move.T
    cameras = (
        replace(view.camera, view_from_world=tuple(map(tuple, matrix.tolist())))
        for view, matrix in zip(views, guess.cameras, strict=True)
    )
    return np.array([seen_by(moved, camera) for camera in cameras])


def _sighted(view: View, cloud: PointCloud) -> tuple[Points, Points]:
    """Returns the points [K, 3] that a view has sightings of, and their rays [K, 2]."""
    if view.sightings is None or cloud.ids is None or len(cloud.ids) == 0:
        return np.empty((0, 3)), np.empty((0, 2))
    rows = np.minimum(np.searchsorted(cloud.ids, view.sightings.ids), len(cloud.ids) - 1)
    known = cloud.ids[rows] == view.sightings.ids
    return cloud.positions[rows[known]], view.sightings.rays[known]


def _small_photographs(views: Sequence[View]) -> dict[int, NDArray[np.uint8]]:
    """Returns some photographs, evenly spaced, by their index; a damaged one is left out."""
    cost = np.mean([_decoded_pixels(view) for view in views])
    count = min(len(views), max(_FEWEST_VIEWS, min(_VIEWS, int(_DECODED / cost))))
    chosen = [i * len(views) // count for i in range(count)]

    def read(index: int) -> NDArray[np.uint8] | None:
        view = views[index]
        try:
            return read_small(view.image_path, _SMALL, _SMALL, view.turned)
        except InputError:
            return None

    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="agreement") as pool:
        return {i: pixels for i, pixels in zip(chosen, pool.map(read, chosen), strict=True) if pixels is not None}


def _decoded_pixels(view: View) -> float:
    """Returns about how many pixels are decoded to read a small picture; for a JPEG a fraction is enough."""
    width, height = view.camera.width, view.camera.height
    is_jpeg = view.image_path.suffix.lower() in (".jpg", ".jpeg")
    return width * height / (min(8, max(1, max(width, height) // _SMALL)) ** 2 if is_jpeg else 1)


def _picture_shares(in_view: Points, view: View) -> NDArray[np.float64]:
    """Returns [P, 2] where the stored photograph shows points ahead of its camera, as shares of width and height."""
    if view.lens is not None:
        return np.asarray(as_colmap(view.lens).img_from_cam(in_view)) / (view.lens.width, view.lens.height)
    camera = view.camera
    px = in_view[:, :2] / in_view[:, 2:] * (camera.fx, camera.fy) + (camera.cx, camera.cy)
    return px / (camera.width, camera.height)


def _in_front(depths: NDArray[np.float64], cells: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns [P], True for points that are about as near as the nearest point in the same cell."""
    nearest = np.full(int(cells.max(initial=-1)) + 1, np.inf)
    np.minimum.at(nearest, cells, depths)
    return depths <= _HIDES * nearest[cells]


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Returns the correlation of values [P, C] over all columns; 0 if all are the same."""
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    length = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / length if length > 0 else 0.0
