"""Chooses the scenes of `splatscope bench schedule`, and the cameras of a few frames of each.

| name | cameras of its frames |
|---|---|
| a benchmark scene | turn on the spot |
| `crowded:RATIO`, the scene with a dial | turn so that the crowd stays in the middle of a tile |
| the path of a splat file or a model folder | its own, or an orbit around the splats |

Measuring: `bench/schedule.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from splatscope.app.bench.scenes.crowded import LARGEST, SMALLEST, crowded_path, crowded_scene
from splatscope.app.bench.scenes.generated import SCENE_NAMES, make_scene
from splatscope.app.opening.scene import Scene, home_camera, open_scene
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, Gaussians

CROWDED = "crowded"  # crowded:10 is the scene with a dial at ratio 10
DEFAULT_SCENES = ("S1", "S2", "S3", "S4", *(f"{CROWDED}:{ratio:g}" for ratio in (0.5, 2, 5, 20, 60, 120)))
TURN_DEGREES = 3.0  # turn of the camera from frame to frame
SIZE = (1280, 720)  # px of the picture of a splat file without cameras


@dataclass(frozen=True, eq=False)
class Frames:
    """Holds the splats of a scene and the cameras of its frames."""

    gaussians: Gaussians
    cameras: list[Camera]


def check_scene(name: str) -> None:
    """Raises InputError for a name that is no scene, before anything is measured."""
    if name.partition(":")[0] == CROWDED:
        if (ratio := _ratio(name)) is None or not SMALLEST <= ratio <= LARGEST:
            raise InputError(
                f"{CROWDED} takes an imbalance ratio from {SMALLEST:g} to {LARGEST:g}, as {CROWDED}:10; got {name!r}."
            )
    elif name not in SCENE_NAMES and not Path(name).exists():
        raise InputError(
            f"There is no scene and no splat file {name!r}; choose from {', '.join(SCENE_NAMES)}, {CROWDED}:RATIO, or "
            "give the path of a .ply file or a model folder."
        )


def load_frames(name: str, workers: int, count: int) -> Frames:
    """Returns a scene and `count` cameras; the GPU runs `workers` blocks at once. Raises InputError."""
    check_scene(name)
    ratio = _ratio(name)
    if ratio is not None:
        gaussians, camera = crowded_scene(ratio, workers)
        return Frames(gaussians, crowded_path(camera, count))
    if name in SCENE_NAMES:
        made = make_scene(name)
        return Frames(made.gaussians, turned(made.camera, count))
    scene = open_scene(Path(name))
    if scene.gaussians is None:
        raise InputError(f"{name} is a capture, not splats; --scenes takes a .ply file or a model folder.")
    return Frames(scene.gaussians, _path_of(scene, count))


def _ratio(name: str) -> float | None:
    kind, _, ratio = name.partition(":")
    try:
        return float(ratio) if kind == CROWDED else None
    except ValueError:
        return None


def turned(camera: Camera, count: int, degrees: float = TURN_DEGREES) -> list[Camera]:
    """Returns `count` cameras: the camera itself, then turned about its own vertical axis to both sides in turn."""
    return [turned_by(camera, np.radians(degrees) * ((k + 1) // 2) * (-1) ** k) for k in range(count)]


def turned_by(camera: Camera, angle: float) -> Camera:
    """Returns the camera turned about its own vertical axis by radians, to the left if positive."""
    turn = np.eye(4)
    turn[[0, 0, 2, 2], [0, 2, 0, 2]] = np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)
    return replace(camera, view_from_world=_rows(turn @ camera.matrix)) if angle else camera


def _path_of(scene: Scene, count: int) -> list[Camera]:
    """Returns cameras spread evenly over those of the file; if it has none, an orbit around the middle of the scene."""
    known = [named.camera for named in scene.info.cameras]
    if known:
        return [known[int(k)] for k in np.linspace(0, len(known) - 1, min(count, len(known)))]
    home = home_camera(scene.info, SIZE)
    middle = (np.array(scene.info.low) + np.array(scene.info.high)) / 2
    return [orbited(home, middle, np.array(scene.info.up), 2 * np.pi * k / count) for k in range(count)]


def orbited(camera: Camera, middle: Any, up: Any, angle: float) -> Camera:
    """Returns the camera carried around an axis `up` [3] through `middle` [3], world units, by radians."""
    x, y, z = np.asarray(up, np.float64) / np.linalg.norm(up)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    turn = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * (cross @ cross)  # Rodrigues
    back = np.eye(4)  # instead of the camera, the world turns the other way
    back[:3, :3] = turn.T
    back[:3, 3] = middle - turn.T @ middle
    return replace(camera, view_from_world=_rows(camera.matrix @ back)) if angle else camera


def _rows(matrix: Any) -> Any:
    return tuple(tuple(float(v) for v in row) for row in matrix)
