"""Asks before a run starts over."""

from __future__ import annotations

from splatscope.viewer.dialogs.question import Question
from splatscope.viewer.drawing.widgets import Panel, count
from splatscope.viewer.messages.view import EngineStatus, Picture
from splatscope.viewer.state.run_verbs import CAN_RESET


class ResetWindow(Panel):
    """Shows the question while `session.dialogs.resetting` is set."""

    def build(self) -> None:
        self._question = Question(self.ui, "Start over?", self.session.run.cancel_reset)
        self.throw = self._question.answer("Start over", self.session.run.reset, 130)
        self._question.answer("Cancel", self.session.run.cancel_reset, 110, primary=True, tip="Keeps the run (Esc)")

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        training = status.training
        if training.state not in CAN_RESET:
            self.session.run.cancel_reset()
        if not self.session.dialogs.resetting:
            self._question.hide()
            return
        self._question.show(
            f"The run has reached iteration {count(training.iteration)} and would start again at 0. The recipe and the "
            f"files in {training.out_dir} stay unchanged."
        )
