"""Reads one COLMAP model, binary or text: its files in, its shots and points out.

`text.py` and `binary.py` read the tables; this file judges their fields. A camera, photograph or point with impossible
values is left out, counted and explained. Rigs and frames are not read: COLMAP writes the pose of each photograph to
images.bin and images.txt as well. `captures.py` decides which model and which photographs are meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.capture import PointCloud
from splatscope.assets.colmap.binary import binary_cameras, binary_image_count, binary_images, binary_points
from splatscope.assets.colmap.sightings import with_sightings
from splatscope.assets.colmap.text import Row, text_cameras, text_image_count, text_images, text_line, text_points
from splatscope.assets.files.json_fields import number, pixels
from splatscope.assets.geometry.recentre import FARTHEST
from splatscope.assets.lens import PARAMETERS, Lens
from splatscope.assets.photographs.find import Shot, Unreadable, left_out, readable
from splatscope.assets.splats.ply import read_point_cloud
from splatscope.kernels.errors import InputError
from splatscope.kernels.wording import counted

_POSE = ("QW", "QX", "QY", "QZ", "TX", "TY", "TZ")
_AGAIN = "Correct it, or export the model again from COLMAP."
_IDS = 2**32  # binary files hold four bytes of each id
_KINDS = 3  # kinds of reasons that get their own sentence
_NOUNS = {".txt": "line", ".bin": "record"}


@dataclass(frozen=True, eq=False)
class ColmapModel:
    """Holds the photographs of one model."""

    shots: list[Shot]  # with a possible lens and pose, in the order of the file
    left_out: list[Unreadable]  # the others, and the reason for each
    warnings: list[str]  # one sentence or two each


def model_suffix(folder: Path) -> str | None:
    """Returns ".bin" or ".txt" if the folder holds a model of that kind; binary wins, as in COLMAP."""
    for suffix in (".bin", ".txt"):
        if all((folder / f"{name}{suffix}").is_file() for name in ("cameras", "images")):
            return suffix
    return None


def registered_count(model: Path) -> int:
    """Returns how many photographs a model has, by its first bytes or its lines, to choose between models."""
    if model_suffix(model) == ".bin":
        return binary_image_count(model / "images.bin")
    return text_image_count(model / "images.txt")


def read_model(model: Path) -> ColmapModel:
    """Reads the photographs of a model with their lenses and poses.

    Raises InputError if a file is cut short, or no photograph has a lens and a pose that make sense.
    """
    suffix = model_suffix(model) or ".bin"
    read_cameras, read_images = (binary_cameras, binary_images) if suffix == ".bin" else (text_cameras, text_images)
    file = model / f"cameras{suffix}"
    rows, warnings = read_cameras(file)
    lenses, remarks = _lenses(rows)
    warnings += remarks
    rows, remarks = read_images(model / f"images{suffix}")
    warnings += remarks
    shots: list[Shot] = []
    bad: list[Unreadable] = []
    for where, fields in rows:
        name = readable(fields[-1])
        try:
            if not name:
                raise InputError(f"{where} has no name. {_AGAIN}")
            shots.append(Shot(name, _lens_of(fields[-2], lenses, file, where), _pose(fields[1:8], where)))
        except InputError as error:
            bad.append((name or "one without a name", str(error)))
    warnings += _sentences(bad)
    if not shots:
        why = " ".join(warnings[:_KINDS]) or f"{model / f'images{suffix}'} names none; run COLMAP's mapper again."
        raise InputError(f"The COLMAP model {model} has no photograph that can be used. {why}")
    return ColmapModel(with_sightings(shots, model / f"images{suffix}"), bad, warnings)


def points(model: Path) -> tuple[PointCloud | None, list[str]]:
    """Returns the 3D points in the order of their ids, else those of points3D.ply, and remarks; None if there are none.

    Raises InputError if the model's own points are cut short.
    """
    suffix = model_suffix(model) or ".bin"
    file, remarks = model / f"points3D{suffix}", []
    if file.is_file() and file.stat().st_size > 0:
        ids, positions, colors, places, remarks = (binary_points if suffix == ".bin" else text_points)(file)
        usable = np.all(np.abs(positions) < FARTHEST, axis=1)  # false for NaN
        if not usable.all():
            first = int(places[~usable].min())
            value = text_line(file, first) if suffix == ".txt" else _shown(positions[places == first][0])
            bad = f"{np.count_nonzero(~usable):,} of {counted(len(positions), 'point')} in {file}"
            remarks.append(
                f"Left out: {bad}, whose id or numbers are missing, not finite or beyond {FARTHEST:g}, the first in "
                f"{_NOUNS[suffix]} {first:,}: {value}."
            )
        if usable.any():
            return PointCloud(positions[usable], colors[usable], ids=ids[usable]), remarks
    if not (model / "points3D.ply").is_file():
        return None, remarks
    try:
        cloud = read_point_cloud(model / "points3D.ply")
    except InputError as error:
        return None, [*remarks, f"Points ignored: {error}"]
    return cloud if len(cloud.positions) else None, [*remarks, *cloud.remarks]


def _lenses(rows: Iterable[Row]) -> tuple[dict[int, Lens | InputError], list[str]]:
    """Returns the lens of each camera by its id, or why it has none, and remarks on cameras without an id."""
    lenses: dict[int, Lens | InputError] = {}
    first: dict[int, tuple[str, Sequence[Any]]] = {}
    unnamed = []
    for where, fields in rows:
        try:
            camera = _id(fields[0], where)
        except InputError as error:
            unnamed.append(str(error))
            continue
        place = f"{where} (camera {camera})"
        try:
            if camera in first and list(fields[1:]) != list(first[camera][1][1:]):
                raise InputError(
                    f"{place} is another camera with the id of {first[camera][0]}. Take out the one that is wrong, or "
                    "export the model again."
                )
            lenses[camera] = _lens(fields, place)
        except InputError as error:
            lenses[camera] = error
        first.setdefault(camera, (where, fields))
    return lenses, [f"Left out: {counted(len(unnamed), 'camera')} without an id. {unnamed[0]}"] if unnamed else []


def _lens(fields: Sequence[Any], where: str) -> Lens:
    if len(fields) < 4:
        raise InputError(
            f"{where} must have CAMERA_ID MODEL WIDTH HEIGHT and the parameters of the lens, got "
            f"{' '.join(fields)[:60]!r}. {_AGAIN}"
        )
    _, model, width, height, *params = fields
    model = model.upper() if model.upper() in PARAMETERS else model
    names = PARAMETERS.get(model, ())
    if names and len(params) != len(names):
        raise InputError(
            f"{where}: a lens {model} has {counted(len(names), 'parameter')} ({', '.join(names)}), got {len(params)}. "
            f"{_AGAIN}"
        )
    values = [_number(v, k, where, 0 if k[0] == "f" else -np.inf) for k, v in zip(names, params, strict=False)]
    width, height = _checked(pixels, width, "WIDTH", where), _checked(pixels, height, "HEIGHT", where)
    return Lens.from_colmap(repr(model[:40])[1:-1], width, height, values, where)


def _lens_of(camera: Any, lenses: dict[int, Lens | InputError], file: Path, where: str) -> Lens:
    key = _id(camera, where)
    if key not in lenses:
        raise InputError(f"{where} names camera {key}, which {file} does not have. {_AGAIN}")
    lens = lenses[key]
    if isinstance(lens, InputError):
        raise lens
    return lens


def _pose(fields: Sequence[Any], where: str) -> NDArray[np.float64]:
    """Returns view_from_world [4, 4]. Raises InputError."""
    values = np.array([_number(value, key, where) for key, value in zip(_POSE, fields, strict=True)])
    quaternion, translation = values[:4], values[4:]
    largest = np.abs(quaternion).max()
    if not largest:
        raise InputError(f"{where}: the rotation is a quaternion of four zeros, which says no direction. {_AGAIN}")
    if not np.abs(translation).max() < FARTHEST:
        raise InputError(
            f"{where} is {np.abs(translation).max():g} units from the origin; at most {FARTHEST:g} are read. {_AGAIN}"
        )
    quaternion = quaternion / largest  # now its squares stay finite
    w, x, y, z = quaternion / np.linalg.norm(quaternion)  # some writers miss unit length by a per cent
    view_from_world = np.eye(4)
    view_from_world[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    view_from_world[:3, 3] = translation
    return view_from_world


def _id(field: Any, where: str) -> int:
    value = _number(field, "CAMERA_ID", where)
    if not (value.is_integer() and 0 <= value < _IDS):
        raise InputError(f"{where}: CAMERA_ID must be a whole number from 0 to {_IDS - 1}, got {value:g}. {_AGAIN}")
    return int(value)


def _number(field: Any, key: str, where: str, above: float = -np.inf) -> float:
    return _checked(lambda *known: number(*known, above=above), field, key, where)


def _checked(check: Callable[..., Any], field: Any, key: str, where: str) -> Any:
    """Returns the value of a field, a word in text files and a number in binary ones. Raises InputError."""
    with suppress(ValueError):  # a word that is no number is refused unchanged
        field = float(field)
    try:
        return check({key: field}, key, where)
    except InputError as error:
        raise InputError(f"{error} {_AGAIN}") from error


def _sentences(bad: Sequence[Unreadable]) -> list[str]:
    """Returns sentences on photographs left out: one for each of the first kinds of reasons, one for all others."""
    by_kind: dict[str, list[Unreadable]] = {}
    for name, reason in bad:
        kind = re.sub(r"\d+", "", reason)  # the same reason for any line or camera
        by_kind.setdefault(kind, []).append((name, reason))
    groups = list(by_kind.values())
    others = [one for group in groups[_KINDS:] for one in group]
    return [left_out(group) for group in (*groups[:_KINDS], others) if group]


def _shown(position: NDArray[np.float64]) -> str:
    return f"({', '.join(f'{value:g}' for value in position)})"
