"""Requests to stop (Ctrl-C, a terminate signal, the end of the terminal) as a flag, so that nothing is cut in half.

While one is open, `main.py`'s own answer to them, which ends the process wherever it is, does not hold.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType


class StopRequest:
    """`asked` says whether to stop. Whoever presses Ctrl-C again means now: that raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.asked = False
        self._terminals = [number for number in (1, 2) if os.isatty(number)]
        self._previous: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            ends = [signal.SIGINT, signal.SIGTERM]
            if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
                ends.append(signal.SIGHUP)
            for number in ends:
                self._previous[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _take(self, number: int, frame: FrameType | None) -> None:
        if sys.platform != "win32" and number == signal.SIGHUP:
            self._hang_up()
        elif self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def _hang_up(self) -> None:
        """The shell says it and the kernel says it again: the second must not cut short what the first began. And
        nobody reads on; writing would fail."""
        if sys.platform != "win32":
            self._previous[signal.SIGHUP] = signal.SIG_IGN
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for terminal in self._terminals:
            os.dup2(os.open(os.devnull, os.O_WRONLY), terminal)
