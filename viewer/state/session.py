"""Holds the parts of the window's state, polls the engine and asks it for pictures. No GUI.

One `Session` lives on the main thread. Keys and buttons call methods of its parts; panels read the parts they show.
Each part is a file of this folder. Read `input.py` for the keys.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from splatscope.viewer.config import WindowConfig
from splatscope.viewer.figures.tile_values import needs_recording
from splatscope.viewer.messages import commands
from splatscope.viewer.messages.client import EngineClient
from splatscope.viewer.messages.view import ViewRequest
from splatscope.viewer.state.camera_view import CameraView
from splatscope.viewer.state.dialogs import Dialogs
from splatscope.viewer.state.engine_link import EngineLink
from splatscope.viewer.state.folders import typed_path
from splatscope.viewer.state.frame_rate import FrameRate
from splatscope.viewer.state.heatmap import Heatmap
from splatscope.viewer.state.measurements import Measurements
from splatscope.viewer.state.message_log import MessageLog
from splatscope.viewer.state.photographs import Photographs
from splatscope.viewer.state.preferences import Preferences
from splatscope.viewer.state.resolution import Resolution
from splatscope.viewer.state.run_verbs import RunVerbs
from splatscope.viewer.state.toggles import Toggles
from splatscope.viewer.state.user_settings import UserSettings


class Session:
    """Connects the parts: what the user wants to see becomes one `ViewRequest` after the other."""

    def __init__(self, client: EngineClient, config: WindowConfig, display_scale: float = 1.0) -> None:
        preferences = Preferences.load(config.preferences_file)
        self.config = config
        self.engine = engine = EngineLink(client)
        self.log = MessageLog(preferences.remark)
        self.settings = UserSettings(engine, self.log, config, preferences, display_scale)
        self.view = CameraView(engine, self.settings, config.fov_y)
        self.toggles = Toggles(engine, config.policy, config.keeps_filter)
        self.heatmap = Heatmap.starting_with(config.overlay, config.overlay_opacity)
        self.photographs = Photographs(engine, self.view, self.log)
        self.dialogs = Dialogs(engine)
        self.run = RunVerbs(engine, self.dialogs, self.log)
        self.measurements = Measurements(engine, self.toggles, self.request, config.measurement_dir)
        self.frame_rate = FrameRate()
        self.generation: int | None = None  # generation of the scene that the window shows
        self._resolution = Resolution()
        self._requested: ViewRequest | None = None

    # Each frame --------------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Takes the engine's newest status and picture; returns True if the picture is a new one."""
        self.engine.poll_status()
        self.log.take(self.engine.status)
        scene = self.engine.scene
        if scene is not None and scene.generation != self.generation:
            self.generation = scene.generation
            self.log.dismiss()  # the error was about the scene before; the log keeps it
            self.photographs.mode = "off"
            self.settings.add_recent(scene.path)
            self.view.start_scene(scene)
        if scene is not None:
            self.toggles.follow_filter(scene)
        self._undo_refused()
        if not self.engine.poll_picture() or self.engine.picture is None:
            return False
        height, width = self.engine.picture.rgba.shape[:2]
        self._resolution.observe(width, height, self.engine.picture.render_ms)
        return True

    def _undo_refused(self) -> None:
        """Undoes the change of a toggle or of the heatmap that led to a policy which the engine refuses."""
        refused = self.engine.status.refused
        if refused is None:
            return
        if refused == self.toggles.policy:
            self.toggles.undo_refused(self.engine.status.policy)
        elif self._requested and refused == self._requested.policy:  # the heatmap added to the policy
            self.heatmap.show("none")

    def publish(self) -> None:
        """Asks the engine for the picture that is wanted now."""
        if self.engine.scene is None:
            return
        request = self.request(self._resolution.scale(*self.view.size, self._budget_ms()))
        if request != self._requested:
            self._requested = request
            self.engine.client.request_view(request)

    def request(self, scale: float = 1.0) -> ViewRequest:
        """Returns the request for the wanted picture, at `scale` times the viewport's sides."""
        width, height = (max(1, round(side * scale)) for side in self.view.size)
        camera, heatmap, policy = self.view.nav.camera(width, height), self.heatmap, self.toggles.policy
        wish = self.photographs.wish()
        overlay = heatmap.overlay if wish is None else "none"  # the heatmap's colours would count as errors
        policy = policy.with_value("schedule", "record", "on") if needs_recording(overlay) else policy
        settings = self.view.render_settings
        return ViewRequest(camera, settings, policy, overlay, heatmap.opacity, heatmap.scale, wish)

    def _budget_ms(self) -> float:
        """Returns the time that a picture should take at most."""
        if self.view.moving:
            return 1e3 / self.settings.moving_fps
        training = self.engine.status.training.state == "running"
        return 1e3 / (self.config.training_fps if training else self.config.still_fps)

    @property
    def picture_share(self) -> float:
        """Returns the width of the picture on the screen as a share of the viewport's."""
        picture = self.engine.picture
        return picture.rgba.shape[1] / self.view.size[0] if picture is not None else 1.0

    # What a person asks for --------------------------------------------------------------------------

    def dismiss(self) -> None:
        """Closes one thing that lies over the picture; errors stay in the log."""
        if self.dialogs.close_topmost():
            return
        if self.log.error is not None:
            self.log.dismiss()
        else:
            self.photographs.mode = "off"

    def open(self, text: str) -> None:
        """Opens the path that a person typed or pasted."""
        path = typed_path(text)
        if path is not None:
            self.engine.send(commands.OpenScene(path))

    def save_ply(self, path: Path) -> None:
        """Writes the present splats."""
        self.engine.send(commands.SavePly(path))

    def screenshot(self, heatmap: bool = False) -> None:
        """Saves the picture at the viewport's full resolution; with the heatmap and its counts if it is on or
        `heatmap` asks for it."""
        if self.engine.scene is not None:
            request = self.request()
            request = replace(request, overlay=self.heatmap.kind) if heatmap else request
            self.engine.send(commands.SaveScreenshot(request, self.config.screenshot_dir))
