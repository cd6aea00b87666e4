"""Gives the figures of `splatscope bench schedule` one look: colours that keep their meaning, plain ticks, titles.

`schedule.py` and `timelines.py` draw the figures. Importing loads no matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from splatscope.app.bench.tables.schedule import speed_ups

# A schedule has its colour wherever it is shown.
COLORS = {
    "grid": "#8a8f98",
    "lpt": "#2f7ed8",
    "lpt sorted": "#7db4ee",
    "shortest first": "#b5643c",
    "exact work": "#123f73",
    "chunk all": "#e0922f",
    "CaT-GS": "#3a9d5d",
    "best fixed": "#8c6bb1",
    "seed's policy": "#d98bb5",
    "policy": "#c8323c",
    "oracle": "#222222",
}
SET_COLORS = ("#2f7ed8", "#e0922f", "#3a9d5d", "#8c6bb1", "#b5643c", "#17a2a8", "#d98bb5", "#7a7f39")
MARKERS = "osD^vPX<>hp*"
RATIO = "imbalance: heaviest tile over an even share"
TICKS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0))  # choices of ticks in a decade
INK = "#333333"


@dataclass(eq=False)
class Drawing:
    """Holds the parts that all figures of one set of results share, and lists the files written."""

    results: dict[str, Any]
    folder: Path
    paths: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        machine = self.results["machine"]
        workers = f", K = {machine['workers']}" if "workers" in machine else ""
        self.caption = f"{machine['gpu']}{workers}, {self.results['run']['date'][:10]}"
        self.sets = [(scene, speed_ups(scene)) for scene in self.results["scenes"]]
        self.names = [scene["name"] for scene, _ in self.sets]

    def figure(self, title: str, width: float, height: float) -> Any:
        """Returns an empty figure; its title also names the GPU and the day."""
        from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

        made = Figure(figsize=(width, height), layout="constrained")
        made.suptitle(f"{title}\n{self.caption}", fontsize=10, color=INK)
        return made

    def save(self, figure: Any, name: str) -> None:
        """Saves a figure as schedule-NAME.png."""
        self.paths.append(self.folder / f"schedule-{name}.png")
        figure.savefig(self.paths[-1], dpi=150)

    def look_of(self, name: str) -> dict[str, Any]:
        """Returns colour and marker of a set."""
        place = self.names.index(name)
        return {"color": SET_COLORS[place % len(SET_COLORS)], "marker": MARKERS[place % len(MARKERS)]}

    def frames(self) -> list[tuple[str, dict[str, Any], dict[str, float]]]:
        """Returns (set, frame, variant -> speed-up over the grid) of all frames, the most balanced first."""
        found = [
            (scene["name"], frame, {name: values[k] for name, values in gains.items()})
            for scene, gains in self.sets
            for k, frame in enumerate(scene["frames"])
        ]
        return sorted(found, key=lambda one: one[1]["ratio"])


def plain(axes: Any) -> None:
    """Hides the top and right edges of a plot, and makes its labels small."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, colors=INK)
    axes.xaxis.label.set_size(8.5)
    axes.yaxis.label.set_size(8.5)
    axes.title.set_size(9)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)


def log_axis(axis: Any, values: Iterable[float], room: float = 1.12) -> None:
    """Makes an axis logarithmic, a little longer than its values, with a few ticks as plain numbers."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator  # pyright: ignore[reportMissingImports]

    found = [value for value in values if value > 0] or [1.0]
    low, high = min(found) / room, max(found) * room
    axis.axes.set(**{f"{axis.axis_name}scale": "log", f"{axis.axis_name}lim": (low, high)})
    axis.set_major_locator(FixedLocator(ticks_between(low, high)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_locator(NullLocator())


def ticks_between(low: float, high: float) -> list[float]:
    """Returns at most eight round numbers for a logarithmic axis."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    best: list[float] = []
    for steps in TICKS:
        ticks = [step * 10.0**k for k in decades for step in steps if low <= step * 10.0**k <= high]
        if len(ticks) > 8:
            break
        best = ticks
    if len(best) >= 2:
        return best
    step = 10.0 ** math.floor(math.log10(high - low))  # less than an octave: even steps
    return [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def one(axes: Any) -> None:
    """Draws the line at a ratio of 1, which means no change."""
    axes.axhline(1.0, color="#8a8f98", linewidth=0.9)


def grouped_bars(
    axes: Any, groups: Sequence[str], series: dict[str, list[float]], color_of: Callable[[str], str], digits: int = 2
) -> None:
    """Draws a group of bars for each of `groups`, with a bar for each of `series` and its height on top."""
    wide = 0.84 / max(len(series), 1)
    for number, (name, values) in enumerate(series.items()):
        places = [place - 0.42 + wide * number for place in range(len(groups))]
        axes.bar(places, values, 0.92 * wide, align="edge", label=name, color=color_of(name))
        for place, value in zip(places, values, strict=True):
            axes.annotate(
                f"{value:.{digits}f}", (place + wide / 2, value), xytext=(0, 2), textcoords="offset points",
                ha="center", va="bottom", fontsize=6, rotation=90 if len(groups) * len(series) > 24 else 0, color=INK,
            )  # fmt: skip
    axes.set_xticks(
        range(len(groups)), groups, rotation=25 if len(groups) > 4 else 0, ha="right" if len(groups) > 4 else "center"
    )


def legend(axes: Any, outside: bool = False) -> None:
    """Draws the legend without a frame, inside the axes or to the right of them."""
    place = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if outside else {"loc": "best"}
    axes.legend(fontsize=7.5, frameon=False, labelcolor=INK, **place)


def panels(figure: Any, count: int, columns: int = 4, **more: Any) -> list[Any]:
    """Returns `count` axes in rows and hides the places left over in the last row."""
    rows = -(-count // columns)
    found = list(figure.subplots(rows, min(columns, count), squeeze=False, **more).ravel())
    for axes in found[count:]:
        axes.set_visible(False)
    return found[:count]
