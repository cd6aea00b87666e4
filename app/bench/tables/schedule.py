"""Judges measured schedules: speed-ups, tables, and whether the aims are reached.

Works on results as `bench/schedule.py` keeps them, so tables can be had again from JSON, without a GPU. Figures:
`bench/figures/schedule.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from splatscope.kernels.errors import InputError

BALANCED, SKEWED = 1.5, 5.0  # imbalance ratios up to and from which a set of frames is called so
LEAST_OF_BALANCED, MEAN_OF_SKEWED, MOST_OF_SKEWED, OVER_CATGS, NEAR_ORACLE = 0.99, 2.9, 5.6, 1.15, 0.02
EXACT = ("grid", "lpt", "seed's policy", "policy")  # the oracle chooses among these and the fixed choices
QUALITY = ("lpt", "chunk all, k = 16", "CaT-GS", "policy, inexact", "policy")
WIDTH = 100  # columns of a table, in a file too


def is_fixed(name: str) -> bool:
    """Returns True if a variant splits the same number of tiles into chunks in every frame."""
    return name.startswith("h = ")


def speed_ups(scene: dict[str, Any]) -> dict[str, list[float]]:
    """Returns variant -> blend time of the grid over its own, frame by frame.

    Two rows are added, both among variants that keep the picture: the fixed choice that is best over the scene, and the
    best of all for each frame.
    """
    frames = scene["frames"]
    found = {
        name: [frame["blend_ms"]["grid"] / frame["blend_ms"][name] for frame in frames]
        for name in frames[0]["blend_ms"]
    }
    fixed = {name: values for name, values in found.items() if is_fixed(name)}
    exact = fixed | {name: found[name] for name in EXACT if name in found}
    if fixed:
        found["best fixed"] = max(fixed.values(), key=mean)
    found["oracle"] = [max(values) for values in zip(*exact.values(), strict=True)]
    return found


def with_plan(scene: dict[str, Any], name: str) -> list[float]:
    """Returns the `speed_ups` of one variant with the time that its plan takes counted."""
    return [f["blend_ms"]["grid"] / (f["blend_ms"][name] + f["schedule_ms"][name]) for f in scene["frames"]]


def mean(values: list[float]) -> float:
    """Returns the arithmetic mean."""
    return sum(values) / len(values)


def kind_of_set(scene: dict[str, Any]) -> str:
    """Returns balanced, uneven or skewed, by the median imbalance ratio of the frames."""
    ratios = sorted(frame["ratio"] for frame in scene["frames"])
    middle = ratios[len(ratios) // 2]
    return "balanced" if middle <= BALANCED else "skewed" if middle >= SKEWED else "uneven"


# ---- What was to be reached ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judgement:
    """Holds one claim about a set of frames, and the measured value."""

    of: str  # name of the set
    claim: str
    found: float
    is_met: bool


def judgements(results: dict[str, Any]) -> list[Judgement]:
    """Judges the policy set by set: blending alone, and in some claims whole frames, plans included."""
    found: list[Judgement] = []
    sets = [(scene, speed_ups(scene)) for scene in results["scenes"]]
    sets = [(scene, gains) for scene, gains in sets if "policy" in gains]
    for scene, gains in sets:
        name, own = scene["name"], gains["policy"]

        def add(claim: str, value: float, is_met: bool, name: str = name) -> None:
            found.append(Judgement(name, claim, value, is_met))

        if kind_of_set(scene) == "balanced":
            add(f"at least {LEAST_OF_BALANCED} x the grid on every frame", min(own), min(own) >= LEAST_OF_BALANCED)
            whole = min(frame["frame_ms"]["grid"] / frame["frame_ms"]["policy"] for frame in scene["frames"])
            add(f"whole frames at least {LEAST_OF_BALANCED} x the grid's", whole, whole >= LEAST_OF_BALANCED)
        share = mean(own) / mean(gains["oracle"])
        add(f"within {NEAR_ORACLE:.0%} of the best for each frame", share, share >= 1 - NEAR_ORACLE)
        if kind_of_set(scene) == "skewed" and "CaT-GS" in gains:
            over = mean([a / b for a, b in zip(own, gains["CaT-GS"], strict=True)])
            add(f"at least {OVER_CATGS} x CaT-GS", over, over >= OVER_CATGS)
    if sets:
        scene, gains = max(sets, key=lambda one: max(frame["ratio"] for frame in one[0]["frames"]))
        own = gains["policy"]
        if kind_of_set(scene) == "skewed":
            whole, best = mean(own), max(own)
            found.append(
                Judgement(scene["name"], f"most skewed: mean of {MEAN_OF_SKEWED} x", whole, whole >= MEAN_OF_SKEWED)
            )
            found.append(
                Judgement(scene["name"], f"most skewed: a frame of {MOST_OF_SKEWED} x", best, best >= MOST_OF_SKEWED)
            )
    return found


# ---- Results of several files ----------------------------------------------------------------------------------------


def newest_of(found: Sequence[tuple[Path | None, dict[str, Any]]]) -> dict[str, Any]:
    """Joins the results of several files into one, with the newest results of each set. Raises InputError.

    `found` holds (file, the results in it).
    """
    for path, results in found:
        scenes = results.get("scenes")
        if not scenes or "ratio" not in scenes[0].get("frames", [{}])[0]:
            raise InputError(f"{path} holds no schedules, which `splatscope bench schedule --out` writes.")
        if results["machine"]["gpu"] != found[0][1]["machine"]["gpu"]:
            raise InputError(f"{path} is of another GPU than {found[0][0]}; show them separately.")
    newest_last = sorted((results for _, results in found), key=lambda results: results["run"]["date"])
    newest = {scene["name"]: (scene, results["run"]) for results in newest_last for scene in results["scenes"]}
    revisions = dict.fromkeys(run["revision"] for _, run in newest.values() if run["revision"])
    return newest_last[-1] | {
        "scenes": [scene for scene, _ in newest.values()],
        "run": newest_last[-1]["run"] | {"revision": ", ".join(revisions)},
    }


def print_results(results: dict[str, Any]) -> None:
    """Prints all tables."""
    for scene in results["scenes"]:
        print_scene(scene)
    print_summary(results)


# ---- Tables ----------------------------------------------------------------------------------------------------------


def print_scene(scene: dict[str, Any]) -> None:
    """Prints a row for each variant: speed-up of blending over the grid, cost of the plan, PSNR of the picture."""
    frames, gains = scene["frames"], speed_ups(scene)
    ratios = [frame["ratio"] for frame in frames]
    title = f"{scene['name']}: imbalance {min(ratios):.2f} to {max(ratios):.2f}, {len(frames)} frames"
    columns = ("blend ms", "speed-up", "least", "most", "plan µs", "frame ms", "PSNR")
    table = _table(title, "variant", columns)
    for name, values in gains.items():
        cells = ["", "", "", ""]
        if name in frames[0]["blend_ms"]:
            blend, plan, whole = (
                mean([frame[key][name] for frame in frames]) for key in ("blend_ms", "schedule_ms", "frame_ms")
            )
            cells = [f"{blend:.3f}", f"{1e3 * plan:.1f}", f"{whole:.3f}", least_psnr(scene, name)]
        spread = (f"{mean(values):.2f}", f"{min(values):.2f}", f"{max(values):.2f}")
        table.add_row(name, cells[0], *spread, *cells[1:])
    _print(table)


def print_summary(results: dict[str, Any]) -> None:
    """Prints a row for each set, the quality of its pictures, and the aims."""
    gpu, date = results["machine"]["gpu"], results["run"]["date"][:10]
    names = ("lpt", "chunk all, k = 4", "CaT-GS", "best fixed", "seed's policy", "policy", "oracle")
    scenes = [(scene, speed_ups(scene)) for scene in results["scenes"]]
    names = [name for name in names if all(name in gains for _, gains in scenes)]
    table = _table(f"Mean speed-up of blending over the grid: {gpu}, {date}", "set", ("imbalance", *names, "with plan"))
    for scene, gains in scenes:
        ratios = [frame["ratio"] for frame in scene["frames"]]
        cells = [f"{mean(gains[name]):.2f}" for name in names]
        planned = f"{mean(with_plan(scene, 'policy')):.2f}" if "policy" in gains else ""
        table.add_row(scene["name"], f"{min(ratios):.2g} to {max(ratios):.2g}", *cells, planned)
    _print(table)

    names = [
        n for n in ("lpt", "chunk all, k = 16", "CaT-GS", "policy, inexact", "policy") if all(n in g for _, g in scenes)
    ]
    table = _table("Least PSNR against the picture of the grid, dB", "set", tuple(names))
    for scene, _ in scenes:
        table.add_row(scene["name"], *(least_psnr(scene, name) for name in names))
    _print(table)

    print_recorded(results)
    table = _table("What was to be reached", "set", ("claim", "found", ""), left=("claim",))
    for one in judgements(results):
        share = one.claim.startswith("within")
        table.add_row(one.of, one.claim, f"{one.found - 1:+.1%}" if share else f"{one.found:.2f} x", _verdict(one))
    _print(table)


def print_recorded(results: dict[str, Any]) -> None:
    """Prints a row for each recorded set: measured SM activity, and the error of simulated makespans."""
    scenes = [scene for scene in results["scenes"] if all("recorded" in frame for frame in scene["frames"])]
    if not scenes:
        return
    names = [n for n in ("grid", "lpt", "CaT-GS", "policy") if all(n in s["frames"][0]["recorded"] for s in scenes)]
    columns = names + [f"{name}, simulator off by" for name in names if name != "CaT-GS"]
    title = "Measured SM activity; the simulator given each unit's own time / splats listed"
    table = _table(title, "set", tuple(columns))
    for scene in scenes:
        frames = [frame["recorded"] for frame in scene["frames"]]
        cells = [f"{mean([frame[name]['sm_activity'] for frame in frames]):.0%}" for name in names]
        for name in names:
            if name != "CaT-GS":
                off = [
                    mean([frame[name]["simulator"][given]["makespan"] for frame in frames])
                    for given in ("durations", "listed")
                ]
                cells.append(" / ".join(f"{value:+.1%}" for value in off))
        table.add_row(scene["name"], *cells)
    _print(table)


def _verdict(one: Judgement) -> str:
    return "yes" if one.is_met else "no"


def least_psnr(scene: dict[str, Any], name: str) -> str:
    """Returns the least PSNR over the frames; "same" for pictures that are alike to the bit."""
    least = min(frame["psnr"][name] for frame in scene["frames"])
    return f"{least:.1f}" if least < 199 else "same"


def _table(title: str, first: str, columns: tuple[str, ...], left: tuple[str, ...] = ()) -> Any:
    table = Table(title=title, title_justify="left", padding=(0, 1))
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right", no_wrap=column == "imbalance")
    return table


def _print(table: Any) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    console.width = max(console.width, WIDTH)  # in a file too, no column is cut
    console.print(table)
