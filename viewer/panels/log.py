"""Lists the messages since the window opened: all, warnings and errors, or errors only.

The list follows the newest message at the bottom. It stops when the user scrolls up, until the user scrolls
down to the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import dearpygui.dearpygui as dpg

from splatscope.kernels.wording import counted
from splatscope.viewer.drawing.style import SCROLLBAR, inside
from splatscope.viewer.drawing.widgets import Panel, Ui, button, wrap_text
from splatscope.viewer.messages.view import EngineStatus, LogLine, Picture
from splatscope.viewer.palette import BAD, DIM, TEXT, WARN, Color
from splatscope.viewer.state.session import Session

COLORS: dict[str, Color] = {"info": TEXT, "warning": WARN, "error": BAD}
LINES_DRAWN = 300
FILTERS = {"all messages": ("info", "warning", "error"), "warnings, errors": ("warning", "error"), "errors": ("error",)}


class LogPanel(Panel):
    """Shows the section "Log" of the dock."""

    title = "Log"

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._serial = 0
        self._follows = True
        self._scroll = 0.0  # where the list was a frame ago

    def build(self) -> None:
        with inside(dpg.add_group(horizontal=True)):
            self._filter = dpg.add_combo(
                list(FILTERS), default_value=next(iter(FILTERS)), width=self.style.px(128), callback=self._refill
            )
            self._summary = dpg.add_text("No messages yet.", color=DIM)
        with inside(dpg.add_child_window(height=self.style.px(170), border=False)) as self._lines:
            pass
        button(self.style, "Copy all", self._copy)

    def _copy(self) -> None:
        dpg.set_clipboard_text("\n".join(f"{line.level}: {line.text}" for line in self.session.log.lines))

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        self._follow()
        fresh = [line for line in self.session.log.lines if line.serial > self._serial]
        if not fresh:
            return
        self._serial = fresh[-1].serial
        self._add(fresh)
        children: list[int] = dpg.get_item_children(self._lines, 1)  # pyright: ignore[reportAssignmentType]
        for item in children[:-LINES_DRAWN]:
            dpg.delete_item(item)
        errors, warnings = _troubles(self.session)
        dpg.set_value(self._summary, f"{counted(warnings, 'warning')}, {counted(errors, 'error')}")

    def _follow(self) -> None:
        """Scrolls to the newest message, unless the user has scrolled up from it."""
        scroll, most = dpg.get_y_scroll(self._lines), dpg.get_y_scroll_max(self._lines)
        self._follows = scroll >= most - 1 or (self._follows and scroll >= self._scroll)
        self._scroll = scroll
        if self._follows and scroll < most:
            dpg.set_y_scroll(self._lines, most)

    def _add(self, lines: Sequence[LogLine]) -> None:
        levels = FILTERS[dpg.get_value(self._filter)]
        for line in [line for line in lines if line.level in levels][-LINES_DRAWN:]:
            text = wrap_text(line.text, self.ui.room - self.style.px(SCROLLBAR), self.style.body)
            dpg.add_text(text, parent=self._lines, color=COLORS[line.level])

    def _refill(self) -> None:
        dpg.delete_item(self._lines, children_only=True)
        self._add(self.session.log.lines)
        self._follows, self._scroll = True, 0.0

    def heading(self) -> str:
        errors, warnings = _troubles(self.session)
        parts = [counted(n, word) for n, word in ((warnings, "warning"), (errors, "error")) if n]
        return f"{self.title}: {', '.join(parts)}" if parts else self.title


def _troubles(session: Session) -> tuple[int, int]:
    """Returns the numbers of errors and warnings in the log."""
    errors, warnings = (sum(line.level == level for line in session.log.lines) for level in ("error", "warning"))
    return errors, warnings
