"""Makes the first splats of a run: one for each point of the reconstruction, or drawn at random.

They carry the constant colour only; `rows.raise_sh_degree` adds rows during training.
Read `splats/rows.py` next.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from splatscope.assets.capture import FEWEST_POINTS, Capture, PointCloud
from splatscope.assets.geometry.extent import smallness
from splatscope.kernels.constants import SH_C0
from splatscope.kernels.primitive import FLAT_LOG_SCALE, Primitive
from splatscope.kernels.types import Camera, Gaussians
from splatscope.training.config import InitialConfig
from splatscope.training.data.carve import points_in_hull

NEIGHBOURS = 3
RANDOM_COUNT, RANDOM_COUNT_CPU = 100_000, 20_000
# The range of depths, in extents, in which a random splat lies in front of its camera. On a phone capture without its
# points, 1,500 steps gave 28.6 dB with this range, 25.5 up to 3, 22.4 log-uniform, 28.9 with the points.
DEPTHS = (0.1, 10.0)


def initial_points(
    capture: Capture,
    cameras: list[Camera],
    extent: float,
    config: InitialConfig,
    on_cpu: bool,
    rng: np.random.Generator,
) -> PointCloud:
    """Returns the capture's points, or random ones if it has fewer than `FEWEST_POINTS`."""
    if capture.points is not None and config.source == "points":
        kept = _usable(capture.points.positions)
        if len(kept) >= FEWEST_POINTS:
            return PointCloud(capture.points.positions[kept], capture.points.colors[kept])
    count = config.random_count or (RANDOM_COUNT_CPU if on_cpu else RANDOM_COUNT)
    if capture.kind == "blender":
        half = config.cube_half_width
        hull = points_in_hull(capture, half, count, rng) if config.carve else None
        if hull is not None:
            return hull
        positions = rng.uniform(-half, half, (count, 3))
    else:
        positions = points_in_view(cameras, extent, count, rng)
    return PointCloud(positions, rng.integers(118, 138, (count, 3), dtype=np.uint8))  # near mid-grey


def _usable(positions: NDArray[np.float64]) -> NDArray[np.intp]:
    """Returns the rows of finite points; of points in one place, only the first few.

    Clouds of depth cameras have all points that they could not see at the origin, and a search for neighbours among
    equal points takes the square of their number.
    """
    finite = np.flatnonzero((np.abs(positions) <= np.finfo(np.float32).max).all(axis=1))  # NaN is not
    order = finite[np.lexsort(positions[finite].T)]  # stable: equal points stay in their order
    same = (positions[order[NEIGHBOURS:]] == positions[order[:-NEIGHBOURS]]).all(axis=1)
    return np.sort(np.concatenate((order[:NEIGHBOURS], order[NEIGHBOURS:][~same])))


def points_in_view(cameras: list[Camera], extent: float, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Returns positions [count, 3], each in front of a random camera: uniform over its picture and in depth."""
    chosen = rng.integers(len(cameras), size=count)
    share = rng.random((count, 2))
    depth = extent * rng.uniform(*DEPTHS, count)
    positions = np.empty((count, 3))
    for i, camera in enumerate(cameras):
        mine = chosen == i
        x = (share[mine, 0] * camera.width - camera.cx) / camera.fx
        y = (share[mine, 1] * camera.height - camera.cy) / camera.fy
        in_view = np.column_stack((x, y, np.ones_like(x))) * depth[mine, None]
        world_from_view = np.linalg.inv(camera.matrix)
        positions[mine] = in_view @ world_from_view[:3, :3].T + world_from_view[:3, 3]
    return positions


def splats_from_points(
    points: PointCloud,
    extent: float,
    config: InitialConfig,
    primitive: Primitive = "3dgs",
    rng: np.random.Generator | None = None,
) -> Gaussians:
    """Returns round splats, each as wide as the root mean square distance to its 3 nearest neighbours, times a
    factor. Disks are turned at random, by `rng` (as Huang et al. 2024 do)."""
    count = len(points.positions)
    least = config.smallest_square * smallness(extent) ** 2
    square = np.maximum(mean_square_to_neighbours(points.positions, extent), least)
    scale = np.sqrt(square) * config.scale_factor
    log_scales = np.repeat(np.log(scale)[:, None], 3, axis=1).astype(np.float32)
    quats = np.zeros((count, 4), np.float32)
    quats[:, 0] = 1
    if primitive == "2dgs":
        log_scales[:, 2] = FLAT_LOG_SCALE
        quats = (rng or np.random.default_rng(0)).uniform(size=(count, 4)).astype(np.float32)
    opacity = np.log(config.opacity / (1 - config.opacity))
    return Gaussians(
        means=np.ascontiguousarray(points.positions, dtype=np.float32),
        log_scales=log_scales,
        quats=quats,
        logit_opacities=np.full(count, opacity, np.float32),
        sh=((points.colors[:, None, :] / 255 - 0.5) / SH_C0).astype(np.float32),
        primitive=primitive,
    )


def mean_square_to_neighbours(positions: NDArray[np.float64], extent: float) -> NDArray[np.float64]:
    """Returns the mean squared distance [N] to the 3 nearest other points; a lone point gets a hundredth of the
    extent."""
    neighbours = min(NEIGHBOURS, len(positions) - 1)
    if neighbours == 0:
        return np.full(1, (0.01 * extent) ** 2)
    distances, _ = KDTree(positions).query(positions, k=neighbours + 1, workers=-1)
    return np.mean(np.square(distances[:, 1:]), axis=1)
