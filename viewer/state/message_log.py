"""Keeps the messages for the user: the log, the newest line, and the error that is shown over the picture. No GUI."""

from __future__ import annotations

from splatscope.viewer.messages.commands import SetRecipe
from splatscope.viewer.messages.view import EngineStatus, LogLine

LOG_LINES = 2000  # kept for the log panel


class MessageLog:
    """Collects the engine's messages and the window's own errors."""

    def __init__(self, remark: str = "") -> None:
        # All lines since the window opened, oldest first. The engine numbers its lines from 1.
        self.lines = [LogLine("warning", remark, 0)] if remark else []
        self.newest: LogLine | None = None  # for the status bar
        self.error: LogLine | None = None  # the newest error that the user has not dismissed

    def take(self, status: EngineStatus) -> None:
        """Adds the engine's new lines, and drops an error once the same action has succeeded."""
        last = self.lines[-1].serial if self.lines else 0
        fresh = [line for line in status.log if line.serial > last]
        self.lines += fresh
        del self.lines[:-LOG_LINES]
        recipe = status.recipe
        if recipe is not None and recipe.refused is not None:  # the recipe form shows this error
            fresh = [line for line in fresh if line.about != SetRecipe.__name__]
        self.newest = fresh[-1] if fresh else self.newest
        self.error = next((line for line in reversed(fresh) if line.level == "error"), self.error)
        if self.error is not None and self.error.serial <= status.done.get(self.error.about, -2):
            self.dismiss()

    def complain(self, about: str, text: str) -> None:
        """Shows an error of the window itself; `about` names the action that failed."""
        self.error = LogLine("error", text, -1, about)

    def succeed(self, about: str) -> None:
        """Dismisses an error about the same action."""
        if self.error is not None and self.error.about == about:
            self.dismiss()

    def dismiss(self) -> None:
        """Hides the error; the engine's errors stay in the log."""
        self.error = None
