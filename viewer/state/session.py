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
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np

from splatscope.kernels.errors import InputError
from splatscope.kernels.ladder import STEPS
from splatscope.kernels.policy import Filter, Policy, Toggle
from splatscope.kernels.types import RenderSettings
from splatscope.viewer.config import WindowConfig
from splatscope.viewer.figures.tile_values import needs_recording
from splatscope.viewer.messages import commands
from splatscope.viewer.messages.client import EngineClient
from splatscope.viewer.messages.scale import HeatScale
from splatscope.viewer.messages.view import (
    EngineStatus,
    LogLine,
    NamedCamera,
    OverlayName,
    Picture,
    SceneInfo,
    ViewRequest,
)
from splatscope.viewer.state.frame_rate import FrameRate
from splatscope.viewer.state.navigation import DEFAULT_UP, Navigator, framing_navigator
from splatscope.viewer.state.photograph_mode import Mode, PhotoComparison
from splatscope.viewer.state.preferences import Preferences
from splatscope.viewer.state.presets import describe, filtered_as, settle
from splatscope.viewer.state.resolution import Resolution
from splatscope.viewer.state.run_verbs import RunVerbs

STILL_SECONDS = 0.25  # a view that has not changed for so long is rendered at full resolution
LOG_LINES = 2000  # kept for the log panel
Browsing = Literal["", "open", "save"]  # what the file browser is shown for
PREVIOUS = "previous setting"  # what a measurement compares with, unless a preset


