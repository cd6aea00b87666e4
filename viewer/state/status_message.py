"""Chooses the message in the status bar: the newest one, for a while. No GUI."""

from __future__ import annotations

from splatscope.viewer.messages.view import LogLine

NEWS_SECONDS = 20.0  # time a message stays; the log keeps it


class StatusMessage:
    """Hides a message after NEWS_SECONDS; once a run has a speed, also a message from before that."""

    def __init__(self) -> None:
        self._serial, self._since = 0, 0.0  # serial of the newest message, and its time
        self._moves, self._moves_since = False, 0.0

    def newest(self, line: LogLine | None, moves: bool, now: float) -> LogLine | None:
        """Returns the newest `line` of the log while the bar should show it.

        `moves`: the run has a speed; `now`: seconds on any clock."""
        if moves != self._moves:
            self._moves, self._moves_since = moves, now
        if line is None:
            return None
        if line.serial != self._serial:
            self._serial, self._since = line.serial, now
        is_old = line.level == "info" and moves and self._since < self._moves_since
        return None if is_old or now - self._since >= NEWS_SECONDS else line
