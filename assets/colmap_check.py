"""Walks COLMAP's binary files without interpreting them, to see that they are all there.

COLMAP's own reader trusts the counts it finds: on a file cut short it loops or asks for all memory. This
walk takes milliseconds and ends at the last byte. Reading the content is left to `colmap.py`.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path

from splatscope.kernels.errors import InputError


def check_binary_model(folder: Path) -> None:
    """Raises InputError, naming the file and where it ends, if a binary file of the model is cut short."""
    for name, (noun, walk_one) in _FILES.items():
        path = folder / f"{name}.bin"
        if not path.exists() or (name == "points3D" and path.stat().st_size == 0):
            continue  # rigs and frames came with COLMAP 3.12; missing points are the caller's to judge
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
            walk, done, count = _Walk(content), 0, None
            try:
                count = walk.take("<Q")[0]
                while done < count:
                    walk_one(walk)
                    done += 1
            except _EndOfFile as end:
                inside = f"inside {noun} {done + 1:,} of {count:,}" if count else f"before the number of {noun}s"
                raise InputError(
                    f"{path} is cut short or damaged: it ends {inside}, at {size:,} bytes. "
                    "Copy the model again, or export it again from COLMAP."
                ) from end


class _EndOfFile(Exception):
    """The walk would step past the last byte."""


class _Walk:
    def __init__(self, content: mmap.mmap | bytes) -> None:
        self._content = content
        self._size = len(content)
        self._position = 0

    def take(self, layout: str) -> tuple[int, ...]:
        start = self._position
        self.skip(struct.calcsize(layout))
        return struct.unpack_from(layout, self._content, start)

    def skip(self, size: int) -> None:
        self._position += size
        if self._position > self._size:
            raise _EndOfFile

    def skip_name(self) -> None:
        end = self._content.find(b"\0", self._position)
        if end < 0:
            raise _EndOfFile
        self._position = end + 1


def _camera(walk: _Walk) -> None:
    _, model, _, _ = walk.take("<IiQQ")
    walk.skip(8 * _parameter_count(model))


def _image(walk: _Walk) -> None:
    walk.skip(4 + 7 * 8 + 4)  # id, rotation and translation, camera
    walk.skip_name()
    (points,) = walk.take("<Q")
    walk.skip(24 * points)  # x, y, point id


def _point(walk: _Walk) -> None:
    walk.skip(8 + 3 * 8 + 3 + 8)  # id, position, colour, error
    (length,) = walk.take("<Q")
    walk.skip(8 * length)  # the track: image id, point index


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
    "points3D": ("point", _point),
    "rigs": ("rig", _rig),
    "frames": ("frame", _frame),
}
