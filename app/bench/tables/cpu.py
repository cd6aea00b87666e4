"""Makes the tables of the CPU's figures, for the terminal and as Markdown. Measured by `bench/cpu.py`."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from splatscope.app.options.former_bench import spelled_now
from splatscope.app.terminal import Terminal


def print_results(results: dict[str, Any]) -> None:
    """Prints the tables for the terminal: totals, then stages."""
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
    """Returns (scene, thread count, figures) for each line of the table of totals."""
    return [(scene, n, figures) for scene in results["scenes"] for n, figures in scene["threads"].items()]


def _scene_cells(scene: dict[str, Any], threads: str) -> list[str]:
    size = f"{scene['width']}×{scene['height']}"
    return [scene["name"], f"{scene['splats']:,}", size, f"{scene['instances']:,}", threads]


def _ms(times: dict[str, float]) -> str:
    return f"{times['median']:.1f} ({times['p10']:.1f}–{times['p90']:.1f})"


def _stage_tables(results: dict[str, Any]) -> list[tuple[str, dict[str, dict[str, Any]]]]:
    """Returns (title, {column: stages}) for each scene and for the training step."""
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
    lines.append(f"Medians by `{spelled_now(results['run']['command'])}` on {_machine_line(results)}")
    return "\n".join(lines)
