"""Reads and writes cameras as JSON: one pinhole camera of our own, or the `cameras.json` of a trained model.

Cameras of captures come from `colmap/captures.py` and `transforms/captures.py`. `files/json_fields.py` has the checks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from splatscope.assets.capture import NO_OFFSET, Offset, View
from splatscope.assets.files.atomic import atomic_path
from splatscope.assets.files.json_fields import check_rigid, check_rotation, matrix, number, pixels, read_json, require
from splatscope.assets.geometry.recentre import FARTHEST
from splatscope.assets.lens import check_intrinsics
from splatscope.kernels.constants import NEAR
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera

_OWN_KEYS = ("width", "height", "fx", "fy", "cx", "cy", "view_from_world")
_MODEL_KEYS = ("width", "height", "position", "rotation", "fx", "fy")


def read_camera(path: Path | str, name: str | None = None) -> Camera:
    """Reads one camera from a JSON file. Raises InputError.

    The file holds one of
    - `{"width", "height", "fx", "fy", "cx", "cy", "near", "view_from_world": 4x4 rows}` (OpenCV axes, pixels; `near`
      may be left out);
    - an entry of a model's `cameras.json` (cx = W/2, cy = H/2);
    - the whole list. Then `name` selects by `img_name`; without it the first is taken.
    """
    content = read_json(path)
    if not isinstance(content, list):
        return _camera(content, str(path))
    cameras = _cameras(content, path)
    if name is None:
        return cameras[0][1]
    for candidate, camera in cameras:
        if name in (candidate, Path(candidate).stem):
            return camera
    known = ", ".join(candidate for candidate, _ in cameras[:5])
    raise InputError(f"{path} has no camera named {name!r}; it has {len(cameras)}, for example {known}.")


def write_camera(path: Path | str, camera: Camera) -> None:
    """Writes the first form that `read_camera` lists; reading it back gives an equal camera."""
    entry = {
        "width": camera.width,
        "height": camera.height,
        "fx": camera.fx,
        "fy": camera.fy,
        "cx": camera.cx,
        "cy": camera.cy,
        "near": camera.near,
        "view_from_world": camera.view_from_world,
    }
    _write_json(path, entry, indent=1)


def read_cameras_json(path: Path | str) -> tuple[tuple[str, Camera], ...]:
    """Returns (name, camera) of every entry of a model's `cameras.json`, in file order. Raises InputError."""
    content = read_json(path)
    if not isinstance(content, list):
        raise InputError(f"{path} must hold a list of cameras.")
    return _cameras(content, path)


def write_cameras_json(path: Path | str, views: Iterable[View], offset: Offset = NO_OFFSET) -> None:
    """Writes views in the layout of the 2023 reference code, with `offset` added to their positions.

    That layout puts the principal point at the centre and has no near plane. `cx`, `cy` and `near` are added for
    cameras that differ.
    """
    entries = []
    for index, view in enumerate(views):
        camera = view.camera
        entry = {
            "id": index,
            "img_name": view.name,
            "width": camera.width,
            "height": camera.height,
            "position": (camera.position + offset).tolist(),
            "rotation": camera.matrix[:3, :3].T.tolist(),
            "fy": camera.fy,
            "fx": camera.fx,
        }
        if (camera.cx, camera.cy) != (camera.width / 2, camera.height / 2):
            entry |= {"cx": camera.cx, "cy": camera.cy}
        if camera.near != NEAR:
            entry["near"] = camera.near
        entries.append(entry)
    _write_json(path, entries)


def _cameras(content: list[Any], path: Path | str) -> tuple[tuple[str, Camera], ...]:
    if not content:
        raise InputError(f"{path} holds an empty list; it must hold at least one camera.")
    cameras = []
    for index, entry in enumerate(content):
        camera = _camera(entry, f"{path}, entry {index}")
        cameras.append((str(entry.get("img_name", index)), camera))
    return tuple(cameras)


def _camera(entry: Any, where: str) -> Camera:
    is_own = not isinstance(entry, dict) or "view_from_world" in entry or "rotation" not in entry
    camera = _own_camera(entry, where) if is_own else _model_camera(entry, where)
    check_intrinsics(camera.width, camera.height, (camera.fx, camera.fy, camera.cx, camera.cy), where)
    farthest = float(np.abs(camera.position).max())
    if not farthest < FARTHEST:
        raise InputError(f"{where} stands {farthest:g} units from the origin; at most {FARTHEST:g} are drawn.")
    return camera


def _own_camera(entry: Any, where: str) -> Camera:
    require(entry, _OWN_KEYS, where)
    view_from_world = matrix(entry, "view_from_world", (4, 4), where)
    check_rigid(view_from_world, "view_from_world", where)
    return Camera.from_matrix(
        view_from_world,
        pixels(entry, "width", where),
        pixels(entry, "height", where),
        number(entry, "fx", where, above=0),
        number(entry, "fy", where, above=0),
        number(entry, "cx", where),
        number(entry, "cy", where),
        number(entry, "near", where, above=0) if "near" in entry else NEAR,
    )


def _model_camera(entry: dict[str, Any], where: str) -> Camera:
    require(entry, _MODEL_KEYS, where)
    width, height = pixels(entry, "width", where), pixels(entry, "height", where)
    world_from_view = matrix(entry, "rotation", (3, 3), where)
    check_rotation(world_from_view, "rotation", where)
    view_from_world = np.eye(4)
    view_from_world[:3, :3] = world_from_view.T
    view_from_world[:3, 3] = -world_from_view.T @ matrix(entry, "position", (3,), where)
    return Camera.from_matrix(
        view_from_world,
        width,
        height,
        number(entry, "fx", where, above=0),
        number(entry, "fy", where, above=0),
        number(entry, "cx", where) if "cx" in entry else width / 2,
        number(entry, "cy", where) if "cy" in entry else height / 2,
        number(entry, "near", where, above=0) if "near" in entry else NEAR,
    )


def _write_json(path: Path | str, content: Any, indent: int | None = None) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=indent), encoding="utf-8")
