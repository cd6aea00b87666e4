"""Reads COLMAP's text files line by line: cameras.txt, images.txt and points3D.txt.

Skips tracks and 2D points. Accepts deviations of other writers that leave no doubt: a byte order mark, names with
spaces, and photographs without the line of 2D points that belongs after each. `model.py` judges the fields of cameras
and photographs.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.files.lfs import LFS_SENTENCE, lfs_pointer
from splatscope.kernels.errors import InputError
from splatscope.kernels.wording import counted

Row = tuple[str, list[Any]]  # place of a camera or photograph in the file, and its fields
_IMAGE_FIELDS = 10  # IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME
_POINT_FIELDS = 7  # POINT3D_ID X Y Z R G B; the error and the track follow


def text_cameras(path: Path) -> tuple[list[Row], list[str]]:
    """Returns the cameras of cameras.txt as words, and remarks on the file. Raises InputError if it cannot be read."""
    rows: list[Row] = [
        (f"{path}, line {number}", line.split()) for number, line in _lines(path) if line and line[0] != "#"
    ]
    return rows, _broken_promise(path, len(rows))


def text_images(path: Path) -> tuple[list[Row], list[str]]:
    """Returns the photographs of images.txt as words, and remarks on the file. Raises InputError if it cannot be read.

    A line that is neither a photograph nor 2D points is skipped with a remark.
    """
    rows: list[Row] = []
    strays = []
    for number, line, fields in _image_lines(path):
        if fields is None:
            strays.append((number, line))
        else:
            rows.append((f"{path}, line {number}", fields))
    remarks = _broken_promise(path, len(rows))
    if strays:
        number, line = strays[0]
        remarks.append(
            f"Passed over: {counted(len(strays), 'line')} of {path}, the first of which, line {number}, is neither a "
            "photograph (IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME) nor the 2D points (X Y POINT3D_ID ...) of the "
            f"one before: {line[:60]!r}. Copy the model again, or export it again from COLMAP."
        )
    return rows, remarks


def text_image_count(path: Path) -> int:
    """Returns how many photographs images.txt has, whatever its other lines are."""
    return sum(fields is not None for _, _, fields in _image_lines(path))


class PointTable(NamedTuple):
    """Holds the points of a model in the order of their ids."""

    ids: NDArray[np.int64]  # [P]
    positions: NDArray[np.float64]  # [P, 3]
    colors: NDArray[np.uint8]  # [P, 3]
    places: NDArray[np.int64]  # [P] lines or records, from 1
    remarks: list[str]


def text_points(path: Path) -> PointTable:
    """Returns the points of points3D.txt by id, with their lines, and remarks on the file.

    The position of a line that does not begin with seven numbers is NaN. Raises InputError if it cannot be read.
    """
    values, places = array("d"), array("q")
    for number, line in _lines(path):
        if line and not line.startswith("#"):
            fields = line.split(None, _POINT_FIELDS)[:_POINT_FIELDS]
            numbers = _numbers(fields)
            is_point = len(fields) == _POINT_FIELDS and numbers is not None
            values.extend(numbers if is_point and numbers else [np.nan] * _POINT_FIELDS)
            places.append(number)
    table = np.array(values).reshape(-1, _POINT_FIELDS)
    order = np.argsort(table[:, 0], kind="stable")
    table = table[order]
    is_id = (table[:, 0] >= 0) & (table[:, 0] == np.floor(table[:, 0]))  # else the id may be missing
    table[np.isnan(table[:, 4:]).any(axis=1) | ~is_id] = np.nan
    colors = np.clip(np.nan_to_num(table[:, 4:]), 0, 255).astype(np.uint8)
    ids = np.where(np.abs(table[:, 0]) < 2**53, table[:, 0], -1).astype(np.int64)  # float64 holds larger ids inexactly
    lines = np.array(places, np.int64)[order]
    return PointTable(ids, table[:, 1:4].copy(), colors, lines, _broken_promise(path, len(table)))


def text_line(path: Path, number: int) -> str:
    """Returns the beginning of one line, counted from 1, for people to read."""
    return next((repr(line[:60]) for at, line in _lines(path) if at == number), "")


def _image_lines(path: Path) -> Iterator[tuple[int, str, list[str] | None]]:
    """Yields (number, line, its fields) of every photograph, and of every line (None) that is out of place."""
    points_may_follow = False
    for number, line in _lines(path):
        if line.startswith("#") or (not line and not points_may_follow):
            continue
        fields = _image_fields(line)
        if points_may_follow:
            words = line.split()
            if _numbers(words) is not None and (fields is None or len(words) % 3 == 0):
                points_may_follow = False
                continue
            if fields is not None and _numbers(fields[-1].split()) is not None:
                fields = None  # 2D points that were cut short would look the same
        yield number, line, fields
        points_may_follow = True


def _image_fields(line: str) -> list[str] | None:
    """Returns the words of a line that begins with an id and ends with a name, whatever is between."""
    fields = line.split(None, _IMAGE_FIELDS - 1)
    return fields if len(fields) == _IMAGE_FIELDS and fields[0].removeprefix("+").isdecimal() else None


def _numbers(words: Sequence[str]) -> list[float] | None:
    """Returns the words as numbers, or None if one is no number."""
    try:
        return list(map(float, words))
    except ValueError:
        return None


def _broken_promise(path: Path, found: int) -> list[str]:
    """Returns a remark if the comments at the top of a file claim another number of rows than were found."""
    comments = itertools.takewhile(lambda line: line.startswith("#"), (line for _, line in _lines(path)))
    promises = (re.match(r"# *Number of (\w+): *(\d{1,12})\b", line) for line in comments)
    promise = next(filter(None, promises), None)
    if promise is None or int(promise[2]) == found:
        return []
    return [
        f"{path} tells of {int(promise[2]):,} {promise[1]} in its first lines and has {found:,}: it was edited or cut "
        "short. If it was not edited, copy the model again."
    ]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields lines without blanks at their ends, numbered from 1. Bytes that are not UTF-8 are kept as surrogates."""
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
            for number, line in enumerate(file, 1):
                if number == 1 and lfs_pointer(line.encode("utf-8", "surrogateescape")):
                    raise InputError(f"{path} cannot be read: {LFS_SENTENCE}")
                yield number, line.strip()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
