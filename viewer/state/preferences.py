"""Keeps recent paths, each scene's home view and up axis, and the user's preferences in a JSON file. No GUI.

The file is in the user's settings folder, never next to the user's own files. A scene is known by its path and, for a
file, its size. A damaged file is renamed and counts as empty. `user_settings.py` reads and changes the values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from splatscope.assets.files.atomic import atomic_path
from splatscope.assets.files.json_fields import read_json
from splatscope.kernels.errors import InputError
from splatscope.viewer.state.navigation import Lens, Matrix3, Navigator, Vector

RECENT = 12  # paths kept
SCENES = 200  # scenes kept, the last ones changed
PREFERENCES = {
    "moving_fps": (2.0, 60.0),
    "view_share": (0.02, 0.9),
    "view_rate": (1.0, 60.0),
    "ui_scale": (0.75, 3.0),
}  # least and most allowed value
SIZE_LIMIT = 1 << 20  # bytes; a larger file is not ours


@dataclass(frozen=True)
class SceneSettings:
    """Holds what the user set for one scene; None leaves the choice to the window."""

    up: Vector | None = None  # unit length, in the file's coordinates
    home: Navigator | None = None


@dataclass
class Preferences:
    """Reads its file once and writes it at each change. Without a path, all is forgotten when the window closes."""

    path: Path | None = None
    remark: str = ""  # a sentence about a file that could not be used
    recent: list[Path] = field(default_factory=list)  # newest first
    _preferences: dict[str, float] = field(default_factory=dict)
    _scenes: dict[str, SceneSettings] = field(default_factory=dict)  # oldest change first

    @staticmethod
    def load(path: Path | None) -> Preferences:
        """Reads the file; values that make no sense are left out."""
        content, remark = _read(path)
        memory = Preferences(path, remark)
        recent = content.get("recent")
        if isinstance(recent, list):
            memory.recent = [Path(entry) for entry in recent if isinstance(entry, str)][:RECENT]
        preferences = content.get("preferences")
        if isinstance(preferences, dict):
            memory._preferences = {str(name): v for name, v in preferences.items() if _in_range(str(name), v)}
        scenes = content.get("scenes")
        if isinstance(scenes, dict):
            memory._scenes = {str(key): _scene_settings(entry) for key, entry in scenes.items()}
        return memory

    def opened(self, path: Path) -> None:
        """Puts a path at the head of the recent ones. Raises InputError if the file cannot be written."""
        path = path.absolute()
        if self.recent[:1] != [path]:
            self.recent = [path, *(entry for entry in self.recent if entry != path)][:RECENT]
            self._write()

    def forget_recent(self) -> None:
        """Empties the list of recent paths. Raises InputError if the file cannot be written."""
        self.recent = []
        self._write()

    def preference(self, name: str, default: float) -> float:
        """Returns one of `PREFERENCES` as the user set it, else `default`."""
        return self._preferences.get(name, default)

    def prefer(self, name: str, value: float) -> None:
        """Keeps a preference, clamped to its range. Raises InputError if the file cannot be written."""
        low, high = PREFERENCES[name]
        value = min(max(value, low), high)
        if self._preferences.get(name) != value:
            self._preferences[name] = value
            self._write()

    def forget(self, name: str) -> None:
        """Returns a preference to its default. Raises InputError if the file cannot be written."""
        if self._preferences.pop(name, None) is not None:
            self._write()

    def of(self, path: Path) -> SceneSettings:
        """Returns what the user set for a scene."""
        return self._scenes.get(_key(path), SceneSettings())

    def set_up(self, path: Path, up: Vector | None) -> None:
        """Keeps the up axis of a scene, None for the guessed one. Raises InputError if the file cannot be written."""
        self._set(path, replace(self.of(path), up=up))

    def set_home(self, path: Path, home: Navigator | None) -> None:
        """Keeps the home view of a scene, None for the guessed one. Raises InputError if the file cannot be written."""
        self._set(path, replace(self.of(path), home=home))

    def _set(self, path: Path, settings: SceneSettings) -> None:
        key = _key(path)
        if settings == self.of(path):
            return
        self._scenes.pop(key, None)
        if settings != SceneSettings():
            self._scenes[key] = settings
        while len(self._scenes) > SCENES:
            del self._scenes[next(iter(self._scenes))]
        self._write()

    def _write(self) -> None:
        if self.path is None:
            return
        scenes = {key: asdict(entry) for key, entry in self._scenes.items()}
        recent = [str(entry) for entry in self.recent]
        content = {"recent": recent, "preferences": self._preferences, "scenes": scenes}
        with atomic_path(self.path) as temporary:
            temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _in_range(name: str, value: object) -> bool:
    low, high = PREFERENCES.get(name, (math.inf, -math.inf))
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def _key(path: Path) -> str:
    path = path.absolute()
    size = path.stat().st_size if path.is_file() else 0
    return f"{path}|{size}"


def _read(path: Path | None) -> tuple[Mapping[str, Any], str]:
    """Returns the file's content, and a sentence if it cannot be understood; the file is then renamed."""
    if path is None or not path.exists():
        return {}, ""
    reason = f"{path} does not hold preferences of the window."
    try:
        content = read_json(path) if path.stat().st_size <= SIZE_LIMIT else None
        if isinstance(content, dict):
            return content, ""
    except (InputError, OSError) as error:
        reason = str(error)
    aside = path.with_name(f"{path.name}.damaged")
    try:
        path.replace(aside)
    except OSError:
        return {}, f"Recent paths, home views and preferences are not known: {reason}"
    return {}, f"Recent paths, home views and preferences are not known: {reason} It is kept as {aside}."


def _scene_settings(entry: object) -> SceneSettings:
    if not isinstance(entry, dict):
        return SceneSettings()
    up = _numbers(entry.get("up"), (3,))
    if up is not None and abs(np.linalg.norm(up) - 1.0) > 1e-3:
        up = None
    return SceneSettings(None if up is None else cast(Vector, tuple(map(float, up))), _navigator(entry.get("home")))


def _navigator(entry: object) -> Navigator | None:
    """Returns a view, or None unless all its numbers are there and valid."""
    if not isinstance(entry, dict) or not isinstance(entry.get("lens"), dict):
        return None
    lens = entry["lens"]
    pivot, base = _numbers(entry.get("pivot"), (3,)), _numbers(entry.get("base"), (3, 3))
    angles = _numbers([entry.get(name) for name in ("distance", "yaw", "pitch", "roll")], (4,))
    optics = _numbers([lens.get(name) for name in ("fov_y", "pixel_aspect", "shift_x", "shift_y")], (4,))
    if pivot is None or base is None or angles is None or optics is None:
        return None
    if not (angles[0] > 0 and 0 < optics[0] < math.pi and optics[1] > 0 and np.allclose(base @ base.T, np.eye(3))):
        return None
    rows = cast(Matrix3, tuple(tuple(map(float, row)) for row in base))
    center = cast(Vector, tuple(map(float, pivot)))
    distance, yaw, pitch, roll = map(float, angles)
    return Navigator(center, distance, yaw, pitch, roll, rows, Lens(*map(float, optics)))


def _numbers(value: object, shape: tuple[int, ...]) -> np.ndarray | None:
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return array if array.shape == shape and bool(np.isfinite(array).all()) else None
