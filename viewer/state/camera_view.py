"""Keeps the camera and moves it: home, framing, photographs' cameras, up axis. No GUI.

The mathematics is in `navigation.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from splatscope.kernels.types import RenderSettings
from splatscope.viewer.messages.view import NamedCamera, SceneInfo
from splatscope.viewer.state.engine_link import EngineLink
from splatscope.viewer.state.navigation import DEFAULT_UP, Navigator, framing_navigator
from splatscope.viewer.state.user_settings import UserSettings

STILL_SECONDS = 0.25  # after this long without a change, the view is rendered at full resolution


class CameraView:
    """Holds where the user looks from, and how the scene is rendered there."""

    def __init__(self, engine: EngineLink, settings: UserSettings, fov_y: float) -> None:
        self._engine, self._settings, self._fov_y = engine, settings, fov_y
        self.nav: Navigator = framing_navigator((-1, -1, -1), (1, 1, 1), fov_y=fov_y)
        self.size: tuple[int, int] = (1, 1)  # width and height of the viewport, px
        self.camera_index = 0  # the photograph's camera that the view was at last
        self.render_settings = RenderSettings()
        self._moved_at = -math.inf

    @property
    def moving(self) -> bool:
        """Returns True while the view changes."""
        return time.perf_counter() - self._moved_at < STILL_SECONDS

    def start_scene(self, scene: SceneInfo) -> None:
        """Takes a new scene's background and SH degree, and goes to its home view."""
        self.render_settings = RenderSettings(scene.background, scene.sh_degree)
        self.go_home()

    def move(self, change: Callable[[Navigator], Navigator]) -> None:
        """Applies a movement; the view leaves a photograph's frame first."""
        self._set(change(self.nav.unframe(*self.size)))

    def _set(self, nav: Navigator) -> None:
        if nav != self.nav:
            self.nav = nav
            self._moved_at = time.perf_counter()

    def go_home(self) -> None:
        """Goes to the home view the user set, else to the first photograph's camera, else shows the whole scene."""
        scene = self._engine.scene
        if scene is None:
            return
        kept, (width, height) = self._settings.of_scene(scene.path), self.size
        up = kept.up or scene.up
        nav = framing_navigator(scene.low, scene.high, up, width, height, self._fov_y, extent=scene.extent)
        self._set(nav if kept.home is None else replace(kept.home, extent=nav.extent))
        if scene.cameras and kept.home is None:
            self.go_to_camera(0)

    def keep_home(self) -> None:
        """Makes the present view the home view of this scene."""
        scene = self._engine.scene
        if scene is not None:
            self._settings.set_home(scene.path, self.nav.unframe(*self.size))

    def forget_home(self) -> None:
        """Returns to the home view that the window chooses."""
        scene = self._engine.scene
        if scene is not None:
            self._settings.set_home(scene.path, None)
            self.go_home()

    def frame_scene(self) -> None:
        """Moves back until the whole scene fills the viewport; the direction stays."""
        scene = self._engine.scene
        if scene is not None:
            self.move(lambda nav: nav.frame(scene.low, scene.high, *self.size))

    def go_to_camera(self, index: int) -> None:
        """Goes to a photograph's camera; the index wraps."""
        scene = self._engine.scene
        if scene is None or not scene.cameras:
            return
        self.camera_index = index % len(scene.cameras)
        center = 0.5 * (np.array(scene.low) + np.array(scene.high))
        self._set(self.nav.at_camera(scene.cameras[self.camera_index].camera, _floats(center)))

    def step_camera(self, step: int) -> None:
        """Goes to the next or previous photograph's camera; a view that has moved away returns to the last one."""
        self.go_to_camera(self.camera_index + (step if self.at_camera is not None else 0))

    @property
    def at_camera(self) -> NamedCamera | None:
        """Returns the photograph's camera that the view is at; None once the view moves."""
        scene = self._engine.scene
        if scene is None or self.nav.lens.aspect is None or self.camera_index >= len(scene.cameras):
            return None
        return scene.cameras[self.camera_index]

    def pivot_under(self, u: float, v: float) -> None:
        """Turns towards the surface shown at (u, v), shares of the picture's width and height, to orbit it."""
        picture = self._engine.picture
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
        self.move(lambda nav: nav.look_at(_floats(point)))

    def turn_scene(self, change: Callable[[Navigator], Navigator]) -> None:
        """Applies a movement that changes the up axis, and keeps the axis for this scene."""
        self.move(change)
        scene = self._engine.scene
        if scene is not None:
            self._settings.set_up(scene.path, self.nav.up)

    def reset_up(self) -> None:
        """Returns to the up axis that was estimated when the scene was opened."""
        scene = self._engine.scene
        up = scene.up if scene else DEFAULT_UP
        self.move(lambda nav: nav.with_up(up))
        if scene is not None:
            self._settings.set_up(scene.path, None)

    def set_background(self, rgb: Sequence[float]) -> None:
        """Sets the background, RGB in [0, 1]."""
        red, green, blue = (float(min(max(value, 0.0), 1.0)) for value in rgb)
        self.render_settings = replace(self.render_settings, background=(red, green, blue))

    def set_sh_degree(self, degree: int) -> None:
        """Sets the highest spherical-harmonic degree to evaluate."""
        self.render_settings = replace(self.render_settings, sh_degree=degree)


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
