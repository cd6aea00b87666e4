"""Which message the status bar shows: the newest, as long as it is news. No GUI."""

from __future__ import annotations

from splatscope.viewer.messages.view import LogLine

NEWS_SECONDS = 20.0  # how long a message stays; the log keeps it


class StatusMessage:
    """See the module's text. Messages from before a run moved, its forecast for one, give way to its figures."""

    def __init__(self) -> None:
        self._serial, self._since = 0, 0.0  # of the newest message, and when it came
        self._moves, self._moves_since = False, 0.0

    def newest(self, line: LogLine | None, moves: bool, now: float) -> LogLine | None:
        """Returns the newest `line` of the log while it is to be shown; `moves`: the run has a speed. `now` in seconds,
        on any clock."""
        if moves != self._moves:
            self._moves, self._moves_since = moves, now
        if line is None:
            return None
        if line.serial != self._serial:
            self._serial, self._since = line.serial, now
        is_old = line.level == "info" and moves and self._since < self._moves_since
        return None if is_old or now - self._since >= NEWS_SECONDS else line
