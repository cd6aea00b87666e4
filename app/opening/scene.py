"""Opens a path for the window and for `render`: what it is, where to look at it from, what was odd.

`assets` reads the files; this adds cameras, framing and warnings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from splatscope.app.run.resume import held_out
from splatscope.assets.capture import NO_OFFSET, Capture, Offset, View
from splatscope.assets.choices import AxesChoice
from splatscope.assets.formats import SplatFile, open_capture, open_path, reread
from splatscope.assets.geometry.recentre import FARTHEST, camera_less
from splatscope.assets.geometry.upright import guess_up, guess_up_of_splats
from splatscope.assets.photographs.view_pixels import MASK_USES, MaskUse
from splatscope.assets.splats.read_as import AS_USUAL, ReadAs
from splatscope.assets.trained.model_folder import model_of
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, Float32, Gaussians
from splatscope.viewer.messages.view import NamedCamera, SceneInfo
from splatscope.viewer.state.navigation import framing_camera

HOME_FIELD_OF_VIEW = 60.0  # degrees, vertical
SPREAD = 0.25
PERCENTILE_SAMPLE = 200_000  # positions looked at for the framing box; a larger scene is strided
Vector = tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class Scene:
    """Holds an opened path. A capture has no splats until a trainer makes the first ones."""

    info: SceneInfo
    gaussians: Gaussians | None
    capture: Capture | None
    offset: Offset = NO_OFFSET  # taken off every position; `write_ply` adds it back
    remark: str = ""  # a sentence about the run whose folder was opened


def open_scene(
    path: Path,
    images: str = "images",
    masks: Sequence[MaskUse] = MASK_USES,
    axes: AxesChoice = "auto",
    read_as: ReadAs = AS_USUAL,
) -> Scene:
    """Reads whatever lies at `path`; `read_as` says how splats are read, `axes` how cameras are.

    Raises InputError with a sentence for the user.
    """
    opened = reread(open_path(path, images, masks, axes), read_as)
    if isinstance(opened, SplatFile):
        return Scene(_describe_splats(opened), opened.gaussians, None, opened.offset)
    return Scene(_describe_capture(opened), None, opened, opened.offset)


def listed_views(capture: Capture) -> tuple[View, ...]:
    """Returns the photographs as the window lists them: 2.jpg before 10.jpg, the capture's own test split last."""
    halves = (sorted(views, key=lambda view: _natural(view.name)) for views in (capture.views, capture.test_views))
    return tuple(view for half in halves for view in half)


def _natural(name: str) -> list[tuple[int, str]]:
    """Returns a sorting key by which numbers within a name count by their value."""
    parts = re.split(r"(\d+)", name.casefold())
    return [(int(part), "") if k % 2 else (0, part) for k, part in enumerate(parts)]


def middle_box(positions: Float32) -> tuple[Vector, Vector]:
    """Returns the corners of the box that a scene is framed on: nearly all positions [N, 3] that can be drawn.

    Stragglers are left out: the box reaches at most SPREAD times the middle's size beyond the middle, which is where
    9 of 10 positions are, on each axis.
    """
    sample = positions[:: max(1, len(positions) // PERCENTILE_SAMPLE)]
    sample = sample[(np.abs(sample) < FARTHEST).all(axis=1)]  # NaN is not
    if len(sample) == 0:
        return (-1.0, -1.0, -1.0), (1.0, 1.0, 1.0)
    least, low, high, most = np.percentile(sample, (0.1, 5, 95, 99.9), axis=0)
    spread = SPREAD * (high - low)
    return _vector(np.maximum(least, low - spread)), _vector(np.minimum(most, high + spread))


def home_camera(info: SceneInfo, size: tuple[int, int] | None) -> Camera:
    """Returns the camera that the window starts with: the first known one, else one framed on the middle of the scene.

    `size` is (width, height); None keeps a known camera's own size, or 1280x720.
    """
    if info.cameras:
        camera = info.cameras[0].camera
        return camera if size is None else fit_camera(camera, *size)
    width, height = size or (1280, 720)
    return framing_camera(info.low, info.high, info.up, width, height, HOME_FIELD_OF_VIEW)


def fit_camera(camera: Camera, width: int, height: int) -> Camera:
    """Returns the camera for another canvas with the same pose and pixel aspect; all that it sees stays in view."""
    scale = min(width / camera.width, height / camera.height)
    return Camera(
        width,
        height,
        camera.fx * scale,
        camera.fy * scale,
        camera.cx * scale + (width - camera.width * scale) / 2,
        camera.cy * scale + (height - camera.height * scale) / 2,
        camera.view_from_world,
        camera.near,
    )


def camera_of_view(path: Path, name: str, offset: Offset = NO_OFFSET) -> Camera:
    """Returns the camera of one photograph of a capture, for splats that `offset` was taken off.

    Raises InputError listing near names if there is none.
    """
    capture = open_capture(path)
    x, y, z = np.subtract(offset, capture.offset)
    views = capture.views + capture.test_views
    for view in views:
        if name in (view.name, Path(view.name).name, Path(view.name).stem):
            return camera_less(view.camera, (float(x), float(y), float(z)))
    some = ", ".join(view.name for view in views[:5])
    raise InputError(f"--view {name!r} is not a photograph of {path}; it has {len(views)}, for example {some}.")


@np.errstate(over="ignore", invalid="ignore")  # numbers of damaged files, which `file.warnings` tells of
def _describe_splats(file: SplatFile) -> SceneInfo:
    low, high = middle_box(file.gaussians.means)
    model = model_of(file.path)
    tests = held_out(model[0] if model else file.path.parent, (name for name, _ in file.cameras))
    listed = sorted(file.cameras, key=lambda named: _natural(named[0]))
    cameras = tuple(NamedCamera(name, camera, name in tests) for name, camera in listed)
    return SceneInfo(
        path=file.path,
        kind=file.kind,
        sh_degree=file.gaussians.sh_degree,
        low=low,
        high=high,
        up=_vector(guess_up([c.camera for c in cameras])[0]) if cameras else guess_up_of_splats(file.gaussians.means),
        extent=_diagonal(low, high),
        cameras=cameras,
        background=file.background,
        filter=file.filter,
        primitive=file.gaussians.primitive,
        iteration=file.iteration,
        warnings=file.warnings,
    )


def _describe_capture(capture: Capture) -> SceneInfo:
    tests = {id(view) for view in capture.test_views}
    cameras = tuple(NamedCamera(view.name, view.camera, id(view) in tests) for view in listed_views(capture))
    if capture.points is not None:
        positions = capture.points.positions
    else:
        positions = np.array([c.camera.position for c in cameras])
    low, high = middle_box(positions.astype(np.float32))
    kinds: dict[bool, Vector] = {True: (1.0, 1.0, 1.0), False: (0.0, 0.0, 0.0)}
    return SceneInfo(
        path=capture.path,
        kind="dataset",
        sh_degree=3,
        low=low,
        high=high,
        up=_vector(guess_up([c.camera for c in cameras])[0]),
        extent=_diagonal(low, high),
        cameras=cameras,
        background=kinds[capture.white_background],
        warnings=capture.warnings,
    )


def _vector(values: object) -> Vector:
    x, y, z = np.asarray(values, dtype=np.float64)
    return float(x), float(y), float(z)


def _diagonal(low: Vector, high: Vector) -> float:
    return float(np.linalg.norm(np.subtract(high, low))) or 1.0
