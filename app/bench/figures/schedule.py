"""Draws the figures of `splatscope bench schedule` from its results alone; needs matplotlib.

Counterparts of figures 7(c), 8(b), 9(b), 11, 12, 18, 19 and Table 1 of Ryu and Yoo (2026), and one for saturation
flags; those of recorded frames (5 to 7(b), 17, and the simulator) are in `timelines.py`. How they look:
`style.py`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from splatscope.app.bench.figures.style import (
    COLORS,
    INK,
    RATIO,
    Drawing,
    grouped_bars,
    legend,
    log_axis,
    one,
    panels,
    plain,
)
from splatscope.app.bench.figures.timelines import draw_timeline_figures
from splatscope.app.bench.tables.schedule import QUALITY, kind_of_set, mean
from splatscope.kernels.errors import InputError

CHUNK_ALL, FUSED, STREAMS = "chunk all, k = ", "policy fused, ", "policy on two streams"


def draw_figures(results: dict[str, Any], folder: Path) -> list[Path]:
    """Writes schedule-*.png to `folder`. Raises InputError without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(
            "Figures need matplotlib, which is not installed: pip install matplotlib; then `splatscope bench show FILE "
            "--figures FOLDER` draws them from the JSON that --out wrote."
        )
    drawing = Drawing(results, folder)
    for draw in (_lpt, _chunks, _together, _choices, _overall, _fused, _catgs, _saturation, _quality):
        draw(drawing)
    draw_timeline_figures(drawing)
    return drawing.paths


def _scatter(drawing: Drawing, axes: Any, variant: str) -> None:
    """Draws the speed-up of every frame over the grid by its imbalance, in a colour for each set."""
    frames = [found for found in drawing.frames() if variant in found[2]]
    for name in drawing.names:
        own = [(frame["ratio"], gains[variant]) for of, frame, gains in frames if of == name]
        if own:
            axes.scatter(*zip(*own, strict=True), s=24, label=name, **drawing.look_of(name))
    one(axes)
    plain(axes)
    log_axis(axes.xaxis, (frame["ratio"] for _, frame, _ in frames))
    axes.set_xlabel(RATIO)


def _lpt(drawing: Drawing) -> None:
    """Draws figure 7(c)."""
    figure = drawing.figure("Longest tiles first, by imbalance", 7.2, 4.2)
    axes = figure.subplots()
    _scatter(drawing, axes, "lpt")
    axes.set_ylabel("speed-up of blending over the grid")
    legend(axes, outside=True)
    drawing.save(figure, "lpt")


