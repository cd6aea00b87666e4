"""Reads captures as `transforms*.json`: the Blender sets of NeRF, and files of instant-ngp and nerfstudio.

Cameras in these files look along -z with y up (OpenGL); ours look along +z with y down. Values of the file hold for
every frame without its own, and null means not given. `frame_lens.py` reads the lens; `split.py` decides which frames
are held out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.capture import IMAGES, Capture, Census, Kind, PointCloud, View
from splatscope.assets.checks.agreement import fitted
from splatscope.assets.choices import AxesChoice
from splatscope.assets.colmap.model import model_suffix, points
from splatscope.assets.files.capture_paths import file_below, lies_outside
from splatscope.assets.files.json_fields import check_rigid, matrix, read_json, require
from splatscope.assets.geometry.recentre import recentred
from splatscope.assets.photographs.find import Photographs, Shot, all_have_alpha, note_proofs, pair_views
from splatscope.assets.photographs.images import EXTENSIONS
from splatscope.assets.photographs.masks import Masks
from splatscope.assets.splats.ply import read_point_cloud
from splatscope.assets.transforms.frame_lens import has_rolling_shutter, read_lens
from splatscope.assets.transforms.split import Shots, held_apart, listed_split
from splatscope.kernels.errors import InputError
from splatscope.kernels.wording import counted

TRAIN, TEST, SINGLE = "transforms_train.json", "transforms_test.json", "transforms.json"
_POINT_FILES = ("points3d.ply", "points3D.ply", "init.ply", "sparse_pc.ply")
_COLMAP_MODELS = ("colmap/sparse/0", "colmap/sparse")  # where nerfstudio keeps the model its file was made from
_OPENGL_FROM_OPENCV = np.diag([1.0, -1.0, -1.0, 1.0])


def is_blender(folder: Path) -> bool:
    """Returns True if `read_blender` finds its file in the folder."""
    return (folder / TRAIN).is_file() or (folder / SINGLE).is_file()


def read_blender(path: Path | str, images: str = IMAGES, axes: AxesChoice = "auto") -> Capture:
    """Reads `transforms_train.json` and `transforms_test.json`, or else `transforms.json`, of a folder.

    Photographs that a file names in `images`, or in no folder, are taken from the folder that `images` names, for
    example nerfstudio's `images_4`. `axes` as for `agreement.fitted`. Raises InputError if neither file is there, a
    frame is incomplete, or no photograph is found.
    """
    path = Path(path)
    if not is_blender(path):
        raise InputError(f"{path} holds no dataset of this kind. Looked for {TRAIN} and {SINGLE}.")
    if not (path / TRAIN).is_file():
        return read_frames(path / SINGLE, images, axes)
    names = _Names(Photographs(path, with_masks=True), images)
    test: Shots = {}
    content = _read_file(path / TRAIN)
    training, warnings = _shots(content, path / TRAIN, names)
    if (path / TEST).is_file():
        try:
            test, test_warnings = _shots(_read_file(path / TEST), path / TEST, names)
            warnings += _of_tests(test_warnings)
        except InputError as error:
            warnings.append(f"Test views ignored: {error}")
    training, test, split_warnings = held_apart(training, test, f"{TRAIN} and {TEST}")
    return _capture(path, names, content, training, test, [*warnings, *split_warnings], axes)


def read_frames(
    where: Path,
    images: str = IMAGES,
    axes: AxesChoice = "auto",
    content: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    kind: Kind | None = None,
) -> Capture:
    """Reads the capture that one file of frames describes, whatever the file's name.

    For a file of another format, pass its `content` in this format, the `kind`, and the capture's `folder` if the file
    is not directly in it. Raises InputError as `read_blender` does.
    """
    folder = where.parent if folder is None else folder
    names = _Names(Photographs(folder, with_masks=True), images)
    content = _read_file(where) if content is None else content
    shots, warnings = _shots(content, where, names)
    training, test, split_warnings = listed_split(shots, content, names.photograph, where.name)
    capture = _capture(folder, names, content, training, test, [*warnings, *split_warnings], axes)
    return capture if kind is None else replace(capture, kind=kind)


def _capture(
    path: Path,
    names: _Names,
    content: Mapping[str, Any],
    training: Shots,
    test: Shots,
    warnings: list[str],
    axes: AxesChoice,
) -> Capture:
    masks = Masks(names.photographs)
    note_proofs(names.photographs, [*training.values(), *test.values()], names.keys({**training, **test}))
    views, found_warnings, census = names.views(training, masks)
    warnings += found_warnings
    test_views: tuple[View, ...] = ()
    if test:
        try:
            test_views, test_warnings, _ = names.views(test, masks)
            warnings += _of_tests(test_warnings)
        except InputError as error:
            warnings.append(f"Test views ignored: {error}")
    cloud, point_warnings = _read_points(path, content)
    if cloud is not None and cloud.lack:
        point_warnings.append(f"There are {cloud.lack}, so splats will start at random positions.")
    census = replace(census, unused=0)  # other splits, depth maps and normals are in the same folder
    all_warnings = (*warnings, *masks.sentences(), *point_warnings)
    # Blender's own files have an angle of view. A focal length in pixels comes from a calibrated camera.
    kind = "transforms" if any("fl_x" in entry for entry in (content, *content["frames"])) else "blender"
    capture = Capture(path, kind, views, test_views, cloud, all_have_alpha(views), all_warnings, census=census)
    return recentred(fitted(capture, "opengl", axes))


def _read_file(where: Path) -> Mapping[str, Any]:
    content = require(read_json(where), ("frames",), str(where))
    frames = content["frames"]
    if not isinstance(frames, list) or not frames:
        raise InputError(f"{where}: frames must be a list of at least one frame.")
    needed = ("file_path", "transform_matrix")
    return content | {"frames": [require(frame, needed, f"{where}, frame {i}") for i, frame in enumerate(frames)]}


@dataclass(frozen=True, eq=False)
class _Names:
    """Resolves paths in the files of a capture."""

    photographs: Photographs
    images: str  # the folder from which to take photographs

    def meant(self, path: str) -> str:
        """Returns the path with the folder to use, in place of `images` or of no folder."""
        if self.images == IMAGES:
            return path
        return re.sub(rf"(^|/){IMAGES}(?=/)", lambda match: match[1] + self.images, _in_images(path), count=1)

    def photograph(self, path: str) -> str:
        """Returns the key of a photograph.

        If it is not there, returns what all ways to write its path have in common.
        """
        path = self.meant(path)
        stem, ending = os.path.splitext(_in_images(path).casefold())
        lost = stem if ending in EXTENSIONS else stem + ending
        return self.photographs.find(path) or self.photographs.find(_in_images(path)) or lost

    def views(self, shots: Shots, masks: Masks) -> tuple[tuple[View, ...], list[str], Census]:
        """Returns the views of `pair_views`, with a sentence about photographs outside the capture's folder."""
        folder, keys = self.photographs.folder, self.keys(shots)
        outside = [name for name, key in keys.items() if key is None and lies_outside(folder, name)]
        said = ""
        if outside:
            count = counted(len(outside), "photograph")
            said = (
                f"Not read: {count} outside {folder}, for example {outside[0]}. Files of a capture are read only below "
                "its folder; move the JSON file to a folder above them, or link them into it."
            )
        if outside and not any(keys.values()):
            raise InputError(said)
        views, warnings, census = pair_views(self.photographs, list(shots.values()), keys, str(folder), masks.of)
        return views, [said, *warnings] if said else warnings, census

    def keys(self, shots: Shots) -> dict[str, str | None]:
        """Returns the photograph of each name; None if it is not there."""
        return {shot.name: key if key in self.photographs.paths else None for key, shot in shots.items()}


