"""One COLMAP model, binary or text: its files in, its shots and points out.

pycolmap reads it; this file repairs what can be (missing points, names with spaces in text) and explains what
is wrong. Which model and which photographs are meant is decided in `colmap.py`.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.capture import PointCloud
from splatscope.assets.colmap_check import binary_points, check_binary_model
from splatscope.assets.lens import Lens, colmap_library
from splatscope.assets.photographs import Shot
from splatscope.assets.ply import read_point_cloud
from splatscope.kernels.errors import InputError

_MODEL_FILES = ("cameras", "images", "points3D", "rigs", "frames")


def model_suffix(folder: Path) -> str | None:
    """ ".bin" or ".txt" if the folder holds a model of that kind; binary wins, as in COLMAP."""
    for suffix in (".bin", ".txt"):
        if all((folder / f"{name}{suffix}").is_file() for name in ("cameras", "images")):
            return suffix
    return None


def registered_count(model: Path) -> int:
    """Photographs in a model, from its first bytes or its lines; only used to choose between models."""
    if model_suffix(model) == ".bin":
        with open(model / "images.bin", "rb") as file:
            return int.from_bytes(file.read(8), "little")
    return len(_text_names(model / "images.txt"))


def read_model(model: Path) -> Any:
    """The pycolmap Reconstruction, also where the points, or just one of rigs and frames, are missing."""
    pycolmap = colmap_library()
    suffix = model_suffix(model) or ".bin"
    points = model / f"points3D{suffix}"
    try:
        has_points = points.is_file() and points.stat().st_size > 0
        rigs, frames = ((model / f"{name}{suffix}").is_file() for name in ("rigs", "frames"))
        if suffix == ".bin":
            check_binary_model(model)
        if has_points and rigs == frames:
            return pycolmap.Reconstruction(model)
        with tempfile.TemporaryDirectory() as staged:
            # One of rigs and frames says nothing without the other; every image has its own pose besides.
            for name in _MODEL_FILES if rigs and frames else _MODEL_FILES[:3]:
                if (model / f"{name}{suffix}").is_file():
                    shutil.copy(model / f"{name}{suffix}", staged)
            if not has_points:
                Path(staged, points.name).write_bytes(bytes(8) if suffix == ".bin" else b"")  # a count of zero
            return pycolmap.Reconstruction(staged)
    except OSError as error:
        raise InputError(f"The COLMAP model {model} cannot be read: {error.strerror}.") from error
    except (ValueError, IndexError, KeyError, RuntimeError, MemoryError, TypeError) as error:
        raise InputError(
            f"The COLMAP model {model} is damaged: its {suffix} files cannot be understood or do not belong "
            "together. Copy it again, or export it again from COLMAP."
        ) from error


def _text_names(path: Path) -> dict[int, str]:
    """Names by image id from images.txt. COLMAP's own reader ends a name at its first space."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text. Export the model again from COLMAP.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    names = {}
    rows = iter(line.strip() for line in lines)
    for row in rows:
        if row and not row.startswith("#"):
            words = row.split(maxsplit=9)
            if len(words) == 10 and words[0].isdigit():
                names[int(words[0])] = words[9]
            next(rows, None)  # the line of 2D points, which may be empty
    return names


def shots(reconstruction: Any, model: Path) -> list[Shot]:
    """Every photograph with a pose, by id. Raises InputError if there is none or a camera makes no sense."""
    text_names = _text_names(model / "images.txt") if model_suffix(model) == ".txt" else {}
    lenses: dict[int, Lens] = {}
    result = []
    try:
        for image_id, image in sorted(reconstruction.images.items()):
            if image.has_pose:
                name = text_names.get(image_id) or image.name
                if image.camera_id not in lenses:
                    c, where = image.camera, f"Camera {image.camera_id} of {model}"
                    lenses[image.camera_id] = Lens.from_colmap(c.model_name, c.width, c.height, c.params, where)
                result.append(Shot(name, lenses[image.camera_id], _pose(image, model)))
    except UnicodeDecodeError as error:
        raise InputError(f"{model} names photographs in letters that are not UTF-8; rename them.") from error
    if not result:
        raise InputError(f"The COLMAP model {model} has no photograph with a pose; run COLMAP's mapper again.")
    return result


def _pose(image: Any, model: Path) -> NDArray[np.float64]:
    """view_from_world [4, 4]."""
    try:
        pose = image.cam_from_world()
    except (RuntimeError, ValueError, IndexError) as error:
        raise InputError(
            f"{model} does not say where {image.name} was taken: its rig lacks the pose of that camera. Run COLMAP's "
            "rig calibration again, or export the model without rigs."
        ) from error
    if not np.any(pose.rotation.quat):
        raise InputError(
            f"{model} is damaged: the rotation of {image.name} is a quaternion of four zeros, which says no direction."
        )
    pose.rotation.normalize()  # other writers leave quaternions a per cent off unit length
    view_from_world = np.eye(4)
    view_from_world[:3] = pose.matrix()
    if not np.isfinite(view_from_world).all():
        raise InputError(f"{model} is damaged: the pose of {image.name} is not finite.")
    return view_from_world


def points(reconstruction: Any, model: Path) -> PointCloud | None:
    """The 3D points in the order of their ids, or those of points3D.ply, or None if there are none."""
    if reconstruction.num_points3D():
        positions, colors = _positions_and_colors(reconstruction, model)
        finite = np.isfinite(positions).all(axis=1)
        cloud = PointCloud(positions[finite], colors[finite])
    else:
        try:
            cloud = read_point_cloud(model / "points3D.ply")
        except InputError:
            return None
    return cloud if len(cloud.positions) else None


def _positions_and_colors(reconstruction: Any, model: Path) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    if model_suffix(model) == ".bin":
        return binary_points(model / "points3D.bin")
    all_points = [point for _, point in sorted(reconstruction.points3D.items())]
    positions = np.array([point.xyz for point in all_points], np.float64)
    return positions, np.array([point.color for point in all_points], np.uint8)
