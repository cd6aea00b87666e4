"""The GPU benchmark's tables for the terminal, and the word on each step: does it win, and if not, which stage lost.

Plain dictionaries come in, as they stand in the JSON. The table for documents: `documents.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from splatscope.app.bench.measure.roofline import heaviest_kernel
from splatscope.kernels.ladder import STEPS

if TYPE_CHECKING:
    from rich.table import Table

    from splatscope.app.terminal import Terminal

MODES = ("view", "forward", "forward_backward")
SAME_PICTURE = 1e-3  # mean |difference|; other cut-offs and culling make less than 1e-4
EVEN = 0.01  # of a median: what repeats only to a percent can claim no less


# ---- Which steps win -------------------------------------------------------------------------------------------------


def verdicts(steps: dict[str, dict[str, Any]]) -> dict[str, str]:
    """A word on each step of one scene that does not win over what it builds on: "even", or "loses: blend +0.05 ms"."""
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
    """The step before it; for `best` the fastest of the others that keep single precision. None for the first."""
    order = [other for other in STEPS if other in steps]
    if name not in order or name == order[0]:
        return None
    single = [other for other in order if STEPS[other].policy.project.sh_dtype == "f32" and other != name]
    if name == "best":
        return min(single, key=lambda other: steps[other]["forward_backward"]["median"], default=None)
    return next((other for other in reversed(single) if order.index(other) < order.index(name)), None)


def _what_changed(mine: dict[str, Any], theirs: dict[str, Any]) -> str:
    """The stage whose time changed most, and others that changed at least half as much."""
    none = {"median": 0.0}
    stages = dict.fromkeys([*mine, *theirs])
    changes = {stage: mine.get(stage, none)["median"] - theirs.get(stage, none)["median"] for stage in stages}
    largest = max(map(abs, changes.values()), default=0.0)
    named = sorted(((stage, ms) for stage, ms in changes.items() if abs(ms) >= largest / 2), key=lambda item: -item[1])
    return ", ".join(f"{stage} {ms:+.3f} ms" for stage, ms in named) or "no stage was timed"


def draws_the_same(peer: dict[str, Any]) -> bool:
    """False for another rasteriser whose picture is not ours: its times say nothing then. NaN is not ours."""
    return peer["image_mean_difference"] <= SAME_PICTURE


# ---- A scene of the ladder -------------------------------------------------------------------------------------------


def print_results(results: dict[str, Any]) -> None:
    """Everything in a file of the GPU's figures."""
    machine, run = results["machine"], results["run"]
    _console().print(f"{machine['gpu']}, {run['date'][:10]}: {run['command']}")
    for sentence in results.get("absent_peers", []):
        _console().print(sentence)
    for scene in results["scenes"]:
        if "ablations" in scene:
            for row in scene["ablations"]:
                print_ablation(scene["name"], row)
        else:
            print_scene(scene, machine["copy_gb_per_second"])


def print_scene(result: dict[str, Any], copy_rate: float) -> None:
    """A row a step, the stages, and how near they come to a copy at `copy_rate` GB/s; for `best` with its kernels."""
    console = _console()
    console.print(_totals(result))
    console.print(_stages(result))
    steps = result["steps"]
    if len(steps) > 1:
        console.print(_rates(result, copy_rate))
    step = "best" if "best" in steps else list(steps)[-1]
    console.print(_roofline(step, steps[step], copy_rate))
    if peers := result.get("peers"):
        console.print(_agreement(result["name"], peers))
    for step, row in result["steps"].items():
        for sentence in row["wrong"]:
            console.print(f"WRONG in {result['name']}, {step}: {sentence}.")
    for name, row in result.get("peers", {}).items():
        if not draws_the_same(row):
            console.print(f"WRONG in {result['name']}, {name}: it draws another picture, so its times say nothing.")


def _console() -> Terminal:
    from splatscope.app.terminal import Terminal

    return Terminal(width=200)


