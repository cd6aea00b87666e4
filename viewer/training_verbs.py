"""What keys and buttons ask of the training run: only what its state allows, and nothing twice.

A part of `Session`, which says what else there is. Commands reach the engine between two steps, and while kernels
compile that takes seconds: until then `pending` tells what was asked for.
"""

from __future__ import annotations

from splatscope.viewer import messages
from splatscope.viewer.messages import EngineClient, EngineStatus, LogLine
from splatscope.viewer.run_status import CAN_START, TrainingState, Trouble

CAN_RESET: tuple[TrainingState, ...] = ("paused", "stopped", "finished", "error")


class TrainingVerbs:
    """See the module's text."""

    client: EngineClient
    status: EngineStatus
    error: LogLine | None
    closing: bool  # it is asked whether to, as a run is live
    resetting: bool = False  # it is asked whether to
    _trouble_seen: Trouble | None = None  # and answered
    _held: messages.StartTraining | None = None  # what lets a run go on that waits for an answer
    _pending: tuple[TrainingState, str] | None = None  # the state it was asked in, and the words

    @property
    def pending(self) -> str:
        """What was asked of a run that is in the middle of something; empty once it is done."""
        if self._pending is not None and self._pending[0] != self.status.training.state:
            self._pending = None
        return self._pending[1] if self._pending else ""

    def toggle_training(self) -> None:
        """Starts, resumes or pauses, whichever the state allows; not behind a question."""
        state = self.status.training.state
        if self.closing:
            return
        if state in CAN_START:
            self.client.send(messages.StartTraining())
        elif state == "running" and not self.pending:
            self.client.send(messages.PauseTraining())
            self._pending = state, "Pausing…"

    def step_training(self) -> None:
        """One iteration, if nothing runs."""
        if not self.closing and self.status.training.state in CAN_START:
            self.client.send(messages.StepTraining())

    def train_until(self, iteration: int) -> None:
        """Goes on and pauses after that iteration; one past the end makes the run longer."""
        if self.status.training.state in (*CAN_START, "running", "finished"):
            self.client.send(messages.StartTraining(iteration))

    def stop_training(self) -> None:
        """Saves and stops the run."""
        state = self.status.training.state
        if state in ("running", "paused"):
            self.client.send(messages.StopTraining())
            self._pending = (state, "Stopping…") if state == "running" else None

    def score_now(self) -> None:
        """Scores the tested views after this iteration; a run that is going goes on afterwards."""
        if self.status.training.can_be_scored:
            self.client.send(messages.ScoreNow())

    def hold_training(self) -> None:
        """Pauses a run while something is asked; `release_training` lets it go on to where it was going."""
        training = self.status.training
        if training.state == "running":
            self._held = messages.StartTraining(training.until or None)
            self.client.send(messages.PauseTraining())

    def release_training(self) -> None:
        """The question is answered."""
        held, self._held, training = self._held, None, self.status.training
        if held is None or training.state not in ("running", "paused"):
            return
        if (held.until or training.iterations) > training.iteration:
            self.client.send(held)

    def abandon_training(self) -> None:
        """Stops the run without saving it."""
        self._held = None
        self.client.send(messages.StopTraining(save=False))

    def ask_reset(self) -> None:
        """Asks whether the run is to be thrown away."""
        self.resetting = self.status.training.state in CAN_RESET

    def keep_run(self) -> None:
        """It is not."""
        self.resetting = False

    def reset_training(self) -> None:
        """Throws the run away; who calls it has asked before."""
        self.resetting = False
        if self.status.training.state in CAN_RESET:
            self.client.send(messages.ResetTraining())

    def set_recipe(self, preset: str = "", changes: tuple[tuple[str, str], ...] = (), out: str | None = None) -> None:
        """Another recipe, or some of its values, for the run that has not begun."""
        if self.status.recipe is not None:
            self.client.send(messages.SetRecipe(preset, changes, out))

    @property
    def trouble(self) -> Trouble | None:
        """Why the run has paused by itself, until somebody has decided what to do."""
        trouble = self.status.training.trouble
        return None if trouble == self._trouble_seen else trouble

    def keep_paused(self) -> None:
        """The run stays as it is."""
        self._trouble_seen = self.status.training.trouble
        self.error = None

    def go_back(self) -> None:
        """To the newest checkpoint before the trouble."""
        self.error = None
        self.client.send(messages.GoBack())
