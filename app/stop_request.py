"""Requests to stop: Ctrl-C, a terminate signal, the end of the terminal. A signal that was ignored when the program
began, as `nohup` and shell scripts have it, stays ignored.

Three answers, each for a time: to leave at once while nothing has begun and after everything is printed; to raise
KeyboardInterrupt, so that what was begun is cleared away; and `StopRequest`, a flag, so that nothing is cut in half.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

Answer = Callable[[int, FrameType | None], object]

STOPPED = 130  # the status of a program that was asked to stop
SENTENCE = "splatscope: stopped."
_AGAIN_SECONDS = 0.05  # time for Python to leave the place where an exception is lost
_asked = threading.Event()
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def leave_when_asked(status: int = STOPPED) -> None:
    """Lets a request to stop end the process at once with this status; nothing is cleared away."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        try:
            if status == STOPPED:  # else everything is printed
                os.write(2, f"{SENTENCE}\n".encode())
        finally:
            os._exit(status)

    _answer(leave)


def raise_when_asked() -> None:
    """Lets a request to stop raise KeyboardInterrupt in the main thread, and the next one end the process."""
    _answer(_raise)
    sys.unraisablehook = _raise_again


def ignore_requests() -> None:
    """Lets requests to stop do nothing."""
    _answer(signal.SIG_IGN)


def was_asked() -> bool:
    """Returns True once KeyboardInterrupt has been raised, whatever became of it."""
    return _asked.is_set()


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    _asked.set()
    leave_when_asked()
    _ignore_hang_up(number)
    raise KeyboardInterrupt(number)


def _raise_again(lost: sys.UnraisableHookArgs) -> None:
    """Raises the KeyboardInterrupt that came while Python was in a place that raises nothing, as in `__del__`."""
    if lost.exc_value is not None and issubclass(lost.exc_type, KeyboardInterrupt) and lost.exc_value.args:
        _answer(_raise)
        threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), lost.exc_value.args[0])).start()
    else:
        sys.__unraisablehook__(lost)


def _ignore_hang_up(number: int) -> None:
    """Ignores further hang-ups. The shell sends one and the kernel another, which must not cut short what the first
    began.
    """
    if sys.platform != "win32" and number == signal.SIGHUP:
        signal.signal(number, signal.SIG_IGN)


def _answer(answer: Answer | signal.Handlers) -> dict[int, Any]:
    """Sets the answer to every signal that is not ignored; returns the earlier ones. Only the main thread may."""
    earlier = {}
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                earlier[number] = signal.signal(number, answer)
    return earlier


class StopRequest:
    """Notes a request to stop in `asked`. A second Ctrl-C raises KeyboardInterrupt, to stop at once."""

    def __init__(self) -> None:
        self.asked = False
        self._earlier: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        self._earlier = _answer(self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, answer in self._earlier.items():
            if signal.getsignal(number) != signal.SIG_IGN:  # a terminal that ends sends its signal several times
                signal.signal(number, answer)

    def _take(self, number: int, frame: FrameType | None) -> None:
        _ignore_hang_up(number)
        if self.asked:
            _asked.set()
            raise KeyboardInterrupt(number)
        self.asked = True
