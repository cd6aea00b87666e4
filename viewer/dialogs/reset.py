"""Asks before a run starts over."""

from __future__ import annotations

from splatscope.viewer.dialogs.question import Question
from splatscope.viewer.drawing.widgets import Panel, count
from splatscope.viewer.messages.view import EngineStatus, Picture
from splatscope.viewer.state.run_verbs import CAN_RESET


class ResetWindow(Panel):
    """See the module's text. `session.resetting` decides when."""

    def build(self) -> None:
        self._question = Question(self.ui, "Start over?", self.session.keep_run)
        self.throw = self._question.answer("Start over", self.session.reset_training, 130)
        self._question.answer("Cancel", self.session.keep_run, 110, primary=True, tip="Esc does the same")

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        training = status.training
        if training.state not in CAN_RESET:
            self.session.keep_run()
        if not self.session.resetting:
            self._question.hide()
            return
        self._question.show(
            f"The run has reached iteration {count(training.iteration)} and would start from 0. The recipe stays as it "
            f"is, and so do the files in {training.out_dir}."
        )