def _shots(content: Mapping[str, Any], where: Path, names: _Names) -> tuple[Shots, list[str]]:
    """Returns a shot for each photograph, and warnings. Raises InputError."""
    shots: Shots = {}
    twins, moved, rolling = [], 0, 0
    for index, frame in enumerate(content["frames"]):
        place = f"{where}, frame {index}"
        name, mask = frame["file_path"], frame.get("mask_path", "")
        if not isinstance(name, str) or not name:
            raise InputError(f"{place}: file_path must be the path of a photograph.")
        if not isinstance(mask, str):
            raise InputError(f"{place}: mask_path must be the path of a mask, got {mask!r}.")
        key, name = names.photograph(name), names.meant(name)
        lens = read_lens(content, frame, names.photographs.paths.get(key), place)
        sized = all(side in content or side in frame for side in ("w", "h"))
        shot = Shot(name, lens, _view_from_world(frame, place), mask=mask, sized=sized)
        if key in shots and key not in names.photographs.paths:
            key = name  # missing: the common part need not be the whole path
        if key in shots:
            twins.append(name)
            moved += not np.allclose(shot.view_from_world, shots[key].view_from_world)
            continue
        shots[key] = shot
        rolling += has_rolling_shutter(content, frame)
    warnings = []
    if twins:
        count, some = counted(len(twins), "frame"), f"for example of {twins[0]}"
        poses = f"; the pose of {moved} is another one, so look at which is right" if moved else ""
        warnings.append(f"Left out: {count} whose photograph an earlier frame has, {some}{poses}.")
    if rolling:
        count = counted(rolling, "photograph")
        warnings.append(f"A rolling shutter is not modelled: {count} with one taken as seen in an instant.")
    return shots, warnings


