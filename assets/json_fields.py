"""JSON files and their fields, checked: what is missing or wrong is named with the file it stands in.

It knows nothing of cameras or captures; `cameras.py` and `transforms.py` ask it for numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.errors import InputError

SIZE_LIMIT = 16384  # pixels along one side of a picture; a square of it is a render of 8 GB
FILE_LIMIT = 1 << 26  # bytes, 100,000 cameras; Python takes twenty times as much for the content
_RIGID_TOLERANCE = 5e-3  # matrices printed with three decimals still pass


def read_json(path: Path | str) -> Any:
    """The content of a JSON file. Raises InputError with the line of the first mistake."""
    if Path(path).exists() and not Path(path).is_file():  # a pipe or a device would never end
        raise InputError(f"{path} is not a regular file.")
    try:
        if Path(path).stat().st_size > FILE_LIMIT:
            raise InputError(f"{path} is larger than {FILE_LIMIT >> 20} MB, so it is not a camera file.")
        return json.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or 'the system refused it'}.") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not valid JSON: line {error.lineno}, column {error.colno}.") from error
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InputError(f"{path} is not valid JSON text.") from error


def require(entry: Any, keys: tuple[str, ...], where: str) -> dict[str, Any]:
    """The fields of `entry`, but of those not required only what is not null, which means not given.

    Raises InputError unless `entry` is an object with all these keys.
    """
    if not isinstance(entry, Mapping):
        raise InputError(f"{where} must be an object with {', '.join(keys)}.")
    missing = [key for key in keys if key not in entry]
    if missing:
        raise InputError(f"{where} lacks {', '.join(missing)}.")
    return {key: value for key, value in entry.items() if value is not None or key in keys}


def number(entry: Mapping[str, Any], key: str, where: str, above: float = -math.inf) -> float:
    """A finite number greater than `above`. Raises InputError."""
    value = entry[key]
    result = _as_float(value)
    if result is None or not math.isfinite(result) or result <= above:
        bound = f" above {above:g}" if math.isfinite(above) else ""
        raise InputError(f"{where}: {key} must be a finite number{bound}, got {_shown(value)}.")
    return result


def pixels(entry: Mapping[str, Any], key: str, where: str) -> int:
    """A picture's width or height. Raises InputError."""
    value = _as_float(entry[key])
    if value is None or not math.isfinite(value) or value != int(value) or not 1 <= value <= SIZE_LIMIT:
        raise InputError(
            f"{where}: {key} must be a whole number of pixels from 1 to {SIZE_LIMIT}, got {_shown(entry[key])}."
        )
    return int(value)


def matrix(entry: Mapping[str, Any], key: str, shape: tuple[int, ...], where: str) -> NDArray[np.float64]:
    """Finite numbers in rows of that shape. Raises InputError."""
    size = " x ".join(str(n) for n in shape)
    try:
        values = np.array(entry[key], dtype=object)
        numbers = [_as_float(v) for v in values.ravel()]
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: {key} must be {size} numbers in rows.") from error
    if values.shape != shape or any(v is None for v in numbers):
        raise InputError(f"{where}: {key} must be {size} numbers in rows.")
    result = np.array(numbers, dtype=np.float64).reshape(shape)
    if not np.isfinite(result).all():
        raise InputError(f"{where}: {key} holds a value that is not finite (NaN or infinite).")
    return result


def check_rotation(rotation: NDArray[np.float64], key: str, where: str) -> None:
    """Raises InputError, saying what is wrong, unless the 3x3 matrix is a rotation."""
    lengths = np.linalg.norm(rotation, axis=0)
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


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        return "brackets within brackets"
    return text if len(text) <= 40 else text[:37] + "..."
