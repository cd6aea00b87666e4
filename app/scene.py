"""Opening a path for a person: what it is, where to look at it from, what was odd.

Reading is done in `assets`; this adds what the window and the `render` command need beside the splats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from splatscope.assets.capture import NO_OFFSET, Capture, Offset
from splatscope.assets.formats import SplatFile, open_capture, open_path
from splatscope.assets.recentre import camera_less
from splatscope.assets.upright import guess_up, guess_up_of_splats
from splatscope.assets.view_image import MASK_USES, MaskUse
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, Float32, Gaussians
from splatscope.viewer.messages import NamedCamera, SceneInfo
from splatscope.viewer.navigation import framing_camera

HOME_FIELD_OF_VIEW = 60.0  # degrees, vertical
PERCENTILE_SAMPLE = 200_000  # positions looked at for the framing box; a larger scene is strided
Vector = tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class Scene:
    """An opened path. A capture has no splats until a trainer makes the first ones."""

    info: SceneInfo
    gaussians: Gaussians | None
    capture: Capture | None
    offset: Offset = NO_OFFSET  # taken off every position; `write_ply` adds it back


def open_scene(path: Path, images: str = "images", masks: Sequence[MaskUse] = MASK_USES) -> Scene:
    """Reads whatever lies at `path`. Raises InputError with a sentence for the user."""
    opened = open_path(path, images, masks)
    if isinstance(opened, SplatFile):
        return Scene(_describe_splats(opened), opened.gaussians, None, opened.offset)
    return Scene(_describe_capture(opened), None, opened, opened.offset)


def middle_box(positions: Float32) -> tuple[Vector, Vector]:
    """5th and 95th percentile of finite positions [N, 3]: the box a scene is framed on."""
    sample = positions[:: max(1, len(positions) // PERCENTILE_SAMPLE)]
    sample = sample[np.isfinite(sample).all(axis=1)]
    if len(sample) == 0:
        return (-1.0, -1.0, -1.0), (1.0, 1.0, 1.0)
    low, high = np.percentile(sample, (5, 95), axis=0)
    return _vector(low), _vector(high)


def home_camera(info: SceneInfo, size: tuple[int, int] | None) -> Camera:
    """Where the window starts: the first known camera, else a view framed on the middle of the scene.

    `size` is (width, height); None keeps a known camera's own size, or 1280x720.
    """
    if info.cameras:
        camera = info.cameras[0].camera
        return camera if size is None else fit_camera(camera, *size)
    width, height = size or (1280, 720)
    return framing_camera(info.low, info.high, info.up, width, height, HOME_FIELD_OF_VIEW)


def fit_camera(camera: Camera, width: int, height: int) -> Camera:
    """The same pose and pixel aspect on another canvas: everything `camera` sees stays in the picture."""
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
    """The camera of one photograph of a capture, for splats that `offset` was taken off.

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


def _describe_splats(file: SplatFile) -> SceneInfo:
    low, high = middle_box(file.gaussians.means)
    cameras = tuple(NamedCamera(name, camera) for name, camera in file.cameras)
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
        warnings=file.warnings,
    )


def _describe_capture(capture: Capture) -> SceneInfo:
    cameras = tuple(
        NamedCamera(view.name, view.camera, is_test)
        for views, is_test in ((capture.views, False), (capture.test_views, True))
        for view in views
    )
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
