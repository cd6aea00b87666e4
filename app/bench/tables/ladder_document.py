"""Makes the tables of the ladder for documents, from the JSON files that `bench ladder --out` wrote.

- The presets of a scene come from its run with most presets, the newest if there are several.
- Other rasterisers come from the newest run with some, as times and as multiples of `best` in that same run.

Nothing is measured here, and no GPU is needed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from splatscope.app.bench.tables.ladder import draws_the_same, verdicts
from splatscope.kernels.errors import InputError
from splatscope.kernels.ladder import STEPS

Row = dict[str, Any]
MEASURED = "Milliseconds of the kernels that draw one picture and take its gradient back; no loss, no optimiser."


@dataclass(frozen=True)
class _Source:
    """Holds one scene of one file."""

    link: str
    results: dict[str, Any]
    scene: dict[str, Any]

    @property
    def steps(self) -> dict[str, Row]:
        """Returns our own rows; none where a stage was taken apart."""
        return self.scene.get("steps", {})


def cuda_table(files: list[tuple[str, dict[str, Any]]]) -> str:
    """Returns the whole ladder as Markdown, from (link to the file, its results).

    Raises InputError unless the files are of one GPU and hold a ladder.
    """
    found = _figures(files)
    columns = found.columns
    lines = _step_lines(columns) + _viewing_lines(columns) + _peer_lines(columns, found.peers)
    words = _words(columns, found.peers, found.views)
    return "\n".join([MEASURED, "", *lines, "", *words])


def peers_table(files: list[tuple[str, dict[str, Any]]]) -> str:
    """Returns `best` and other rasterisers alone as Markdown, medians without their spread. Raises as `cuda_table`."""
    found = _figures(files)
    heads = [f"{s.scene['name']}, {_millions(s.scene['splats'])} splats" for s in found.columns]
    lines = [f"| forward + backward, ms | {' | '.join(heads)} |", f"|---|{'--:|' * len(heads)}"]
    best = [_digits(s.steps["best"]["forward_backward"]["median"]) for s in found.columns]
    lines.append(f"| **splatscope** | {' | '.join(f'**{ms}**' for ms in best)} |")
    for line in _peer_lines(found.columns, found.peers):
        lines.append(re.sub(r" \([\d.–]+\), ([\d.]+)× best", r" (\1×)", line).removesuffix(" |"))
    machine = found.columns[0].results["machine"]
    return "\n".join([*lines, "", f"{machine['gpu']}; medians of kernels alone, in turns on the same tensors."])


@dataclass(frozen=True)
class _Figures:
    """Holds the scenes of several files that a table shows."""

    columns: list[_Source]  # for each scene, its run with most presets
    peers: dict[str, _Source]  # scene name -> the newest run with other rasterisers
    views: list[_Source]  # scenes at another size than their own


def _figures(files: list[tuple[str, dict[str, Any]]]) -> _Figures:
    gpus = sorted({results["machine"]["gpu"] for _, results in files})
    if len(gpus) > 1:
        raise InputError(f"The files are of different GPUs, {' and '.join(gpus)}; give files of one GPU.")
    newest_last = sorted(files, key=lambda file: file[1]["run"]["date"])
    sources = [_Source(link, results, scene) for link, results in newest_last for scene in results["scenes"]]
    whole = [s for s in sources if {"s00", "best"} <= s.steps.keys() and " at " not in s.scene["name"]]
    ladders = {s.scene["name"]: s for s in sorted(whole, key=lambda s: len(s.steps.keys() & STEPS.keys()))}
    peers = {s.scene["name"]: s for s in sources if s.scene.get("peers") and "best" in s.steps}
    if not ladders:
        raise InputError("None of the files has a scene with s00 and best: run `splatscope bench ladder --out FILE`.")
    columns = [ladders[name] for name in sorted(ladders)]
    views = {s.scene["name"]: s for s in sources if " at " in s.scene["name"] and "best" in s.steps}
    return _Figures(columns, peers, [*views.values()])


def _step_lines(columns: list[_Source]) -> list[str]:
    heads = [f"{s.scene['name']}, {_millions(s.scene['splats'])}, {_size(s.scene)}" for s in columns]
    lines = [
        f"| forward + backward, ms | {' | '.join(heads)} | where it does not win |",
        f"|---|{'--:|' * len(heads)}---|",
    ]
    words = {s.scene["name"]: verdicts(s.steps) for s in columns}
    for step in (name for name in STEPS if any(name in s.steps for s in columns)):
        cells = [_spread(s.steps[step]["forward_backward"]) if step in s.steps else "not measured" for s in columns]
        said = {name: found[step] for name, found in words.items() if step in found}
        lines.append(f"| {step} | {' | '.join(cells)} | {_gathered(said, len(columns))} |")
    return lines


def _viewing_lines(columns: list[_Source]) -> list[str]:
    best = [s.steps["best"] for s in columns]
    views = " | ".join(_spread(row["view"]) for row in best)
    frames = " | ".join(f"{1e3 / row['wall_ms']['view']:,.0f}" for row in best)
    return [f"| best, forward for viewing | {views} | |", f"| best, frames a second by the wall clock | {frames} | |"]


def _peer_lines(columns: list[_Source], peers: dict[str, _Source]) -> list[str]:
    names = dict.fromkeys(name for s in peers.values() for name in s.scene["peers"])
    lines = []
    for name in names:
        version, cells = "", []
        for column in columns:
            source = peers.get(column.scene["name"])
            row = source.scene["peers"].get(name) if source is not None else None
            if source is None or row is None:
                cells.append("not measured")
                continue
            version = row["version"]
            if not draws_the_same(row):
                cells.append("draws another picture")
                continue
            times, best = row["forward_backward"], source.steps["best"]["forward_backward"]
            cells.append(f"{_spread(times)}, {times['median'] / best['median']:.1f}× best")
        lines.append(f"| {name} ({version}) | {' | '.join(cells)} | |")
    return lines


def _words(columns: list[_Source], peers: dict[str, _Source], views: list[_Source]) -> list[str]:
    machine = columns[0].results["machine"]
    links = dict.fromkeys(s.link for s in [*columns, *peers.values(), *views])
    runs = sorted({s.results["run"]["date"][:10] for s in [*columns, *peers.values()]})
    revisions = sorted({s.results["run"]["revision"] for s in columns} - {None})
    source = f", revision {', '.join(revisions)}" if revisions else ""
    repeats = {s.steps["best"]["forward_backward"]["runs"] for s in columns}
    lines = [
        f"Medians (10%–90%) of {' or '.join(map(str, sorted(repeats)))} runs in turns, kernels only, on "
        f"{machine['gpu']}, driver {machine['driver']}, CUDA {machine['cuda']}, torch {machine['torch']}, "
        f"CuPy {machine['cupy']}; "
        f"{' and '.join(runs)}{source}; from "
        + ", ".join(f"[{link.rpartition('/')[2]}]({link})" for link in links)
        + "."
    ]
    for source in views:  # at another size than the scene's own
        name, best = source.scene["name"], source.steps["best"]
        lines.append(
            f"{name} for viewing: {_spread(best['view'])} ms, {1e3 / best['wall_ms']['view']:,.0f} frames a second by "
            "the wall clock."
        )
    absent = list(dict.fromkeys(text for s in peers.values() for text in s.results.get("absent_peers", [])))
    if peers:
        lines.append("Other rasterisers took turns with `best` on the same tensors; their multiples are of that run.")
        lines += absent
    else:
        lines.append("No other rasteriser was timed in these runs, so nothing is claimed against any.")
    return lines


def _gathered(said: dict[str, str], scenes: int) -> str:
    """Joins the scenes with the same verdict into one sentence each."""
    by_word: dict[str, list[str]] = {}
    for scene, word in said.items():
        by_word.setdefault(word, []).append(scene)
    return "; ".join(word if len(names) == scenes else f"{', '.join(names)} {word}" for word, names in by_word.items())


def _spread(times: Row) -> str:
    return f"{_digits(times['median'])} ({_digits(times['p10'])}–{_digits(times['p90'])})"


def _digits(ms: float) -> str:
    return f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}" if ms >= 1 else f"{ms:.3f}"


def _size(scene: Row) -> str:
    return f"{scene['width']}×{scene['height']}"


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f}M" if count >= 1_000_000 else f"{count // 1000}k"
