"""Reads raw captures of telephone apps, Polycam and Record3D, as if they were a transforms.json.

Both save the poses of Apple's ARKit: from the camera to a world whose y axis points up, with the axes of OpenGL. The
world is not changed, so that splats lie where the app's own mesh lies. Neither has points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from splatscope.assets.capture import IMAGES, Capture
from splatscope.assets.choices import AxesChoice
from splatscope.assets.files.capture_paths import is_file
from splatscope.assets.files.json_fields import check_rotation, matrix, number, pixels, read_json, require
from splatscope.assets.files.lfs import starts
from splatscope.assets.photographs.images import EXTENSIONS
from splatscope.assets.transforms.captures import read_frames
from splatscope.kernels.errors import InputError
from splatscope.kernels.wording import counted

_KEYFRAMES = "keyframes"
# Folders of Polycam's cameras and photographs in pairs, the better first: optimised and undistorted.
_POLYCAM = (("corrected_cameras", "corrected_images"), ("cameras", "images"))
_RECORD3D = ("metadata.json", "metadata")
_RECORD3D_IMAGES = ("rgb", "rgbd")
_HEAD = 1 << 20  # bytes within which Record3D's fields begin


def is_polycam(folder: Path) -> bool:
    """Returns True for the folder of Polycam's raw data, and for `keyframes` in it."""
    return _polycam_pair(folder) is not None


def read_polycam(folder: Path, images: str = IMAGES, axes: AxesChoice = "auto") -> Capture:
    """Reads Polycam's raw data: one JSON file for each photograph, in `keyframes`.

    The corrected photographs and cameras are used if both are there, else the original ones. A photograph whose camera
    cannot be read is left out with a warning. Raises InputError if no camera or no photograph is left.
    """
    pair = _polycam_pair(folder)
    assert pair is not None
    cameras, photographs = pair
    below = photographs.relative_to(folder).as_posix()
    frames, bad = [], []
    files = sorted(cameras.glob("*.json"))
    for file in files:
        try:
            frames.append(_polycam_frame(file) | {"file_path": f"{below}/{file.stem}"})
        except InputError as error:
            bad.append(str(error))
    if not frames:
        raise InputError(f"None of the {counted(len(files), 'camera')} in {cameras} can be read. {bad[0]}")
    told = [f"Left out: {counted(len(bad), 'photograph')} whose camera cannot be read. {bad[0]}"] if bad else []
    named = {file.stem for file in files}
    told += _without(sorted(child.name for child in _pictures(photographs) if child.stem not in named), "a camera")
    return _told(read_frames(cameras, images, axes, {"frames": frames}, folder, "polycam"), told)


def is_record3d(folder: Path) -> bool:
    """Returns True for a folder of Record3D: its EXR and RGB export, or an unpacked .r3d file."""
    return _record3d_metadata(folder) is not None and _record3d_images(folder) is not None


def read_record3d(folder: Path, images: str = IMAGES, axes: AxesChoice = "auto") -> Capture:
    """Reads a recording of Record3D: poses and lens in `metadata`, photographs numbered from 0 in `rgb` or `rgbd`.

    Raises InputError if a pose or the lens is impossible, or if there is no photograph.
    """
    where, photographs = _record3d_metadata(folder), _record3d_images(folder)
    assert where is not None
    assert photographs is not None
    content = require(read_json(where), ("K", "poses", "w", "h"), str(where))
    if not isinstance(content["poses"], list) or not content["poses"]:
        raise InputError(f"{where}: poses must be a list of at least one pose.")
    numbered = {int(child.stem): child.name for child in _pictures(photographs) if child.stem.isdecimal()}
    lenses = content.get("perFrameIntrinsicCoeffs")
    if not isinstance(lenses, list) or len(lenses) != len(content["poses"]):
        lens = matrix(content, "K", (9,), str(where))  # column by column
        lenses = [[float(lens[i]) for i in (0, 4, 6, 7)]] * len(content["poses"])
    frames = []
    for index, (pose, lens) in enumerate(zip(content["poses"], lenses, strict=True)):
        place = f"{where}, pose {index}"
        fx, fy, cx, cy = matrix({"lens": lens}, "lens", (4,), place)
        frame = {"fl_x": float(fx), "fl_y": float(fy), "cx": float(cx), "cy": float(cy)}
        frame |= {
            "file_path": f"{photographs.name}/{numbered.get(index, index)}",
            "transform_matrix": _pose(pose, place),
        }
        frames.append(frame)
    sides = {"w": content["w"], "h": content["h"]}
    told = _without([name for number, name in sorted(numbered.items()) if number >= len(frames)], "a pose")
    return _told(read_frames(where, images, axes, {**sides, "frames": frames}, folder, "record3d"), told)


