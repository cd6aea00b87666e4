"""Asks before the window closes during a run. The run is paused meanwhile, so that the iteration shown is saved."""

from __future__ import annotations

import time

import dearpygui.dearpygui as dpg

from splatscope.viewer.dialogs.question import Question
from splatscope.viewer.drawing.widgets import Panel, count
from splatscope.viewer.messages.view import EngineStatus, Picture

LIVE = ("running", "paused", "stopping")
INSISTS = 0.6  # seconds before a second request counts; an earlier request belongs to a double click


class CloseWindow(Panel):
    """Shows the question; the window's close button calls `ask`."""

    _since = 0.0  # when the question appeared
    _leaves = False  # True: the window closes without saving once the engine has stopped the run

    def build(self) -> None:
        self._question = question = Question(self.ui, "Training is not finished", self._stay)
        self.yes = question.answer("Save and close", lambda: dpg.stop_dearpygui(), 130, primary=True)
        tip = "Loses the iterations after the newest checkpoint"
        self.unsaved = question.answer("Close without saving", self._leave, 158, tip=tip)
        self.no = question.answer("Cancel", self._stay, 110, tip="Returns to the window (Esc)")

    def ask(self) -> None:
        """Closes the window, but asks first during a run; a second request saves and closes."""
        now = time.perf_counter()
        if self.session.engine.status.training.state not in LIVE:
            dpg.stop_dearpygui()
        elif not self.session.dialogs.closing:
            self._since, self._leaves = now, False
            self.session.dialogs.closing = True
            self.session.run.hold()
        elif now - self._since > INSISTS:
            dpg.stop_dearpygui()

    def _stay(self) -> None:
        self.session.dialogs.closing = False

    def _leave(self) -> None:
        self._leaves = True
        self.session.run.abandon()

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        training = status.training
        if self.session.dialogs.closing and training.state not in LIVE:
            if self._leaves:
                dpg.stop_dearpygui()
                return
            self._stay()
        if not self.session.dialogs.closing:
            self._question.hide()
            self.session.run.release()
            return
        where = f"The run has reached iteration {count(training.iteration)} of {count(training.iterations)}."
        if training.state == "running":
            where = f"{where} Pausing…"
        self._question.show(f"{where} Saving writes the splats and a checkpoint to resume from.")
