"""Asks before a run is thrown away."""

from __future__ import annotations

from splatscope.viewer.messages import EngineStatus, Picture
from splatscope.viewer.panels.question import Question
from splatscope.viewer.training_verbs import CAN_RESET
from splatscope.viewer.widgets import Panel, count


class ResetWindow(Panel):
    """See the module's text. The session says when."""

    def build(self) -> None:
        self._question = Question(self.ui, "Begin anew?", self.session.keep_run)
        self.throw = self._question.answer("Begin anew", self.session.reset_training, 130)
        self._question.answer("Cancel", self.session.keep_run, 110, primary=True, tip="Esc does the same")

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        training = status.training
        if training.state not in CAN_RESET:
            self.session.keep_run()
        if not self.session.resetting:
            self._question.hide()
            return
        self._question.show(
            f"The run has reached iteration {count(training.iteration)}. It begins anew with the recipe as it was; "
            f"what is saved in {training.out_dir} stays there."
        )
