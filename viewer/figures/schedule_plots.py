"""Draws the schedule as images: which multiprocessor was busy when, and tiles by rank. Pure arrays, no GUI.

The panel shows the images and adds labels; sheets are images with labels and a caption, for files. The figures come
from `schedule.py` and kernels/schedule/timeline.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from splatscope.kernels.schedule.rules import Machine, variant
from splatscope.kernels.schedule.simulator import Float64, SimulatedSchedule
from splatscope.kernels.schedule.timeline import Recording
from splatscope.kernels.types import Int32
from splatscope.kernels.wording import counted
from splatscope.viewer.figures.overlays import FAINT, INK, PAPER, Rgba, sheet_font
from splatscope.viewer.messages.view import BlendMachine

GROUND, IDLE = (38, 42, 51), (92, 34, 38)  # colours: between two units; after the last unit
WHOLE, CHUNK, MARKED, SHARE = (84, 160, 255), (240, 184, 78), (255, 255, 255), (92, 201, 130)
FAINTEST = 0.35  # strength of a colour where one of many blocks of a multiprocessor is busy
SHEET_SIZE = (1200, 640)  # px of an image in a file


@dataclass(frozen=True, eq=False)
class Spans:
    """Holds the units of a Gantt chart."""

    machine: Machine
    start: Float64  # [U]
    end: Float64  # [U]
    place: NDArray[np.int64]  # [U] multiprocessor
    tile: NDArray[np.int64]  # [U]
    is_chunk: NDArray[np.bool_]  # [U]

    @staticmethod
    def of_recording(recording: Recording) -> Spans:
        """Takes the units of a recording."""
        is_chunk = recording.parts > 1
        return Spans(
            recording.machine, recording.start, recording.end, recording.multiprocessor, recording.tile, is_chunk
        )

    @staticmethod
    def of_prediction(timeline: SimulatedSchedule, tile: NDArray[np.int64], parts: NDArray[np.int64]) -> Spans:
        """Takes the units of a simulated schedule; `tile` [U], `parts` [T] chunks of each tile."""
        return Spans(timeline.machine, timeline.start, timeline.end, timeline.multiprocessor, tile, parts[tile] > 1)

    @property
    def makespan(self) -> float:
        """Returns the end of the last unit."""
        return float(self.end.max(initial=0.0))


def gantt_image(spans: Spans, width: int, height: int, marked: int | None = None) -> Rgba:
    """Draws multiprocessors from top to bottom, time from left to right; brighter means more busy blocks.

    Idle tails are dark red, chunks amber, units of the tile `marked` white. Several multiprocessors share a row of
    pixels where there are more of them than rows.
    """
    count, makespan = spans.machine.multiprocessors, spans.makespan or 1.0
    rows = min(count, height)
    row, scale = spans.place * rows // count, width / makespan
    each = (
        np.bincount(np.arange(count) * rows // count, minlength=rows)[:, None] * spans.machine.blocks_each
    )  # [rows, 1]

    def busy(chosen: Any) -> Float64:
        """Returns the mean number of busy blocks in each pixel, [rows, width]."""
        return _coverage(row[chosen], scale * spans.start[chosen], scale * spans.end[chosen], rows, width)

    chunks, whole = busy(spans.is_chunk), busy(~spans.is_chunk)
    load = chunks + whole
    color = np.empty((rows, width, 3))
    color[:] = GROUND
    last = np.zeros(rows)
    np.maximum.at(last, row, scale * spans.end)
    color[np.arange(width)[None] >= last[:, None]] = IDLE
    share = np.divide(chunks, load, out=np.zeros_like(load), where=load > 0)[..., None]
    paint = share * np.array(CHUNK) + (1 - share) * np.array(WHOLE)
    strength = np.clip(load, 0, 1) * (FAINTEST + (1 - FAINTEST) * np.clip((load - 1) / np.maximum(each - 1, 1), 0, 1))
    strength = np.where(each == 1, np.clip(load, 0, 1), strength)[..., None]
    color = color * (1 - strength) + paint * strength
    if marked is not None:
        own = np.clip(2.0 * busy(spans.tile == marked), 0, 1)[..., None]
        color = color * (1 - own) + np.array(MARKED) * own
    stretched = color[np.arange(height) * rows // height]
    return _opaque(stretched)


def _coverage(row: NDArray[np.int64], start: Float64, end: Float64, rows: int, width: int) -> Float64:
    """Returns the mean number of a row's intervals over each pixel, [rows, width]."""
    steps = np.zeros((rows, width + 2))
    for edge, sign in ((start, 1.0), (end, -1.0)):
        pixel = np.clip(np.floor(edge), 0, width).astype(np.int64)
        rest = np.clip(edge - pixel, 0.0, 1.0)
        np.add.at(steps, (row, pixel), sign * (1 - rest))
        np.add.at(steps, (row, pixel + 1), sign * rest)
    return np.clip(steps.cumsum(axis=1)[:, :width], 0.0, None)


