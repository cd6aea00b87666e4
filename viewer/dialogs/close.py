"""Asks before the window closes during a run, which is paused meanwhile: the iteration shown is the one saved."""

from __future__ import annotations

import time

import dearpygui.dearpygui as dpg

from splatscope.viewer.dialogs.question import Question
from splatscope.viewer.drawing.widgets import Panel, count
from splatscope.viewer.messages.view import EngineStatus, Picture

LIVE = ("running", "paused", "stopping")
INSISTS = 0.6  # seconds before a second request counts; an earlier one is the other half of a double click


class CloseWindow(Panel):
    """See the module's text. `ask` is what the window's close button does."""

    _since = 0.0  # when it was asked
    _leaves = False  # without saving, as soon as the engine has heard of it

    def build(self) -> None:
        self._question = question = Question(self.ui, "Training is not finished", self._stay)
        self.yes = question.answer("Save and close", lambda: dpg.stop_dearpygui(), 130, primary=True)
        tip = "Iterations after the newest checkpoint are lost"
        self.unsaved = question.answer("Close without saving", self._leave, 158, tip=tip)
        self.no = question.answer("Cancel", self._stay, 110, tip="Esc does the same")

    def ask(self) -> None:
        """Closes at once unless a run is live; a second request saves and closes."""
        now = time.perf_counter()
        if self.session.status.training.state not in LIVE:
            dpg.stop_dearpygui()
        elif not self.session.closing:
            self._since, self._leaves = now, False
            self.session.closing = True
            self.session.hold_training()
        elif now - self._since > INSISTS:
            dpg.stop_dearpygui()

    def _stay(self) -> None:
        self.session.closing = False

    def _leave(self) -> None:
        self._leaves = True
        self.session.abandon_training()

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        training = status.training
        if self.session.closing and training.state not in LIVE:
            if self._leaves:
                dpg.stop_dearpygui()
                return
            self._stay()
        if not self.session.closing:
            self._question.hide()
            self.session.release_training()
            return
        where = f"The run has reached iteration {count(training.iteration)} of {count(training.iterations)}."
        if training.state == "running":
            where = f"{where} Pausing…"
        self._question.show(f"{where} Saving writes the splats and a checkpoint to resume from.")