class Session(RunVerbs):
    """The window's own state; see the module's text."""

    def __init__(self, client: EngineClient, config: WindowConfig, display_scale: float = 1.0) -> None:
        self.client = client
        self.display_scale = display_scale
        self.config = config
        self.nav: Navigator = framing_navigator((-1, -1, -1), (1, 1, 1), fov_y=config.fov_y)
        self.settings = RenderSettings()
        self.policy = config.policy
        self.previous_policy: Policy | None = None  # before the last change
        self.note = ""  # what the last change of a toggle entailed
        self.overlay: OverlayName = config.overlay
        self.overlay_kind: OverlayName = "tiles" if config.overlay == "none" else config.overlay  # shown by Tab
        self.hovered_tile: tuple[int, int] | None = None  # row and column of the picture's tile under the mouse
        self.overlay_opacity = config.overlay_opacity
        self.scale = HeatScale()
        self.photo = PhotoComparison()
        self.stats_shown = False
        self.help_shown = False
        self.thumbnails_shown = False
        self.frustums_shown = False
        self.frustum_size = 1.0  # times that which suits the scene
        self.browser: Browsing = ""
        self.closing = False  # the window asks whether to close, because a run is live
        self.memory = Preferences.load(config.memory)
        self.ui_scale = config.ui_scale or self.memory.preference("ui_scale", display_scale)
        self.viewport: tuple[int, int] = (1, 1)  # px the picture may cover
        self.camera_index = 0  # the training camera last stood at
        self.status: EngineStatus = client.status()
        self.picture: Picture | None = None
        # All lines since the window opened, oldest first. The engine's are counted from 1.
        self.log = [LogLine("warning", self.memory.remark, 0)] if self.memory.remark else []
        self.newest: LogLine | None = None  # of the log, for the status bar
        self.error: LogLine | None = None  # the newest one the user has not dismissed
        self.pace = FrameRate()
        self._resolution = Resolution()
        self.generation: int | None = None  # of the scene that is followed
        self._filtered: tuple[int, Filter] | None = None  # generation and filter of the scene that was followed last
        self._moved_at = -math.inf
        self._requested: ViewRequest | None = None
        if (self.view_share, self.view_rate) != (config.view_share, config.view_rate):
            client.send(commands.SetViewShare(self.view_share, self.view_rate))

    # Each frame --------------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Takes in the engine's newest status and picture; True if there is a new picture."""
        self.status = self.client.status()
        self._take_log()
        scene = self.status.scene
        if scene is not None and scene.generation != self.generation:
            self.generation = scene.generation
            self.error = None  # it was about something else; the log keeps it
            self.settings = RenderSettings(scene.background, scene.sh_degree)
            self.photo.mode = "off"
            self._remember(lambda: self.memory.opened(scene.path))
            self.go_home()
        if scene is not None and not self.config.keeps_filter:
            self._follow_filter(scene)
        if self.status.refused is not None and self.status.refused == self.policy:
            before = filtered_as(self.status.policy, self.policy)  # what is drawn now may be of another scene
            self.policy, self.note = before if before != self.policy else self.status.policy, ""
        elif self.status.refused is not None and self._requested and self.status.refused == self._requested.policy:
            self.show_overlay("none")  # which was what asked for more than the policy
        picture = self.client.picture()
        if picture is None or (self.picture is not None and picture.serial == self.picture.serial):
            return False
        self.picture = picture
        height, width = picture.rgba.shape[:2]
        self._resolution.observe(width, height, picture.render_ms)
        return True

    def _follow_filter(self, scene: SceneInfo) -> None:
        """Pictures have the scene's own filter when it is opened, and when a recipe changes it."""
        if self._filtered != (scene.generation, scene.filter):
            self._filtered = scene.generation, scene.filter
            self.policy = self.policy.with_value("project", "filter", scene.filter)
            before = filtered_as(self.previous_policy, self.policy) if self.previous_policy else self.policy
            self.previous_policy = before if before != self.policy else None

    def _take_log(self) -> None:
        last = self.log[-1].serial if self.log else 0
        fresh = [line for line in self.status.log if line.serial > last]
        self.log += fresh
        del self.log[:-LOG_LINES]
        recipe = self.status.recipe
        if recipe is not None and recipe.refused is not None:  # the form shows that
            fresh = [line for line in fresh if line.about != commands.SetRecipe.__name__]
        self.newest = fresh[-1] if fresh else self.newest
        self.error = next((line for line in reversed(fresh) if line.level == "error"), self.error)
        if self.error is not None and self.error.serial <= self.status.done.get(self.error.about, -2):
            self.error = None  # the same has gone well since

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
        wish = self.photo.wish(self.camera_index) if self.at_camera is not None else None
        overlay = self.overlay if wish is None else "none"  # colours over it would count as errors
        policy = self.policy.with_value("schedule", "record", "on") if needs_recording(overlay) else self.policy
        return ViewRequest(camera, self.settings, policy, overlay, self.overlay_opacity, self.scale, wish)

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
            return 1e3 / self.moving_fps
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
        """The home view that was kept, else the first training camera, else the whole scene upright."""
        scene = self.status.scene
        if scene is None:
            return
        kept, (width, height) = self.memory.of(scene.path), self.viewport
        up = kept.up or scene.up
        nav = framing_navigator(scene.low, scene.high, up, width, height, self.config.fov_y, extent=scene.extent)
        self._set_view(nav if kept.home is None else replace(kept.home, extent=nav.extent))
        if scene.cameras and kept.home is None:
            self.go_to_camera(0)

    def keep_home(self) -> None:
        """Makes the view as it is the home view of this scene, from now on."""
        scene = self.status.scene
        if scene is not None:
            self._remember(lambda: self.memory.set_home(scene.path, self.nav.unframed(*self.viewport)))

    def forget_home(self) -> None:
        """Returns to the home view that the window chooses."""
        scene = self.status.scene
        if scene is not None:
            self._remember(lambda: self.memory.set_home(scene.path, None))
            self.go_home()

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

    def turn_scene(self, change: Callable[[Navigator], Navigator]) -> None:
        """A movement that sets another axis upright, which is kept for this scene."""
        self.move(change)
        scene = self.status.scene
        if scene is not None:
            self._remember(lambda: self.memory.set_up(scene.path, self.nav.up))

    def reset_up(self) -> None:
        """Back to the up axis that was guessed when the scene was opened."""
        scene = self.status.scene
        up = scene.up if scene else DEFAULT_UP
        self.move(lambda nav: nav.with_up(up))
        if scene is not None:
            self._remember(lambda: self.memory.set_up(scene.path, None))

    # Settings ----------------------------------------------------------------------------------------

    def set_moving_fps(self, fps: float) -> None:
        """Pictures a second aimed at while the view moves; kept."""
        self._remember(lambda: self.memory.prefer("moving_fps", fps))

    def set_view_share(self, share: float) -> None:
        """How much of the time pictures of a still view may take while training; kept."""
        self._remember(lambda: self.memory.prefer("view_share", share))
        self.client.send(commands.SetViewShare(share, self.view_rate))

    def set_view_rate(self, rate: float) -> None:
        """How many pictures a second there may be while training; kept."""
        self._remember(lambda: self.memory.prefer("view_rate", rate))
        self.client.send(commands.SetViewShare(self.view_share, rate))

    def set_ui_scale(self, scale: float) -> None:
        """Sets and keeps the size of text and controls; 0 takes the display's. The window is then built again."""
        self._remember(lambda: self.memory.prefer("ui_scale", scale) if scale else self.memory.forget("ui_scale"))
        self.ui_scale = scale or self.display_scale

    @property
    def moving_fps(self) -> float:
        """See `set_moving_fps`."""
        return self.memory.preference("moving_fps", self.config.moving_fps)

    @property
    def view_share(self) -> float:
        """See `set_view_share`."""
        return self.memory.preference("view_share", self.config.view_share)

    @property
    def view_rate(self) -> float:
        """See `set_view_rate`."""
        return self.memory.preference("view_rate", self.config.view_rate)

    def set_background(self, rgb: Sequence[float]) -> None:
        """RGB in [0, 1]."""
        red, green, blue = (float(min(max(value, 0.0), 1.0)) for value in rgb)
        self.settings = replace(self.settings, background=(red, green, blue))

    def set_sh_degree(self, degree: int) -> None:
        """The highest spherical-harmonic degree to evaluate."""
        self.settings = replace(self.settings, sh_degree=degree)

    def set_preset(self, name: str) -> None:
        """All toggles but the filter at once, those of a step of the ladder."""
        self.set_policy(filtered_as(STEPS[name].policy, self.policy))

    def set_policy(self, policy: Policy, note: str = "") -> None:
        """All toggles at once."""
        if policy != self.policy:
            self.previous_policy, self.policy = self.policy, policy
        self.note = note

    def set_toggle(self, row: Toggle, value: str) -> None:
        """One toggle; those that need what it takes away follow it."""
        backend = self.status.backend
        policy, followed = settle(self.policy.with_value(row.stage, row.name, value), backend, keep=row.key)
        self.set_policy(policy, f"Also set: {', '.join(followed)}." if followed else "")

    def toggle_heatmap(self) -> None:
        """The heatmap over the picture, or not."""
        self.overlay = self.overlay_kind if self.overlay == "none" else "none"

    def show_overlay(self, name: OverlayName) -> None:
        """Another heatmap over the picture, or none; a scale that was held was another one's."""
        self.overlay = name
        if name not in ("none", self.overlay_kind):
            self.overlay_kind, self.scale = name, replace(self.scale, locked_top=None)

    def compare_photograph(self, mode: Mode) -> None:
        """Shows the photograph this way, or no longer; a view that has moved goes back to the camera last stood at."""
        scene = self.status.scene
        if scene is None or scene.kind != "dataset" or not scene.cameras:
            words = "There are no photographs to compare with; open the capture that the splats come from."
            self._complain("photographs", words)
            return
        self._worked("photographs")
        self.photo.toggle(mode)
        if self.photo.active and self.at_camera is None:
            self.go_to_camera(self.camera_index)

    def toggle_thumbnails(self) -> None:
        """The photographs to choose from, or not."""
        self.thumbnails_shown = not self.thumbnails_shown and bool(self.status.scene and self.status.scene.cameras)

    def toggle_frustums(self) -> None:
        """Where the photographs were taken, over the picture, or not."""
        self.frustums_shown = not self.frustums_shown and bool(self.status.scene and self.status.scene.cameras)

    def toggle_stats(self) -> None:
        """Stage times over the picture, or not."""
        self.stats_shown = not self.stats_shown

    def toggle_help(self) -> None:
        """The list of keys, or not."""
        self.help_shown = not self.help_shown

    def browse(self, purpose: Browsing) -> None:
        """Shows the file browser; there is nothing to save while nothing is open."""
        if purpose != "save" or self.status.scene is not None:
            self.browser = purpose

    def forget_recent(self) -> None:
        """Empties the list of recent paths."""
        self._remember(self.memory.forget_recent)

    def _remember(self, change: Callable[[], None]) -> None:
        """What cannot be written is still known until the window closes."""
        try:
            change()
        except InputError as error:
            self._complain("memory", f"This will be forgotten when the window closes: {error}")
        else:
            self._worked("memory")

    def _complain(self, about: str, text: str) -> None:
        """Tells of a problem that the engine knows nothing of."""
        self.error = LogLine("error", text, -1, about)

    def _worked(self, about: str) -> None:
        """An error about the same is over."""
        if self.error is not None and self.error.about == about:
            self.error = None

    def dismiss(self) -> None:
        """Closes one thing that lies over the picture; errors stay in the log."""
        if self.closing or self.resetting:
            self.closing = self.resetting = False
        elif self.browser:
            self.browser = ""
        elif self.help_shown:
            self.help_shown = False
        elif self.thumbnails_shown:
            self.thumbnails_shown = False
        elif self.error is not None:
            self.error = None
        else:
            self.photo.mode = "off"

    # Commands ----------------------------------------------------------------------------------------

    def open(self, text: str) -> None:
        """Opens what a person typed or pasted."""
        path = typed_path(text)
        if path is not None:
            self.client.send(commands.OpenScene(path))

    def save_ply(self, path: Path) -> None:
        """Writes the splats as they are now."""
        self.client.send(commands.SavePly(path))

    def screenshot(self, heatmap: bool = False) -> None:
        """The picture at the viewport's full resolution; the heatmap and its counts too if it is on or asked for."""
        if self.status.scene is not None:
            request = self.request()
            request = replace(request, overlay=self.overlay_kind) if heatmap else request
            self.client.send(commands.SaveScreenshot(request, self.config.screenshot_dir))

    def compare(self, against: str) -> None:
        """Measures the wanted policy against PREVIOUS or a preset, on the view as it is."""
        backend = self.status.backend
        before = self.previous_policy if against == PREVIOUS else filtered_as(STEPS[against].policy, self.policy)
        if before is not None and self.status.scene is not None:
            names = (describe(before, backend), describe(self.policy, backend))
            request = replace(self.request(), policy=self.policy)  # not what an overlay adds to it
            self.client.send(commands.Compare(request, before, names))

    def save_comparison(self) -> None:
        """Saves the newest measurement as JSON."""
        self.client.send(commands.SaveComparison(self.config.measurement_dir))

    def record_trace(self) -> None:
        """Records what runs when for a second, and saves it."""
        if self.status.scene is not None and not self.status.recording:
            self.client.send(commands.RecordTrace(self.config.measurement_dir))

    def record_frame(self) -> None:
        """When and where each tile of this view is blended, kept until the next time."""
        if self.status.scene is not None:
            self.client.send(commands.RecordFrame(self.request()))

    def save_recorded_frame(self) -> None:
        """Saves the recorded frame as files."""
        if self.status.recorded is not None:
            self.client.send(commands.SaveRecordedFrame(self.config.measurement_dir))

    def survey_views(self) -> None:
        """What every view costs."""
        if self.status.scene is not None:
            self.client.send(commands.SurveyViews(self.request()))


def typed_path(text: str) -> Path | None:
    """The path in what a person typed or pasted, None for nothing: quotes, spaces, ~ and file:// are understood."""
    path = text.strip().strip("\"'")
    if path.startswith("file:"):
        path = url2pathname(urlsplit(path).path)
    return Path(path).expanduser() if path else None


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
