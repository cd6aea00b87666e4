"""Comparing the picture with the photograph of the camera the view stands at: which way, and where the line is.

State and words only, no GUI: keys and the panel change it, `drawing/photo_layer.py` draws it, the engine fetches and
measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from splatscope.viewer.messages.view import PhotographShown, PhotographWish

Mode = Literal["off", "overlay", "wipe", "error"]
MODES: tuple[Mode, ...] = ("off", "overlay", "wipe", "error")
GRIP = 9  # points around the wipe's line in which the mouse takes hold of it


@dataclass
class PhotoComparison:
    """What the user wants to see of the photograph."""

    mode: Mode = "off"
    opacity: float = 0.5  # of the photograph over the picture
    line: float = 0.5  # share of the viewport's width left of which the photograph lies
    error_top: float = 0.25  # difference at which the error map's colours end, of 1

    @property
    def active(self) -> bool:
        """True if a photograph is wanted."""
        return self.mode != "off"

    def toggle(self, mode: Mode) -> None:
        """This way, or not at all if it is this way already."""
        self.mode = "off" if self.mode == mode else mode

    def wish(self, index: int) -> PhotographWish | None:
        """What to ask the engine for at a camera."""
        return PhotographWish(index, self.error_top if self.mode == "error" else None) if self.active else None

    def pull_line(self, share: float) -> None:
        """Moves the wipe's line to a share of the viewport's width."""
        self.line = min(max(share, 0.0), 1.0)


def spoken_psnr(shown: PhotographShown | None) -> str:
    """ "PSNR 27.31 dB", or why there is none."""
    if shown is None:
        return ""
    return shown.note if shown.psnr is None else f"PSNR {shown.psnr:.2f} dB"
