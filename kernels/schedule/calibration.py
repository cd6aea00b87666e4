"""Keeps a GPU's measured costs of splats and chunks on disk, with defaults for a GPU that was not measured.

`splatscope bench calibrate` measures and stores them (`app/bench/calibrate.py`); `cuda/plan/schedule.py` reads them
when it makes a plan. `rules.py` has the cost model that uses these numbers.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from splatscope.kernels.caches import cache_folder, cache_path
from splatscope.kernels.errors import InputError

RANGES = {
    "saturating_warps": (1.0, 64.0),
    "start": (0.0, 2000.0),
    "chunk": (0.0, 2000.0),
    "tail": (0.0, 0.5),
    "second_walk": (0.0, 3.0),
    "training_walk": (0.0, 3.0),
}


@dataclass(frozen=True)
class Calibration:
    """Holds costs in units of one splat in one tile. The defaults are an H200's, rounded."""

    saturating_warps: float = 12.0  # with more resident warps on a multiprocessor, each warp is slower
    start: float = 30.0  # cost of beginning a tile that is not empty: reading its range and its first splats
    chunk: float = 42.0  # lambda: cost of beginning a chunk and of writing and adding up its pixels
    tail: float = 0.0  # beta: cost that the longest unit adds, as a share of that unit's cost
    second_walk: float = 1.0  # cost of a chunk's splat in the second walk of an exact stop
    training_walk: float = 1.0  # `second_walk` in training, where it also writes the lists of the backward pass

    def clamped(self) -> Calibration:
        """Returns a copy with each number limited to its range, so that a disturbed measurement does little harm."""
        values = {name: min(max(getattr(self, name), low), high) for name, (low, high) in RANGES.items()}
        return Calibration(**values)


def calibration_path(gpu: str) -> Path:
    """Returns the file that keeps the numbers of the GPU with that name."""
    stem = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    return cache_path() / "schedule" / f"{stem}.json"


def store_calibration(gpu: str, calibration: Calibration) -> Path:
    """Writes the numbers to the GPU's file, for later plans. Returns the path. Raises InputError if it cannot."""
    path = calibration_path(gpu)
    try:
        cache_folder("schedule")
        path.write_text(json.dumps(asdict(calibration), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"The calibration cannot be written to {path}: {error.strerror}.") from error
    stored_calibration.cache_clear()
    return path


@cache
def stored_calibration(gpu: str) -> Calibration:
    """Returns the stored numbers of the GPU with that name, or the defaults if none can be read."""
    try:
        values = json.loads(calibration_path(gpu).read_text(encoding="utf-8"))
        return Calibration(**{name: float(values[name]) for name in RANGES}).clamped()
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return Calibration()
