"""Defines the tile lists: which splats each tile blends, in float64 NumPy.

Every bound defines a picture: a pixel sees the splats that its tile lists, and no others. `picture.py` chooses the
splats and their depth order before this stage, and blends them after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.constants import ALPHA_MIN, TILE


@dataclass(frozen=True, eq=False)
class TileLists:
    """Holds the splats that each tile blends, nearest first."""

    splat: NDArray[np.int64]  # [I] position in `Projected`, tile by tile in row-major order
    counts: NDArray[np.int64]  # [Ty, Tx]


def list_tiles(
    mean_px: NDArray[np.float64],  # [M, 2] nearest first
    covariance: NDArray[np.float64],  # [M, 3] xx, xy, yy in px^2
    determinant: NDArray[np.float64],  # [M] px^4
    opacity: NDArray[np.float64],  # [M]
    tiles: tuple[int, int],  # rows Ty, columns Tx
    bounds: str,  # a value of BinPolicy.bounds
) -> TileLists:
    """Lists each splat in the tiles that its bound meets. A tile reaches from its first to its last pixel centre.

    - `row_span` intersects the ellipse alpha >= 1/255, q <= r^2 = 2 ln(255 opacity), with each tile row, from its first
      to its last row of pixel centres.
    - `aabb_o` takes the box around that ellipse: more pairs, the same picture.
    - `circle3s` takes the square of half width ceil(3 sigma_max) whatever the opacity, as in 2023: tails outside its
      tiles are cut.
    """
    xx, xy, yy = covariance.T
    cutoff = np.maximum(0.0, 2 * np.log(opacity / ALPHA_MIN))  # [M] r^2
    if bounds == "circle3s":
        largest = 0.5 * (xx + yy) + np.hypot(0.5 * (xx - yy), xy)
        half_width = half_height = np.ceil(3 * np.sqrt(largest))
    else:
        half_width, half_height = np.sqrt(cutoff * xx), np.sqrt(cutoff * yy)

    tile_rows, tile_columns = tiles
    splat, row = _expand(*_tile_range(mean_px[:, 1] - half_height, mean_px[:, 1] + half_height, tile_rows))
    left, right = -half_width[splat], half_width[splat]
    if bounds == "row_span":
        top = row * TILE + 0.5 - mean_px[splat, 1]
        left, right = _row_span(
            covariance[splat], determinant[splat], cutoff[splat], half_height[splat], top, top + TILE - 1
        )
    pair, column = _expand(*_tile_range(mean_px[splat, 0] + left, mean_px[splat, 0] + right, tile_columns))

    tile, splat = row[pair] * tile_columns + column, splat[pair]
    counts = np.bincount(tile, minlength=tile_rows * tile_columns).reshape(tile_rows, tile_columns)
    return TileLists(splat[np.lexsort((splat, tile))], counts)


def _row_span(
    covariance: NDArray[np.float64],  # [R, 3] one row for each pair of splat and tile row
    determinant: NDArray[np.float64],  # [R]
    cutoff: NDArray[np.float64],  # [R] r^2
    half_height: NDArray[np.float64],  # [R] px
    top: NDArray[np.float64],  # [R] first pixel-centre row, px from the mean
    bottom: NDArray[np.float64],  # [R] last pixel-centre row
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns leftmost and rightmost x of the ellipse between the heights top and bottom, px from the mean, [R] each.

    At height v the ellipse covers x = v xy/yy ± sqrt((r^2 - v^2/yy) det/yy). Its edge moves outwards towards the height
    of its extreme point, so the extreme between two heights is at that height, clamped to the two.
    """
    xx, xy, yy = covariance.T
    top, bottom = np.maximum(top, -half_height), np.minimum(bottom, half_height)
    extreme = xy * np.sqrt(cutoff / xx)  # height of the rightmost point; the leftmost is opposite

    def edge(height: NDArray[np.float64], side: float) -> NDArray[np.float64]:
        reach = np.sqrt(np.maximum(0.0, cutoff - height * height / yy) * determinant / yy)
        return height * xy / yy + side * reach

    return edge(np.clip(-extreme, top, bottom), -1.0), edge(np.clip(extreme, top, bottom), 1.0)


def _tile_range(
    low: NDArray[np.float64], high: NDArray[np.float64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the first tile with a pixel centre in [low, high] px, and one past the last; limited to `count` tiles."""
    first = np.clip(np.ceil((low - (TILE - 0.5)) / TILE), 0, count)
    end = np.clip(np.floor((high - 0.5) / TILE) + 1, 0, count)
    return first.astype(np.int64), end.astype(np.int64)


def _expand(first: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lists the integers of all ranges [first, end): returns the number of each integer's range, and the integers."""
    lengths = np.maximum(0, end - first)
    position = np.repeat(np.arange(len(first)), lengths)
    offset = np.arange(len(position)) - (np.cumsum(lengths) - lengths)[position]
    return position, first[position] + offset


def keep_splats(lists: TileLists, keep: NDArray[np.bool_]) -> TileLists:
    """Returns the lists without the splats for which `keep` [M] is false; the kept splats are numbered again."""
    tile = np.repeat(np.arange(lists.counts.size), lists.counts.ravel())
    kept = keep[lists.splat]
    counts = np.bincount(tile[kept], minlength=lists.counts.size).reshape(lists.counts.shape)
    return TileLists((np.cumsum(keep) - 1)[lists.splat[kept]], counts)