def _polycam_pair(folder: Path) -> tuple[Path, Path] | None:
    """Returns the folders of cameras and of photographs to use; None if this is not Polycam's raw data."""
    for inside in (folder / _KEYFRAMES, folder):
        for cameras, photographs in _POLYCAM:
            pair = inside / cameras, inside / photographs
            if all(part.is_dir() for part in pair) and any(map(_is_polycam_camera, pair[0].glob("*.json"))):
                return pair
    return None


def _is_polycam_camera(file: Path) -> bool:
    return b'"t_00"' in starts(file)


def _polycam_frame(file: Path) -> dict[str, Any]:
    where = str(file)
    names = [f"t_{row}{column}" for row in range(3) for column in range(4)]
    entry = require(read_json(file), ("fx", "fy", "cx", "cy", "width", "height", *names), where)
    rows = np.array([number(entry, name, where) for name in names]).reshape(3, 4)
    check_rotation(rows[:, :3], "its matrix t_00 to t_22", where)
    frame: dict[str, Any] = {"transform_matrix": [*rows.tolist(), [0.0, 0.0, 0.0, 1.0]]}
    frame |= {"fl_x": number(entry, "fx", where, above=0), "fl_y": number(entry, "fy", where, above=0)}
    frame |= {"cx": number(entry, "cx", where), "cy": number(entry, "cy", where)}
    return frame | {"w": pixels(entry, "width", where), "h": pixels(entry, "height", where)}


def _record3d_metadata(folder: Path) -> Path | None:
    for file in (folder / name for name in _RECORD3D):
        if is_file(file):
            with open(file, "rb") as opened:
                head = opened.read(_HEAD)
            if b'"poses"' in head or b'"K"' in head:
                return file
    return None


def _record3d_images(folder: Path) -> Path | None:
    """Returns the folder of photographs; each is named by its number."""
    inside = (folder / name for name in _RECORD3D_IMAGES)
    return next((path for path in inside if path.is_dir() and any(_pictures(path))), None)


def _pictures(folder: Path) -> Iterator[Path]:
    return (child for child in folder.iterdir() if child.suffix.lower() in EXTENSIONS and child.name[0] != ".")


def _without(names: list[str], lack: str) -> list[str]:
    return [f"Left out: {counted(len(names), 'photograph')} without {lack}, for example {names[0]}."] if names else []


def _told(capture: Capture, sentences: list[str]) -> Capture:
    return replace(capture, warnings=(*sentences, *capture.warnings))


def _pose(pose: Any, where: str) -> list[list[float]]:
    """Returns a row of quaternion (x, y, z, w) and position as a matrix. Raises InputError."""
    numbers = matrix({"pose": pose}, "pose", (7,), where)
    length = math.hypot(*numbers[:4])
    if not 0.5 < length < 2:
        raise InputError(f"{where}: its quaternion has the length {length:.4g}, not 1.")
    x, y, z, w = numbers[:4] / length
    rotation = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
    return np.vstack((np.column_stack((rotation, numbers[4:])), (0, 0, 0, 1))).tolist()
