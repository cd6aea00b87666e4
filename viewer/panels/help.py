"""The list of keys and mouse movements (F1), made from the tables that bind them."""

from __future__ import annotations

import dearpygui.dearpygui as dpg

from splatscope.viewer.input import help_rows
from splatscope.viewer.messages import EngineStatus, Picture
from splatscope.viewer.style import ACCENT, DIM, inside
from splatscope.viewer.widgets import Panel

WIDTH, HEIGHT = 400, 590  # points


class HelpWindow(Panel):
    """See the module's text."""

    def build(self) -> None:
        style, px = self.style, self.style.px
        self._window = dpg.add_window(
            label="Keys and mouse", show=False, no_collapse=True, no_saved_settings=True, no_resize=True,
            on_close=self._close,
        )  # fmt: skip
        with inside(self._window):
            for heading, rows in help_rows():
                dpg.bind_item_font(dpg.add_text(heading, color=DIM), style.small)
                with inside(dpg.add_table(header_row=False, no_pad_outerX=True)):
                    dpg.add_table_column(width_fixed=True, init_width_or_weight=px(160))
                    dpg.add_table_column()
                    for key, meaning in rows:
                        with inside(dpg.add_table_row()):
                            dpg.add_text(key, color=ACCENT)
                            dpg.add_text(meaning)
                dpg.add_spacer(height=px(4))
        self._shown = False

    def _close(self) -> None:
        self.session.help_shown = False

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        if self.session.help_shown == self._shown:
            return
        self._shown = self.session.help_shown
        if self._shown:
            room = (dpg.get_viewport_client_width(), dpg.get_viewport_client_height())
            size = [min(self.style.px(points), side) for points, side in zip((WIDTH, HEIGHT), room, strict=True)]
            left, top = ((side - length) // 2 for side, length in zip(room, size, strict=True))
            dpg.configure_item(self._window, pos=(left, top), width=size[0], height=size[1])
        dpg.configure_item(self._window, show=self._shown)
        if self._shown:
            dpg.focus_item(self._window)
