"""Asks a question in a window over the middle of the picture, before something that cannot be undone."""

from __future__ import annotations

from collections.abc import Callable

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.style import Item, inside
from splatscope.viewer.drawing.widgets import Ui, button, place_over_picture, wrap_text

WIDTH, HEIGHT = 480, 140  # points


class Question:
    """Holds a window that is built once and shown often. The cross in its title calls `on_close`."""

    def __init__(self, ui: Ui, title: str, on_close: Callable[[], object]) -> None:
        self._ui = ui
        px = ui.style.px
        self._window = dpg.add_window(
            label=title, show=False, no_collapse=True, no_resize=True, no_saved_settings=True, no_scrollbar=True,
            width=px(WIDTH), height=px(HEIGHT), on_close=on_close,
        )  # fmt: skip
        dpg.bind_item_theme(self._window, ui.style.popup)
        with inside(self._window):
            # A fixed height, so that the answers stay where they are.
            with inside(dpg.add_child_window(height=px(52), border=False, no_scrollbar=True)):
                self._text = dpg.add_text("")
            self._answers = dpg.add_group(horizontal=True)
        self._shown = False

    def answer(
        self, label: str, action: Callable[[], object], width: float, primary: bool = False, tip: str = ""
    ) -> Item:
        """Adds a button below the text."""
        with inside(self._answers):
            return button(self._ui.style, label, action, width, primary, tip)

    def show(self, text: str) -> None:
        """Shows the text in front of everything else. Call it in each frame while the question is open."""
        if not self._shown:
            place_over_picture(self._ui, self._window, WIDTH, HEIGHT, dpg.get_viewport_client_width())
            dpg.show_item(self._window)
            self._shown = True
        if dpg.get_active_window() != self._window:  # an open list or the file browser would hide it
            dpg.focus_item(self._window)
        dpg.set_value(self._text, wrap_text(text, self._ui.style.px(WIDTH - 30), self._ui.style.body))

    def hide(self) -> None:
        """Hides the window."""
        if self._shown:
            self._shown = False
            dpg.configure_item(self._window, show=False)
