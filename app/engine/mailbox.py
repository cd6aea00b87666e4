"""Passes values between the window's thread and the engine's.

To the engine: the newest view request, which replaces the one before, and a queue of commands. To the window: the
newest picture and the newest status. All values are immutable, so the lock is held only to store and to look.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from splatscope.viewer.messages.commands import Command
from splatscope.viewer.messages.view import EngineStatus, Picture, ViewRequest


class Mailbox:
    """Keeps the newest value of each kind and wakes whoever waits for one. Any thread may call it."""

    def __init__(self) -> None:
        self._news = threading.Condition()  # guards all fields
        self._request: ViewRequest | None = None
        self._commands: deque[Command] = deque()
        self._photograph_came = False
        self._closing = False
        self._picture: Picture | None = None
        self._status = EngineStatus(busy="starting…")

    # ---- The window's side -------------------------------------------------------------------------

    def request_view(self, request: ViewRequest) -> None:
        """Replaces the wanted picture."""
        with self._news:
            if request != self._request:
                self._request = request
                self._news.notify_all()

    def send(self, command: Command) -> None:
        """Queues a command."""
        with self._news:
            self._commands.append(command)
            self._news.notify_all()

    def close(self) -> None:
        """Asks the engine to end."""
        with self._news:
            self._closing = True
            self._news.notify_all()

    def picture(self) -> Picture | None:
        """Returns the newest finished picture."""
        with self._news:
            return self._picture

    def status(self) -> EngineStatus:
        """Returns the newest status."""
        with self._news:
            return self._status

    def wait_for_news(self, seconds: float) -> None:
        """Sleeps until anything is new, for `seconds` at most."""
        with self._news:
            self._news.wait(seconds)

    # ---- The engine's side -------------------------------------------------------------------------

    @property
    def closing(self) -> bool:
        """Returns True once the engine is to end."""
        return self._closing

    @property
    def request(self) -> ViewRequest | None:
        """Returns the wanted picture; None until there is one."""
        return self._request

    def take_command(self) -> Command | None:
        """Takes the oldest command; None if there is none."""
        with self._news:
            return self._commands.popleft() if self._commands else None

    def tell_of_photograph(self) -> None:
        """Wakes the engine because a photograph has been read. The thread that reads them calls this."""
        with self._news:
            self._photograph_came = True
            self._news.notify_all()

    def take_photograph_news(self) -> bool:
        """Returns True once if a photograph has been read since the last call."""
        with self._news:
            came, self._photograph_came = self._photograph_came, False
        return came

    def show(self, picture: Picture) -> None:
        """Hands the window a picture."""
        with self._news:
            self._picture = picture
            self._news.notify_all()

    def publish(self, status: EngineStatus) -> None:
        """Hands the window a status."""
        with self._news:
            self._status = status
            self._news.notify_all()

    def sleep(self, seconds: float, unless: Callable[[], bool]) -> None:
        """Sleeps until anything is new, for `seconds` at most; not at all if something waits or `unless` returns True.

        `unless` is asked under the lock, so that no request slips in between the question and the sleep.
        """
        with self._news:
            if not (self._closing or self._commands or self._photograph_came or unless()):
                self._news.wait(seconds)
