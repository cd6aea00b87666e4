"""Keeps the engine's newest status and picture for the other parts of the session. No GUI."""

from __future__ import annotations

from splatscope.viewer.messages.client import EngineClient
from splatscope.viewer.messages.commands import Command
from splatscope.viewer.messages.view import EngineStatus, Picture, SceneInfo


class EngineLink:
    """Holds one status and one picture for a whole frame, so that all parts of the window agree."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.status: EngineStatus = client.status()
        self.picture: Picture | None = None

    @property
    def scene(self) -> SceneInfo | None:
        """Returns the open scene; None if nothing is open."""
        return self.status.scene

    def send(self, command: Command) -> None:
        """Queues a command; failures come back as log lines."""
        self.client.send(command)

    def poll_status(self) -> None:
        """Takes the newest status."""
        self.status = self.client.status()

    def poll_picture(self) -> bool:
        """Takes the newest picture; returns True if it is a new one."""
        picture = self.client.picture()
        if picture is None or (self.picture is not None and picture.serial == self.picture.serial):
            return False
        self.picture = picture
        return True
