"""Shows the progress of the search for a folder's cameras, with a button that stops it."""

from __future__ import annotations

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.style import inside
from splatscope.viewer.drawing.widgets import Panel, Ui, button, fit
from splatscope.viewer.messages.commands import StopSearch
from splatscope.viewer.messages.view import EngineStatus, Picture
from splatscope.viewer.palette import DIM

WIDTH, HEIGHT = 460, 130  # points


class SearchWindow(Panel):
    """Shows a window over the picture while the engine searches."""

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._place = (0, 0)

    def build(self) -> None:
        style = self.style
        self._window = dpg.add_window(
            show=False, no_title_bar=True, no_move=True, no_resize=True, no_saved_settings=True, no_scrollbar=True,
            no_focus_on_appearing=True, width=style.px(WIDTH), height=style.px(HEIGHT),
        )  # fmt: skip
        dpg.bind_item_theme(self._window, style.popup)
        with inside(self._window):
            dpg.bind_item_font(dpg.add_text("Finding cameras"), style.bold)
            self._folder = dpg.add_text("", color=DIM)
            self._bar = dpg.add_progress_bar(width=-1, height=style.px(20))
            with inside(dpg.add_group(horizontal=True)):
                button(
                    style, "Stop", lambda: self.session.engine.send(StopSearch()), 80,
                    tip="Stops the search and keeps its work; open the folder again to continue",
                )  # fmt: skip
                self._text = dpg.add_text("")

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        search = status.search
        dpg.configure_item(self._window, show=search is not None)
        if search is None:
            return
        room, px = self.session.view.size, self.style.px
        at = (max(0, (room[0] - px(WIDTH)) // 2), max(0, (room[1] - px(HEIGHT)) // 2))
        if at != self._place:
            self._place = at
            dpg.configure_item(self._window, pos=at)
        dpg.set_value(self._folder, fit(str(search.folder), px(WIDTH - 30), self.style.body))
        dpg.set_value(self._bar, search.share)
        dpg.set_value(self._text, search.text)
