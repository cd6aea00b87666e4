"""Declares the window's side of the engine: it posts view requests and commands, and polls pictures and status."""

from __future__ import annotations

from typing import Protocol

from splatscope.viewer.messages.commands import Command
from splatscope.viewer.messages.view import EngineStatus, Picture, ViewRequest


class EngineClient(Protocol):
    """The window's side of the engine. Every call returns at once."""

    def request_view(self, request: ViewRequest) -> None:
        """Replaces the wanted picture."""
        ...

    def send(self, command: Command) -> None:
        """Queues a command; failures come back as log lines."""
        ...

    def picture(self) -> Picture | None:
        """The newest finished picture."""
        ...

    def status(self) -> EngineStatus:
        """The newest snapshot."""
        ...

    def wait_for_news(self, seconds: float) -> None:
        """Sleeps until something new is there, at most that long."""
        ...