def _table(first: str, title: str, columns: list[str]) -> Table:
    from rich.table import Table

    table = Table(first, title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _totals(result: dict[str, Any]) -> Table:
    title = f"{result['name']}: {result['splats']:,} splats at {result['width']}×{result['height']}; medians in ms"
    times = ["view", "forward", "forward + backward", "10%–90%", "wall", "frames/s"]
    table = _table("step", title, ["pairs", "visible", *times, "against best", ""])
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
    table = _table("step", f"{result['name']}: median ms a stage", names)
    for step, row in result["steps"].items():
        cells = (f"{row['stages'][stage]['median']:.4f}" if stage in row["stages"] else "" for stage in names)
        table.add_row(step, *cells)
    return table


def _rates(result: dict[str, Any], copy_rate: float) -> Table:
    """GB/s of every step's stages by the fewest bytes they must move, and registers of a thread."""
    names = list(dict.fromkeys(stage for row in result["steps"].values() for stage in row["least_bytes"]))
    title = f"{result['name']}: GB/s by the fewest bytes, of a copy's {copy_rate:,.0f}; registers a thread"
    table = _table("step", title, names)
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
    """The fewest bytes of each stage over its time, and the kernels' cost by the compiler's report."""
    title = f"{step}: fewest bytes a stage must move, against {copy_rate:,.0f} GB/s of a copy"
    columns = ["ms", "MB", "GB/s", "of a copy", "registers", "spills", "occupancy"]
    table = _table("stage", title, columns)
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
    table = _table("rasteriser", title, ["lone call, ms", "image, mean", "largest", *gradients])
    for name, row in peers.items():
        table.add_row(
            f"{name} ({row['version']})",
            f"{row['synchronous']['median']:.3f}",
            f"{row['image_mean_difference']:.1e}",
            f"{row['image_largest_difference']:.2f}",
            *(f"{value:.2%}" for value in row["gradient_differences"].values()),
        )
    return table


# ---- A stage taken apart ---------------------------------------------------------------------------------------------


def print_ablation(scene: str, row: dict[str, Any]) -> None:
    """One stage of one step on one scene, part by part."""
    (_print_split if row["part"] == "blend_backward" else _print_parts)(scene, row)


def _print_split(scene: str, row: dict[str, Any]) -> None:
    whole = row["variants"]["off"]["median"]
    removed = {"no_atomics": "atomics", "no_reductions": "and reductions", "loop_floor": "and per-lane arithmetic"}
    title = f"{scene}, {row['step']}: blend_backward, {whole:.4f} ms, without some of its parts"
    table = _table("variant", title, ["ms", "10%–90%", "removed part", "ms", "%", "registers", "spills"])
    for variant, times in row["variants"].items():
        ms, kernel = times["median"], row["kernels"][variant]
        part = (removed[variant], f"{whole - ms:.4f}", f"{(whole - ms) / whole:.1%}") if variant != "off" else ("",) * 3
        costs = (str(kernel.get(key, "")) for key in ("registers", "spill_bytes"))
        table.add_row(variant, f"{ms:.4f}", f"{times['p10']:.4f}–{times['p90']:.4f}", *part, *costs)
    console = _console()
    console.print(table)
    console.print(" / ".join(f"{part} {ms:.4f} ms ({ms / whole:.1%})" for part, ms in row["split"].items()))


def _print_parts(scene: str, row: dict[str, Any]) -> None:
    whole = sum(times["median"] for times in row["parts"].values())
    title = (
        f"{scene}, {row['step']}: from projection to lists, {whole:.4f} ms in kernels launched one by one; "
        f"{row['visible']:,} visible, {row['instances']:,} pairs"
    )
    table = _table("part", title, ["ms", "10%–90%", "share"])
    for name, times in [*_stage_sums(row["parts"]).items(), *row["parts"].items(), *row["beside"].items()]:
        share = "beside" if name in row["beside"] else f"{times['median'] / whole:.1%}"
        spread = f"{times['p10']:.4f}–{times['p90']:.4f}" if "p10" in times else "sum"
        table.add_row(name, f"{times['median']:.4f}", spread, share)
    _console().print(table)


def _stage_sums(parts: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Medians added up for the stages that have several kernels."""
    sums: dict[str, dict[str, float]] = {}
    for name, times in parts.items():
        stage, comma, _ = name.partition(",")
        if comma:
            sums.setdefault(stage, {"median": 0.0})["median"] += times["median"]
    return sums
