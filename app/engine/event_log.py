"""Keeps the lines for the user, and notes what has worked since: a success ends an error about the same thing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from splatscope.kernels.wording import printable
from splatscope.viewer.messages import commands
from splatscope.viewer.messages.commands import Command
from splatscope.viewer.messages.view import LogLine

LOG_LINES = 300
TRAINING, PICTURE = "training", "picture"
_LEVELS: dict[str, Literal["info", "warning", "error"]] = {"warning": "warning", "error": "error"}
_RUNS = commands.StartTraining | commands.StepTraining | commands.GoBack | commands.ResetTraining


class EventLog:
    """Keeps the newest lines and what has worked since. Belongs to the engine's thread."""

    def __init__(self) -> None:
        self.lines: deque[LogLine] = deque(maxlen=LOG_LINES)
        self.done: dict[str, int] = {}  # kind of thing -> serial of the newest line when it last worked
        self._serial = 0
        self._failed = ""  # the kind of thing that failed, until an error line about it is added

    def add(self, level: str, text: str) -> None:
        """Adds a line; an error is about the kind of thing that failed last."""
        self._serial += 1
        about, self._failed = (self._failed, "") if level == "error" else ("", self._failed)
        self.lines.append(LogLine(_LEVELS.get(level, "info"), printable(text), self._serial, about))

    @contextmanager
    def doing(self, kind: str) -> Iterator[None]:
        """Notes whether the work inside, of this kind, succeeds."""
        try:
            yield
        except BaseException:
            self._failed = kind
            raise
        self.done[kind] = self._serial


def kind_of(command: Command) -> str:
    """Names the kind of thing whose success ends an error about a command: the command's own name, or training."""
    return TRAINING if isinstance(command, _RUNS) else type(command).__name__
