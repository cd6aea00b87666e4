"""COLMAP models, binary and text, with their photographs: a folder in, a `Capture` out.

pycolmap reads the model; this file finds the folders, fits cameras to photographs and explains what is
wrong. Lens distortion is not handled: such models are refused by name. Read `photographs.py` next.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from splatscope.assets.capture import Capture, PointCloud
from splatscope.assets.colmap_check import check_binary_model
from splatscope.assets.images import EXTENSIONS
from splatscope.assets.json_fields import SIZE_LIMIT
from splatscope.assets.photographs import Photographs, all_have_alpha, match_views
from splatscope.assets.ply import read_point_cloud
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera

_MODEL_FILES = ("cameras", "images", "points3D", "rigs", "frames")
_INSIDE_A_DATASET = ("sparse", "distorted", "colmap")  # folders whose photographs lie in a folder above


def find_models(path: Path) -> list[Path]:
    """COLMAP models a folder stands for: `sparse/*`, else `sparse`, else the folder itself; may be empty."""
    sparse = path if path.name == "sparse" else path / "sparse"
    for candidates in (_subfolders(sparse), [sparse], [path]):
        models = [folder for folder in candidates if _model_suffix(folder)]
        if models:
            return models
    return []


def read_colmap(path: Path | str, images: str = "images") -> Capture:
    """Reads a dataset folder (`sparse/0`, `sparse`) or a model folder, with photographs from `images`.

    Of several models the one with most registered photographs is taken. Intrinsics are scaled to the real
    size of each photograph. Raises InputError for distorted cameras, damaged files, and no photographs.
    """
    path = Path(path)
    models = find_models(path)
    if not models:
        raise InputError(
            f"{path} holds no COLMAP model. Looked for cameras and images (.bin or .txt) in sparse/0, sparse and "
            "the folder itself."
        )
    counts = {model: _registered_count(model) for model in models}
    model = max(models, key=lambda m: counts[m])
    warnings = []
    if len(models) > 1:
        others = ", ".join(f"{m.name} ({counts[m]})" for m in models if m != model)
        warnings.append(
            f"{len(models)} COLMAP models found; using {model.name} with {counts[model]} photographs, not {others}."
        )
    reconstruction = _read_model(model)
    cameras = _named_cameras(reconstruction, model)
    folder, looked_in = _find_images(path, model, images)
    photographs = Photographs(folder)
    views, found_warnings = match_views(photographs, cameras, looked_in, folders_may_differ=True)
    warnings += found_warnings
    unused = len(photographs.paths) - len({view.image_path for view in views})
    if unused:
        warnings.append(
            f"Not used, for lack of a camera in {model}: {unused} of {len(photographs.paths)} photographs in {folder}."
        )
    points = _points(reconstruction, model)
    if points is None:
        warnings.append(f"{model} has no 3D points, so splats will start at random positions.")
    return Capture(path, "colmap", views, (), points, all_have_alpha(views), tuple(warnings))


def _subfolders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []


def _model_suffix(folder: Path) -> str | None:
    """ ".bin" or ".txt" if the folder holds a model of that kind; binary wins, as in COLMAP."""
    for suffix in (".bin", ".txt"):
        if all((folder / f"{name}{suffix}").is_file() for name in ("cameras", "images")):
            return suffix
    return None


def _registered_count(model: Path) -> int:
    """Photographs in a model, from its first bytes or its lines; only used to choose between models."""
    if _model_suffix(model) == ".bin":
        with open(model / "images.bin", "rb") as file:
            return int.from_bytes(file.read(8), "little")
    return len(_text_names(model / "images.txt"))


def _read_model(model: Path) -> Any:
    """The pycolmap Reconstruction, also where the file of 3D points is missing or empty."""
    import pycolmap

    # Failures arrive as exceptions; what pycolmap would print besides means nothing to a user.
    pycolmap.logging.minloglevel = int(pycolmap.logging.Level.FATAL)
    suffix = _model_suffix(model) or ".bin"
    points = model / f"points3D{suffix}"
    try:
        if points.is_file() and points.stat().st_size:
            if suffix == ".bin":
                check_binary_model(model)
            return pycolmap.Reconstruction(model)
        with tempfile.TemporaryDirectory() as staged:
            for name in _MODEL_FILES:
                if (model / f"{name}{suffix}").is_file():
                    shutil.copy(model / f"{name}{suffix}", staged)
            Path(staged, points.name).write_bytes(bytes(8) if suffix == ".bin" else b"")  # a count of zero
            if suffix == ".bin":
                check_binary_model(Path(staged))
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


def _named_cameras(reconstruction: Any, model: Path) -> list[tuple[str, Camera]]:
    """(name, camera) of every photograph with a pose. Raises InputError for a distorted or senseless camera."""
    text_names = _text_names(model / "images.txt") if _model_suffix(model) == ".txt" else {}
    cameras = []
    try:
        for image_id, image in sorted(reconstruction.images.items()):
            if image.has_pose:
                cameras.append((text_names.get(image_id, image.name), _camera(image, model)))
    except UnicodeDecodeError as error:
        raise InputError(f"{model} names photographs in letters that are not UTF-8; rename them.") from error
    if not cameras:
        raise InputError(f"The COLMAP model {model} has no photograph with a pose; run COLMAP's mapper again.")
    return cameras


def _camera(image: Any, model: Path) -> Camera:
    lens = image.camera
    if lens.model_name not in ("PINHOLE", "SIMPLE_PINHOLE"):
        raise InputError(
            f"{model} uses the camera model {lens.model_name}; only PINHOLE and SIMPLE_PINHOLE are read. "
            f"Run 'colmap image_undistorter --image_path IMAGES --input_path {model} --output_path undistorted' "
            "and open the folder 'undistorted'."
        )
    pose = image.cam_from_world()
    pose.rotation.normalize()  # other writers leave quaternions a per cent off unit length
    view_from_world = np.eye(4)
    view_from_world[:3] = pose.matrix()
    fx, fy, cx, cy = lens.focal_length_x, lens.focal_length_y, lens.principal_point_x, lens.principal_point_y
    if not np.isfinite(view_from_world).all():
        raise InputError(f"{model} is damaged: the pose of {image.name} is not finite.")
    if not (np.isfinite([fx, fy, cx, cy]).all() and fx > 0 and fy > 0):
        raise InputError(f"{model} is damaged: camera {lens.camera_id} has focal lengths {fx:g}, {fy:g} px.")
    if not (1 <= lens.width <= SIZE_LIMIT and 1 <= lens.height <= SIZE_LIMIT):
        raise InputError(f"{model} is damaged: camera {lens.camera_id} is {lens.width} x {lens.height} pixels.")
    return Camera.from_matrix(view_from_world, lens.width, lens.height, fx, fy, cx, cy)


def _find_images(path: Path, model: Path, images: str) -> tuple[Path, str]:
    """The folder of photographs, and the places looked at in words."""
    inside = path == model or path.name in _INSIDE_A_DATASET
    roots = [path, *list(path.absolute().parents)[:2]] if inside else [path]
    for root in roots:
        if (root / images).is_dir():
            return root / images, str(root / images)
    if images == "images" and _holds_images(path):
        return path, str(path)
    looked = ", ".join(str(root / images) for root in roots)
    others = ", ".join(child.name for child in _subfolders(path) if _holds_images(child))
    hint = f" Photographs lie in {others}: name that folder with --images." if others else ""
    raise InputError(f"{path} has a COLMAP model but no folder of photographs. Looked for {looked}.{hint}")


def _holds_images(folder: Path) -> bool:
    return any(child.suffix.lower() in EXTENSIONS for child in folder.iterdir())


def _points(reconstruction: Any, model: Path) -> PointCloud | None:
    """The 3D points in the order of their ids, or those of points3D.ply, or None if there are none."""
    points = [point for _, point in sorted(reconstruction.points3D.items())]
    if points:
        positions = np.array([point.xyz for point in points], np.float64)
        colors = np.array([point.color for point in points], np.uint8)
        finite = np.isfinite(positions).all(axis=1)
        cloud = PointCloud(positions[finite], colors[finite])
    else:
        try:
            cloud = read_point_cloud(model / "points3D.ply")
        except InputError:
            return None
    return cloud if len(cloud.positions) else None