def _in_images(path: str) -> str:
    """Returns the path with forward slashes; a bare name becomes a file in `images`, where nerfstudio looks for it."""
    plain = os.path.normpath(path.replace("\\", "/")).replace(os.sep, "/")
    return plain if "/" in plain else f"{IMAGES}/{plain}"


def _of_tests(warnings: Sequence[str]) -> list[str]:
    return [f"Test views: {warning}" for warning in warnings]


def _view_from_world(frame: Mapping[str, Any], where: str) -> NDArray[np.float64]:
    key = "transform_matrix"
    rows = frame[key]
    if isinstance(rows, list) and len(rows) == 3:  # some writers omit the last row
        frame = {key: [*rows, [0, 0, 0, 1]]}
    world_from_opengl = matrix(frame, key, (4, 4), where)
    check_rigid(world_from_opengl, key, where)
    return np.linalg.inv(world_from_opengl @ _OPENGL_FROM_OPENCV).astype(np.float64)


def _read_points(folder: Path, content: Mapping[str, Any]) -> tuple[PointCloud | None, list[str]]:
    """Returns the points that the file names or that are next to it, if any.

    Damaged ones are a warning, never a failure.
    """
    named = content.get("ply_file_path")
    names = [named] if isinstance(named, str) and named else []
    warnings, remarks = [], []
    for name in dict.fromkeys((*names, *_POINT_FILES)):
        if (file := file_below(folder, name)) is not None:
            try:
                cloud = read_point_cloud(file)
            except InputError as error:
                return None, [*warnings, *remarks, f"Points ignored: {error}"]
            remarks += cloud.remarks
            if len(cloud.positions):
                return cloud, remarks
            remarks.append(f"There are no points in {name}.")
        elif name in names and lies_outside(folder, name):
            remarks.append(
                f"Not read: the points {name} outside {folder}. Files of a capture are read only below its folder; "
                "copy the points into it."
            )
        elif name in names:
            warnings.append(f"The file names the points {name}, which do not exist.")
    for model in (folder / name for name in _COLMAP_MODELS):
        if model_suffix(model):
            try:
                cloud, more = points(model)
                return _moved_points(cloud, content, folder), [*warnings, *remarks, *more]
            except InputError as error:
                return None, [*warnings, *remarks, f"Points ignored: {error}"]
    return None, warnings + remarks


def _moved_points(cloud: PointCloud | None, content: Mapping[str, Any], folder: Path) -> PointCloud | None:
    """Returns COLMAP's points, moved as nerfstudio moved the cameras. Its own point files are moved already."""
    if cloud is None or "applied_transform" not in content:
        return cloud
    rows = content["applied_transform"]
    where = os.fspath(folder / SINGLE)
    transform = matrix(
        {"applied_transform": rows[:3] if isinstance(rows, list) else rows}, "applied_transform", (3, 4), where
    )
    return PointCloud(cloud.positions @ transform[:, :3].T + transform[:, 3], cloud.colors)
