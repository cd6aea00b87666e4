"""What the engine tells the user, and what has gone well since: an error is over once the same kind of thing works."""

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
    """See the module's text. Belongs to the engine's thread."""

    def __init__(self) -> None:
        self.lines: deque[LogLine] = deque(maxlen=LOG_LINES)
        self.done: dict[str, int] = {}  # kind of thing -> serial of the newest line when it last went well
        self._serial = 0
        self._failed = ""  # the kind of thing that went wrong, until that is said

    def add(self, level: str, text: str) -> None:
        """A line more; an error is about what went wrong last."""
        self._serial += 1
        about, self._failed = (self._failed, "") if level == "error" else ("", self._failed)
        self.lines.append(LogLine(_LEVELS.get(level, "info"), printable(text), self._serial, about))

    @contextmanager
    def doing(self, kind: str) -> Iterator[None]:
        """Notes whether what happens inside goes well."""
        try:
            yield
        except BaseException:
            self._failed = kind
            raise
        self.done[kind] = self._serial


def kind_of(command: Command) -> str:
    """What has to work for an error about a command to be over: the command, or for a run whatever makes it go on."""
    return TRAINING if isinstance(command, _RUNS) else type(command).__name__
