"""What can be laid over the picture tile by tile: which figure, what it is called, where it comes from. No GUI.

All but the first are known only of a frame that was drawn with schedule.record on: `needs_recording`. The colours:
`overlays.py`; the figures: kernels/sm_timeline.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from splatscope.kernels.sm_timeline import TileFigure
from splatscope.kernels.types import Frame, Int32
from splatscope.viewer.messages import OverlayName


@dataclass(frozen=True)
class Overlay:
    """One kind of heatmap."""

    label: str  # in the list of them
    title: str  # of the legend; {clock} is what a recording counts time in
    figure: TileFigure
    needs_recording: bool = True

    def titled(self, clock: str = "cycles", log: bool = False) -> str:
        """The legend's title."""
        return self.title.format(clock=clock) + (", log" if log else "")


OVERLAYS: dict[OverlayName, Overlay] = {
    "tiles": Overlay("Splats listed", "splats per tile", "listed", needs_recording=False),
    "blended": Overlay("Splats blended", "splats blended", "walked"),
    "depth": Overlay("Early-stop depth", "% of the list blended", "depth"),
    "time": Overlay("Time taken", "{clock} per tile", "time"),
    "chunks": Overlay("Chunks", "chunks per tile", "chunks"),
}
WHY_GREY = "Known once a frame has been recorded: press Record this frame in the Schedule panel."


def needs_recording(name: OverlayName) -> bool:
    """True if pictures with this overlay must be drawn with schedule.record on."""
    return name != "none" and OVERLAYS[name].needs_recording


def tile_values(name: OverlayName, frame: Frame) -> Int32 | None:
    """The figures [Ty, Tx] of a frame; None for no overlay, and if they were not recorded."""
    if name == "none":
        return None
    if not OVERLAYS[name].needs_recording:
        return frame.tile_counts
    return None if frame.recording is None else frame.recording.per_tile(OVERLAYS[name].figure)


def title_of(name: OverlayName, frame: Frame, log: bool = False) -> str:
    """What the legend of a frame's overlay says above its numbers."""
    clock = frame.recording.clock if frame.recording is not None else "cycles"
    return OVERLAYS[name].titled(clock, log)
