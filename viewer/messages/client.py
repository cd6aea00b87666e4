"""Declares the engine as the window sees it: it takes view requests and commands, and gives pictures and status."""

from __future__ import annotations

from typing import Protocol

from splatscope.viewer.messages.commands import Command
from splatscope.viewer.messages.view import EngineStatus, Picture, ViewRequest


class EngineClient(Protocol):
    """Connects the window to the engine. Every call but `wait_for_news` returns at once."""

    def request_view(self, request: ViewRequest) -> None:
        """Replaces the wanted picture."""
        ...

    def send(self, command: Command) -> None:
        """Queues a command; failures come back as log lines."""
        ...

    def picture(self) -> Picture | None:
        """Returns the newest finished picture; None before the first."""
        ...

    def status(self) -> EngineStatus:
        """Returns the newest status."""
        ...

    def wait_for_news(self, seconds: float) -> None:
        """Sleeps until there is a new picture or status, for `seconds` at most."""
        ...
