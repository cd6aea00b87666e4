"""Reads where the photographs of a COLMAP model show its points: the 2D points of images.bin and images.txt.

A few for each photograph are enough to judge its pose (`checks/agreement.py`). `model.py` explains damaged files; this
file skips what cannot be read.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.capture import Sightings
from splatscope.assets.lens import as_colmap
from splatscope.assets.photographs.find import Shot

MOST = 64  # sightings kept of a photograph
_LOOKED_AT = 4096  # 2D points of a photograph that are read; most have no 3D point
_POINT = np.dtype([("xy", "<f8", 2), ("id", "<i8")])  # an id of -1: it has no 3D point
_BEFORE_NAME = 4 + 7 * 8 + 4  # id, rotation and translation, camera
_LONGEST_NAME = 4096


def with_sightings(shots: Sequence[Shot], images: Path) -> list[Shot]:
    """Returns the shots of a model with their sightings from its images.bin or images.txt."""
    read = _binary if images.suffix == ".bin" else _text
    found: dict[bytes, NDArray[np.void]] = {}
    with suppress(OSError, struct.error, ValueError):
        found.update((name, _some(points)) for name, points in read(images))
    return [_with(shot, found.get(shot.name.encode("utf-8", "surrogateescape"))) for shot in shots]


def _with(shot: Shot, points: NDArray[np.void] | None) -> Shot:
    if points is None or len(points) == 0:
        return shot
    fx_fy, cx_cy = np.reshape(shot.lens.params[:4], (2, 2))
    is_pinhole = shot.lens.is_pinhole
    rays = (points["xy"] - cx_cy) / fx_fy if is_pinhole else np.asarray(as_colmap(shot.lens).cam_from_img(points["xy"]))
    known = np.isfinite(rays).all(axis=1)  # a lens has no ray for pixels it cannot see
    return replace(shot, sightings=Sightings(points["id"][known], rays[known]))


def _some(points: NDArray[np.void]) -> NDArray[np.void]:
    """Returns at most `MOST` of the 2D points that have a 3D point, from all over the list."""
    points = points[(points["id"] >= 0) & np.isfinite(points["xy"]).all(axis=1)]
    return points[:: -(-len(points) // MOST) or 1].copy()


def _binary(path: Path) -> Iterator[tuple[bytes, NDArray[np.void]]]:
    with open(path, "rb") as file:
        (count,) = struct.unpack("<Q", file.read(8))
        for _ in range(count):
            file.seek(_BEFORE_NAME, os.SEEK_CUR)
            name = _name(file)
            (points,) = struct.unpack("<Q", file.read(8))
            looked_at = min(points, _LOOKED_AT)
            yield name, np.frombuffer(file.read(looked_at * _POINT.itemsize), _POINT)
            file.seek((points - looked_at) * _POINT.itemsize, os.SEEK_CUR)


def _name(file: io.BufferedReader) -> bytes:
    """Returns the bytes up to the next zero; the file is then behind it."""
    start = file.tell()
    name, zero, _ = file.read(_LONGEST_NAME).partition(b"\0")
    if not zero:
        raise ValueError
    file.seek(start + len(name) + 1)
    return name


def _text(path: Path) -> Iterator[tuple[bytes, NDArray[np.void]]]:
    name = None  # name of the photograph whose 2D points come next
    with open(path, "rb") as file:
        for line in file:
            if line.startswith(b"#"):
                continue
            if name is not None and (points := _points_in(line)) is not None:
                yield name, points
                name = None
            else:
                fields = line.split(None, 9)
                name = fields[9].strip() if len(fields) == 10 else None


def _points_in(line: bytes) -> NDArray[np.void] | None:
    """Returns the 2D points of a line, or None if it is something else."""
    words = line.split()[: 3 * _LOOKED_AT]
    try:
        table = np.array(words, np.float64).reshape(-1, 3)
    except ValueError:
        return None
    points = np.empty(len(table), _POINT)
    points["xy"], points["id"] = table[:, :2], table[:, 2]
    return points
