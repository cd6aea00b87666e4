"""Describes lenses: every camera model of COLMAP, and the pinhole camera that fits an undistorted photograph.

Handles numbers only; `photographs/undistort.py` warps pixels. pycolmap knows the models. It is imported only where
needed, so captures whose lenses are pinholes never load it.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.files.json_fields import SIZE_LIMIT
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera

# Parameter names of each of COLMAP's models, in the order of the models' ids.
PARAMETERS = {
    "SIMPLE_PINHOLE": ("f", "cx", "cy"),
    "PINHOLE": ("fx", "fy", "cx", "cy"),
    "SIMPLE_RADIAL": ("f", "cx", "cy", "k"),
    "RADIAL": ("f", "cx", "cy", "k1", "k2"),
    "OPENCV": ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2"),
    "OPENCV_FISHEYE": ("fx", "fy", "cx", "cy", "k1", "k2", "k3", "k4"),
    "FULL_OPENCV": ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6"),
    "FOV": ("fx", "fy", "cx", "cy", "omega"),
    "SIMPLE_RADIAL_FISHEYE": ("f", "cx", "cy", "k"),
    "RADIAL_FISHEYE": ("f", "cx", "cy", "k1", "k2"),
    "THIN_PRISM_FISHEYE": ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2", "k3", "k4", "sx1", "sy1"),
    "RAD_TAN_THIN_PRISM_FISHEYE": (
        *("fx", "fy", "cx", "cy", "k0", "k1", "k2", "k3", "k4", "k5"),
        *("p0", "p1", "s0", "s1", "s2", "s3"),
    ),
    "SIMPLE_DIVISION": ("f", "cx", "cy", "k"),
    "DIVISION": ("fx", "fy", "cx", "cy", "k"),
    "SIMPLE_FISHEYE": ("f", "cx", "cy"),
    "FISHEYE": ("fx", "fy", "cx", "cy"),
    "EUCM": ("fx", "fy", "cx", "cy", "alpha", "beta"),
    "EQUIRECTANGULAR": ("w", "h"),
}
# Models with one focal length, and the same models with two, which can follow a stretched photograph.
_WITH_TWO_FOCALS = {
    "SIMPLE_PINHOLE": "PINHOLE",
    "SIMPLE_RADIAL": "OPENCV",
    "RADIAL": "OPENCV",
    "SIMPLE_RADIAL_FISHEYE": "OPENCV_FISHEYE",
    "RADIAL_FISHEYE": "OPENCV_FISHEYE",
    "SIMPLE_FISHEYE": "FISHEYE",
    "SIMPLE_DIVISION": "DIVISION",
}
_PANORAMAS = ("EQUIRECTANGULAR", "SPHERICAL")  # SPHERICAL is the name that other tools write
_READ = tuple(model for model in PARAMETERS if model not in _PANORAMAS)
_PINHOLE_AT_ZERO = ("PINHOLE", "OPENCV", "FULL_OPENCV", "DIVISION")  # pinholes if all distortion parameters are zero
CUT_PANORAMAS = " Cut the panoramas into perspective pictures first."  # follows the sentence that refuses them
_NEGLIGIBLE = 0.05  # px; a lens that bends every ray by less is a pinhole
_FOCALS = (1e-4, 1e5)  # limits, times the longer side; beyond, a lens sees 2 arc seconds, or a hemisphere in a pixel
_GRID = 17  # points along each side of a picture at which bending is measured


@dataclass(frozen=True)
class Lens:
    """Describes a camera model of COLMAP with two focal lengths, on a grid of pixels (centres at +0.5)."""

    model: str  # COLMAP's name
    width: int  # px
    height: int  # px
    params: tuple[float, ...]  # fx, fy, cx, cy in px, then the distortion in COLMAP's order

    @staticmethod
    def from_colmap(model: str, width: int, height: int, params: Sequence[float], where: str) -> Lens:
        """Makes a lens from COLMAP's own fields. Raises InputError for an unknown model and for impossible numbers."""
        if model not in _READ:
            hint = CUT_PANORAMAS if model in _PANORAMAS else ""
            known = ", ".join(_READ)
            raise InputError(f"{where} uses the camera model {model}, which is not read; those read are {known}.{hint}")
        values = [float(v) for v in params]
        if model in _WITH_TWO_FOCALS:
            model, values = _WITH_TWO_FOCALS[model], [values[0], *values]
        values += [0.0] * (len(PARAMETERS[model]) - len(values))
        fx, fy = values[:2]
        if not (np.isfinite(values).all() and fx > 0 and fy > 0):
            raise InputError(f"{where} is damaged: it has focal lengths {fx:g}, {fy:g} px.")
        if not (1 <= width <= SIZE_LIMIT and 1 <= height <= SIZE_LIMIT):
            raise InputError(f"{where} is damaged: it is {width} x {height} pixels.")
        check_intrinsics(width, height, values, where)
        return Lens(model, int(width), int(height), tuple(values))

    def resized(self, width: int, height: int) -> Lens:
        """Returns the same lens for another pixel grid."""
        sx, sy = width / self.width, height / self.height
        fx, fy, cx, cy, *distortion = self.params
        return replace(self, width=width, height=height, params=(fx * sx, fy * sy, cx * sx, cy * sy, *distortion))

    @property
    def is_pinhole(self) -> bool:
        """Returns True if it bends no ray by more than a twentieth of a pixel."""
        return _bends_nothing(self)

    def camera(self, view_from_world: NDArray[np.float64]) -> Camera:
        """Returns the camera of an undistorted photograph: this lens if it is a pinhole, else `straightened`."""
        straight = self if self.is_pinhole else straightened(self)
        fx, fy, cx, cy = straight.params[:4]
        return Camera.from_matrix(view_from_world, straight.width, straight.height, fx, fy, cx, cy)


