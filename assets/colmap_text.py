"""COLMAP's text files line by line: photographs from images.txt and points from points3D.txt.

Tracks and 2D points are passed over. What other writers do is understood where it leaves no doubt: a byte order
mark, names with spaces, and photographs without the line of 2D points that belongs after each.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.errors import InputError

ImageFields = list[str]  # IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME
_POINT_FIELDS = 7  # POINT3D_ID X Y Z R G B; the error and the track follow


def text_images(path: Path) -> list[ImageFields]:
    """The photographs of images.txt in its order. Raises InputError that names the line which is none."""
    images = []
    for number, line, fields in _image_lines(path):
        if fields is None:
            raise InputError(
                f"{path} is damaged: line {number} is neither a photograph (IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID "
                f"NAME) nor the 2D points (X Y POINT3D_ID ...) of the one before: {line[:60]!r}. Copy the model "
                "again, or export it again from COLMAP."
            )
        images.append(fields)
    return images


def text_image_count(path: Path) -> int:
    """Photographs in images.txt, whatever else its lines are."""
    return sum(fields is not None for _, _, fields in _image_lines(path))


def text_points(path: Path) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Positions and colours [P, 3] by id, of points3D.txt. Raises InputError."""
    values = array("d")
    for number, line in _lines(path, errors="replace"):  # a comment may hold anything
        if line and not line.startswith("#"):
            fields = line.split(None, _POINT_FIELDS)[:_POINT_FIELDS]
            try:
                values.extend(map(float, fields))
            except ValueError:
                fields = []
            if len(fields) < _POINT_FIELDS:
                raise InputError(
                    f"{path} is damaged: line {number} does not begin with the {_POINT_FIELDS} numbers of a point "
                    f"(POINT3D_ID X Y Z R G B): {line[:60]!r}. Copy the model again, or export it again from COLMAP."
                )
    table = np.array(values).reshape(-1, _POINT_FIELDS)
    table = table[np.argsort(table[:, 0], kind="stable")]
    if np.isnan(table[:, 4:]).any():
        raise InputError(f"{path} is damaged: it has colours that are no numbers. Export it again.")
    return table[:, 1:4].copy(), np.clip(table[:, 4:], 0, 255).astype(np.uint8)


def _image_lines(path: Path) -> Iterator[tuple[int, str, ImageFields | None]]:
    """(number, line, its fields) of every photograph, and of every line (None) that is out of place."""
    points_may_follow = False
    for number, line in _lines(path):
        if line.startswith("#") or (not line and not points_may_follow):
            continue
        fields = _image_fields(line)
        if points_may_follow:
            words = line.split()
            if _are_numbers(words) and (fields is None or len(words) % 3 == 0):
                points_may_follow = False
                continue
            if fields is not None and _are_numbers([fields[9]]):
                fields = None  # 2D points that were cut short would look the same
        yield number, line, fields
        points_may_follow = fields is not None


def _image_fields(line: str) -> ImageFields | None:
    fields = line.split(None, 9)
    whole = len(fields) == 10 and fields[0].removeprefix("+").isdecimal() and fields[8].isdecimal()
    return fields if whole and _are_numbers(fields[1:8]) else None


def _are_numbers(words: Sequence[str]) -> bool:
    try:
        return all(float(word) is not None for word in words)
    except ValueError:
        return False


def _lines(path: Path, errors: str = "strict") -> Iterator[tuple[int, str]]:
    """Lines without blanks at their ends, numbered from 1. `errors`: what becomes of bytes that are not UTF-8."""
    try:
        with open(path, encoding="utf-8-sig", errors=errors) as file:
            for number, line in enumerate(file, 1):
                yield number, line.strip()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text. Export the model again from COLMAP.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
