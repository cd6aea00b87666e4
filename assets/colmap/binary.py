"""Reads COLMAP's binary files record by record: cameras.bin, images.bin and points3D.bin.

COLMAP's own reader trusts the counts it finds: on a file cut short it loops or asks for all memory. This walk takes
milliseconds and ends at the last byte. Tracks and 2D points are skipped: they are not needed here, and often out of
date. `model.py` judges the fields of cameras and photographs.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from splatscope.assets.colmap.text import PointTable, Row
from splatscope.assets.files.lfs import LFS_SENTENCE, lfs_pointer
from splatscope.assets.lens import PARAMETERS
from splatscope.kernels.errors import InputError
from splatscope.kernels.wording import counted

_POINT = np.dtype(  # a point before its track, which has an image id and a point index an entry
    [("id", "<u8"), ("position", "<f8", 3), ("color", "u1", 3), ("error", "<f8"), ("track_length", "<u8")]
)
_TRACK_LENGTH = 8 + 3 * 8 + 3 + 8  # place of the track's length in a point
_SMALLEST_IMAGE = 4 + 7 * 8 + 4 + 1 + 8  # bytes of a photograph without name and 2D points
_AT_ONCE = 1 << 16  # points copied at a time


def binary_cameras(path: Path) -> tuple[list[Row], list[str]]:
    """Returns the cameras of cameras.bin, fields as in cameras.txt, and remarks on the file.

    Cameras behind one of an unknown model cannot be found. Raises InputError if the file is cut short.
    """
    return _rows(path, "camera", _camera)


def binary_images(path: Path) -> tuple[list[Row], list[str]]:
    """Returns the photographs of images.bin, fields as in images.txt, and remarks on the file.

    Raises InputError if the file is cut short.
    """
    return _rows(path, "image", _image)


def binary_image_count(path: Path) -> int:
    """Returns how many photographs images.bin claims, but at most as many as its bytes have room for."""
    with open(path, "rb") as file:
        return min(int.from_bytes(file.read(8), "little"), file.seek(0, 2) // _SMALLEST_IMAGE)


def binary_points(path: Path) -> PointTable:
    """Returns the points of points3D.bin by id, with their record numbers from 1, and remarks on the file.

    Objects of pycolmap would take several seconds for a million points. Raises InputError if the file is cut short.
    """
    content = _content(path)
    if len(content) < 8:
        raise _cut_short(path, len(content), "point", 0, None)
    (count,) = _Walk(content).take("<Q")
    ends = _point_ends(content, count)
    if len(ends) <= count:
        raise _cut_short(path, len(content), "point", len(ends) - 1, count)
    places = np.array(ends[:-1], np.int64)
    records = np.empty((count, _POINT.itemsize), np.uint8)
    octets = np.frombuffer(content, np.uint8)
    for start in range(0, count, _AT_ONCE):
        some = places[start : start + _AT_ONCE]
        records[start : start + _AT_ONCE] = octets[some[:, None] + np.arange(_POINT.itemsize)]
    points = records.view(_POINT)[:, 0]
    order = np.argsort(points["id"], kind="stable")
    remarks = _left_over(path, len(content) - ends[-1], "point", count)
    points = points[order]
    return PointTable(points["id"].astype(np.int64), points["position"], points["color"], order + 1, remarks)


def _rows(path: Path, noun: str, read_one: Callable[[_Walk], list[Any]]) -> tuple[list[Row], list[str]]:
    content = _content(path)
    walk, rows, count = _Walk(content), [], None
    try:
        count = walk.take("<Q")[0]
        while len(rows) < count and not walk.is_lost:
            rows.append((f"{path}, record {len(rows) + 1} of {count:,}", read_one(walk)))
    except _EndOfFile as end:
        raise _cut_short(path, len(content), noun, len(rows), count) from end
    if walk.is_lost and len(rows) < count:
        behind = counted(count - len(rows), noun)
        return rows, [f"Not read: {behind} of {path} behind record {len(rows)}, whose length is not known."]
    return rows, [] if walk.is_lost else _left_over(path, len(content) - walk.position, noun, count)


def _left_over(path: Path, size: int, noun: str, count: int) -> list[str]:
    """Returns a remark if bytes follow the last record that the file claims."""
    if not size:
        return []
    return [
        f"{path} is damaged: it says that it has {counted(count, noun)}, and {size:,} more bytes follow, which are not "
        "read. Copy the model again, or export it again from COLMAP."
    ]


def _cut_short(path: Path, size: int, noun: str, done: int, count: int | None) -> InputError:
    inside = f"inside {noun} {done + 1:,} of {count:,}" if count else f"before the number of {noun}s"
    return InputError(
        f"{path} is cut short or damaged: it ends {inside}, at {size:,} bytes. "
        "Copy the model again, or export it again from COLMAP."
    )


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()  # not mapped: shortening a mapped file would end the process
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    if lfs_pointer(content[:64]):
        raise InputError(f"{path} cannot be read: {LFS_SENTENCE}")
    return content


def _point_ends(content: bytes, count: int) -> array[int]:
    """Returns where the first point begins and where each ends, up to the first that is cut short.

    There may be millions of points, so this is a loop without calls.
    """
    ends, place, size, unpack = array("q", [8]), 8, len(content), struct.Struct("<Q").unpack_from
    while len(ends) <= count and place + _POINT.itemsize <= size:
        place += _POINT.itemsize + 8 * unpack(content, place + _TRACK_LENGTH)[0]
        if place > size:
            break
        ends.append(place)
    return ends


class _EndOfFile(Exception):
    """Tells that the next record would end beyond the last byte."""


class _Walk:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._size = len(content)
        self.position = 0
        self.is_lost = False  # True: where the next record begins is unknown

    def take(self, layout: str) -> tuple[Any, ...]:
        start = self.position
        self.skip(struct.calcsize(layout))
        return struct.unpack_from(layout, self._content, start)

    def skip(self, size: int) -> None:
        self.position += size
        if self.position > self._size:
            raise _EndOfFile

    def take_name(self) -> str:
        start, end = self.position, self._content.find(b"\0", self.position)
        if end < 0:
            raise _EndOfFile
        self.position = end + 1
        return self._content[start:end].decode("utf-8", "surrogateescape")


def _camera(walk: _Walk) -> list[Any]:
    camera, model, width, height = walk.take("<IiQQ")
    if not 0 <= model < len(PARAMETERS):
        walk.is_lost = True
        return [camera, f"with the id {model}", width, height]
    name, parameters = list(PARAMETERS.items())[model]
    return [camera, name, width, height, *walk.take(f"<{len(parameters)}d")]


def _image(walk: _Walk) -> list[Any]:
    fields = [*walk.take("<I7dI"), walk.take_name()]
    (points,) = walk.take("<Q")
    walk.skip(24 * points)  # x, y, point id
    return fields
