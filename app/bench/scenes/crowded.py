"""Makes scenes of any imbalance ratio: an even spread of splats, and one tile that holds many more.

Drawn from a fixed seed. The other benchmark scenes, which are what they are: `generated.py`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.constants import TILE
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, Gaussians

WIDTH, HEIGHT, FOCAL = 1600, 896, 1100.0
EVEN_SPLATS = 1_200_000
CROWDED_TILE = (50, 28)  # column, row
SMALLEST, LARGEST = 0.5, 120.0  # ratios
PAIRS = 2.54  # (splat, tile) pairs a splat of the even part
FAINT_PAIRS = 0.6  # share of an even tile's pairs left in the crowded tile, where splats before the crowd are faint
STEP_TILES = 2  # tiles that the crowd moves from frame to frame


def crowded_scene(ratio: float, workers: int, splats: int = EVEN_SPLATS, seed: int = 0) -> tuple[Gaussians, Camera]:
    """Returns splats and a camera with about that imbalance ratio on a GPU that runs `workers` blocks at once.

    The ratio is that of the heaviest tile to an even share, N_1 / (N_total / K). The crowd is faint and of the size of
    a pixel, so that hardly a pixel of it is done early. Raises InputError for a ratio that cannot be.
    """
    if not SMALLEST <= ratio <= min(LARGEST, 0.5 * workers):
        raise InputError(f"An imbalance ratio is from {SMALLEST} to {LARGEST}, and less than half of {workers} blocks.")
    camera = Camera.from_matrix(np.eye(4), WIDTH, HEIGHT, FOCAL, FOCAL, WIDTH / 2, HEIGHT / 2)
    rng = np.random.default_rng(seed)
    spread = rng.uniform((0.0, 0.0), (WIDTH, HEIGHT), (splats, 2))
    even = _splats(rng, camera, spread, rng.uniform(2.0, 30.0, splats), (0.8, 4.0), (0.02, 0.4))
    pairs = PAIRS * splats
    count = int(max(0.0, ratio * pairs / (workers - ratio) - FAINT_PAIRS * pairs / np.prod(camera.tiles)))
    center = TILE * (np.array(CROWDED_TILE) + 0.5)
    crowd = np.clip(rng.normal(0, 2.6, (count, 2)), -5.5, 5.5) + center
    heavy = _splats(rng, camera, crowd, rng.uniform(31.0, 60.0, count), (0.25, 1.2), (0.0042, 0.012))
    # Nothing before the crowd hides it.
    even[3][(np.abs(spread - center) < 1.5 * TILE).all(1)] = np.log(0.01 / 0.99)
    arrays = [np.concatenate(parts).astype(np.float32) for parts in zip(even, heavy, strict=True)]
    order = rng.permutation(len(arrays[0]))
    return Gaussians(*(array[order] for array in arrays)), camera


def crowded_path(camera: Camera, count: int) -> list[Camera]:
    """Returns `count` cameras that turn on the spot, with the crowd always in the middle of a tile."""
    cameras = []
    column = CROWDED_TILE[0] + 0.5
    for number in range(count):
        shift = STEP_TILES * ((number + 1) // 2) * (-1) ** number
        before, after = (np.arctan((TILE * at - camera.cx) / camera.fx) for at in (column, column + shift))
        angle = after - before
        turn = np.eye(4)
        turn[[0, 0, 2, 2], [0, 2, 0, 2]] = np.cos(angle), np.sin(angle), -np.sin(angle), np.cos(angle)
        rows = tuple(tuple(float(v) for v in row) for row in turn @ camera.matrix)
        cameras.append(replace(camera, view_from_world=rows) if shift else camera)
    return cameras


def _splats(
    rng: np.random.Generator,
    camera: Camera,
    pixels: NDArray[np.float64],
    depth: NDArray[np.float64],
    size_px: tuple[float, float],
    opacity: tuple[float, float],
) -> list[NDArray[np.float64]]:
    """Returns the parameters of round splats at pixels [n, 2] and depths [n]; size and opacity are log-uniform."""
    count = len(depth)
    means = np.column_stack([(pixels - (camera.cx, camera.cy)) / (camera.fx, camera.fy), np.ones(count)])
    size, shown = (np.exp(rng.uniform(np.log(low), np.log(high), count)) for low, high in (size_px, opacity))
    log_scales = np.log(size * depth / camera.fx)[:, None].repeat(3, 1)
    quats = np.tile([1.0, 0.0, 0.0, 0.0], (count, 1))
    return [means * depth[:, None], log_scales, quats, np.log(shown / (1 - shown)), rng.normal(0, 0.6, (count, 1, 3))]
