"""Renders the still life into a capture on disk: photographs with exact cameras, and a point cloud.

`demo_capture_folder` renders it once, into the user's cache; a change in any source of this folder makes a new one. The
files are a Blender set (`transforms_train.json`, OpenGL axes) that any reader of such sets opens. `shapes.py` has the
scene, `tracer.py` the rendering.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.files.atomic import ABANDONED_SECONDS, is_running
from splatscope.assets.photographs.images import write_png
from splatscope.kernels.caches import cache_folder, cache_path
from splatscope.kernels.errors import InputError

if TYPE_CHECKING:  # numba is loaded only if there is something to render
    from splatscope.assets.demo.tracer import Grid

Float64 = NDArray[np.float64]
Progress = Callable[[int, int], None]  # views done, views in all

CAMERA_ANGLE_X = 0.69  # radians from the left to the right edge of a view
TARGET, DISTANCE = (0.0, 0.0, 0.06), 4.2  # world units
LOWEST, HIGHEST = math.radians(4), math.radians(72)  # elevation of the cameras
GOLDEN = (math.sqrt(5) - 1) / 2  # turns between neighbours on the spiral
FIRST_TRAIN = (0.40, -1 / 6)  # (share of the way up, turns) of the first view: the scene's best side
FIRST_TEST = (0.55, 0.24)
ABANDONED = 3600.0  # seconds after which a folder that is being rendered counts as abandoned


@dataclass(frozen=True)
class DemoSize:
    """Sets how much is rendered."""

    train_views: int = 50
    test_views: int = 8
    width: int = 400  # px
    height: int = 300
    points: int = 10_000

    @property
    def focal(self) -> float:
        """Returns the focal length, px."""
        return 0.5 * self.width / math.tan(0.5 * CAMERA_ANGLE_X)


def demo_capture_folder(progress: Progress | None = None, size: DemoSize = DemoSize()) -> Path:
    """Returns the folder of the demo capture, rendered on first use (about 16 s on two free cores, half of it
    compiling).

    The folder appears whole or not at all, even if several processes ask at once or one is killed. Raises InputError
    if the user's cache cannot be written.
    """
    try:
        cache = cache_folder()
        folder = cache / f"demo-{_version(size)}"
        _remove_abandoned(cache)
        if folder.is_dir():
            return folder
        unfinished = Path(tempfile.mkdtemp(prefix=f"demo-unfinished-{os.getpid()}-", dir=cache))
        try:
            write_capture(unfinished, size, progress)
            _publish(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"The demo scene cannot be written to {cache_path()}: {error.strerror or error}. Free some space there, or "
            "set XDG_CACHE_HOME (Linux) to a folder that can be written."
        ) from error
    return folder


def _version(size: DemoSize) -> str:
    """Returns a name that changes with the sources in this folder and with the size."""
    digest = hashlib.sha256(repr(size).encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _publish(unfinished: Path, folder: Path) -> None:
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process was faster, with the same pictures
            raise


def _remove_abandoned(cache: Path) -> None:
    """Removes what killed processes left of scenes they were rendering."""
    for path in cache.glob("demo-unfinished-*"):
        with suppress(OSError):  # another process was faster
            process = re.match(r"demo-unfinished-(\d{1,9})-", path.name)
            age = time.time() - path.stat().st_mtime
            # On a disk that machines share, the process may run on another machine.
            if age > ABANDONED or (process and age > ABANDONED_SECONDS and not is_running(int(process[1]))):
                shutil.rmtree(path)


def write_capture(folder: Path, size: DemoSize = DemoSize(), progress: Progress | None = None) -> None:
    """Writes photographs, `transforms_{train,test}.json` and `points3d.ply` into an existing folder.

    The bytes are the same for any number of threads. `progress` is called from this thread about ten times.
    """
    from splatscope.assets.demo import tracer

    poses = {
        "train": spiral_poses(size.train_views, FIRST_TRAIN),
        "test": spiral_poses(size.test_views, FIRST_TEST),
    }
    for split, split_poses in poses.items():
        (folder / split).mkdir()
        _write_transforms(folder / f"transforms_{split}.json", split, split_poses)
    grid = tracer.Grid(*tracer.build_grid())
    jobs = [(split, index, pose) for split, split_poses in poses.items() for index, pose in enumerate(split_poses)]
    clouds = []
    pool = ThreadPoolExecutor(os.cpu_count())  # threads are enough: compiled code runs without the interpreter lock
    try:
        for done, cloud in enumerate(pool.map(lambda job: _render_view(folder, size, grid, *job), jobs), start=1):
            clouds.append(cloud)
            if progress is not None and (done % max(1, len(jobs) // 10) == 0 or done == len(jobs)):
                progress(done, len(jobs))
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C does not wait for all views
    _write_points(folder / "points3d.ply", np.concatenate(clouds[: size.train_views]))


def spiral_poses(count: int, first: tuple[float, float]) -> list[Float64]:
    """Returns world_from_camera [4, 4] (OpenGL axes) of `count` cameras on a Fibonacci spiral up the hemisphere.

    The spiral begins at `first` and wraps around.
    """
    start = int(first[0] * count)
    low, high = math.sin(LOWEST), math.sin(HIGHEST)
    poses = []
    for place in [*range(start, count), *range(start)]:
        elevation = math.asin(low + (place + 0.5) / count * (high - low))
        poses.append(_pose_towards_target(2 * math.pi * (first[1] + (place - start) * GOLDEN), elevation))
    return poses


def _pose_towards_target(azimuth: float, elevation: float) -> Float64:
    """Returns a camera on the sphere around TARGET; columns are right, up, backward and position."""
    level = math.cos(elevation)
    backward = np.array([level * math.cos(azimuth), level * math.sin(azimuth), math.sin(elevation)])
    right = np.array([-math.sin(azimuth), math.cos(azimuth), 0.0])
    pose = np.eye(4)
    pose[:3] = np.column_stack([right, np.cross(backward, right), backward, TARGET + DISTANCE * backward])
    return pose


def _view_name(split: str, index: int) -> str:
    return f"{split}/view_{index:02}"


def _write_transforms(path: Path, split: str, poses: list[Float64]) -> None:
    frames = [
        {"file_path": f"./{_view_name(split, index)}", "transform_matrix": pose.tolist()}
        for index, pose in enumerate(poses)
    ]
    path.write_text(json.dumps({"camera_angle_x": CAMERA_ANGLE_X, "frames": frames}, indent=1), encoding="utf-8")


def _render_view(folder: Path, size: DemoSize, grid: Grid, split: str, index: int, pose: Float64) -> NDArray[np.void]:
    """Writes one photograph; returns its share of the point cloud."""
    from splatscope.assets.demo import tracer

    rgba, distance = tracer.render(grid.free, grid.near, pose, size.width, size.height, size.focal)
    pixels = np.rint(255 * rgba).astype(np.uint8)
    write_png(folder / f"{_view_name(split, index)}.png", pixels)
    rng = np.random.Generator(np.random.PCG64(index))
    seen = np.flatnonzero(distance >= 0)
    chosen = np.sort(rng.choice(seen, min(len(seen), -(-size.points // size.train_views)), replace=False))
    rays = pixel_rays(pose, size).reshape(-1, 3)[chosen]
    positions = pose[:3, 3] + distance.reshape(-1, 1)[chosen] * rays
    return _point_rows(positions, pixels.reshape(-1, 4)[chosen, :3])


def pixel_rays(pose: Float64, size: DemoSize) -> Float64:
    """Returns unit directions [H, W, 3] in the world through the centre of every pixel."""
    u = (np.arange(size.width) + 0.5 - size.width / 2) / size.focal
    v = (np.arange(size.height) + 0.5 - size.height / 2) / size.focal
    rays = u[None, :, None] * pose[:3, 0] - v[:, None, None] * pose[:3, 1] - pose[:3, 2]
    return rays / np.linalg.norm(rays, axis=2, keepdims=True)


def _point_rows(positions: Float64, colors: NDArray[np.uint8]) -> NDArray[np.void]:
    rows = np.zeros(
        len(positions),
        [(name, "<f4") for name in ("x", "y", "z", "nx", "ny", "nz")]
        + [(name, "u1") for name in ("red", "green", "blue")],
    )
    for axis, name in enumerate(("x", "y", "z")):
        rows[name] = positions[:, axis]
    for channel, name in enumerate(("red", "green", "blue")):
        rows[name] = colors[:, channel]
    return rows


def _write_points(path: Path, rows: NDArray[np.void]) -> None:
    from plyfile import PlyData, PlyElement

    PlyData([PlyElement.describe(rows, "vertex")], byte_order="<").write(str(path))