def _chunks(drawing: Drawing) -> None:
    """Draws figure 8(b)."""
    sets = [(scene, gains) for scene, gains in drawing.sets if any(name.startswith(CHUNK_ALL) for name in gains)]
    if not sets:
        return
    figure = drawing.figure("Every tile in k chunks, over longest tiles first", 10, 2.6 * -(-len(sets) // 4) + 0.7)
    for axes, (scene, gains) in zip(panels(figure, len(sets)), sets, strict=True):
        tried = sorted(int(k) for name in gains if (k := name.removeprefix(CHUNK_ALL)).isdigit())
        over = [[a / b for a, b in zip(gains[f"{CHUNK_ALL}{k}"], gains["lpt"], strict=True)] for k in tried]
        for frame in zip(*over, strict=True):
            axes.plot(range(len(tried)), frame, color="#c9ced6", linewidth=1)
        axes.plot(range(len(tried)), [mean(values) for values in over], color=COLORS["chunk all"], marker="o", ms=4)
        axes.set_xticks(range(len(tried)), [str(k) for k in tried])
        axes.set_ylim(bottom=0)
        one(axes)
        plain(axes)
        axes.set_title(scene["name"], fontsize=9)
        axes.set_xlabel("chunks of a tile")
    figure.supylabel("speed-up (grey: a frame, orange: mean)", fontsize=8.5)
    drawing.save(figure, "chunks")


def _by_rank(drawing: Drawing, axes: Any, over: Any) -> None:
    """Draws speed-ups as bars, frames from the most balanced on; `over` takes a frame's speed-ups and its set's."""
    values = []
    gains_of = {scene["name"]: gains for scene, gains in drawing.sets}
    named: set[str] = set()
    for place, (name, _, gains) in enumerate(drawing.frames()):
        label = None if name in named else name
        named.add(name)
        color = drawing.look_of(name)["color"]
        values.append(over(gains, gains_of[name]))
        axes.bar(place, values[-1] - 1, 0.85, bottom=1, color=color, label=label)
    frames = drawing.frames()
    some = range(0, len(frames), max(1, len(frames) // 8))
    axes.set_xticks(list(some), [f"{frames[k][1]['ratio']:.3g}" for k in some])
    one(axes)
    plain(axes)
    log_axis(axes.yaxis, [*values, 1.0])
    axes.set_xlabel("frames sorted by imbalance (their ratio)")


def _together(drawing: Drawing) -> None:
    """Draws figure 9(b)."""
    if not all("best fixed" in gains and f"{CHUNK_ALL}4" in gains for _, gains in drawing.sets):
        return
    figure = drawing.figure("Chunks next to whole tiles: the best fixed h and k of each set", 11, 4)
    left, right = figure.subplots(1, 2)

    def over_all(gains: dict[str, float], of_set: dict[str, list[float]]) -> float:
        every = [name for name in of_set if name.removeprefix(CHUNK_ALL).isdigit()]
        best = max(every, key=lambda name: mean(of_set[name]))
        return gains["best fixed"] / gains[best]

    _by_rank(drawing, left, lambda gains, _: gains["best fixed"] / gains["lpt"])
    _by_rank(drawing, right, over_all)
    left.set(ylabel="speed-up", title="over longest tiles first")
    right.set(title="over every tile chunked, with the best k of the set")
    legend(right, outside=True)
    drawing.save(figure, "together")


def _bars(drawing: Drawing, axes: Any, names: tuple[str, ...]) -> None:
    """Draws mean speed-ups over the grid, a group of bars for each set."""
    sets = drawing.sets
    series = {name: [mean(gains[name]) for _, gains in sets] for name in names if all(name in g for _, g in sets)}
    grouped_bars(axes, drawing.names, series, lambda name: COLORS["chunk all" if name.startswith("chunk") else name])
    one(axes)
    plain(axes)
    values = [value for of in series.values() for value in of]
    if max(values) > 4 * min(values):
        log_axis(axes.yaxis, [*values, 1.0], 1.25)
    else:
        axes.set_ylim(0, 1.15 * max(values))
    axes.set_ylabel("mean speed-up over the grid")
    legend(axes, outside=True)


def _choices(drawing: Drawing) -> None:
    """Draws figure 11."""
    figure = drawing.figure("The policy against choices made in hindsight", max(8.0, 1.3 * len(drawing.sets)), 4.2)
    _bars(drawing, figure.subplots(), ("lpt", "best fixed", "policy", "oracle"))
    drawing.save(figure, "choices")


def _overall(drawing: Drawing) -> None:
    """Draws figure 12."""
    if not all("policy" in gains for _, gains in drawing.sets):
        return
    figure = drawing.figure("Speed-up of blending", 14, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.6))
    _scatter(drawing, left, "policy")
    gains = [found["policy"] for _, _, found in drawing.frames()]
    log_axis(left.yaxis, [*gains, 1.0])
    left.set(ylabel="policy over the grid, each frame")
    legend(left)
    _bars(drawing, right, ("lpt", f"{CHUNK_ALL}4", "CaT-GS", "seed's policy", "policy"))
    drawing.save(figure, "overall")


def _fused(drawing: Drawing) -> None:
    """Draws figure 18."""
    sets = [(scene, gains) for scene, gains in drawing.sets if any(name.startswith(FUSED) for name in gains)]
    if not sets:
        return
    figure = drawing.figure("One kernel for chunks and tiles, by the share of blocks that begin with chunks", 8, 4.2)
    axes = figure.subplots()
    for scene, gains in sets:
        shares = sorted(int(name.removeprefix(FUSED).rstrip("%")) for name in gains if name.startswith(FUSED))
        over = [mean(gains[STREAMS]) / mean(gains[f"{FUSED}{share}%"]) for share in shares]
        axes.plot(shares, over, label=scene["name"], ms=4, **drawing.look_of(scene["name"]))
    one(axes)
    plain(axes)
    axes.set(xlabel="blocks that begin with chunks, %", ylabel="blending time over that on two streams")
    legend(axes, outside=True)
    drawing.save(figure, "fused")


def _catgs(drawing: Drawing) -> None:
    """Draws figure 19."""
    if not all({"policy", "CaT-GS"} <= set(gains) for _, gains in drawing.sets):
        return
    figure = drawing.figure("The policy over CaT-GS", 8, 4)
    axes = figure.subplots()
    _by_rank(drawing, axes, lambda gains, _: gains["policy"] / gains["CaT-GS"])
    axes.set_ylabel("speed-up")
    legend(axes, outside=True)
    drawing.save(figure, "catgs")


def _saturation(drawing: Drawing) -> None:
    """Draws the speed-up by saturation flags, without exact stops."""
    pairs = {
        "every tile in 16 chunks": (f"{CHUNK_ALL}16", f"{CHUNK_ALL}16, no flag"),
        "policy": ("policy, inexact", "policy, inexact, no flag"),
    }
    pairs = {title: pair for title, pair in pairs.items() if all(set(pair) <= set(gains) for _, gains in drawing.sets)}
    if not pairs:
        return
    figure = drawing.figure("Saturation flags: on over off", max(7.0, 1.1 * len(drawing.sets)), 4)
    axes = figure.subplots()
    for number, (title, (with_flag, without)) in enumerate(pairs.items()):
        color = COLORS["chunk all" if number == 0 else "policy"]
        for place, (_, gains) in enumerate(drawing.sets):
            over = [a / b for a, b in zip(gains[with_flag], gains[without], strict=True)]
            at = place + (0.15 if number else -0.15)
            axes.scatter([at] * len(over), over, s=14, color=color, alpha=0.5, label=None if place else title)
            axes.hlines(mean(over), at - 0.12, at + 0.12, color=color, linewidth=2)
    turned = {"rotation": 25, "ha": "right"} if len(drawing.names) > 4 else {}
    axes.set_xticks(range(len(drawing.names)), drawing.names, **turned)
    one(axes)
    plain(axes)
    axes.set_ylabel("speed-up (dots: frames, bars: means)")
    legend(axes, outside=True)
    drawing.save(figure, "saturation")


def _quality(drawing: Drawing) -> None:
    """Draws table 1: the quality of pictures, measured against the picture of the grid."""
    names = [name for name in QUALITY if all(name in gains for _, gains in drawing.sets)]
    scenes = [scene for scene, _ in drawing.sets]
    rows = []
    for scene in scenes:
        least = [min(frame["psnr"][name] for frame in scene["frames"]) for name in names]
        cells = ["same" if value >= 199 else f"{value:.1f} dB" for value in least]
        rows.append([scene["name"], kind_of_set(scene), str(len(scene["frames"])), *cells])
    figure = drawing.figure("Least PSNR against the picture of the grid", 10, 1.2 + 0.27 * len(rows))
    axes = figure.subplots()
    axes.axis("off")
    table = axes.table(
        cellText=rows, colLabels=["set", "tiles are", "frames", *names], loc="upper center", cellLoc="center"
    )
    table.auto_set_font_size(False)
    table.set_fontsize(8)
    for (row, _), cell in table.get_celld().items():
        cell.set_edgecolor("#d7dbe0")
        cell.set_text_props(color=INK, weight="bold" if row == 0 else "normal")
    drawing.save(figure, "quality")
