"""Draws the figures of recorded frames of `splatscope bench schedule`; needs matplotlib.

Counterparts of figures 5(b) and 7(b) (activity over time), 6 (its distribution over frames) and 17 (orders, and splats
gone through against splats listed) of Ryu and Yoo (2026), and one of the simulator against what happened. What is kept
of a recording: `bench/measure/timelines.py`. Figures of speed-ups: `schedule.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from splatscope.app.bench.figures.style import (
    COLORS,
    RATIO,
    Drawing,
    grouped_bars,
    legend,
    log_axis,
    one,
    panels,
    plain,
)
from splatscope.app.bench.measure.timelines import RECORDED
from splatscope.app.bench.tables.schedule import mean

OVER_TIME = ("grid", "lpt", "CaT-GS", "policy")
ORDERS = ("exact work", "lpt sorted", "lpt", "shortest first")
GIVEN = {
    "durations": "given what each unit took",
    "walked": "given splats gone through",
    "listed": "given splats listed",
}
MOST_PANELS = 4  # plots of activity over time, at most


def draw_timeline_figures(drawing: Drawing) -> None:
    """Draws the figures for which there are recorded frames."""
    _orders(drawing)
    if any("recorded" in frame for _, frame, _ in drawing.frames()):
        _activity(drawing)
        _over_time(drawing)
        _simulator(drawing)


def _recorded(scene: dict[str, Any]) -> list[dict[str, Any]]:
    return [frame for frame in scene["frames"] if "recorded" in frame]


def _names(scenes: list[dict[str, Any]], wanted: tuple[str, ...]) -> list[str]:
    frames = [frame for scene in scenes for frame in _recorded(scene)]
    return [name for name in wanted if all(name in frame["recorded"] for frame in frames)]


def _activity(drawing: Drawing) -> None:
    """Draws figure 6."""
    scenes = [scene for scene in drawing.results["scenes"] if _recorded(scene)]
    figure = drawing.figure("Measured SM activity: share of frames at or below", 10, 2.5 * -(-len(scenes) // 4) + 0.8)
    found = panels(figure, len(scenes), sharex=True, sharey=True)
    for axes, scene in zip(found, scenes, strict=True):
        for name in _names(scenes, RECORDED):
            activity = np.sort([100 * frame["recorded"][name]["sm_activity"] for frame in _recorded(scene)])
            share = np.arange(len(activity) + 1) / len(activity)
            axes.step(np.append(0, activity), share, where="post", label=name, color=COLORS[name], linewidth=1.4)
            axes.plot([activity[-1], 100], [1, 1], color=COLORS[name], linewidth=1.4)
        plain(axes)
        axes.set(xlim=(0, 101), ylim=(0, 1.03))
        axes.set_title(scene["name"], fontsize=9)
    for axes in found[-min(4, len(found)) :]:
        axes.set_xlabel("SM activity of a frame, %")
    legend(found[min(3, len(found) - 1)], outside=True)
    drawing.save(figure, "activity")


def _over_time(drawing: Drawing) -> None:
    """Draws figures 5(b) and 7(b) for the most uneven frame of some sets."""
    scenes = [scene for scene in drawing.results["scenes"] if _recorded(scene)]
    worst = [(scene["name"], max(_recorded(scene), key=lambda frame: frame["ratio"])) for scene in scenes]
    worst = sorted(worst, key=lambda found: found[1]["ratio"])
    worst = [worst[k] for k in np.unique(np.linspace(0, len(worst) - 1, MOST_PANELS).round().astype(int))]
    names = _names(scenes, OVER_TIME)
    figure = drawing.figure("Multiprocessors that have work, over time", 3.2 * len(worst), 1.1 * len(names) + 0.9)
    grid = figure.subplots(len(names), len(worst), squeeze=False, sharex="col", sharey=True)
    for column, (set_name, frame) in enumerate(worst):
        for row, name in enumerate(names):
            axes, kept = grid[row, column], frame["recorded"][name]
            active = 100 * np.array(kept["activity_over_time"])
            edges = 1e3 * kept["makespan_ms"] * np.arange(len(active) + 1) / len(active)
            axes.stairs(active, edges, fill=True, color=COLORS[name], alpha=0.85)
            plain(axes)
            axes.set_ylim(0, 100)
            axes.annotate(
                f"{name}: {1e3 * kept['makespan_ms']:,.0f} µs, {kept['sm_activity']:.0%} active", (0.98, 0.9),
                xycoords="axes fraction", ha="right", va="top", fontsize=7,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1},
            )  # fmt: skip
        grid[0, column].set_title(f"{set_name}, imbalance {frame['ratio']:.3g}", fontsize=9)
        grid[-1, column].set_xlabel("µs")
    figure.supylabel("% of multiprocessors", fontsize=8.5)
    drawing.save(figure, "over-time")


def _orders(drawing: Drawing) -> None:
    """Draws figure 17."""
    names = [name for name in ORDERS if all(name in gains for _, gains in drawing.sets)]
    if "lpt" not in names:
        return
    scenes = [scene for scene in drawing.results["scenes"] if _recorded(scene)]
    figure = drawing.figure("The number of splats as a measure of work", 13, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=(1.7, 1))
    series = {name: [mean(gains["lpt"]) / mean(gains[name]) for _, gains in drawing.sets] for name in names}
    grouped_bars(left, drawing.names, series, COLORS.__getitem__)
    one(left)
    plain(left)
    left.set_ylim(0, 1.2 * max(value for values in series.values() for value in values))
    left.set_ylabel("blending time over that of lpt (by bins)")
    legend(left, outside=True)
    tops = [1.0]
    for scene in scenes:
        tiles = _recorded(scene)[0]["recorded"]["grid"]["tiles"]
        tops += tiles["listed"]
        look = drawing.look_of(scene["name"])
        right.scatter(tiles["listed"], np.maximum(tiles["walked"], 1), s=4, label=scene["name"], linewidths=0, **look)
    right.plot([1, max(tops)], [1, max(tops)], color="#8a8f98", linewidth=0.9)
    plain(right)
    log_axis(right.xaxis, tops)
    log_axis(right.yaxis, tops)
    right.set(xlabel="splats listed in a tile", ylabel="splats gone through until all pixels ended")
    if scenes:
        right.legend(fontsize=7.5, frameon=False, markerscale=3)
    drawing.save(figure, "orders")


def _simulator(drawing: Drawing) -> None:
    """Draws the error of predicted makespans against recorded ones."""
    scenes = [scene for scene in drawing.results["scenes"] if _recorded(scene)]
    frames = [frame for scene in scenes for frame in _recorded(scene)]
    figure = drawing.figure("Simulated makespan against the recorded one", 12, 3.8)
    found = figure.subplots(1, len(GIVEN), sharey=True)
    for axes, (given, title) in zip(found, GIVEN.items(), strict=True):
        for name in _names(scenes, RECORDED):
            errors = [100 * frame["recorded"][name]["simulator"][given]["makespan"] for frame in frames]
            axes.scatter([frame["ratio"] for frame in frames], errors, s=16, label=name, color=COLORS[name])
        axes.axhline(0.0, color="#8a8f98", linewidth=0.9)
        plain(axes)
        log_axis(axes.xaxis, [frame["ratio"] for frame in frames])
        axes.set_xlabel(RATIO)
        axes.set_title(title, fontsize=9)
    found[0].set_ylabel("off by, %")
    legend(found[-1], outside=True)
    drawing.save(figure, "simulator")