def check_intrinsics(width: int, height: int, values: Sequence[float], where: str) -> None:
    """Raises InputError unless focal lengths and principal point, the first four `values` in px, are possible."""
    fx, fy, cx, cy = values[:4]
    longest = max(width, height)
    if not (_FOCALS[0] * longest <= min(fx, fy) and max(fx, fy, abs(cx), abs(cy)) <= _FOCALS[1] * longest):
        raise InputError(
            f"{where} makes no sense: focal lengths {fx:g}, {fy:g} px and a principal point at ({cx:g}, {cy:g}) on "
            f"{width} x {height} pixels. Export its cameras again."
        )


@lru_cache(maxsize=4096)
def straightened(lens: Lens) -> Lens:
    """Returns the largest pinhole whose picture has no unseen pixels, computed as COLMAP does.

    Focal lengths stay, and with them the scale in the middle; width and height change. Raises InputError.
    """
    pycolmap = colmap_library()
    try:
        camera = pycolmap.undistort_camera(pycolmap.UndistortCameraOptions(), as_colmap(lens))
    except (ValueError, RuntimeError) as error:
        raise InputError(f"A {lens.model} lens with parameters {_shown(lens)} cannot be undistorted.") from error
    return Lens.from_colmap(camera.model_name, camera.width, camera.height, camera.params, _shown(lens))


def as_colmap(lens: Lens) -> Any:
    """Returns the lens as a pycolmap Camera."""
    pycolmap = colmap_library()
    camera = pycolmap.Camera.create_from_model_name(1, lens.model, lens.params[0], lens.width, lens.height)
    camera.params = list(lens.params)
    return camera


def colmap_library() -> Any:
    """Imports pycolmap and silences it. Its failures arrive as exceptions; what it would print means nothing to a user.

    Pillow must be loaded first: loaded after pycolmap, its PNG encoder freed memory that was not its own (pycolmap 4.2,
    Linux).
    """
    from PIL import Image

    assert Image
    with _ending_kept():
        import pycolmap
    pycolmap.logging.minloglevel = int(pycolmap.logging.Level.FATAL)
    return pycolmap


@contextmanager
def _ending_kept() -> Iterator[None]:
    """Keeps the present handler of SIGTERM: pycolmap's logging library would print a stack and end the process at once.

    Uses the C library, because the window reads captures on a thread, where Python may not set handlers.
    """
    if sys.platform == "win32":
        yield
        return
    library, kept = ctypes.CDLL(None), ctypes.create_string_buffer(1024)  # larger than any struct sigaction
    library.sigaction(int(signal.SIGTERM), None, kept)
    try:
        yield
    finally:
        library.sigaction(int(signal.SIGTERM), kept, None)


@lru_cache(maxsize=4096)
def _bends_nothing(lens: Lens) -> bool:
    if lens.model in _PINHOLE_AT_ZERO and not any(lens.params[4:]):
        return True
    xs, ys = np.linspace(0, lens.width, _GRID), np.linspace(0, lens.height, _GRID)
    pixels = np.stack(np.meshgrid(xs, ys), axis=-1).reshape(-1, 2)
    rays = np.asarray(as_colmap(lens).cam_from_img(pixels))
    straight = rays * lens.params[:2] + lens.params[2:4]
    return bool(np.abs(straight - pixels).max() <= _NEGLIGIBLE)  # NaN, where there is no ray, compares false


def _shown(lens: Lens) -> str:
    return ", ".join(f"{value:g}" for value in lens.params)
