"""Sends the commands of a training run: only those that its state allows, and none twice.

Commands reach the engine between two steps, and that takes seconds while kernels compile. Until then `pending` names
the command.
"""

from __future__ import annotations

from splatscope.viewer.messages import commands
from splatscope.viewer.messages.run import CAN_START, TrainingState, TrainingStatus, Trouble
from splatscope.viewer.state.dialogs import Dialogs
from splatscope.viewer.state.engine_link import EngineLink
from splatscope.viewer.state.message_log import MessageLog

CAN_RESET: tuple[TrainingState, ...] = ("paused", "stopped", "finished", "error")


class RunVerbs:
    """Does what keys, buttons and menus of a run ask for."""

    def __init__(self, engine: EngineLink, dialogs: Dialogs, log: MessageLog) -> None:
        self._engine, self._dialogs, self._log = engine, dialogs, log
        self._trouble_seen: Trouble | None = None  # the fault that the user has answered
        self._held: commands.StartTraining | None = None  # resumes a run that waits for an answer
        self._pending: tuple[TrainingState, str] | None = None  # the run's state when asked, and the words to show

    @property
    def _training(self) -> TrainingStatus:
        return self._engine.status.training

    @property
    def pending(self) -> str:
        """Returns the command that a busy run has yet to carry out; empty once it has."""
        if self._pending is not None and self._pending[0] != self._training.state:
            self._pending = None
        return self._pending[1] if self._pending else ""

    def toggle(self) -> None:
        """Starts, resumes or pauses, as the state allows; does nothing while the window asks whether to close."""
        state = self._training.state
        if self._dialogs.closing:
            return
        if state in CAN_START:
            self._engine.send(commands.StartTraining())
        elif state == "running" and not self.pending:
            self._engine.send(commands.PauseTraining())
            self._pending = state, "Pausing…"

    def step(self) -> None:
        """Runs one iteration unless the run is running."""
        if not self._dialogs.closing and self._training.state in CAN_START:
            self._engine.send(commands.StepTraining())

    def train_until(self, iteration: int) -> None:
        """Trains up to an iteration and pauses; an iteration past the end makes the run longer."""
        if self._training.state in (*CAN_START, "running", "finished"):
            self._engine.send(commands.StartTraining(iteration))

    def stop(self) -> None:
        """Saves and stops the run."""
        state = self._training.state
        if state in ("running", "paused"):
            self._engine.send(commands.StopTraining())
            self._pending = (state, "Stopping…") if state == "running" else None

    def score_now(self) -> None:
        """Scores the tested views after this iteration; a running run continues afterwards."""
        if self._training.can_be_scored:
            self._engine.send(commands.ScoreNow())

    def hold(self) -> None:
        """Pauses a run while a question is open; `release` resumes it with the same target."""
        if self._training.state == "running":
            self._held = commands.StartTraining(self._training.until or None)
            self._engine.send(commands.PauseTraining())

    def release(self) -> None:
        """Resumes a run that `hold` has paused."""
        held, self._held, training = self._held, None, self._training
        if held is None or training.state not in ("running", "paused"):
            return
        if (held.until or training.iterations) > training.iteration:
            self._engine.send(held)

    def abandon(self) -> None:
        """Stops the run without saving it."""
        self._held = None
        self._engine.send(commands.StopTraining(save=False))

    def ask_reset(self) -> None:
        """Asks the user whether the run should start over."""
        self._dialogs.resetting = self._training.state in CAN_RESET

    def cancel_reset(self) -> None:
        """Closes the question whether to start over."""
        self._dialogs.resetting = False

    def reset(self) -> None:
        """Starts the run over; the caller has asked the user before."""
        self._dialogs.resetting = False
        if self._training.state in CAN_RESET:
            self._engine.send(commands.ResetTraining())

    def set_recipe(self, preset: str = "", changes: tuple[tuple[str, str], ...] = (), out: str | None = None) -> None:
        """Sets a recipe, or some of its values, for a run that has not begun."""
        if self._engine.status.recipe is not None:
            self._engine.send(commands.SetRecipe(preset, changes, out))

    @property
    def trouble(self) -> Trouble | None:
        """Returns the fault that the run has paused for; None once the user has answered."""
        trouble = self._training.trouble
        return None if trouble == self._trouble_seen else trouble

    def keep_paused(self) -> None:
        """Leaves a run that paused for a fault as it is."""
        self._trouble_seen = self._training.trouble
        self._log.dismiss()

    def go_back(self) -> None:
        """Returns to the newest checkpoint before the fault."""
        self._log.dismiss()
        self._engine.send(commands.GoBack())
