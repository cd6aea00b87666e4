"""Shows a menu bar with the actions of keys and panels. Each item calls a method of the session's state."""

from __future__ import annotations

from collections.abc import Callable

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.style import Item, inside
from splatscope.viewer.drawing.widgets import Panel, Ui, fit
from splatscope.viewer.messages.run import CAN_START
from splatscope.viewer.messages.view import EngineStatus, Picture

SCALES = (0.0, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)  # 0: the display's scale
PATH_WIDTH = 420  # points of a path in "Open recent"


class MenuBar(Panel):
    """Builds the menus and greys out what the state does not allow."""

    def __init__(self, ui: Ui, close: Callable[[], None]) -> None:
        super().__init__(ui)
        self._close = close

    def build(self) -> None:
        session = self.session
        self._recent_shown: list[str] | None = None
        self._scales: dict[Item, float] = {}
        self._scene_items: list[Item] = []  # grey while no scene is open
        with inside(dpg.add_viewport_menu_bar()) as self.bar:
            with inside(dpg.add_menu(label="File")):
                _item("Open…", "Ctrl + O", lambda: session.dialogs.browse("open"))
                self._recent = dpg.add_menu(label="Open recent")
                dpg.add_separator()
                self._of_scene("Save splats as…", "Ctrl + S", lambda: session.dialogs.browse("save"))
                self._of_scene("Screenshot", "P", session.screenshot)
                dpg.add_separator()
                _item("Quit", "", self._close)
            with inside(dpg.add_menu(label="View")):
                self._of_scene("Home view", "H", session.view.go_home)
                self._of_scene("Set as home view", "", session.view.keep_home)
                self._of_scene("Reset home view", "", session.view.forget_home)
                self._of_scene("Show the whole scene", "F", session.view.frame_scene)
                dpg.add_separator()
                self._of_scene("Photograph over the picture", "G", lambda: session.photographs.compare("overlay"))
                self._of_scene("Wipe between photograph and picture", "V", lambda: session.photographs.compare("wipe"))
                self._of_scene("Error map", "M", lambda: session.photographs.compare("error"))
                self._of_scene("Choose a photograph…", "C", session.dialogs.toggle_thumbnails)
                self._of_scene("Cameras over the picture", "K", session.photographs.toggle_cameras)
                dpg.add_separator()
                self._of_scene("Tile heatmap", "Tab", session.heatmap.toggle)
                self._of_scene("Stage times", "F10", session.dialogs.toggle_stats)
                _item("Full screen", "F11", dpg.toggle_viewport_fullscreen)
                with inside(dpg.add_menu(label="UI scale")):
                    for scale in SCALES:
                        label = f"{scale:.0%}" if scale else f"Match display ({session.settings.display_scale:.0%})"
                        item = _item(label, "", lambda _, __, value: session.settings.set_ui_scale(value), scale)
                        dpg.configure_item(item, check=True)
                        self._scales[item] = scale
            with inside(dpg.add_menu(label="Training")):
                self._start = _item("Start", "Space", session.run.toggle)
                self._step = _item("One iteration", "N", session.run.step)
                self._stop = _item("Stop and save", "", session.run.stop)
                self._score = _item("Score now", "", session.run.score_now)
            with inside(dpg.add_menu(label="Help")):
                _item("Keys and mouse", "F1", session.dialogs.toggle_help)

    def _of_scene(self, label: str, key: str, action: object) -> None:
        self._scene_items.append(_item(label, key, action))

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        for item in self._scene_items:
            dpg.configure_item(item, enabled=status.scene is not None)
        state = status.training.state
        word = {"running": "Pause", "paused": "Resume", "stopped": "Resume"}.get(state, "Start")
        dpg.configure_item(self._start, label=word, enabled=state in (*CAN_START, "running"))
        dpg.configure_item(self._step, enabled=state in CAN_START)
        dpg.configure_item(self._stop, enabled=state in ("running", "paused"))
        dpg.configure_item(self._score, enabled=status.training.can_be_scored)
        for item, scale in self._scales.items():
            dpg.set_value(item, scale == self.session.settings.ui_scale)
        self._update_recent()

    def _update_recent(self) -> None:
        recent = [str(path) for path in self.session.settings.recent]
        if recent == self._recent_shown:
            return
        self._recent_shown = recent
        dpg.delete_item(self._recent, children_only=True)
        dpg.configure_item(self._recent, enabled=bool(recent))
        with inside(self._recent):
            for path in recent:
                label = fit(path, self.style.px(PATH_WIDTH), self.style.body)
                _item(label, "", lambda _, __, path: self.session.open(path), path)
            dpg.add_separator()
            _item("Clear list", "", self.session.settings.forget_recent)


def _item(label: str, key: str, action: object, data: object = None) -> Item:
    return dpg.add_menu_item(
        label=label,
        shortcut=key,
        callback=action,  # pyright: ignore[reportArgumentType]
        user_data=data,
    )
