"""One COLMAP model, binary or text: its files in, its shots and points out.

pycolmap reads cameras, poses and rigs from a copy without points and tracks: those it would refuse wherever somebody
took a photograph or 2D points out of the model. Points are read here. What is wrong is explained. Which model and
which photographs are meant is decided in `colmap.py`.
"""

from __future__ import annotations

import codecs
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.capture import PointCloud
from splatscope.assets.colmap_check import binary_points, check_binary_model, images_without_points
from splatscope.assets.colmap_text import text_image_count, text_images, text_points
from splatscope.assets.lens import Lens, colmap_library
from splatscope.assets.photographs import Shot
from splatscope.assets.ply import read_point_cloud
from splatscope.kernels.errors import InputError


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
    return text_image_count(model / "images.txt")


def read_model(model: Path) -> Any:
    """The pycolmap Reconstruction without its points, also where just one of rigs and frames is missing."""
    pycolmap = colmap_library()
    suffix = model_suffix(model) or ".bin"
    try:
        if suffix == ".bin":
            check_binary_model(model)
        with tempfile.TemporaryDirectory() as staged:
            for name, content in _without_points(model, suffix).items():
                Path(staged, f"{name}{suffix}").write_bytes(content)
            return pycolmap.Reconstruction(staged)
    except OSError as error:
        raise InputError(f"The COLMAP model {model} cannot be read: {error.strerror}.") from error
    except (ValueError, IndexError, KeyError, RuntimeError, MemoryError, TypeError) as error:
        raise InputError(
            f"The COLMAP model {model} is damaged: its {suffix} files cannot be understood or do not belong "
            "together. Copy it again, or export it again from COLMAP."
        ) from error


def _without_points(model: Path, suffix: str) -> dict[str, bytes]:
    """The content of each file of the model, with no 2D and 3D points."""
    # One of rigs and frames says nothing without the other; every image has its own pose besides.
    rigged = all((model / f"{name}{suffix}").is_file() for name in ("rigs", "frames"))
    names = ("cameras", "rigs", "frames") if rigged else ("cameras",)
    files = {name: (model / f"{name}{suffix}").read_bytes() for name in names}
    if suffix == ".bin":
        return files | {"images": images_without_points(model / "images.bin"), "points3D": bytes(8)}  # a count of zero
    rows = "".join(" ".join(fields) + "\n\n" for fields in text_images(model / "images.txt"))
    files = {name: content.removeprefix(codecs.BOM_UTF8) for name, content in files.items()}
    return files | {"images": rows.encode(), "points3D": b""}


def shots(reconstruction: Any, model: Path) -> list[Shot]:
    """Every photograph with a pose, by id. Raises InputError if there is none or a camera makes no sense."""
    # COLMAP's own reader of text ends a name at its first space.
    rows = text_images(model / "images.txt") if model_suffix(model) == ".txt" else []
    text_names = {int(fields[0]): fields[9] for fields in rows}
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


def points(model: Path) -> PointCloud | None:
    """The 3D points in the order of their ids, or those of points3D.ply, or None if there are none.

    Raises InputError if the model's own are damaged.
    """
    suffix = model_suffix(model) or ".bin"
    file = model / f"points3D{suffix}"
    if file.is_file() and file.stat().st_size > 0:
        positions, colors = (binary_points if suffix == ".bin" else text_points)(file)
        finite = np.isfinite(positions).all(axis=1)
        if len(positions):
            return PointCloud(positions[finite], colors[finite]) if finite.any() else None
    try:
        cloud = read_point_cloud(model / "points3D.ply")
    except InputError:
        return None
    return cloud if len(cloud.positions) else None
