"""Keeps which questions, dialogs and lists lie over the picture. No GUI: `viewer/dialogs` shows them."""

from __future__ import annotations

from typing import Literal

from splatscope.viewer.state.engine_link import EngineLink

Browsing = Literal["", "open", "save"]  # purpose of the file browser; empty while it is hidden


class Dialogs:
    """Knows which dialogs are open; Esc closes the topmost."""

    def __init__(self, engine: EngineLink) -> None:
        self._engine = engine
        self.closing = False  # the window asks whether to close during a run
        self.resetting = False  # the window asks whether to start the run over
        self.browser: Browsing = ""
        self.help_shown = False
        self.thumbnails_shown = False
        self.stats_shown = False

    def browse(self, purpose: Browsing) -> None:
        """Shows the file browser; does nothing if there are no splats to save."""
        if purpose != "save" or self._engine.scene is not None:
            self.browser = purpose

    def toggle_thumbnails(self) -> None:
        """Shows or hides the photographs to choose from."""
        scene = self._engine.scene
        self.thumbnails_shown = not self.thumbnails_shown and bool(scene and scene.cameras)

    def toggle_stats(self) -> None:
        """Shows or hides the stage times over the picture."""
        self.stats_shown = not self.stats_shown

    def toggle_help(self) -> None:
        """Shows or hides the list of keys."""
        self.help_shown = not self.help_shown

    def close_topmost(self) -> bool:
        """Closes the topmost question, dialog or list that Esc closes; returns False if none is open."""
        if self.closing or self.resetting:
            self.closing = self.resetting = False
        elif self.browser:
            self.browser = ""
        elif self.help_shown:
            self.help_shown = False
        elif self.thumbnails_shown:
            self.thumbnails_shown = False
        else:
            return False
        return True
