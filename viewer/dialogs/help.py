"""Lists the keys and mouse movements (F1), from the tables that bind them."""

from __future__ import annotations

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.style import inside
from splatscope.viewer.drawing.widgets import Panel, place_over_picture, text_width
from splatscope.viewer.input import help_rows
from splatscope.viewer.messages.view import EngineStatus, Picture
from splatscope.viewer.palette import ACCENT

WIDTH, HEIGHT = 760, 446  # points
LONG = 8  # rows; a longer section goes to the second column
Rows = tuple[str, tuple[tuple[str, str], ...]]


class HelpWindow(Panel):
    """Shows the list while `session.dialogs.help_shown` is set."""

    def build(self) -> None:
        self._window = dpg.add_window(
            label="Keys and mouse", show=False, no_collapse=True, no_saved_settings=True, no_resize=True,
            on_close=self._close,
        )  # fmt: skip
        dpg.bind_item_theme(self._window, self.style.popup)
        with inside(self._window):
            columns: list[list[Rows]] = [[], []]
            for section in help_rows():  # the longest section has the second column for itself
                columns[len(section[1]) > LONG].append(section)
            with inside(dpg.add_table(header_row=False)):
                dpg.add_table_column(init_width_or_weight=1.12)
                dpg.add_table_column(init_width_or_weight=1.0)
                with inside(dpg.add_table_row()):
                    for sections in columns:
                        with inside(dpg.add_group()):
                            for heading, rows in sections:
                                self._build_section(heading, rows)
        self._shown = False

    def _build_section(self, heading: str, rows: tuple[tuple[str, str], ...]) -> None:
        style, px = self.style, self.style.px
        dpg.bind_item_font(dpg.add_text(heading), style.bold)
        with inside(dpg.add_table(header_row=False, no_pad_outerX=True)) as table:
            dpg.bind_item_theme(table, style.facts)
            widest = max(text_width(key, style.body) for key, _ in rows)
            dpg.add_table_column(width_fixed=True, init_width_or_weight=round(widest) + px(16))
            dpg.add_table_column()
            for key, meaning in rows:
                with inside(dpg.add_table_row()):
                    dpg.add_text(key, color=ACCENT)
                    dpg.add_text(meaning)
        dpg.add_spacer(height=px(6))

    def _close(self) -> None:
        self.session.dialogs.help_shown = False

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        if self.session.dialogs.help_shown == self._shown:
            return
        self._shown = self.session.dialogs.help_shown
        if self._shown:
            place_over_picture(self.ui, self._window, WIDTH, HEIGHT, dpg.get_viewport_client_width())
        dpg.configure_item(self._window, show=self._shown)
        if self._shown:
            dpg.focus_item(self._window)