def ranked_image(counts: Int32, parts: NDArray[np.int64], share: float, width: int, height: int) -> Rgba:
    """Draws the splats of tiles from the heaviest to the lightest, both axes logarithmic.

    Split tiles are amber, with the splats of each chunk in dark amber below; green is a block's even share.
    """
    order = np.argsort(-counts.ravel(), kind="stable")
    ranked, split = counts.ravel()[order], parts[order]
    rank = np.minimum(rank_at(np.arange(width) / max(width - 1, 1), len(order)).astype(np.int64), len(order)) - 1
    top = ranked_top(counts)
    level = height * (1 - height_of(ranked[rank], top))  # [width] y of the count
    piece = height * (1 - height_of(ranked[rank] / np.maximum(split[rank], 1), top))
    y = np.arange(height)[:, None] + 0.5
    color = np.empty((height, width, 3))
    color[:] = GROUND
    is_split = (split[rank] > 1)[None]
    color[(y >= level) & ~is_split] = WHOLE
    color[(y >= level) & is_split] = CHUNK
    color[(y >= piece) & is_split] = tuple(0.55 * c for c in CHUNK)
    edge = np.flatnonzero(np.diff(is_split[0].astype(int)))
    color[:, edge] = MARKED  # the boundary between split and whole tiles
    even = round(height * (1 - float(height_of(np.array(share), top))))
    color[np.clip(np.arange(even, even + max(1, height // 120)), 0, height - 1)] = SHARE
    return _opaque(color)


def ranked_top(counts: Int32) -> float:
    """Returns the end of the axis of splats, a power of ten."""
    return 10.0 ** max(1, math.ceil(math.log10(max(int(counts.max(initial=0)), 2))))


def height_of(values: Any, top: float) -> Float64:
    """Returns the share of the way up the axis of splats, which begins at 1."""
    return np.clip(np.log10(np.maximum(values, 1e-9)) / math.log10(top), 0.0, 1.0)


def rank_at(share: Any, tiles: int) -> Float64:
    """Returns the rank, from 1, at a share of the width."""
    return np.asarray(float(max(tiles, 1))) ** np.asarray(share)


def place_of_rank(rank: float, tiles: int) -> float:
    """Returns the share of the width at a rank, from 1."""
    return math.log(max(rank, 1.0)) / math.log(tiles) if tiles > 1 else 0.0


def powers(top: float) -> list[int]:
    """Returns 1, 10, 100, ... up to `top`."""
    return [10**k for k in range(int(math.log10(top) + 1e-9) + 1)]


def short(value: float) -> str:
    """Returns a number as 1, 10, 100, 1k, 10k or 1M."""
    for size, letter in ((1_000_000, "M"), (1000, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _opaque(color: Float64) -> Rgba:
    rgba = np.full((*color.shape[:2], 4), 255, np.uint8)
    rgba[..., :3] = np.rint(color)
    return rgba


# ---- For files -------------------------------------------------------------------------------------------------------


def gantt_sheet(recording: Recording, caption: str) -> Rgba:
    """Draws a recorded frame with axes, legend and figures."""
    timeline, (width, height) = recording.timeline, SHEET_SIZE
    ms = timeline.makespan / 1e6
    facts = (
        f"{recording.place} activity {recording.activity:.1%}, idle tail {recording.idle_tail:.1%} "
        f"(from {recording.tail_begins / 1e6:.3f} ms), makespan {ms:.3f} ms, {counted(len(recording), 'unit')}"
    )
    count = recording.machine.multiprocessors
    y_labels = [(k / count, f"{recording.place} {k}") for k in range(0, count, max(1, -(-count // 12)))]
    x_labels = [(k / 8, f"{ms * k / 8:.3f}") for k in range(9)]
    legend = (("tile", WHOLE), ("chunk", CHUNK), ("idle tail", IDLE), ("waits", GROUND))
    image = gantt_image(Spans.of_recording(recording), width, height)
    return _sheet(image, "Busy multiprocessors over time, ms", facts, caption, x_labels, y_labels, legend)


def ranked_sheet(counts: Int32, on: BlendMachine, caption: str) -> Rgba:
    """Draws tiles by rank with axes, legend and figures; the cost model splits them by one chunk length."""
    width, height = SHEET_SIZE
    units = variant("length", counts, on.machine, on.costs)
    parts = np.bincount(units.tile, minlength=counts.size)
    total = int(counts.sum(dtype=np.int64))
    share, split, top = total / on.machine.workers, int((parts > 1).sum()), ranked_top(counts)
    facts = (
        f"{counted(counts.size, 'tile')}, {counted(total, 'splat')} listed, heaviest {int(counts.max(initial=0)):,}, "
        "even share of a "
        f"block {share:,.0f}; the model splits {split:,} into {counted(int(parts[parts > 1].sum()), 'chunk')}"
    )
    x_labels = [(place_of_rank(rank, counts.size), short(rank)) for rank in powers(counts.size)]
    y_labels = [(1 - float(height_of(value, top)), short(value)) for value in powers(top)]
    legend = (("whole", WHOLE), ("split", CHUNK), ("even share", SHARE), ("cut", MARKED))
    image = ranked_image(counts, parts, share, width, height)
    return _sheet(image, "Splats of each tile by rank", facts, caption, x_labels, y_labels, legend)


def _sheet(
    image: Rgba,
    title: str,
    facts: str,
    caption: str,
    x_labels: Sequence[tuple[float, str]],
    y_labels: Sequence[tuple[float, str]],
    legend: Sequence[tuple[str, tuple[int, int, int]]],
) -> Rgba:
    """Draws an image on a dark ground; labels are at shares of its width, and of its height from the top."""
    height, width = image.shape[:2]
    font, small = sheet_font(20), sheet_font(16)
    left, top, right, bottom = 80, 74, 30, 66
    paper = Image.new("RGBA", (left + width + right, top + height + bottom), PAPER)
    draw = ImageDraw.Draw(paper)
    draw.text((left, 14), title, fill=INK, font=font)
    draw.text((left, 44), facts, fill=INK, font=small)
    paper.paste(Image.fromarray(image), (left, top))
    for share, text in x_labels:
        x = left + share * width
        draw.line([(x, top + height), (x, top + height + 5)], fill=FAINT)
        draw.text((x, top + height + 8), text, fill=INK, font=small, anchor="ma")
    for share, text in y_labels:
        draw.text((left - 8, top + share * height), text, fill=INK, font=small, anchor="rm")
    draw.text((left, top + height + 38), caption, fill=FAINT, font=small)
    x = float(left + width)
    for name, color in reversed(legend):
        x -= small.getlength(name) + 8
        draw.text((x, 16), name, fill=INK, font=small)
        x -= 16
        draw.rectangle([(x, 18), (x + 11, 29)], fill=color)
        x -= 14
    return np.array(paper)
