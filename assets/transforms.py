"""Captures as `transforms*.json`: the Blender sets of NeRF, instant-ngp's and nerfstudio's files.

Cameras there look along -z with y up (OpenGL); ours look along +z with y down. Values of the file hold for
every frame that does not bring its own. What the fields say of a lens is read in `transforms_lens.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.capture import FEWEST_POINTS, IMAGES, Capture, Census, PointCloud, View
from splatscope.assets.colmap_model import model_suffix, points, read_model
from splatscope.assets.json_fields import check_rigid, matrix, read_json, require
from splatscope.assets.masks import Masks
from splatscope.assets.photographs import Photographs, Shot, all_have_alpha, match_views
from splatscope.assets.ply import read_point_cloud
from splatscope.assets.recentre import recentred
from splatscope.assets.transforms_lens import read_lens
from splatscope.kernels.errors import InputError

TRAIN, TEST, SINGLE = "transforms_train.json", "transforms_test.json", "transforms.json"
_POINT_FILES = ("points3d.ply", "points3D.ply", "init.ply", "sparse_pc.ply")
_COLMAP_MODELS = ("colmap/sparse/0", "colmap/sparse")  # where nerfstudio leaves what its file was made from
_OPENGL_FROM_OPENCV = np.diag([1.0, -1.0, -1.0, 1.0])


def read_blender(path: Path | str, images: str = IMAGES) -> Capture:
    """Reads `transforms_train.json` and `transforms_test.json`, or else `transforms.json`, of a folder.

    What a file has in `images` is taken from the folder that `images` names, for example nerfstudio's
    `images_4`. Raises InputError if neither file is there, a frame is incomplete, or no photograph is found.
    """
    path = Path(path)
    photographs = Photographs(path, with_masks=True)
    masks = Masks(photographs)
    test_views: tuple[View, ...] = ()
    if (path / TRAIN).is_file():
        content = _read_file(path / TRAIN)
        views, warnings, census = _read_split(content, path / TRAIN, photographs, images, masks)
        if (path / TEST).is_file():
            try:
                test = _read_file(path / TEST)
                test_views, test_warnings, _ = _read_split(test, path / TEST, photographs, images, masks)
                warnings += [f"Test views: {warning}" for warning in test_warnings]
            except InputError as error:
                warnings.append(f"Test views ignored: {error}")
    elif (path / SINGLE).is_file():
        content = _read_file(path / SINGLE)
        views, warnings, census = _read_split(content, path / SINGLE, photographs, images, masks)
    else:
        raise InputError(f"{path} holds no dataset of this kind. Looked for {TRAIN} and {SINGLE}.")
    cloud, point_warnings = _read_points(path, content)
    if cloud is not None and len(cloud.positions) < FEWEST_POINTS:
        point_warnings.append(
            f"There are too few points ({len(cloud.positions)}), so splats will start at random positions."
        )
    census = replace(census, unused=0)  # other splits, depth maps and normals lie in the same folder
    all_warnings = (*warnings, *masks.sentences(), *point_warnings)
    # Blender's own files give an angle of view; a focal length in pixels comes from a calibrated camera.
    kind = "transforms" if any("fl_x" in entry for entry in (content, *content["frames"])) else "blender"
    return recentred(Capture(path, kind, views, test_views, cloud, all_have_alpha(views), all_warnings, census=census))


def _read_file(where: Path) -> Mapping[str, Any]:
    content = read_json(where)
    require(content, ("frames",), str(where))
    if not isinstance(content["frames"], list) or not content["frames"]:
        raise InputError(f"{where}: frames must be a list of at least one frame.")
    return content


def _read_split(
    content: Mapping[str, Any], where: Path, photographs: Photographs, images: str, masks: Masks
) -> tuple[tuple[View, ...], list[str], Census]:
    shots = []
    for index, frame in enumerate(content["frames"]):
        place = f"{where}, frame {index}"
        require(frame, ("file_path", "transform_matrix"), place)
        name = frame["file_path"]
        if not isinstance(name, str) or not name:
            raise InputError(f"{place}: file_path must be the path of a photograph.")
        if images != IMAGES:
            name = re.sub(rf"(^|[/\\]){IMAGES}(?=[/\\])", lambda match: match[1] + images, name, count=1)
        mask = frame.get("mask_path") or ""
        if not isinstance(mask, str):
            raise InputError(f"{place}: mask_path must be the path of a mask, got {mask!r}.")
        found = photographs.find(name)
        lens = read_lens({**content, **frame}, photographs.paths[found] if found else None, place)
        shots.append(Shot(name, lens, _view_from_world(frame, place), mask=mask))
    return match_views(photographs, shots, str(photographs.folder), False, masks.of)


def _view_from_world(frame: Mapping[str, Any], where: str) -> NDArray[np.float64]:
    key = "transform_matrix"
    rows = frame[key]
    if isinstance(rows, list) and len(rows) == 3:  # some writers leave the last row out
        frame = {key: [*rows, [0, 0, 0, 1]]}
    world_from_opengl = matrix(frame, key, (4, 4), where)
    check_rigid(world_from_opengl, key, where)
    return np.linalg.inv(world_from_opengl @ _OPENGL_FROM_OPENCV).astype(np.float64)


def _read_points(folder: Path, content: Mapping[str, Any]) -> tuple[PointCloud | None, list[str]]:
    """The points that the file names or that lie beside it, if any. Damaged ones are a warning, never a failure."""
    named = content.get("ply_file_path")
    names = [named] if isinstance(named, str) and named else []
    warnings = []
    for name in (*names, *_POINT_FILES):
        if (folder / name).is_file():
            try:
                cloud = read_point_cloud(folder / name)
            except InputError as error:
                return None, [f"Points ignored: {error}"]
            if len(cloud.positions):
                return cloud, []
        elif name in names:
            warnings.append(f"The points {name} that the file names are not there.")
    for model in (folder / name for name in _COLMAP_MODELS):
        if model_suffix(model):
            try:
                return _moved_points(points(read_model(model), model), content, folder), warnings
            except InputError as error:
                return None, [*warnings, f"Points ignored: {error}"]
    return None, warnings


def _moved_points(cloud: PointCloud | None, content: Mapping[str, Any], folder: Path) -> PointCloud | None:
    """COLMAP's points where nerfstudio moved the cameras to; its own point files have been moved already."""
    if cloud is None or "applied_transform" not in content:
        return cloud
    rows = content["applied_transform"]
    where = os.fspath(folder / SINGLE)
    transform = matrix(
        {"applied_transform": rows[:3] if isinstance(rows, list) else rows}, "applied_transform", (3, 4), where
    )
    return PointCloud(cloud.positions @ transform[:, :3].T + transform[:, 3], cloud.colors)
