"""Asks before the window closes on a training run. Whatever is answered, nothing is lost: closing saves the run."""

from __future__ import annotations

import dearpygui.dearpygui as dpg

from splatscope.viewer.messages import EngineStatus, Picture
from splatscope.viewer.style import inside
from splatscope.viewer.widgets import Panel, button, count

WIDTH, HEIGHT = 430, 114  # points
LIVE = ("running", "paused", "stopping")


class CloseWindow(Panel):
    """See the module's text. `ask` is what the window's close button does."""

    def build(self) -> None:
        self._window = dpg.add_window(
            label="Training is not finished", show=False, no_collapse=True, no_resize=True, no_saved_settings=True,
            on_close=self._go_on,
        )  # fmt: skip
        dpg.bind_item_theme(self._window, self.style.popup)
        with inside(self._window):
            self._text = dpg.add_text("", wrap=self.style.px(WIDTH - 30))
            with inside(dpg.add_group(horizontal=True)):
                self.yes = button(self.style, "Save and close", lambda: dpg.stop_dearpygui(), width=150, primary=True)
                self.no = button(self.style, "Go on training", self._go_on, width=150, tip="Esc does the same")

    def ask(self) -> None:
        """Closes at once unless a run is live; a second request closes too, for those who insist."""
        state = self.session.status.training.state
        if state not in LIVE or self.session.closing:
            dpg.stop_dearpygui()
            return
        room, px = self.session.viewport, self.style.px
        at = (max(0, (room[0] - px(WIDTH)) // 2), max(0, (room[1] - px(HEIGHT)) // 2))
        dpg.configure_item(self._window, pos=at, width=px(WIDTH), height=px(HEIGHT), show=True)
        self.session.closing = True

    def _go_on(self) -> None:
        self.session.closing = False

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        training = status.training
        if self.session.closing and training.state not in LIVE:
            self._go_on()
        if not self.session.closing:
            dpg.configure_item(self._window, show=False)
            return
        if dpg.get_active_window() != self._window:  # a list or a file to be chosen would hide it
            dpg.focus_item(self._window)
        where = f"Iteration {count(training.iteration)} of {count(training.iterations)} is reached."
        dpg.set_value(self._text, f"{where} Closing saves the splats and a checkpoint to go on from.")
