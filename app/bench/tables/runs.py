"""Makes the tables of whole training runs, for the terminal and for a document, from the rows of `bench/runs.py`.

Seconds to quality are the seconds of training until a run first scores as well as our own `inria` at its end, minus 0.3
or 0.1 dB, on the same capture at the same size. Nothing is measured here.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from splatscope.kernels.errors import InputError

Row = dict[str, Any]
GAPS = (0.3, 0.1)  # dB below our own default
NONE = "–"  # in place of a figure that was not measured
MIDWAY = 7_000  # iterations after which the field also gives scores
MEASURED = (
    "Whole runs: PSNR and SSIM on photographs held out, seconds of training steps alone, and from the start of the "
    "process until the splats are on disk."
)
HEADS = (
    "capture", "trainer", "iterations", f"PSNR after {MIDWAY:,}", "PSNR at the end", "SSIM", "splats", "training, s",
    "start to saved, s", "peak, GiB", f"to {' / '.join(f'−{gap}' for gap in GAPS)} dB, s",
)  # fmt: skip


def print_runs(runs: list[Row]) -> None:
    """Prints a line for each run."""
    for run in runs:
        name, iterations, midway, psnr, ssim, splats, seconds, process, peak = _cells([run])
        on_the_way = "" if midway == NONE else f" ({midway} after {MIDWAY:,} of {iterations})"
        since_start = "" if process == NONE else f", {process} s from the start of the process"
        memory = "" if peak == NONE else f", peak {peak} GiB"
        rate = run["iterations"] / max(run["training_seconds"], 1e-9)
        print(
            f"{run['capture']} {run['width']}×{run['height']}, {name}, seed {run['seed']}: {iterations} iterations, "
            f"{splats} splats, PSNR {psnr} dB{on_the_way}, SSIM {ssim}; {seconds} s of training, {rate:,.0f} it/s"
            f"{memory}; {run['whole_seconds']:.1f} s from reading to saved{since_start}"
        )


def training_table(files: list[tuple[str, Row]]) -> str:
    """Returns Markdown from (link to the file, its results). Raises InputError unless all are of one machine."""
    devices = {results["machine"].get("gpu") or results["machine"]["cpu"] for _, results in files}
    if len(devices) > 1:
        raise InputError(f"The files are of different machines, {' and '.join(sorted(devices))}; give files of one.")
    groups: dict[tuple[Any, ...], list[Row]] = {}  # runs that differ in their seeds only
    for _, results in files:
        for run in results["training_runs"]:
            kind = (run["capture"], run["width"], run["trainer"], run["recipe"], *run["settings"], run["iterations"])
            groups.setdefault(kind, []).append(run)
    lines = [MEASURED, "", f"| {' | '.join(HEADS)} |", f"|---|---|{'--:|' * (len(HEADS) - 2)}"]
    rows = sorted(groups.values(), key=lambda runs: runs[0]["capture"])  # else as they come
    for runs in rows:
        capture = f"{runs[0]['capture']}, {runs[0]['width']}×{runs[0]['height']}"
        times = " / ".join(_seconds_to(runs, _goal(groups, runs[0], gap)) for gap in GAPS)
        lines.append(f"| {' | '.join([capture, *_cells(runs), times])} |")
    return "\n".join([*lines, "", *_words(files)])


def seconds_to(run: Row, psnr: float) -> float | None:
    """Returns the seconds of training before the first scoring of at least `psnr` dB; None if there is none."""
    return next((row[1] for row in run["curve"] if row[2] >= psnr), None)


def psnr_after(run: Row, iterations: int) -> float | None:
    """Returns the PSNR of the run on its way, after `iterations`; None if it was not scored there."""
    return next((row[2] for row in run["curve"] if row[0] == iterations), None)


def _goal(groups: dict[tuple[Any, ...], list[Row]], run: Row, gap: float) -> float | None:
    """Returns the PSNR to reach, from the longest runs of our own default on this capture at this size."""
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
        return NONE
    times = [seconds_to(run, goal) for run in runs]
    reached = [time for time in times if time is not None]
    return f"{median(reached):.1f}" if len(reached) == len(times) else "never"


def _cells(runs: list[Row]) -> list[str]:
    """Returns the medians of one kind of run, with the extremes of PSNR where there are several seeds."""
    first = runs[0]
    words = " ".join([first["trainer"], first["recipe"], *first["settings"]])
    psnr = [run["psnr"] for run in runs]
    several = f" ({min(psnr):.2f}–{max(psnr):.2f}, {len(runs)} seeds)" if len(runs) > 1 else ""
    seconds = median(run["training_seconds"] for run in runs)
    midway = [known for run in runs if (known := psnr_after(run, MIDWAY)) is not None]
    processes = [known for run in runs if (known := run.get("process_seconds")) is not None]
    peaks = [run["peak_gib"] for run in runs if run["peak_gib"] is not None]
    return [
        words,
        f"{first['iterations']:,}",
        f"{median(midway):.2f}" if midway else NONE,
        f"{median(psnr):.2f}{several}",
        f"{median(run['ssim'] for run in runs):.4f}",
        f"{round(median(run['splats'] for run in runs)):,}",
        f"{seconds:.1f}",
        f"{median(processes):.1f}" if processes else NONE,
        f"{max(peaks):.2f}" if peaks else NONE,
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
        f"Scores are not rounded to 8 bits; those after {MIDWAY:,} iterations are of the same run on its way, whose "
        "schedules are those of its full length. Training counts every step, growth included; reading, compiling, "
        "scoring and saving are kept apart in the files, and all of them are in the seconds of the process. Last: "
        "seconds of training until a scoring, every 1,000 iterations, is that close to splatscope inria at its end. "
        f"On {device}; {' and '.join(dates)}; from {links}.",
        *remarks,
    ]
