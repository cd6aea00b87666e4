"""Writes captures of coloured points: photographs of the points, and files with their cameras, correct or not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.spatial.transform import Rotation

from splatscope.assets.capture import PointCloud
from tests.support.small_capture import looking_at_origin

WIDTH, HEIGHT, FOCAL = 96, 72, 80.0
DOT = 2  # px on each side of its middle
FLIP = np.diag([1.0, -1.0, -1.0, 1.0])
Matrix = NDArray[np.float64]


def around(count: int = 16, seed: int = 0) -> tuple[list[Matrix], PointCloud]:
    """Returns cameras round a ball of points, z up."""
    rng = np.random.default_rng(seed)
    angles = np.linspace(0, 2 * np.pi, count, endpoint=False)
    centres = [np.array([3 * np.cos(a), 3 * np.sin(a), 1 + 0.5 * np.sin(3 * a)]) for a in angles]
    return [looking_at_origin(centre).matrix for centre in centres], _cloud(
        rng.normal(0, 0.5, (300, 3)) * (1, 0.8, 0.5)
    )


def in_a_room(count: int = 16) -> tuple[list[Matrix], PointCloud]:
    """Returns cameras near the middle of a room, each of which looks at the wall before it, z up."""
    rng = np.random.default_rng(1)
    cameras = []
    for angle in np.linspace(0, 2 * np.pi, count, endpoint=False):
        ahead = np.array([np.cos(angle), np.sin(angle), -0.05])
        camera = looking_at_origin(-ahead).matrix.copy()  # looks along `ahead`
        camera[:3, 3] = -camera[:3, :3] @ (0.4 * ahead)
        cameras.append(camera)
    walls = rng.uniform(-4, 4, (900, 3))
    side = rng.integers(0, 2, 900)
    walls[np.arange(900), side] = np.where(rng.random(900) < 0.5, -4, 4)
    walls[:, 2] /= 3
    return cameras, _cloud(walls)


def _cloud(positions: NDArray[np.float64]) -> PointCloud:
    return PointCloud(positions, np.random.default_rng(2).integers(0, 255, positions.shape).astype(np.uint8))


def photographed(camera: Matrix, cloud: PointCloud) -> Image.Image:
    """Returns the picture of the points as dots, the nearer over the farther."""
    pixels = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
    px, depths = _projected(camera, cloud)
    for k in np.argsort(-depths):
        column, row = px[k].astype(int)
        if depths[k] > 0.01 and 0 <= column < WIDTH and 0 <= row < HEIGHT:
            pixels[max(0, row - DOT) : row + DOT + 1, max(0, column - DOT) : column + DOT + 1] = cloud.colors[k]
    return Image.fromarray(pixels)


def _projected(camera: Matrix, cloud: PointCloud) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    in_view = cloud.positions @ camera[:3, :3].T + camera[:3, 3]
    depths = in_view[:, 2]
    return in_view[:, :2] / np.where(depths > 0.01, depths, 1)[:, None] * FOCAL + (WIDTH / 2, HEIGHT / 2), depths


def write_photographs(folder: Path, cameras: Sequence[Matrix], cloud: PointCloud) -> list[str]:
    """Writes `images/NN.png` and returns those names without the folder."""
    (folder / "images").mkdir(parents=True)
    names = [f"{k:02}.png" for k in range(len(cameras))]
    for name, camera in zip(names, cameras, strict=True):
        photographed(camera, cloud).save(folder / "images" / name)
    return names


def write_ply(path: Path, cloud: PointCloud) -> None:
    """Writes an ascii PLY of coloured points."""
    kinds = [*(f"property double {axis}" for axis in "xyz"), *(f"property uchar {c}" for c in ("red", "green", "blue"))]
    rows = (f"{x!r} {y!r} {z!r} {r} {g} {b}" for (x, y, z), (r, g, b) in _rows(cloud))
    lines = ["ply", "format ascii 1.0", f"element vertex {len(cloud.positions)}", *kinds, "end_header", *rows]
    path.write_text("\n".join(lines) + "\n")


def _rows(cloud: PointCloud) -> list[tuple[list[float], list[int]]]:
    return list(zip(cloud.positions.tolist(), cloud.colors.tolist(), strict=True))


def write_transforms(
    folder: Path,
    cameras: Sequence[Matrix],
    cloud: PointCloud,
    said: Callable[[Any], Any] = lambda camera: np.linalg.inv(camera) @ FLIP,
    points: PointCloud | None = None,
) -> Path:
    """Writes photographs of `cloud`, the pose of each camera as `said` has it, and `points`, `cloud` unless given."""
    names = write_photographs(folder, cameras, cloud)
    frames = [
        {"file_path": f"images/{name}", "transform_matrix": said(camera).tolist()}
        for name, camera in zip(names, cameras, strict=True)
    ]
    content = {"fl_x": FOCAL, "fl_y": FOCAL, "cx": WIDTH / 2, "cy": HEIGHT / 2, "w": WIDTH, "h": HEIGHT}
    (folder / "transforms.json").write_text(json.dumps(content | {"frames": frames, "ply_file_path": "points.ply"}))
    write_ply(folder / "points.ply", points or cloud)
    return folder


def w_first(rotation: Matrix) -> list[float]:
    """Returns QW QX QY QZ."""
    x, y, z, w = Rotation.from_matrix(rotation).as_quat()
    return [w, x, y, z]


def w_last(rotation: Matrix) -> list[float]:
    """Returns the quaternion as x y z w."""
    return Rotation.from_matrix(rotation).as_quat().tolist()


def write_colmap(
    folder: Path,
    cameras: Sequence[Matrix],
    cloud: PointCloud,
    said: Sequence[Matrix] | None = None,
    quaternion: Callable[[Matrix], list[float]] = w_first,
    tracks: bool = True,
    shrunk: float = 1.0,
) -> Path:
    """Writes photographs of `cloud` and a text model with the poses `said`, `cameras` unless given, and 2D points
    divided by `shrunk` if `tracks`."""
    names = write_photographs(folder, cameras, cloud)
    model = folder / "sparse/0"
    model.mkdir(parents=True)
    (model / "cameras.txt").write_text(f"1 PINHOLE {WIDTH} {HEIGHT} {FOCAL} {FOCAL} {WIDTH / 2} {HEIGHT / 2}\n")
    lines = []
    for k, (name, camera, pose) in enumerate(zip(names, cameras, said or cameras, strict=True), 1):
        fields = [*quaternion(pose[:3, :3]), *pose[:3, 3].tolist()]
        px, depths = _projected(camera, cloud)
        seen = np.flatnonzero((depths > 0.01) & np.all((px >= 0) & (px < (WIDTH, HEIGHT)), axis=1))
        found = [f"{px[i, 0] / shrunk} {px[i, 1] / shrunk} {i + 1}" for i in seen] if tracks else []
        lines += [f"{k} {' '.join(map(repr, map(float, fields)))} 1 {name}", " ".join(["3 4 -1", *found])]
    (model / "images.txt").write_text("\n".join(lines) + "\n")
    rows = (f"{i} {x!r} {y!r} {z!r} {r} {g} {b} 0.5" for i, ((x, y, z), (r, g, b)) in enumerate(_rows(cloud), 1))
    (model / "points3D.txt").write_text("\n".join(rows) + "\n")
    return folder
