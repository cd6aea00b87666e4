"""Figures of `splatscope bench --schedule`: speed-up of blending over the grid, against imbalance and side by side.

Drawn by matplotlib where it is installed, from the dictionary that `bench_schedule.py` made or a file it wrote. Saved
as PNG; nothing is measured here.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from splatscope.app.bench_schedule import speed_ups
from splatscope.app.bench_timelines import draw_timeline_figures
from splatscope.kernels.errors import InputError

AGAINST_IMBALANCE = ("lpt", "chunking only, k = 4", "CaT-GS", "seed's policy", "policy")
SIDE_BY_SIDE = {
    "orders": ("grid", "lpt", "lpt sorted", "shortest first", "exact work"),
    "choices": ("lpt", "best fixed", "policy", "oracle"),
    "saturation": ("policy, inexact, no flag", "policy, inexact", "policy"),
    "together": ("policy", "policy on two streams", "policy fused"),
}


def draw_figures(results: dict[str, Any], folder: Path) -> list[Path]:
    """Writes schedule-*.png to `folder`. Raises InputError without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("Figures need matplotlib, which is not installed; pip install matplotlib.")
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    folder.mkdir(parents=True, exist_ok=True)
    scenes = {scene["name"]: (scene, speed_ups(scene)) for scene in results["scenes"]}
    caption = f"{results['machine']['gpu']}, {results['run']['date'][:10]}"
    paths = []

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name in AGAINST_IMBALANCE:
        points = [
            (frame["ratio"], gain)
            for scene, gains in scenes.values()
            if name in gains
            for frame, gain in zip(scene["frames"], gains[name], strict=True)
        ]
        if points:
            axes.scatter(*zip(*points, strict=True), s=16, label=name)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="heaviest tile over an even share", ylabel="speed-up over the grid")
    axes.set_title(f"Blending by imbalance: {caption}", fontsize=10)
    axes.legend(fontsize=8)
    paths.append(_saved(figure, folder / "schedule-imbalance.png"))

    for title, names in SIDE_BY_SIDE.items():
        figure = Figure(figsize=(max(6.0, 1.1 * len(scenes)), 4), layout="constrained")
        axes = figure.subplots()
        for number, name in enumerate(names):
            means = [sum(gains[name]) / len(gains[name]) if name in gains else 0.0 for _, gains in scenes.values()]
            places = [place + (number - len(names) / 2) * 0.8 / len(names) for place in range(len(scenes))]
            axes.bar(places, means, 0.8 / len(names), align="edge", label=name)
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.set_xticks(range(len(scenes)), list(scenes), rotation=30, ha="right", fontsize=8)
        axes.set(yscale="log", ylabel="mean speed-up over the grid")
        axes.set_title(f"{title.capitalize()}: {caption}", fontsize=10)
        axes.legend(fontsize=8)
        paths.append(_saved(figure, folder / f"schedule-{title}.png"))
    return paths + draw_timeline_figures(results, folder)


def _saved(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=150)
    return path
