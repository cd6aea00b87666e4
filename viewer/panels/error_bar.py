"""Shows the newest error in a bar over the picture until it is dismissed. The log keeps all errors."""

from __future__ import annotations

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.style import inside
from splatscope.viewer.drawing.widgets import Panel, Ui, button
from splatscope.viewer.messages.view import EngineStatus, Picture
from splatscope.viewer.palette import TEXT

MARGIN = 12  # points to the edges of the viewport
MOST_HEIGHT = 220  # points; a longer text scrolls


class ErrorBar(Panel):
    """Draws the bar; `depth` tells the viewport how much of the picture it covers."""

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._serial = -1
        self._place = (0, 0, 1)
        self.depth = 0  # px of the viewport's top that the bar covers

    def build(self) -> None:
        style = self.style
        self._window = dpg.add_window(
            no_title_bar=True, no_move=True, no_resize=True, no_saved_settings=True, show=False,
            no_focus_on_appearing=True, min_size=(10, 10),
        )  # fmt: skip
        dpg.bind_item_theme(self._window, style.error_bar)
        with inside(self._window), inside(dpg.add_group(horizontal=True)):
            self._text = dpg.add_text("", color=TEXT)
            self._dismiss = button(
                style, "Dismiss", self.session.dismiss, tip="Hides this message (Esc); the log keeps it"
            )

    def place(self, x: int, y: int, width: int) -> None:
        """Sets the viewport's left, top and width in pixels."""
        self._place = (x, y, width)

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        error = self.session.log.error
        dpg.configure_item(self._window, show=error is not None)
        if error is None:
            self._serial, self.depth = -1, 0
            return
        px = self.style.px
        left, top, room = self._place
        width = max(px(160), room - 2 * px(MARGIN))
        wrap = width - px(120)
        if error.serial != self._serial:
            self._serial = error.serial
            dpg.set_value(self._text, error.text)
            dpg.focus_item(self._window)
        size = dpg.get_text_size(error.text, wrap_width=wrap, font=self.style.body) or (0.0, 0.0)
        needed = max(int(size[1]), px(24)) + px(22)
        height = min(px(MOST_HEIGHT), needed)
        self.depth = px(MARGIN) + height
        dpg.configure_item(self._text, wrap=wrap)
        dpg.configure_item(self._dismiss, indent=width - px(104))
        dpg.configure_item(
            self._window,
            pos=(left + px(MARGIN), top + px(MARGIN)),
            width=width,
            height=height,
            no_scrollbar=height == needed,
        )
