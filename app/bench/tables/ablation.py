"""Prints the tables of a stage that was taken apart. Measured by `bench/ablate.py`."""

from __future__ import annotations

from typing import Any

from splatscope.app.bench.tables.layout import console, wide_table


def print_ablation(scene: str, row: dict[str, Any]) -> None:
    """Prints one stage of one preset on one scene, part by part."""
    (_print_split if row["part"] == "blend_backward" else _print_parts)(scene, row)


def _print_split(scene: str, row: dict[str, Any]) -> None:
    whole = row["variants"]["off"]["median"]
    removed = {"no_atomics": "atomics", "no_reductions": "and reductions", "loop_floor": "and per-lane arithmetic"}
    title = f"{scene}, {row['step']}: blend_backward, {whole:.4f} ms, without some of its parts"
    table = wide_table("variant", title, ["ms", "10%–90%", "removed part", "ms", "%", "registers", "spills"])
    for variant, times in row["variants"].items():
        ms, kernel = times["median"], row["kernels"][variant]
        part = (removed[variant], f"{whole - ms:.4f}", f"{(whole - ms) / whole:.1%}") if variant != "off" else ("",) * 3
        costs = (str(kernel.get(key, "")) for key in ("registers", "spill_bytes"))
        table.add_row(variant, f"{ms:.4f}", f"{times['p10']:.4f}–{times['p90']:.4f}", *part, *costs)
    screen = console()
    screen.print(table)
    screen.print(" / ".join(f"{part} {ms:.4f} ms ({ms / whole:.1%})" for part, ms in row["split"].items()))


def _print_parts(scene: str, row: dict[str, Any]) -> None:
    whole = sum(times["median"] for times in row["parts"].values())
    title = (
        f"{scene}, {row['step']}: from projection to lists, {whole:.4f} ms in kernels launched one by one; "
        f"{row['visible']:,} visible, {row['instances']:,} pairs"
    )
    table = wide_table("part", title, ["ms", "10%–90%", "share"])
    for name, times in [*_stage_sums(row["parts"]).items(), *row["parts"].items(), *row["beside"].items()]:
        share = f"{times['median'] / whole:.1%}" if name in row["parts"] else "not a part"
        spread = f"{times['p10']:.4f}–{times['p90']:.4f}" if "p10" in times else "sum"
        table.add_row(name, f"{times['median']:.4f}", spread, share)
    console().print(table)


def _stage_sums(parts: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Adds up the medians of each stage that has several kernels."""
    sums: dict[str, dict[str, float]] = {}
    for name, times in parts.items():
        stage, comma, _ = name.partition(",")
        if comma:
            sums.setdefault(stage, {"median": 0.0})["median"] += times["median"]
    return sums
