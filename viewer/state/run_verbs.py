"""Sends the commands of a training run: only those that its state allows, and none twice.

A part of `Session`. Commands reach the engine between two steps, and while kernels compile that takes seconds:
`pending` names the command until then.
"""

from __future__ import annotations

from splatscope.viewer.messages import commands
from splatscope.viewer.messages.client import EngineClient
from splatscope.viewer.messages.run import CAN_START, TrainingState, Trouble
from splatscope.viewer.messages.view import EngineStatus, LogLine

CAN_RESET: tuple[TrainingState, ...] = ("paused", "stopped", "finished", "error")


class RunVerbs:
    """See the module's text."""

    client: EngineClient
    status: EngineStatus
    error: LogLine | None
    closing: bool  # the window asks whether to close, because a run is live
    resetting: bool = False  # the window asks whether to start over
    _trouble_seen: Trouble | None = None  # the fault that the user has answered
    _held: commands.StartTraining | None = None  # resumes a run that waits for an answer
    _pending: tuple[TrainingState, str] | None = None  # the state it was asked in, and the words

    @property
    def pending(self) -> str:
        """The command that a busy run has yet to carry out; empty once it has."""
        if self._pending is not None and self._pending[0] != self.status.training.state:
            self._pending = None
        return self._pending[1] if self._pending else ""

    def toggle_training(self) -> None:
        """Starts, resumes or pauses, as the state allows; does nothing while a question is open."""
        state = self.status.training.state
        if self.closing:
            return
        if state in CAN_START:
            self.client.send(commands.StartTraining())
        elif state == "running" and not self.pending:
            self.client.send(commands.PauseTraining())
            self._pending = state, "Pausing…"

    def step_training(self) -> None:
        """One iteration, if nothing runs."""
        if not self.closing and self.status.training.state in CAN_START:
            self.client.send(commands.StepTraining())

    def train_until(self, iteration: int) -> None:
        """Trains up to that iteration and pauses; one past the end makes the run longer."""
        if self.status.training.state in (*CAN_START, "running", "finished"):
            self.client.send(commands.StartTraining(iteration))

    def stop_training(self) -> None:
        """Saves and stops the run."""
        state = self.status.training.state
        if state in ("running", "paused"):
            self.client.send(commands.StopTraining())
            self._pending = (state, "Stopping…") if state == "running" else None

    def score_now(self) -> None:
        """Scores the tested views after this iteration; a running run continues afterwards."""
        if self.status.training.can_be_scored:
            self.client.send(commands.ScoreNow())

    def hold_training(self) -> None:
        """Pauses a run while a question is open; `release_training` resumes it with the same target."""
        training = self.status.training
        if training.state == "running":
            self._held = commands.StartTraining(training.until or None)
            self.client.send(commands.PauseTraining())

    def release_training(self) -> None:
        """Resumes a run that `hold_training` has paused."""
        held, self._held, training = self._held, None, self.status.training
        if held is None or training.state not in ("running", "paused"):
            return
        if (held.until or training.iterations) > training.iteration:
            self.client.send(held)

    def abandon_training(self) -> None:
        """Stops the run without saving it."""
        self._held = None
        self.client.send(commands.StopTraining(save=False))

    def ask_reset(self) -> None:
        """Asks whether the run is to start over."""
        self.resetting = self.status.training.state in CAN_RESET

    def keep_run(self) -> None:
        """Answers that with no."""
        self.resetting = False

    def reset_training(self) -> None:
        """Starts the run over; the caller has asked before."""
        self.resetting = False
        if self.status.training.state in CAN_RESET:
            self.client.send(commands.ResetTraining())

    def set_recipe(self, preset: str = "", changes: tuple[tuple[str, str], ...] = (), out: str | None = None) -> None:
        """Sets a recipe, or some of its values, for a run that has not begun."""
        if self.status.recipe is not None:
            self.client.send(commands.SetRecipe(preset, changes, out))

    @property
    def trouble(self) -> Trouble | None:
        """The fault that the run has paused for, until the user has answered."""
        trouble = self.status.training.trouble
        return None if trouble == self._trouble_seen else trouble

    def keep_paused(self) -> None:
        """Leaves a run that paused for a fault as it is."""
        self._trouble_seen = self.status.training.trouble
        self.error = None

    def go_back(self) -> None:
        """Returns to the newest checkpoint before the fault."""
        self.error = None
        self.client.send(commands.GoBack())
