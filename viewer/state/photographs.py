"""Keeps how the picture is compared with the photograph of its camera, and whether cameras are drawn. No GUI.

`drawing/photo_layer.py` draws the photograph; the engine fetches it and measures the difference.
"""

from __future__ import annotations

from typing import Literal

from splatscope.viewer.messages.view import PhotographShown, PhotographWish
from splatscope.viewer.state.camera_view import CameraView
from splatscope.viewer.state.engine_link import EngineLink
from splatscope.viewer.state.message_log import MessageLog

Mode = Literal["off", "overlay", "wipe", "error"]
MODES: tuple[Mode, ...] = ("off", "overlay", "wipe", "error")
GRIP = 9  # points around the wipe's line in which the mouse takes hold of it
NO_PHOTOGRAPHS = "There are no photographs to compare with; open the capture that the splats come from."


class Photographs:
    """Holds the way of comparing and its settings."""

    def __init__(self, engine: EngineLink, view: CameraView, log: MessageLog) -> None:
        self._engine, self._view, self._log = engine, view, log
        self.mode: Mode = "off"
        self.opacity = 0.5  # opacity of the photograph over the picture
        self.line = 0.5  # the photograph lies left of this share of the viewport's width
        self.error_top = 0.25  # difference at which the error map's colours end (1: full range)
        self.cameras_shown = False
        self.camera_size = 1.0  # factor on the size that suits the scene

    @property
    def active(self) -> bool:
        """Returns True if a photograph is wanted."""
        return self.mode != "off"

    def compare(self, mode: Mode) -> None:
        """Switches to `mode`, or off if it is on already. A view that has moved returns to the last camera."""
        scene = self._engine.scene
        if scene is None or scene.kind != "dataset" or not scene.cameras:
            self._log.complain("photographs", NO_PHOTOGRAPHS)
            return
        self._log.succeed("photographs")
        self.mode = "off" if self.mode == mode else mode
        if self.active and self._view.at_camera is None:
            self._view.go_to_camera(self._view.camera_index)

    def wish(self) -> PhotographWish | None:
        """Returns the photograph to ask the engine for; None if the view is at no camera or none is wanted."""
        if not self.active or self._view.at_camera is None:
            return None
        return PhotographWish(self._view.camera_index, self.error_top if self.mode == "error" else None)

    def pull_line(self, share: float) -> None:
        """Moves the wipe's line to a share of the viewport's width."""
        self.line = min(max(share, 0.0), 1.0)

    def toggle_cameras(self) -> None:
        """Shows or hides the photographs' cameras over the picture."""
        scene = self._engine.scene
        self.cameras_shown = not self.cameras_shown and bool(scene and scene.cameras)


def psnr_text(shown: PhotographShown | None) -> str:
    """Returns "PSNR 27.31 dB", or why there is none."""
    if shown is None:
        return ""
    return shown.note if shown.psnr is None else f"PSNR {shown.psnr:.2f} dB"
