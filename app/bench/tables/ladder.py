"""Prints the tables of the ladder on a GPU, and judges each preset: does it win, and if not, which stage lost.

Figures are plain dictionaries, as in the JSON. The table for documents: `ladder_document.py`.
"""

from __future__ import annotations

from typing import Any

from rich.table import Table

from splatscope.app.bench.measure.roofline import heaviest_kernel
from splatscope.app.bench.tables.layout import console, wide_table
from splatscope.kernels.ladder import STEPS

MODES = ("view", "forward", "forward_backward")
SAME_PICTURE = 1e-3  # mean |difference|; other cut-offs and culling make less than 1e-4
EVEN = 0.01  # share of a median that counts as even, because times repeat only to a percent


# ---- Which steps win -------------------------------------------------------------------------------------------------


def verdicts(steps: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Judges each preset of one scene that does not win over its predecessor: "even", or "loses: blend +0.05 ms"."""
    found = {}
    for name in steps:
        before = _builds_on(name, steps)
        if before is None:
            continue
        mine, theirs = steps[name], steps[before]
        gain = theirs["forward_backward"]["median"] - mine["forward_backward"]["median"]
        if STEPS[name].policy == STEPS[before].policy:
            found[name] = f"is {before}"
        elif abs(gain) <= EVEN * theirs["forward_backward"]["median"]:
            found[name] = f"even with {before}"
        elif gain < 0:
            found[name] = f"loses to {before}: {_what_changed(mine['stages'], theirs['stages'])}"
    return found


def _builds_on(name: str, steps: dict[str, Any]) -> str | None:
    """Returns the preset before it; for `best` the fastest other one in single precision; None for the first."""
    order = [other for other in STEPS if other in steps]
    if name not in order or name == order[0]:
        return None
    single = [other for other in order if STEPS[other].policy.project.sh_dtype == "f32" and other != name]
    if name == "best":
        return min(single, key=lambda other: steps[other]["forward_backward"]["median"], default=None)
    return next((other for other in reversed(single) if order.index(other) < order.index(name)), None)


def _what_changed(mine: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Names the stage whose time changed most, and others that changed at least half as much."""
    none = {"median": 0.0}
    stages = dict.fromkeys([*mine, *theirs])
    changes = {stage: mine.get(stage, none)["median"] - theirs.get(stage, none)["median"] for stage in stages}
    largest = max(map(abs, changes.values()), default=0.0)
    named = sorted(((stage, ms) for stage, ms in changes.items() if abs(ms) >= largest / 2), key=lambda item: -item[1])
    return ", ".join(f"{stage} {ms:+.3f} ms" for stage, ms in named) or "no stage was timed"


def draws_the_same(peer: dict[str, Any]) -> bool:
    """Returns False for a rasteriser that draws another picture (or NaN), so that its times say nothing."""
    return peer["image_mean_difference"] <= SAME_PICTURE


# ---- A scene of the ladder -------------------------------------------------------------------------------------------


def print_scene(result: dict[str, Any], copy_rate: float) -> None:
    """Prints a row for each preset, stages, and rates over a copy at `copy_rate` GB/s; for `best` also kernels."""
    screen = console()
    screen.print(_totals(result))
    screen.print(_stages(result))
    steps = result["steps"]
    if len(steps) > 1:
        screen.print(_rates(result, copy_rate))
    step = "best" if "best" in steps else list(steps)[-1]
    screen.print(_roofline(step, steps[step], copy_rate))
    if peers := result.get("peers"):
        screen.print(_agreement(result["name"], peers))
    for step, row in result["steps"].items():
        for sentence in row["wrong"]:
            screen.print(f"WRONG in {result['name']}, {step}: {sentence}.")
    for name, row in result.get("peers", {}).items():
        if not draws_the_same(row):
            screen.print(f"WRONG in {result['name']}, {name}: it draws another picture, so its times say nothing.")


def _totals(result: dict[str, Any]) -> Table:
    title = f"{result['name']}: {result['splats']:,} splats at {result['width']}×{result['height']}; medians in ms"
    times = ["view", "forward", "forward + backward", "10%–90%", "wall", "frames/s"]
    table = wide_table("step", title, ["pairs", "visible", *times, "against best", ""])
    known = {name: row for name, row in result["steps"].items() if name in STEPS}
    words = verdicts(known)
    for name, row in [*result["steps"].items(), *result.get("peers", {}).items()]:
        both, wall = row["forward_backward"], row["wall_ms"]
        counts = [f"{row[key]:,}" if key in row else "–" for key in ("instances", "visible")]
        difference = row.get("image_difference", row.get("image_largest_difference", 0.0))
        table.add_row(
            name,
            *counts,
            *(f"{row[mode]['median']:.3f}" for mode in MODES),
            f"{both['p10']:.3f}–{both['p90']:.3f}",
            f"{wall['forward_backward']:.3f}",
            f"{1e3 / wall['view']:,.0f}",
            f"{difference:.1e}",
            words.get(name, ""),
        )
    return table


def _stages(result: dict[str, Any]) -> Table:
    names = list(dict.fromkeys(stage for row in result["steps"].values() for stage in row["stages"]))
    table = wide_table("step", f"{result['name']}: median ms a stage", names)
    for step, row in result["steps"].items():
        cells = (f"{row['stages'][stage]['median']:.4f}" if stage in row["stages"] else "" for stage in names)
        table.add_row(step, *cells)
    return table


def _rates(result: dict[str, Any], copy_rate: float) -> Table:
    """Returns the GB/s of the stages of every preset, by their fewest bytes, and registers of a thread."""
    names = list(dict.fromkeys(stage for row in result["steps"].values() for stage in row["least_bytes"]))
    title = f"{result['name']}: GB/s by the fewest bytes, of a copy's {copy_rate:,.0f}; registers a thread"
    table = wide_table("step", title, names)
    for step, row in result["steps"].items():
        cells = []
        for stage in names:
            if stage in row["least_bytes"] and stage in row["stages"]:
                rate = row["least_bytes"][stage] / 1e6 / row["stages"][stage]["median"]
                registers = heaviest_kernel(row["kernels"], stage).get("registers", "–")
                cells.append(f"{rate:,.0f} {rate / copy_rate:.0%} {registers}")
            else:
                cells.append("")
        table.add_row(step, *cells)
    return table


def _roofline(step: str, row: dict[str, Any], copy_rate: float) -> Table:
    """Returns the fewest bytes of each stage over its time, and the cost of its kernel by the compiler's report."""
    title = f"{step}: fewest bytes a stage must move, against {copy_rate:,.0f} GB/s of a copy"
    columns = ["ms", "MB", "GB/s", "of a copy", "registers", "spills", "occupancy"]
    table = wide_table("stage", title, columns)
    for stage, size in row["least_bytes"].items():
        if stage not in row["stages"]:
            continue
        ms = row["stages"][stage]["median"]
        report = heaviest_kernel(row["kernels"], stage)
        cost = (str(report.get(key, "")) for key in ("registers", "spill_bytes", "occupancy"))
        rate = size / 1e6 / ms
        table.add_row(stage, f"{ms:.4f}", f"{size / 1e6:.1f}", f"{rate:,.0f}", f"{rate / copy_rate:.0%}", *cost)
    return table


def _agreement(scene: str, peers: dict[str, dict[str, Any]]) -> Table:
    gradients = list(next(iter(peers.values()))["gradient_differences"])
    title = f"{scene}: others against best: |image difference|, and |gradient difference| over |gradient|"
    table = wide_table("rasteriser", title, ["lone call, ms", "image, mean", "largest", *gradients])
    for name, row in peers.items():
        table.add_row(
            f"{name} ({row['version']})",
            f"{row['synchronous']['median']:.3f}",
            f"{row['image_mean_difference']:.1e}",
            f"{row['image_largest_difference']:.2f}",
            *(f"{value:.2%}" for value in row["gradient_differences"].values()),
        )
    return table
