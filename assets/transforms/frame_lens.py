"""The lens of one frame of a `transforms.json`: what instant-ngp, nerfstudio and Blender write.

Distortion is OpenCV's there, radial and tangential or fisheye; `lens.py` knows what to do with it.
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
_OTHER_LENSES = ("ftheta_p", "equirectangular", "latlong", "orthographic")  # instant-ngp's, each a field of its own
_PANORAMIC = ("EQUIRECTANGULAR", "LATLONG", "OMNIDIRECTIONAL", "VR180")


def read_lens(content: Mapping[str, Any], frame: Mapping[str, Any], photograph: Path | None, where: str) -> Lens:
    """`content` holds the file's values, which `frame` overrides; `photograph` gives the size if they do not.

    Raises InputError for a value that is missing or makes no sense, and for a lens that is not read.
    """
    entry = _merged(content, frame)
    width, height = _size(entry, photograph, where)
    model, distortion = _distortion(entry, where)
    fx, fy = _focal_lengths(entry, width, height, where)
    cx = number(entry, "cx", where) if "cx" in entry else width / 2
    cy = number(entry, "cy", where) if "cy" in entry else height / 2
    return Lens.from_colmap(model, width, height, (fx, fy, cx, cy, *distortion), where)


def has_rolling_shutter(content: Mapping[str, Any], frame: Mapping[str, Any]) -> bool:
    """True if instant-ngp would take the rows of the photograph as seen at different times."""
    times = _merged(content, frame).get("rolling_shutter")
    return any(times) if isinstance(times, list) else bool(times)


def _merged(content: Mapping[str, Any], frame: Mapping[str, Any]) -> dict[str, Any]:
    """The file's values, overridden by the frame's.

    A focal length may be given in two ways and for two axes. If a frame gives one that the file has too, in
    whichever way, nothing of the file's is right for it: the other axis goes by the frame's as well.
    """
    if any(content.keys() & axis and frame.keys() & axis for axis in (_FOCAL_X, _FOCAL_Y)):
        content = {key: value for key, value in content.items() if key not in (*_FOCAL_X, *_FOCAL_Y)}
    return {**content, **frame}


def _size(entry: Mapping[str, Any], photograph: Path | None, where: str) -> tuple[int, int]:
    """The size that the intrinsics refer to: as written, else that of the photograph itself."""
    if "w" in entry and "h" in entry:
        return pixels(entry, "w", where), pixels(entry, "h", where)
    if photograph is None:
        return 1, 1  # it is missing, which is reported once all frames are known
    try:
        return image_size(photograph)
    except InputError:
        return 1, 1


def _focal_lengths(entry: Mapping[str, Any], width: int, height: int, where: str) -> tuple[float, float]:
    """From fl_x and fl_y, or from angles of view; one of the two is enough."""
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
    """COLMAP's name of the model, and its distortion parameters in COLMAP's order."""

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
    if k4:  # a fourth radial term to some writers, a denominator to OpenCV
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
