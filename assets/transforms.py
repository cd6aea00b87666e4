"""Captures as `transforms*.json`: the Blender sets of NeRF, and single files with intrinsics per frame.

Cameras there look along -z with y up (OpenGL); ours look along +z with y down. Lens distortion is not
handled: such files are refused by name. Nothing is composited here; `training/dataset.py` does that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from splatscope.assets.capture import Capture, PointCloud, View
from splatscope.assets.images import image_size
from splatscope.assets.json_fields import check_rigid, matrix, number, pixels, read_json, require
from splatscope.assets.photographs import Photographs, all_have_alpha, match_views
from splatscope.assets.ply import read_point_cloud
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera

TRAIN, TEST, SINGLE = "transforms_train.json", "transforms_test.json", "transforms.json"
_DISTORTION = ("k1", "k2", "k3", "k4", "p1", "p2")
_POINT_FILES = ("points3d.ply", "points3D.ply", "init.ply", "sparse_pc.ply")
_OPENGL_FROM_OPENCV = np.diag([1.0, -1.0, -1.0, 1.0])


def read_blender(path: Path | str) -> Capture:
    """Reads `transforms_train.json` and `transforms_test.json`, or else `transforms.json`, of a folder.

    Raises InputError if neither is there, a frame is incomplete or distorted, or no photograph is found.
    """
    path = Path(path)
    photographs = Photographs(path)
    test_views: tuple[View, ...] = ()
    if (path / TRAIN).is_file():
        views, warnings = _read_split(path / TRAIN, photographs)
        if (path / TEST).is_file():
            try:
                test_views, test_warnings = _read_split(path / TEST, photographs)
                warnings += [f"Test views: {warning}" for warning in test_warnings]
            except InputError as error:
                warnings.append(f"Test views ignored: {error}")
    elif (path / SINGLE).is_file():
        views, warnings = _read_split(path / SINGLE, photographs)
    else:
        raise InputError(f"{path} holds no Blender dataset. Looked for {TRAIN} and {SINGLE}.")
    points, point_warnings = _read_points(path)
    all_warnings = (*warnings, *point_warnings)
    return Capture(path, "blender", views, test_views, points, all_have_alpha(views), all_warnings)


def _read_split(where: Path, photographs: Photographs) -> tuple[tuple[View, ...], list[str]]:
    content = read_json(where)
    require(content, ("frames",), str(where))
    frames = content["frames"]
    if not isinstance(frames, list) or not frames:
        raise InputError(f"{where}: frames must be a list of at least one frame.")
    cameras = []
    for index, frame in enumerate(frames):
        place = f"{where}, frame {index}"
        require(frame, ("file_path", "transform_matrix"), place)
        name = frame["file_path"]
        if not isinstance(name, str) or not name:
            raise InputError(f"{place}: file_path must be the path of a photograph.")
        cameras.append((name, _camera(content | frame, photographs, name, place)))
    return match_views(photographs, cameras, str(photographs.folder), folders_may_differ=False)


def _camera(entry: Mapping[str, Any], photographs: Photographs, name: str, where: str) -> Camera:
    """The camera of one frame; `entry` holds the file's values, overridden by the frame's."""
    _refuse_distortion(entry, where)
    world_from_opengl = matrix(entry, "transform_matrix", (4, 4), where)
    check_rigid(world_from_opengl, "transform_matrix", where)
    view_from_world = np.linalg.inv(world_from_opengl @ _OPENGL_FROM_OPENCV)
    width, height = _size(entry, photographs, name, where)
    if "fl_x" in entry:
        fx = number(entry, "fl_x", where, above=0)
    elif "camera_angle_x" in entry:
        fx = _focal_length(entry, "camera_angle_x", width, where)
    else:
        raise InputError(f"{where} lacks fl_x or camera_angle_x, so the focal length is not known.")
    fy = number(entry, "fl_y", where, above=0) if "fl_y" in entry else fx
    cx = number(entry, "cx", where) if "cx" in entry else width / 2
    cy = number(entry, "cy", where) if "cy" in entry else height / 2
    return Camera.from_matrix(view_from_world, width, height, fx, fy, cx, cy)


def _size(entry: Mapping[str, Any], photographs: Photographs, name: str, where: str) -> tuple[int, int]:
    """The size that the intrinsics refer to: as written, else that of the photograph itself."""
    if "w" in entry and "h" in entry:
        return pixels(entry, "w", where), pixels(entry, "h", where)
    found = photographs.find(name)
    if found is None:
        return 1, 1  # the photograph is missing, which is reported once all frames are known
    try:
        return image_size(photographs.paths[found])
    except InputError:
        return 1, 1


def _focal_length(entry: Mapping[str, Any], key: str, width: int, where: str) -> float:
    angle = number(entry, key, where, above=0)
    if angle >= math.pi:
        raise InputError(f"{where}: {key} must be an angle in radians below pi, got {angle:g}.")
    return 0.5 * width / math.tan(0.5 * angle)


def _refuse_distortion(entry: Mapping[str, Any], where: str) -> None:
    model = entry.get("camera_model", "OPENCV")
    found = [f"{key} = {entry[key]:g}" for key in _DISTORTION if isinstance(entry.get(key), int | float) and entry[key]]
    if model not in ("OPENCV", "PINHOLE", "SIMPLE_PINHOLE") or entry.get("is_fisheye"):
        found = [f"camera_model {str(model)[:40]}"]
    if found:
        raise InputError(
            f"{where}: the lens is distorted ({', '.join(found)}), and only undistorted photographs are read. "
            "Undistort them first, for example with COLMAP's image_undistorter, and open the result."
        )


def _read_points(folder: Path) -> tuple[PointCloud | None, list[str]]:
    """The first point cloud beside the file, if any. A damaged one is a warning, never a failure."""
    for name in _POINT_FILES:
        if (folder / name).is_file():
            try:
                cloud = read_point_cloud(folder / name)
            except InputError as error:
                return None, [f"Points ignored: {error}"]
            if len(cloud.positions):
                return cloud, []
    return None, []
