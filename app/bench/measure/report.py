"""What a benchmark's figures are worth only with: the machine they were taken on, their spread, and where to keep them.

Files, the marks of a text between which a table stands, and the CPU's tables. Nothing is measured here: `bench/cpu.py`
and `bench/ladder.py` do that and hand over plain dictionaries. The GPU's tables: `bench/tables/terminal.py`,
`bench/tables/documents.py`.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

from splatscope.app.revision import revision
from splatscope.app.terminal import Terminal
from splatscope.assets.files.atomic import atomic_path
from splatscope.kernels.errors import InputError
from splatscope.kernels.toggles import in_present_names

FORMAT = "splatscope bench 1"


def spread(values: list[float]) -> dict[str, float]:
    """Median, extremes and the middle 80% of some times, and how many there are."""
    import numpy as np

    low, p10, median, p90, high = np.percentile(values, (0, 10, 50, 90, 100))
    named = {"median": median, "min": low, "p10": p10, "p90": p90, "max": high}
    return {key: round(float(value), 5) for key, value in named.items()} | {"runs": len(values)}


def describe_run(command: str) -> dict[str, Any]:
    """When, with what source and how busy the machine was before the first run."""
    load = list(os.getloadavg()) if hasattr(os, "getloadavg") else None
    return {
        "format": FORMAT,
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": revision(),
        "load_average_at_start": load,
    }


def describe_machine() -> dict[str, Any]:
    """Processor, memory, system and the versions that decide how fast the kernels are."""
    import llvmlite.binding

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


def kind_of(results: dict[str, Any]) -> str:
    """cpu or cuda: whose figures these are; train: of whole runs on either; schedule: of orders and chunks of tiles."""
    if "training_runs" in results:
        return "train"
    if any("frames" in scene for scene in results.get("scenes", [])):
        return "schedule"
    return "cuda" if "gpu" in results["machine"] else "cpu"


def results_path(path: Path, results: dict[str, Any], parts: Sequence[str] = ()) -> Path:
    """The file to write; in a folder, which a path without a suffix is, one named for the processor, what was measured
    and the day."""
    if path.is_file() or (path.suffix and not path.is_dir()):
        return path
    machine = results["machine"]
    words = [machine["gpu"].split()[-1].lower()] if "gpu" in machine else ["cpu", machine["cpu"].lower()]
    stem = re.sub(r"[^A-Za-z0-9]+", "-", "-".join([*words, *parts])).strip("-")
    return path / f"{stem}-{results['run']['date'][:10]}.json"


def write_results(path: Path, results: dict[str, Any]) -> Path:
    """Writes the figures as JSON, whole or not at all; returns where."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return path


