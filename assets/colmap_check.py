"""Walks COLMAP's binary files without interpreting them, to see that they are all there.

COLMAP's own reader trusts the counts it finds: on a file cut short it loops or asks for all memory. This
walk takes milliseconds and ends at the last byte. Reading the content is left to `colmap_model.py`, except of points:
tracks, 2D points and what they say of each other are not needed here, and are often out of date.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.errors import InputError

_POINT = np.dtype(  # before its track, which is an image id and a point index each
    [("id", "<u8"), ("position", "<f8", 3), ("color", "u1", 3), ("error", "<f8"), ("track_length", "<u8")]
)
_TRACK_LENGTH = 8 + 3 * 8 + 3 + 8  # where it stands
_AT_ONCE = 1 << 16  # points gathered


def check_binary_model(folder: Path) -> None:
    """Raises InputError, naming the file and where it ends, if a binary file other than that of points is cut short."""
    for name, (noun, walk_one) in _FILES.items():
        path = folder / f"{name}.bin"
        if not path.exists():
            continue  # rigs and frames came with COLMAP 3.12
        content = _mapped(path)
        walk, done, count = _Walk(content), 0, None
        try:
            count = walk.take("<Q")[0]
            while done < count:
                walk_one(walk)
                done += 1
        except _EndOfFile as end:
            raise _cut_short(path, len(content), noun, done, count) from end


def images_without_points(path: Path) -> bytes:
    """The content that images.bin, which `check_binary_model` has found whole, would have without its 2D points."""
    content = _mapped(path)
    walk = _Walk(content)
    (count,) = walk.take("<Q")
    parts = [content[:8]]
    for _ in range(count):
        start = walk.position
        _image_head(walk)
        parts += [content[start : walk.position], bytes(8)]
        _image_points(walk)
    return b"".join(parts)


def binary_points(path: Path) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Positions and colours [P, 3] by id, of points3D.bin. Raises InputError if it is cut short.

    Objects of pycolmap would take several seconds a million.
    """
    content = _mapped(path)
    if len(content) < 8:
        raise _cut_short(path, len(content), "point", 0, None)
    (count,) = _Walk(content).take("<Q")
    places = np.array(_point_places(content, count), np.int64)
    if len(places) < count:
        raise _cut_short(path, len(content), "point", len(places), count)
    records = np.empty((len(places), _POINT.itemsize), np.uint8)
    octets = np.frombuffer(content, np.uint8)
    for start in range(0, len(places), _AT_ONCE):
        some = places[start : start + _AT_ONCE]
        records[start : start + _AT_ONCE] = octets[some[:, None] + np.arange(_POINT.itemsize)]
    points = records.view(_POINT)[:, 0]
    points = points[np.argsort(points["id"], kind="stable")]
    return points["position"].copy(), points["color"].copy()


def _cut_short(path: Path, size: int, noun: str, done: int, count: int | None) -> InputError:
    inside = f"inside {noun} {done + 1:,} of {count:,}" if count else f"before the number of {noun}s"
    return InputError(
        f"{path} is cut short or damaged: it ends {inside}, at {size:,} bytes. "
        "Copy the model again, or export it again from COLMAP."
    )


def _mapped(path: Path) -> mmap.mmap | bytes:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.seek(0, 2) else b""


def _point_places(content: mmap.mmap | bytes, count: int) -> array[int]:
    """Where points begin, up to the first that is not whole. There may be millions: this is a loop and no calls."""
    places, place, size, unpack = array("q"), 8, len(content), struct.Struct("<Q").unpack_from
    while len(places) < count and place + _POINT.itemsize <= size:
        end = place + _POINT.itemsize + 8 * unpack(content, place + _TRACK_LENGTH)[0]
        if end > size:
            break
        places.append(place)
        place = end
    return places


class _EndOfFile(Exception):
    """The walk would step past the last byte."""


class _Walk:
    def __init__(self, content: mmap.mmap | bytes) -> None:
        self._content = content
        self._size = len(content)
        self.position = 0

    def take(self, layout: str) -> tuple[int, ...]:
        start = self.position
        self.skip(struct.calcsize(layout))
        return struct.unpack_from(layout, self._content, start)

    def skip(self, size: int) -> None:
        self.position += size
        if self.position > self._size:
            raise _EndOfFile

    def skip_name(self) -> None:
        end = self._content.find(b"\0", self.position)
        if end < 0:
            raise _EndOfFile
        self.position = end + 1


def _camera(walk: _Walk) -> None:
    _, model, _, _ = walk.take("<IiQQ")
    walk.skip(8 * _parameter_count(model))


def _image(walk: _Walk) -> None:
    _image_head(walk)
    _image_points(walk)


def _image_head(walk: _Walk) -> None:
    walk.skip(4 + 7 * 8 + 4)  # id, rotation and translation, camera
    walk.skip_name()


def _image_points(walk: _Walk) -> None:
    (points,) = walk.take("<Q")
    walk.skip(24 * points)  # x, y, point id


def _rig(walk: _Walk) -> None:
    _, sensors = walk.take("<II")
    if sensors:
        walk.skip(8)  # the reference sensor has no pose
    for _ in range(1, sensors):
        walk.skip(8)
        (has_pose,) = walk.take("<B")
        walk.skip(7 * 8 if has_pose else 0)


def _frame(walk: _Walk) -> None:
    walk.skip(8 + 7 * 8)  # id, rig, pose
    (data,) = walk.take("<I")
    walk.skip(16 * data)


def _parameter_count(model: int) -> int:
    import pycolmap

    try:
        return len(pycolmap.Camera.create_from_model_id(0, pycolmap.CameraModelId(model), 1.0, 1, 1).params)
    except (ValueError, TypeError):
        return 0  # an unknown model: COLMAP's reader will refuse it


_FILES: dict[str, tuple[str, Callable[[_Walk], None]]] = {
    "cameras": ("camera", _camera),
    "images": ("image", _image),
    "rigs": ("rig", _rig),
    "frames": ("frame", _frame),
}
