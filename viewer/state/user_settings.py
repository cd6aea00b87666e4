"""Keeps what the user sets for all scenes: frame rates, the training share, text size, recent paths. No GUI.

Every change is written to the preferences file at once. If the file cannot be written, an error says so, and the
change holds until the window closes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from splatscope.kernels.errors import InputError
from splatscope.viewer.config import WindowConfig
from splatscope.viewer.messages.commands import SetViewShare
from splatscope.viewer.state.engine_link import EngineLink
from splatscope.viewer.state.message_log import MessageLog
from splatscope.viewer.state.navigation import Navigator, Vector
from splatscope.viewer.state.preferences import Preferences, SceneSettings

FILE_ERROR = "preferences"  # name of errors about the file, as in `LogLine.about`


class UserSettings:
    """Reads and changes the user's settings; tells the engine those that it needs."""

    def __init__(
        self,
        engine: EngineLink,
        log: MessageLog,
        config: WindowConfig,
        preferences: Preferences,
        display_scale: float,
    ) -> None:
        self._engine, self._log, self._config, self._preferences = engine, log, config, preferences
        self.display_scale = display_scale
        self.ui_scale = config.ui_scale or preferences.preference("ui_scale", display_scale)
        if (self.view_share, self.view_rate) != (config.view_share, config.view_rate):
            self._send_limits()

    @property
    def moving_fps(self) -> float:
        """Returns the pictures a second aimed at while the view moves."""
        return self._preferences.preference("moving_fps", self._config.moving_fps)

    @property
    def view_share(self) -> float:
        """Returns the largest share of the time that pictures of a still view may take during training."""
        return self._preferences.preference("view_share", self._config.view_share)

    @property
    def view_rate(self) -> float:
        """Returns the most pictures a second during training."""
        return self._preferences.preference("view_rate", self._config.view_rate)

    @property
    def recent(self) -> list[Path]:
        """Returns the paths opened last, newest first."""
        return self._preferences.recent

    def set_moving_fps(self, fps: float) -> None:
        """Sets `moving_fps`."""
        self._remember(lambda: self._preferences.prefer("moving_fps", fps))

    def set_view_share(self, share: float) -> None:
        """Sets `view_share`."""
        self._remember(lambda: self._preferences.prefer("view_share", share))
        self._engine.send(SetViewShare(share, self.view_rate))

    def set_view_rate(self, rate: float) -> None:
        """Sets `view_rate`."""
        self._remember(lambda: self._preferences.prefer("view_rate", rate))
        self._engine.send(SetViewShare(self.view_share, rate))

    def set_ui_scale(self, scale: float) -> None:
        """Sets the size of text and controls; 0 takes the display's. The window is then built again."""
        preferences = self._preferences
        self._remember(lambda: preferences.prefer("ui_scale", scale) if scale else preferences.forget("ui_scale"))
        self.ui_scale = scale or self.display_scale

    def of_scene(self, path: Path) -> SceneSettings:
        """Returns what the user set for a scene."""
        return self._preferences.of(path)

    def add_recent(self, path: Path) -> None:
        """Puts a path at the head of the recent ones."""
        self._remember(lambda: self._preferences.opened(path))

    def forget_recent(self) -> None:
        """Empties the list of recent paths."""
        self._remember(self._preferences.forget_recent)

    def set_home(self, path: Path, home: Navigator | None) -> None:
        """Keeps a scene's home view; None forgets it."""
        self._remember(lambda: self._preferences.set_home(path, home))

    def set_up(self, path: Path, up: Vector | None) -> None:
        """Keeps a scene's up axis; None forgets it."""
        self._remember(lambda: self._preferences.set_up(path, up))

    def _send_limits(self) -> None:
        self._engine.send(SetViewShare(self.view_share, self.view_rate))

    def _remember(self, change: Callable[[], None]) -> None:
        try:
            change()
        except InputError as error:
            self._log.complain(FILE_ERROR, f"This change will be forgotten when the window closes: {error}")
        else:
            self._log.succeed(FILE_ERROR)