def read_results(path: Path) -> dict[str, Any]:
    """Figures written before. Raises InputError if the file is something else."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        if results["run"]["format"] == FORMAT:
            return _with_present_toggles(results)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, TypeError, KeyError):
        pass
    raise InputError(f"{path} was not written by `splatscope bench --out`.")


def _with_present_toggles(results: dict[str, Any]) -> dict[str, Any]:
    """Translates the toggles in names of rows and in command lines, which an earlier version may have written."""
    for scene in results.get("scenes", []):
        if isinstance(scene.get("steps"), dict):
            scene["steps"] = {in_present_names(name): row for name, row in scene["steps"].items()}
    for run in results.get("training_runs", []):
        if isinstance(run.get("settings"), list):
            run["settings"] = [in_present_names(word) for word in run["settings"]]
    return results


def print_results(results: dict[str, Any]) -> None:
    """Tables for the terminal: totals, then stages."""
    console = Terminal()
    console.print(_machine_line(results))
    totals = Table("scene", title="Medians in ms (10%–90%)", title_justify="left")
    for column in ("threads", "forward", "forward + backward"):
        totals.add_column(column, justify="right", no_wrap=True)
    for scene, count, figures in _rows(results):
        name, splats, size, *_ = _scene_cells(scene, count)
        words = f"{name} ({splats} at {size})"
        totals.add_row(words, count, _ms(figures["forward"]), _ms(figures["forward_backward"]))
    console.print(totals)
    for title, stages in _stage_tables(results):
        _print_stages(console, title, stages)
    if compiled := results.get("compile"):
        console.print(
            f"Kernels are ready in {compiled['cold_seconds']:.1f} s when they must be compiled, "
            f"in {compiled['warm_seconds']:.2f} s from the cache."
        )
    if training := results.get("training"):
        console.print(f"Training step, {_training_words(training)}: {_ms(training['step'])} ms")


def _rows(results: dict[str, Any]) -> list[tuple[dict[str, Any], str, dict[str, Any]]]:
    """(scene, thread count, figures) of every line of the table of totals."""
    return [(scene, n, figures) for scene in results["scenes"] for n, figures in scene["threads"].items()]


def _scene_cells(scene: dict[str, Any], threads: str) -> list[str]:
    size = f"{scene['width']}×{scene['height']}"
    return [scene["name"], f"{scene['splats']:,}", size, f"{scene['instances']:,}", threads]


def _ms(times: dict[str, float]) -> str:
    return f"{times['median']:.1f} ({times['p10']:.1f}–{times['p90']:.1f})"


def _stage_tables(results: dict[str, Any]) -> list[tuple[str, dict[str, dict[str, Any]]]]:
    """(title, {column: stages}) a scene, and one for the training step."""
    tables = [
        (f"{scene['name']}: median ms a stage", {_threads(n): f["stages"] for n, f in scene["threads"].items()})
        for scene in results["scenes"]
    ]
    if training := results.get("training"):
        tables.append(("Training step: median ms a stage", {training["capture"]: training["stages"]}))
    return tables


def _threads(count: str) -> str:
    return f"{count} thread{'' if count == '1' else 's'}"


def _print_stages(console: Terminal, title: str, columns: dict[str, dict[str, Any]]) -> None:
    table = Table("stage", title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for stage in next(iter(columns.values())):
        table.add_row(stage, *(f"{stages[stage]['median']:.2f}" for stages in columns.values()))
    console.print(table)


def _training_words(training: dict[str, Any]) -> str:
    size = f"{training['width']}×{training['height']}"
    return f"{training['capture']} at {size}, {training['splats']:,} splats, SH degree {training['sh_degree']}"


def _machine_line(results: dict[str, Any]) -> str:
    machine, run = results["machine"], results["run"]
    memory = f", {machine['memory_gib']} GiB" if machine["memory_gib"] else ""
    load = run["load_average_at_start"]
    busy = f", load {load[0]:.1f} at the start" if load else ""
    return (
        f"{machine['cpu']} ({machine['cpu_target']}), {machine['cores']} cores{memory}; Python {machine['python']}, "
        f"numba {machine['numba']}, NumPy {machine['numpy']}; "
        f"{run['date'][:10]}, revision {run['revision'] or 'unknown'}{busy}."
    )


def markdown_table(results: dict[str, Any]) -> str:
    """Returns the table of the CPU's figures as Markdown: medians, the command and the machine."""
    lines = [
        "| scene | splats | size | instances | threads | forward, ms | forward + backward, ms |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for scene, count, figures in _rows(results):
        times = (f"{figures[kind]['median']:.1f}" for kind in ("forward", "forward_backward"))
        lines.append(f"| {' | '.join([*_scene_cells(scene, count), *times])} |")
    lines.append("")
    if training := results.get("training"):
        lines.append(f"A training step on {_training_words(training)}, takes {training['step']['median']:.1f} ms.")
    if compiled := results.get("compile"):
        lines.append(
            f"Kernels compile in {compiled['cold_seconds']:.0f} s once and load in {compiled['warm_seconds']:.1f} s."
        )
    lines.append(f"Medians by `{results['run']['command']}` on {_machine_line(results)}")
    return "\n".join(lines)


# ---- Tables in a text ------------------------------------------------------------------------------------------------


def check_marks(path: Path, kind: str) -> str:
    """Returns the kind of table that the text file has a place for: `kind`, or "peers" for figures of a GPU. Raises
    InputError if it has none."""
    if kind == "cuda":
        try:
            _split_at_marks(path, "peers")
            return "peers"
        except InputError:
            pass  # the usual table then
    _split_at_marks(path, kind)
    return kind


def rewrite_table(path: Path, kind: str, table: str) -> None:
    """Replaces what stands between the marks in a text file by the table."""
    before, after = _split_at_marks(path, kind)
    opened, closed = _marks(kind)
    with atomic_path(path) as temporary:
        temporary.write_text(f"{before}{opened}\n{table}\n{closed}{after}", encoding="utf-8")


def _marks(kind: str) -> tuple[str, str]:
    return f"<!-- bench:{kind} -->", f"<!-- /bench:{kind} -->"


def _split_at_marks(path: Path, kind: str) -> tuple[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--readme {path} cannot be read as text.") from error
    first, last = _marks(kind)
    before, opened, rest = text.partition(first)
    _, closed, after = rest.partition(last)
    if not opened or not closed:
        raise InputError(f"--readme {path} has no place for the table: it needs {first} and {last} in it.")
    return before, after
