"""Keeps measured figures in JSON files: the format, the names of the files, writing and reading.

Figures are plain dictionaries. The machine and the command in them: `machine.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from splatscope.assets.files.atomic import atomic_path
from splatscope.kernels.errors import InputError
from splatscope.kernels.toggles import in_present_names

FORMAT = "splatscope bench 1"


def spread(values: list[float]) -> dict[str, float]:
    """Returns the median, the extremes, the middle 80% and the number of some times."""
    low, p10, median, p90, high = np.percentile(values, (0, 10, 50, 90, 100))
    named = {"median": median, "min": low, "p10": p10, "p90": p90, "max": high}
    return {key: round(float(value), 5) for key, value in named.items()} | {"runs": len(values)}


def kind_of(results: dict[str, Any]) -> str:
    """Returns what was measured: cpu or cuda for pictures drawn there, train for whole runs, schedule for schedules."""
    if "training_runs" in results:
        return "train"
    if any("frames" in scene for scene in results.get("scenes", [])):
        return "schedule"
    return "cuda" if "gpu" in results["machine"] else "cpu"


def results_path(path: Path, results: dict[str, Any], parts: Sequence[str] = ()) -> Path:
    """Returns the file to write.

    In a folder (also a path without a suffix that does not exist yet) the file is named for the processor, what was
    measured (`parts`) and the day.
    """
    if path.is_file() or (path.suffix and not path.is_dir()):
        return path
    machine = results["machine"]
    words = [machine["gpu"].split()[-1].lower()] if "gpu" in machine else ["cpu", machine["cpu"].lower()]
    stem = re.sub(r"[^A-Za-z0-9]+", "-", "-".join([*words, *parts])).strip("-")
    return path / f"{stem}-{results['run']['date'][:10]}.json"


def write_results(path: Path, results: dict[str, Any]) -> Path:
    """Writes the figures as JSON, whole or not at all; returns the path."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return path


def read_results(path: Path) -> dict[str, Any]:
    """Reads figures written before. Raises InputError for any other file."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        if results["run"]["format"] == FORMAT:
            return _with_present_toggles(results)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, TypeError, KeyError):
        pass
    raise InputError(f"{path} was not written by `splatscope bench --out`.")


def _with_present_toggles(results: dict[str, Any]) -> dict[str, Any]:
    """Translates the toggles in names of rows and in command lines, which an earlier version may have written."""
    for scene in results.get("scenes", []):
        if isinstance(scene.get("steps"), dict):
            scene["steps"] = {in_present_names(name): row for name, row in scene["steps"].items()}
    for run in results.get("training_runs", []):
        if isinstance(run.get("settings"), list):
            run["settings"] = [in_present_names(word) for word in run["settings"]]
    return results
