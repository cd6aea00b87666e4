"""Describes the machine and the command that figures come from; without these no figure counts.

The graphics card: `gpu.py`.
"""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from splatscope.app.bench.measure.gpu import describe_gpu
from splatscope.app.bench.measure.results import FORMAT
from splatscope.app.revision import revision


def describe_device(backend: str) -> dict[str, Any]:
    """Describes the device of a backend: the graphics card for cuda, the processor for any other."""
    return describe_gpu() if backend == "cuda" else describe_machine()


def describe_run(command: str) -> dict[str, Any]:
    """Returns the command, the date, the revision of the source and the load of the machine before the first run."""
    load = list(os.getloadavg()) if hasattr(os, "getloadavg") else None
    return {
        "format": FORMAT,
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": revision(),
        "load_average_at_start": load,
    }


def describe_machine() -> dict[str, Any]:
    """Returns processor, memory, system and the versions that decide how fast the kernels are."""
    import llvmlite.binding  # heavy, and of no use to a benchmark on a GPU

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _cpu_model(),
        "cpu_target": llvmlite.binding.get_host_cpu_name(),
        "cores": cores,
        "memory_gib": _memory_gib(),
        "os": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numba", "llvmlite", "numpy")},
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):  # Windows
        return None
