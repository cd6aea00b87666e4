"""Compares the picture with the photograph of the view, and chooses a view."""

from __future__ import annotations

from collections.abc import Callable

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.style import Item, inside
from splatscope.viewer.drawing.widgets import Note, Panel, button, label_row, tooltip
from splatscope.viewer.messages.view import EngineStatus, Picture
from splatscope.viewer.palette import DIM, TEXT, WARN
from splatscope.viewer.state.photographs import MODES, Mode, psnr_text

LABELS: dict[Mode, tuple[str, str]] = {
    "off": ("Off", "Shows the picture alone"),
    "overlay": ("Over", "Shows the photograph over the picture (G)"),
    "wipe": ("Wipe", "Shows the photograph left of a line you can drag (V)"),
    "error": ("Error", "Shows how far the picture is from the photograph (M)"),
}


class PhotographsPanel(Panel):
    """Shows the section "Photographs" of the dock."""

    title = "Photographs"

    def build(self) -> None:
        style, session = self.style, self.session
        self._none = dpg.add_text("Open a capture to compare with its photographs.", color=DIM)
        with inside(dpg.add_group(show=False)) as self._tools:
            labels = [LABELS[mode][0] for mode in MODES]
            self._choice = dpg.add_radio_button(labels, horizontal=True, callback=lambda _, label: self._choose(label))
            self._meaning = dpg.add_text("", color=DIM)
            with inside(dpg.add_group(horizontal=True)):
                button(
                    style,
                    "Choose a view…",
                    session.dialogs.toggle_thumbnails,
                    tip="Shows all photographs; a click on one goes to its view (C)",
                )
                self._frustums = dpg.add_checkbox(
                    label="Show cameras", callback=lambda: session.photographs.toggle_cameras()
                )
                tip = "Draws the photographs' cameras; click one to go to its view (K)"
                tooltip(style, self._frustums, tip)
            with label_row(style, "Camera size"):
                self._size = self._slider((0.2, 10.0), "%.1f times", self._resize)
            # Both sliders share one place, so that nothing moves when the mode changes.
            with inside(dpg.add_group()) as self._opacity_row, label_row(style, "Opacity"):
                self._opacity = self._slider((0.0, 1.0), "%.2f", lambda value: self._set("opacity", value))
            with inside(dpg.add_group(show=False)) as self._top_row, label_row(style, "Colours end at"):
                self._top = self._slider((0.02, 1.0), "%.2f of full range", lambda value: self._set("error_top", value))
            self._held_out = dpg.add_text("Orange: held out from training", color=WARN, show=False)
            self._word = Note(self.ui, 1)

    def _slider(self, ends: tuple[float, float], text: str, take: Callable[[float], None]) -> Item:
        slider = dpg.add_slider_float(
            min_value=ends[0], max_value=ends[1], format=text, clamped=True, width=-1,
            callback=lambda _, value: take(value),
        )  # fmt: skip
        return self.ui.field(slider)

    def _choose(self, label: str) -> None:
        mode: Mode = next(mode for mode in MODES if LABELS[mode][0] == label)
        if mode == "off":
            self.session.photographs.mode = "off"
        elif mode != self.session.photographs.mode:
            self.session.photographs.compare(mode)

    def _resize(self, size: float) -> None:
        self.session.photographs.camera_size = size

    def _set(self, name: str, value: float) -> None:
        setattr(self.session.photographs, name, value)

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        photo, scene = self.session.photographs, status.scene
        has_cameras = scene is not None and bool(scene.cameras)
        dpg.configure_item(self._tools, show=has_cameras)
        dpg.configure_item(self._none, show=not has_cameras)
        dpg.set_value(self._choice, LABELS[photo.mode][0])
        dpg.set_value(self._opacity, photo.opacity)
        dpg.set_value(self._top, photo.error_top)
        dpg.set_value(self._frustums, self.session.photographs.cameras_shown)
        dpg.set_value(self._size, self.session.photographs.camera_size)
        dpg.configure_item(self._held_out, show=scene is not None and any(c.is_test for c in scene.cameras))
        dpg.set_value(self._meaning, LABELS[photo.mode][1])
        dpg.configure_item(self._opacity_row, show=photo.mode != "error")
        dpg.configure_item(self._top_row, show=photo.mode == "error")
        word = ""
        if photo.active and self.session.view.at_camera is None:
            word = "The view has left the photograph."
        elif photo.active and picture is not None and picture.photograph is not None:
            shown = picture.photograph
            word = f"{psnr_text(shown)}, compared at {shown.size[0]} x {shown.size[1]}"
            word = word if shown.psnr is not None else shown.note
        self._word.show(word, TEXT)
