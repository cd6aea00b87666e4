"""What the user wants to see, and the verbs that keys and buttons share. No GUI: the window polls and draws it.

One `Session` lives on the main thread. It reads the engine's newest status and picture, holds the view and
the settings, and hands the engine one `ViewRequest` at a time. Read `input.py` for the keys that call it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np

from splatscope.kernels.policy import Policy
from splatscope.kernels.types import RenderSettings
from splatscope.viewer import messages
from splatscope.viewer.config import WindowConfig
from splatscope.viewer.messages import (
    EngineClient,
    EngineStatus,
    LogLine,
    NamedCamera,
    OverlayName,
    Picture,
    ViewRequest,
)
from splatscope.viewer.navigation import DEFAULT_UP, Navigator, framing_navigator
from splatscope.viewer.resolution import Resolution

STILL_SECONDS = 0.25  # a view that has not changed for so long is rendered at full resolution
LOG_LINES = 2000  # kept for the log panel
CAN_START = ("ready", "paused")


class Session:
    """The window's own state; see the module's text."""

    def __init__(self, client: EngineClient, config: WindowConfig) -> None:
        self.client = client
        self.config = config
        self.nav: Navigator = framing_navigator((-1, -1, -1), (1, 1, 1), fov_y=config.fov_y)
        self.settings = RenderSettings()
        self.policy = Policy()
        self.overlay: OverlayName = config.overlay
        self.overlay_opacity = config.overlay_opacity
        self.stats_shown = False
        self.help_shown = False
        self.viewport: tuple[int, int] = (1, 1)  # px the picture may cover
        self.camera_index = 0  # the training camera last stood at
        self.status: EngineStatus = client.status()
        self.picture: Picture | None = None
        self.log: list[LogLine] = []  # all lines since the window opened, oldest first
        self.error: LogLine | None = None  # the newest one the user has not dismissed
        self._resolution = Resolution()
        self._generation: int | None = None
        self._moved_at = -math.inf
        self._requested: ViewRequest | None = None

    # Each frame --------------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Takes in the engine's newest status and picture; True if there is a new picture."""
        self.status = self.client.status()
        self._take_log()
        scene = self.status.scene
        if scene is not None and scene.generation != self._generation:
            self._generation = scene.generation
            self.error = None  # it was about something else; the log keeps it
            self.settings = RenderSettings(scene.background, scene.sh_degree)
            self.go_home()
        picture = self.client.picture()
        if picture is None or (self.picture is not None and picture.serial == self.picture.serial):
            return False
        self.picture = picture
        height, width = picture.rgba.shape[:2]
        self._resolution.observe(width, height, picture.render_ms)
        return True

    def _take_log(self) -> None:
        last = self.log[-1].serial if self.log else 0
        fresh = [line for line in self.status.log if line.serial > last]
        self.log += fresh
        del self.log[:-LOG_LINES]
        self.error = next((line for line in reversed(fresh) if line.level == "error"), self.error)

    def publish(self) -> None:
        """Asks the engine for the picture that is wanted now."""
        if self.status.scene is None:
            return
        request = self.request(self._resolution.scale(*self.viewport, self._budget_ms()))
        if request != self._requested:
            self._requested = request
            self.client.request_view(request)

    def request(self, scale: float = 1.0) -> ViewRequest:
        """The wanted picture at a share of the viewport's resolution."""
        width, height = (max(1, round(side * scale)) for side in self.viewport)
        camera = self.nav.camera(width, height)
        return ViewRequest(camera, self.settings, self.policy, self.overlay, self.overlay_opacity)

    @property
    def shown_share(self) -> float:
        """Width of the picture on the screen as a share of the viewport's."""
        return self.picture.rgba.shape[1] / self.viewport[0] if self.picture is not None else 1.0

    @property
    def moving(self) -> bool:
        """True while the view changes."""
        return time.perf_counter() - self._moved_at < STILL_SECONDS

    def _budget_ms(self) -> float:
        if self.moving:
            return 1e3 / self.config.moving_fps
        training = self.status.training.state == "running"
        return 1e3 / (self.config.training_fps if training else self.config.still_fps)

    # Navigation --------------------------------------------------------------------------------------

    def move(self, change: Callable[[Navigator], Navigator]) -> None:
        """Applies a movement; a photograph's frame is let go of first."""
        self._set_view(change(self.nav.unframed(*self.viewport)))

    def _set_view(self, nav: Navigator) -> None:
        if nav != self.nav:
            self.nav = nav
            self._moved_at = time.perf_counter()

    def go_home(self) -> None:
        """The first training camera if one is known, else the whole scene, upright as first guessed."""
        scene = self.status.scene
        if scene is None:
            return
        width, height = self.viewport
        nav = framing_navigator(scene.low, scene.high, scene.up, width, height, self.config.fov_y, extent=scene.extent)
        self._set_view(nav)
        if scene.cameras:
            self.go_to_camera(0)

    def frame_scene(self) -> None:
        """Steps back until the scene's middle fills the viewport; the direction stays."""
        scene = self.status.scene
        if scene is not None:
            self.move(lambda nav: nav.framed(scene.low, scene.high, *self.viewport))

    def go_to_camera(self, index: int) -> None:
        """Stands at a training camera; the index wraps."""
        scene = self.status.scene
        if scene is None or not scene.cameras:
            return
        self.camera_index = index % len(scene.cameras)
        center = 0.5 * (np.array(scene.low) + np.array(scene.high))
        self._set_view(self.nav.at_camera(scene.cameras[self.camera_index].camera, _floats(center)))

    def step_camera(self, step: int) -> None:
        """The next or previous training camera; first back to the last one if the view has moved away."""
        self.go_to_camera(self.camera_index + (step if self.at_camera is not None else 0))

    @property
    def at_camera(self) -> NamedCamera | None:
        """The training camera the view stands at, until it moves."""
        scene = self.status.scene
        if scene is None or self.nav.lens.aspect is None or self.camera_index >= len(scene.cameras):
            return None
        return scene.cameras[self.camera_index]

    def pivot_under(self, u: float, v: float) -> None:
        """Turns towards what the picture shows at (u, v), shares of its width and height, to orbit it from now on."""
        picture = self.picture
        if picture is None:
            return
        camera, depth = picture.request.camera, picture.frame.depth
        row, column = int(v * depth.shape[0]), int(u * depth.shape[1])
        if not (0 <= row < depth.shape[0] and 0 <= column < depth.shape[1]):
            return
        z = float(depth[row, column])
        if not math.isfinite(z):
            return
        x = (u * camera.width - camera.cx) / camera.fx
        y = (v * camera.height - camera.cy) / camera.fy
        point = camera.position + camera.matrix[:3, :3].T @ np.array([x * z, y * z, z])
        self.move(lambda nav: nav.looking_at(_floats(point)))

    def reset_up(self) -> None:
        """Back to the up axis that was guessed when the scene was opened."""
        up = self.status.scene.up if self.status.scene else DEFAULT_UP
        self.move(lambda nav: nav.with_up(up))

    # Settings ----------------------------------------------------------------------------------------

    def set_background(self, rgb: Sequence[float]) -> None:
        """RGB in [0, 1]."""
        red, green, blue = (float(min(max(value, 0.0), 1.0)) for value in rgb)
        self.settings = replace(self.settings, background=(red, green, blue))

    def set_sh_degree(self, degree: int) -> None:
        """The highest spherical-harmonic degree to evaluate."""
        self.settings = replace(self.settings, sh_degree=degree)

    def toggle_heatmap(self) -> None:
        """Tile counts over the picture, or not."""
        self.overlay = "none" if self.overlay == "tiles" else "tiles"

    def toggle_stats(self) -> None:
        """Stage times over the picture, or not."""
        self.stats_shown = not self.stats_shown

    def toggle_help(self) -> None:
        """The list of keys, or not."""
        self.help_shown = not self.help_shown

    def dismiss(self) -> None:
        """Closes what lies over the picture, one thing at a time; errors stay in the log."""
        if self.help_shown:
            self.help_shown = False
        else:
            self.error = None

    # Commands ----------------------------------------------------------------------------------------

    def open(self, text: str) -> None:
        """Opens what a person typed or pasted: quotes, spaces around it, ~ and file:// are understood."""
        path = _typed_path(text)
        if path is not None:
            self.client.send(messages.OpenScene(path))

    def save_ply(self, text: str) -> None:
        """Writes the splats as they are to a path a person typed."""
        path = _typed_path(text)
        if path is not None:
            self.client.send(messages.SavePly(path))

    def screenshot(self) -> None:
        """The picture at the viewport's full resolution."""
        if self.status.scene is not None:
            self.client.send(messages.SaveScreenshot(self.request(), self.config.screenshot_dir))

    def toggle_training(self) -> None:
        """Starts, resumes or pauses, whichever the state allows."""
        state = self.status.training.state
        if state in CAN_START:
            self.client.send(messages.StartTraining())
        elif state == "running":
            self.client.send(messages.PauseTraining())

    def step_training(self) -> None:
        """One iteration, if nothing runs."""
        if self.status.training.state in CAN_START:
            self.client.send(messages.StepTraining())

    def stop_training(self) -> None:
        """Saves and ends the run."""
        if self.status.training.state in ("running", "paused"):
            self.client.send(messages.StopTraining())


def _typed_path(text: str) -> Path | None:
    path = text.strip().strip("\"'")
    if path.startswith("file:"):
        path = url2pathname(urlsplit(path).path)
    return Path(path).expanduser() if path else None


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
