"""Tables of whole training runs, for the terminal and for a document, from the rows of `bench_recipes.py`.

Seconds to quality: those of training after which a run first scored no less than `inria` of our own at its end, on the
same capture at the same size, minus 0.3 or 0.1 dB. Nothing is measured here.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from splatscope.kernels.errors import InputError

Row = dict[str, Any]
GAPS = (0.3, 0.1)  # dB below our own default
HEADS = ("trainer", "iterations", "splats", "PSNR", "SSIM", "training, s", "it/s", "peak, GiB")


def print_runs(runs: list[Row]) -> None:
    """One line a run."""
    for run in runs:
        name, iterations, splats, psnr, ssim, seconds, rate, peak = _cells([run])
        memory = "" if run["peak_gib"] is None else f", peak {peak} GiB"
        print(
            f"{run['capture']} {run['width']}×{run['height']}, {name}, seed {run['seed']}: {iterations} iterations, "
            f"{splats} splats, PSNR {psnr} dB, SSIM {ssim}; {seconds} s of training, {rate} it/s{memory}; "
            f"{run['whole_seconds']:.1f} s from reading to saved"
        )


def training_table(files: list[tuple[str, Row]]) -> str:
    """Markdown from (link to the file, its results). Raises InputError unless they are of one machine."""
    devices = {results["machine"].get("gpu") or results["machine"]["cpu"] for _, results in files}
    if len(devices) > 1:
        raise InputError(f"The files are of different machines, {' and '.join(sorted(devices))}; give those of one.")
    groups: dict[tuple[Any, ...], list[Row]] = {}  # runs that differ in their seeds only
    for _, results in files:
        for run in results["training_runs"]:
            kind = (run["capture"], run["width"], run["trainer"], run["recipe"], *run["settings"], run["iterations"])
            groups.setdefault(kind, []).append(run)
    heads = ("capture", *HEADS, *(f"to −{gap} dB, s" for gap in GAPS))
    lines = [f"| {' | '.join(heads)} |", f"|---|---|{'--:|' * (len(heads) - 2)}"]
    rows = sorted(groups.values(), key=lambda runs: runs[0]["capture"])  # else as they come
    for runs in rows:
        capture = f"{runs[0]['capture']}, {runs[0]['width']}×{runs[0]['height']}"
        times = [_seconds_to(runs, _goal(groups, runs[0], gap)) for gap in GAPS]
        lines.append(f"| {' | '.join([capture, *_cells(runs), *times])} |")
    return "\n".join([*lines, "", *_words(files)])


def seconds_to(run: Row, psnr: float) -> float | None:
    """Seconds of training before the first scoring of at least so many dB; None if there is none."""
    return next((row[1] for row in run["curve"] if row[2] >= psnr), None)


def _goal(groups: dict[tuple[Any, ...], list[Row]], run: Row, gap: float) -> float | None:
    """What is to be reached: the best of our own default's runs of this capture at this size, by their length."""
    same = [
        other
        for runs in groups.values()
        for other in runs
        if (other["trainer"], other["recipe"], other["settings"]) == ("splatscope", "inria", [])
        and (other["capture"], other["width"]) == (run["capture"], run["width"])
    ]
    if not same:
        return None
    longest = max(other["iterations"] for other in same)
    return median(other["psnr"] for other in same if other["iterations"] == longest) - gap


def _seconds_to(runs: list[Row], goal: float | None) -> str:
    if goal is None:
        return "–"
    times = [seconds_to(run, goal) for run in runs]
    reached = [time for time in times if time is not None]
    return f"{median(reached):.1f}" if len(reached) == len(times) else "not reached"


def _cells(runs: list[Row]) -> list[str]:
    """Of one kind of run: medians, with the extremes of PSNR where there are several seeds."""
    first = runs[0]
    words = " ".join([first["trainer"], first["recipe"], *first["settings"]])
    psnr = [run["psnr"] for run in runs]
    several = f" ({min(psnr):.2f}–{max(psnr):.2f} of {len(runs)} seeds)" if len(runs) > 1 else ""
    seconds = median(run["training_seconds"] for run in runs)
    peaks = [run["peak_gib"] for run in runs if run["peak_gib"] is not None]
    return [
        words,
        f"{first['iterations']:,}",
        f"{round(median(run['splats'] for run in runs)):,}",
        f"{median(psnr):.2f}{several}",
        f"{median(run['ssim'] for run in runs):.4f}",
        f"{seconds:.1f}",
        f"{first['iterations'] / max(seconds, 1e-9):,.0f}",
        f"{max(peaks):.2f}" if peaks else "–",
    ]


def _words(files: list[tuple[str, Row]]) -> list[str]:
    machine = files[0][1]["machine"]
    device = (
        f"{machine['gpu']}, driver {machine['driver']}, torch {machine['torch']}"
        if "gpu" in machine
        else machine["cpu"]
    )
    dates = sorted({results["run"]["date"][:10] for _, results in files})
    links = ", ".join(f"[{link.rpartition('/')[2]}]({link})" for link, _ in files)
    remarks = dict.fromkeys(text for _, results in files for text in results.get("remarks", []))
    return [
        "Held-out scores without rounding to 8 bits. Training counts every step, growth included; reading, compiling, "
        "scoring and saving are kept apart in the files. The last columns: seconds of training until a scoring, every "
        f"1,000 iterations, is that close to splatscope inria at its end. On {device}; {' and '.join(dates)}; from "
        f"{links}.",
        *remarks,
    ]
