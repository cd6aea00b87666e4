"""Reads the lens of one frame of a `transforms.json`, as instant-ngp, nerfstudio and Blender write it.

Distortion follows OpenCV, radial and tangential or fisheye; `lens.py` handles it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from splatscope.assets.files.json_fields import number, pixels
from splatscope.assets.lens import CUT_PANORAMAS, Lens
from splatscope.assets.photographs.images import image_size
from splatscope.kernels.errors import InputError

_PLAIN = ("OPENCV", "PINHOLE", "SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "PERSPECTIVE")
_FISHEYE = ("OPENCV_FISHEYE", "SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE", "FISHEYE")
_FOCAL_X, _FOCAL_Y = ("fl_x", "camera_angle_x"), ("fl_y", "camera_angle_y")
_OTHER_LENSES = (
    "ftheta_p",
    "equirectangular",
    "latlong",
    "orthographic",
)  # instant-ngp's fields
_PANORAMIC = ("EQUIRECTANGULAR", "LATLONG", "OMNIDIRECTIONAL", "VR180")


def read_lens(content: Mapping[str, Any], frame: Mapping[str, Any], photograph: Path | None, where: str) -> Lens:
    """Returns the lens. Values of `frame` override those of the file's `content`; `photograph` gives the size if
    neither does.

    Raises InputError for a missing or impossible value, and for a lens that is not supported.
    """
    entry = _merged(content, frame)
    width, height = _size(entry, photograph, where)
    model, distortion = _distortion(entry, where)
    fx, fy = _focal_lengths(entry, width, height, where)
    cx = number(entry, "cx", where) if "cx" in entry else width / 2
    cy = number(entry, "cy", where) if "cy" in entry else height / 2
    return Lens.from_colmap(model, width, height, (fx, fy, cx, cy, *distortion), where)


def has_rolling_shutter(content: Mapping[str, Any], frame: Mapping[str, Any]) -> bool:
    """Returns True if instant-ngp would treat the rows of the photograph as seen at different times."""
    times = _merged(content, frame).get("rolling_shutter")
    return any(times) if isinstance(times, list) else bool(times)


def _merged(content: Mapping[str, Any], frame: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the file's values, overridden by the frame's.

    A focal length may be given in two ways and for two axes. If a frame gives one that the file also has, in either
    way, the file's focal lengths are all dropped: the other axis then follows the frame's too.
    """
    if any(content.keys() & axis and frame.keys() & axis for axis in (_FOCAL_X, _FOCAL_Y)):
        content = {key: value for key, value in content.items() if key not in (*_FOCAL_X, *_FOCAL_Y)}
    return {**content, **frame}


def _size(entry: Mapping[str, Any], photograph: Path | None, where: str) -> tuple[int, int]:
    """Returns the size to which the intrinsics refer: as written, else that of the photograph."""
    if "w" in entry and "h" in entry:
        return pixels(entry, "w", where), pixels(entry, "h", where)
    if photograph is None:
        return 1, 1  # the photograph is missing, which is reported once all frames are known
    try:
        return image_size(photograph)
    except InputError:
        return 1, 1


def _focal_lengths(entry: Mapping[str, Any], width: int, height: int, where: str) -> tuple[float, float]:
    """Returns focal lengths from fl_x and fl_y, or from angles of view. One axis is enough."""
    fx = _focal_length(entry, *_FOCAL_X, width, where)
    fy = _focal_length(entry, *_FOCAL_Y, height, where)
    either = fx or fy
    if either is None:
        raise InputError(f"{where} lacks fl_x or camera_angle_x, so the focal length is not known.")
    return fx or either, fy or either


def _focal_length(entry: Mapping[str, Any], key: str, angle_key: str, side: int, where: str) -> float | None:
    if key in entry:
        return number(entry, key, where, above=0)
    if angle_key not in entry:
        return None
    angle = number(entry, angle_key, where, above=0)
    if angle >= math.pi:
        raise InputError(f"{where}: {angle_key} must be an angle in radians below pi, got {angle:g}.")
    return 0.5 * side / math.tan(0.5 * angle)


def _distortion(entry: Mapping[str, Any], where: str) -> tuple[str, tuple[float, ...]]:
    """Returns COLMAP's name of the model, and its distortion parameters in COLMAP's order."""

    def value(key: str) -> float:
        return number(entry, key, where) if key in entry else 0.0

    model = str(entry.get("camera_model", "OPENCV")).upper()[:40]
    for key in entry:
        if key.startswith(_OTHER_LENSES) and entry[key]:
            raise InputError(_refusal(f"{where} has a lens of another kind, {key}", key.upper()))
    k1, k2, k3, k4 = (value(key) for key in ("k1", "k2", "k3", "k4"))
    p1, p2, k5, k6 = (value(key) for key in ("p1", "p2", "k5", "k6"))
    if model in _FISHEYE or (entry.get("is_fisheye") and model in _PLAIN):
        return "OPENCV_FISHEYE", (k1, k2, k3, k4)
    if model == "FULL_OPENCV" or k5 or k6:
        return "FULL_OPENCV", (k1, k2, p1, p2, k3, k4, k5, k6)
    if model not in _PLAIN:
        raise InputError(_refusal(f"{where} uses the camera_model {model}", model))
    if k4:  # a fourth radial term for some writers, a denominator for OpenCV
        raise InputError(
            f"{where} has k4 = {k4:g} without being a fisheye lens, which writers mean in two ways. Name the "
            "camera_model, FULL_OPENCV or OPENCV_FISHEYE."
        )
    if k3:
        return "FULL_OPENCV", (k1, k2, p1, p2, k3, 0.0, 0.0, 0.0)
    return "OPENCV", (k1, k2, p1, p2)


def _refusal(what: str, model: str) -> str:
    known = ", ".join((*_PLAIN, "FULL_OPENCV", *_FISHEYE))
    hint = CUT_PANORAMAS if model.startswith(_PANORAMIC) else ""
    return f"{what}, which is not read; those read are {known}.{hint}"
