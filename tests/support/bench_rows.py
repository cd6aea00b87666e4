"""Makes result files of `splatscope bench ladder` from invented figures: rows, scenes, whole files."""

from __future__ import annotations

from typing import Any

from splatscope.app.bench.measure.results import FORMAT, spread
from splatscope.app.bench.tables.ladder import MODES
from splatscope.kernels.ladder import STEPS


def row_of(both: float, **stages: float) -> dict[str, Any]:
    """Makes a rung's row of the JSON: forward and backward take `both` ms, and each stage the ms it is given."""
    times = {mode: spread([both / 2]) for mode in MODES} | {
        "forward_backward": spread([0.99 * both, both, 1.02 * both])
    }
    return {
        "visible": 7,
        "instances": 70,
        "skipped": 0,
        **times,
        "synchronous": spread([both]),
        "wall_ms": {"view": both / 2, "forward_backward": both},
        "stages": {stage: spread([ms]) for stage, ms in stages.items()},
        "least_bytes": {"blend": 2_000_000_000},
        "kernels": {"blend<BlendPolicy{}>": {"registers": 40, "spill_bytes": 0, "occupancy": 0.75}},
        "wrong": [],
        "image_difference": 0.0,
    }


def peer_of(both: float) -> dict[str, Any]:
    """Makes the row of another rasteriser, which has fewer figures."""
    kept = ("view", "forward", "forward_backward", "synchronous", "wall_ms")
    return {name: times for name, times in row_of(both).items() if name in kept} | {
        "version": "1.5.3",
        "image_mean_difference": 1e-5,
        "image_largest_difference": 0.01,
        "gradient_differences": {"means": 0.01},
    }


def scene_of(name: str, steps: dict[str, Any], peers: dict[str, Any] | None = None) -> dict[str, Any]:
    """Makes one scene of a file from its rows."""
    return {"name": name, "splats": 1_593_000, "width": 1557, "height": 1038, "steps": steps, "peers": peers or {}}


def ladder_of(best: float = 1.0) -> dict[str, Any]:
    """Makes a row for every rung, each faster than the one before; the last takes `best` ms."""
    return {name: row_of(best * (len(STEPS) - number), blend=best) for number, name in enumerate(STEPS)}


def file_of(scenes: list[dict[str, Any]], date: str = "2026-11-30T10:00:00+00:00", gpu: str = "NVIDIA H200") -> Any:
    """Makes a whole file from its scenes."""
    machine = {
        "gpu": gpu,
        "driver": "580.1",
        "cuda": "13.0",
        "torch": "2.11",
        "cupy": "14.2",
        "copy_gb_per_second": 4267.0,
    }
    run = {"format": FORMAT, "command": "splatscope bench ladder", "date": date, "revision": "abc"}
    return {"run": run, "machine": machine, "scenes": scenes, "absent_peers": []}
