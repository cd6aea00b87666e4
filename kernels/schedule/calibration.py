"""What one GPU told about the cost of splats and chunks, kept on disk, and what is assumed of a GPU that was not asked.

`splatscope bench calibrate` measures and stores (`app/bench/calibrate.py`); `cuda/plan/schedule.py` reads when it
makes a plan. The model these numbers belong to: `rules.py`.
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
    """Costs in units of one splat in one tile. The defaults are an H200's, rounded."""

    saturating_warps: float = 12.0  # of a multiprocessor: with more resident, each is slower
    start: float = 30.0  # to begin a tile that lists anything: its range, its first splats
    chunk: float = 42.0  # lambda: to begin a chunk, and to write and add up its pixels
    tail: float = 0.0  # beta: what the longest unit adds, as a share of it
    second_walk: float = 1.0  # of a chunk's splats with an exact stop, beyond the first walk
    training_walk: float = 1.0  # likewise, where the lists of the backward pass are written

    def clamped(self) -> Calibration:
        """Each number within what can be: a measurement that was disturbed does little harm."""
        values = {name: min(max(getattr(self, name), low), high) for name, (low, high) in RANGES.items()}
        return Calibration(**values)


def calibration_path(gpu: str) -> Path:
    """Where the numbers of a GPU of that name are kept."""
    stem = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    return cache_path() / "schedule" / f"{stem}.json"


def store_calibration(gpu: str, calibration: Calibration) -> Path:
    """Writes the numbers; plans made from then on use them. Returns where."""
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
    """The numbers of a GPU of that name; the defaults where there are none, or none that can be read."""
    try:
        values = json.loads(calibration_path(gpu).read_text(encoding="utf-8"))
        return Calibration(**{name: float(values[name]) for name in RANGES}).clamped()
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return Calibration()
