"""A question in a window of its own over the middle of the picture, for what cannot be taken back."""

from __future__ import annotations

from collections.abc import Callable

import dearpygui.dearpygui as dpg

from splatscope.viewer.style import Item, inside
from splatscope.viewer.widgets import Ui, button

WIDTH, HEIGHT = 480, 140  # points


class Question:
    """Made once, asked often. `on_close` is what the cross of its title does."""

    def __init__(self, ui: Ui, title: str, on_close: Callable[[], object]) -> None:
        self._ui = ui
        px = ui.style.px
        self._window = dpg.add_window(
            label=title, show=False, no_collapse=True, no_resize=True, no_saved_settings=True, no_scrollbar=True,
            width=px(WIDTH), height=px(HEIGHT), on_close=on_close,
        )  # fmt: skip
        dpg.bind_item_theme(self._window, ui.style.popup)
        with inside(self._window):
            # Of one height whatever is said, so that answers stay where they are.
            with inside(dpg.add_child_window(height=px(52), border=False, no_scrollbar=True)):
                self._text = dpg.add_text("", wrap=px(WIDTH - 30))
            self._answers = dpg.add_group(horizontal=True)
        self._shown = False

    def answer(
        self, label: str, action: Callable[[], object], width: float, primary: bool = False, tip: str = ""
    ) -> Item:
        """Adds a button."""
        with inside(self._answers):
            return button(self._ui.style, label, action, width, primary, tip)

    def show(self, text: str) -> None:
        """Puts it in front, with that text; called each frame it is to be seen."""
        if not self._shown:
            room, px = self._ui.session.viewport, self._ui.style.px
            at = (max(0, (room[0] - px(WIDTH)) // 2), max(0, (room[1] - px(HEIGHT)) // 2))
            dpg.configure_item(self._window, pos=at, show=True)
            self._shown = True
        if dpg.get_active_window() != self._window:  # a list or a file to be chosen would hide it
            dpg.focus_item(self._window)
        dpg.set_value(self._text, text)

    def hide(self) -> None:
        """Takes it away."""
        if self._shown:
            self._shown = False
            dpg.configure_item(self._window, show=False)
