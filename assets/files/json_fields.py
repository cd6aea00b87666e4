"""Reads JSON files and checks their fields. Errors name the file and the field that is missing or wrong.

`trained/cameras.py` and `transforms/captures.py` read their numbers with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.files.lfs import LFS_SENTENCE, lfs_pointer
from splatscope.kernels.errors import InputError

SIZE_LIMIT = 16384  # pixels along one side of a picture; a square of it is a render of 8 GB
FILE_LIMIT = 1 << 26  # bytes, 100,000 cameras; Python takes twenty times as much for the content
_RIGID_TOLERANCE = 5e-3  # matrices printed with three decimals still pass


def read_json(path: Path | str, what: str = "a camera file") -> Any:
    """Returns the content of a JSON file that any program may have written.

    `what` says what the file should be, for the error about a file that is too large. Raises InputError, which names
    the file and, if possible, the line of the first mistake.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file():  # a pipe or a device would never end
            raise InputError(f"{path} is not a regular file.")
        if path.stat().st_size > FILE_LIMIT:
            raise InputError(f"{path} is larger than {FILE_LIMIT >> 20} MB, so it is not {what}.")
        return parse_json(path.read_bytes(), str(path))
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or 'the system refused it'}.") from error


def parse_json(content: bytes, where: str) -> Any:
    """Returns the content of bytes in UTF-8, UTF-16 or UTF-32. Raises InputError; `where` is their file."""
    if lfs_pointer(content[:100]):
        raise InputError(f"{where} cannot be read: {LFS_SENTENCE}")
    if not content.strip():
        raise InputError(f"{where} is empty. Copy or export it again.")

    def fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entry = dict(pairs)
        if len(entry) < len(pairs):
            differing = (key for key, value in pairs if not _alike(value, entry[key]))
            if (key := next(differing, None)) is not None:
                raise InputError(f"{where} gives {_shown(key)} twice in one object, with two values. Keep one.")
        return entry

    try:
        return json.loads(content, object_pairs_hook=fields)
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is not valid JSON: line {error.lineno}, column {error.colno}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not text in UTF-8, at byte {error.start:,}.") from error
    except RecursionError as error:
        raise InputError(f"{where} nests brackets deeper than can be read.") from error
    except ValueError as error:  # Python reads no integer of more than 4,300 digits
        raise InputError(f"{where} is not valid JSON: it holds a number of thousands of digits.") from error


def require(entry: Any, keys: tuple[str, ...], where: str) -> dict[str, Any]:
    """Returns the fields of `entry`; optional fields that are null count as missing.

    Raises InputError unless `entry` is an object with all required keys.
    """
    if not isinstance(entry, Mapping):
        raise InputError(f"{where} must be an object with {', '.join(keys)}.")
    missing = [key for key in keys if key not in entry]
    if missing:
        raise InputError(f"{where} lacks {', '.join(missing)}.")
    return {key: value for key, value in entry.items() if value is not None or key in keys}


def number(entry: Mapping[str, Any], key: str, where: str, above: float = -math.inf) -> float:
    """Returns a finite number greater than `above`. Raises InputError."""
    value = entry[key]
    result = _as_float(value)
    if result is None or not math.isfinite(result) or result <= above:
        bound = f" above {above:g}" if math.isfinite(above) else ""
        raise InputError(f"{where}: {key} must be a finite number{bound}, got {_shown(value)}.")
    return result


def pixels(entry: Mapping[str, Any], key: str, where: str) -> int:
    """Returns a picture's width or height. Raises InputError."""
    value = _as_float(entry[key])
    if value is None or not math.isfinite(value) or value != int(value) or not 1 <= value <= SIZE_LIMIT:
        raise InputError(
            f"{where}: {key} must be a whole number of pixels from 1 to {SIZE_LIMIT}, got {_shown(entry[key])}."
        )
    return int(value)


def matrix(entry: Mapping[str, Any], key: str, shape: tuple[int, ...], where: str) -> NDArray[np.float64]:
    """Returns finite numbers in rows of that shape. Raises InputError."""
    expected = f"{where}: {key} must be {' x '.join(map(str, shape))} numbers in rows, got"
    try:
        values = np.array(entry[key], dtype=object)
    except (ValueError, TypeError) as error:
        raise InputError(f"{expected} rows of different lengths.") from error
    if any(isinstance(value, list) for value in values.ravel()):
        raise InputError(f"{expected} rows of different lengths.")
    if values.shape != shape:
        size = " x ".join(map(str, values.shape))
        raise InputError(f"{expected} {size or _shown(entry[key])}.")
    numbers = [_as_float(value) for value in values.ravel()]
    if None in numbers:
        raise InputError(f"{expected} {_shown(values.ravel()[numbers.index(None)])}.")
    result = np.array(numbers, dtype=np.float64).reshape(shape)
    if not np.isfinite(result).all():
        raise InputError(f"{where}: {key} holds a value that is not finite (NaN or infinite).")
    return result


def check_rotation(rotation: NDArray[np.float64], key: str, where: str) -> None:
    """Raises InputError, which says what is wrong, unless the 3x3 matrix is a rotation."""
    lengths = np.array([math.hypot(*axis) for axis in rotation.T])  # overflows without a library's warning
    if np.abs(lengths - 1).max() > _RIGID_TOLERANCE:
        shown = ", ".join(f"{length:.4g}" for length in lengths)
        raise InputError(f"{where}: {key} is not rigid: its axes have lengths {shown}, not 1. Remove the scale.")
    if np.abs(rotation.T @ rotation - np.eye(3)).max() > _RIGID_TOLERANCE:
        raise InputError(f"{where}: {key} is not rigid: its axes are not at right angles.")
    if np.linalg.det(rotation) < 0:
        raise InputError(f"{where}: {key} mirrors the scene (its determinant is -1); flip one axis.")


def check_rigid(transform: NDArray[np.float64], key: str, where: str) -> None:
    """Raises InputError unless the 4x4 matrix is a rotation and a translation."""
    if np.abs(transform[3] - (0, 0, 0, 1)).max() > 1e-6:
        hint = " The matrix looks transposed." if np.abs(transform[:3, 3]).max() == 0 else ""
        raise InputError(f"{where}: the last row of {key} must be 0 0 0 1.{hint}")
    check_rotation(transform[:3, :3], key, where)


def _as_float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _alike(one: Any, other: Any) -> bool:
    """Returns True for equal values of the same type. NaN equals itself."""
    return one == other or (one != one and other != other)


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        return "brackets within brackets"
    return text if len(text) <= 40 else text[:37] + "..."
