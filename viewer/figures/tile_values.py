"""Lists the kinds of heatmap, and reads their values and legends from a frame. No GUI.

All kinds but the first need a frame that was drawn with schedule.record on: `needs_recording`. The colours are in
`overlays.py`, the figures in kernels/schedule/timeline.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from splatscope.kernels.schedule.timeline import TileFigure
from splatscope.kernels.types import Frame, Int32
from splatscope.viewer.messages.scale import PERCENTILE, HeatScale
from splatscope.viewer.messages.view import OverlayName


@dataclass(frozen=True)
class Overlay:
    """Describes one kind of heatmap."""

    label: str  # name in the panel's list
    title: str  # legend's title; {clock} is the unit of times on the screen
    figure: TileFigure
    column: str  # heading in a table; {clock} is the unit of recorded times
    needs_recording: bool = True


OVERLAYS: dict[OverlayName, Overlay] = {
    "tiles": Overlay("Splats listed", "splats per tile", "listed", "splats_listed", needs_recording=False),
    "blended": Overlay("Splats blended", "splats blended", "walked", "splats_blended"),
    "depth": Overlay("Early-stop depth", "% of the list blended", "depth", "percent_blended"),
    "time": Overlay("Time taken", "{clock} per tile", "time", "time_{clock}"),
    "chunks": Overlay("Chunks", "chunks per tile", "chunks", "chunks"),
}
WHY_GREY = "The grey choices need a recorded frame: press Record this frame in the Schedule panel."


def needs_recording(name: OverlayName) -> bool:
    """Returns True if pictures with this overlay must be drawn with schedule.record on."""
    return name != "none" and OVERLAYS[name].needs_recording


def tile_values(name: OverlayName, frame: Frame) -> Int32 | None:
    """Returns the values [Ty, Tx] of a frame; None for no overlay, and if they were not recorded."""
    if name == "none":
        return None
    if not OVERLAYS[name].needs_recording:
        return frame.tile_counts
    return None if frame.recording is None else frame.recording.per_tile(OVERLAYS[name].figure)


@dataclass(frozen=True)
class Legend:
    """Holds the words on a colour bar."""

    title: str  # "µs per tile, log"
    labels: tuple[tuple[str, float], ...]  # text, and share of the way up; lowest first
    note: str = ""  # the highest value, if the scale ends below it


def legend_of(name: OverlayName, frame: Frame, scale: HeatScale) -> Legend | None:
    """Returns the words for a frame's overlay on a scale; None if the frame has no such values."""
    values = tile_values(name, frame)
    if values is None:
        return None
    return make_legend(title_of(name, frame), values, scale, unit_of(name, frame)[1])


def make_legend(title: str, values: Int32, scale: HeatScale, unit: int = 1) -> Legend:
    """Returns the words for figures of any shape; labels are in `unit`s."""
    top, ticks = (end := scale.top(values)), scale.ticks(end)
    labels = zip((figure_text(tick / unit) for tick in ticks), scale.place(ticks, top).tolist(), strict=True)
    most = int(values.max(initial=0))
    ends = "" if scale.locked_top is not None else f"ends at p{PERCENTILE}, "
    note = f"{ends}max {figure_text(most / unit)}" if most > top else ""
    return Legend(title + (", log" if scale.log else ""), tuple(labels), note)


def title_of(name: OverlayName, frame: Frame) -> str:
    """Returns the title of a frame's overlay: the meaning of its values, and their unit."""
    return OVERLAYS[name].title.format(clock=unit_of(name, frame)[0])


def unit_of(name: OverlayName, frame: Frame) -> tuple[str, int]:
    """Returns the unit on the screen for a frame's values, and how many recorded units make one of it."""
    if OVERLAYS[name].figure != "time" or frame.recording is None:
        return "cycles", 1
    return ("µs", 1000) if frame.recording.clock == "ns" else (frame.recording.clock, 1)


def figure_text(value: float) -> str:
    """Returns a number for a legend: 0.02, 4.5, 200, 20,000."""
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.2g}"


def column_of(name: OverlayName, frame: Frame) -> str:
    """Returns the name of a frame's values in a table, with the unit of `tile_values`."""
    return OVERLAYS[name].column.format(clock=frame.recording.clock if frame.recording is not None else "cycles")
