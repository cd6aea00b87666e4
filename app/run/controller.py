"""Runs one trainer for the engine: starts, pauses, scores, stops, resets and tells how it is going.

All that the engine knows of a run is here. The trainer's generator is the only loop: `advance` takes one event from
it, so that pictures can be made in between. `progress.py` turns events into figures, `plan.py` makes trainers.
Everything happens on the engine's thread.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from splatscope.app.run.memory_forecast import MemoryWatch
from splatscope.app.run.plan import RunPlan
from splatscope.app.run.progress import LOADING, SCORING, RunProgress
from splatscope.app.run.sentences import back_label, is_drastic, sentence
from splatscope.app.run.status import phase_of
from splatscope.kernels.errors import InputError
from splatscope.training import events
from splatscope.training.errors import NotSavedError, StandstillError
from splatscope.training.files.folder import resume_line
from splatscope.training.recipes import schedules_in_words
from splatscope.viewer.messages.commands import SetRecipe
from splatscope.viewer.messages.run import CAN_START, TrainingState, TrainingStatus, Trouble
from splatscope.viewer.messages.view import Recipe

if TYPE_CHECKING:  # torch loads with the trainer, which is made elsewhere
    from splatscope.assets.capture import Capture
    from splatscope.kernels.backend import Backend
    from splatscope.training.trainer import Trainer

TrainerFactory = Callable[["Capture", "Backend"], "Trainer"]


def way_back(trainer: Trainer) -> Path | None:
    """Returns the newest checkpoint of the run before its present iteration; None if there is none."""
    from splatscope.training.files.checkpoint import checkpoints  # loads torch

    trainer.wait_for_files()  # a checkpoint that is being written counts
    earlier = [path for iteration, path in checkpoints(trainer.out_dir).items() if iteration < trainer.iteration]
    return earlier[-1] if earlier else None


def describe_trouble(trainer: Trainer, text: str, number: int) -> Trouble:
    """Describes why a run has paused by itself, `text`, for the `number`-th time, and where it can go back to."""
    path = way_back(trainer)
    back = int(path.stem.rpartition("_")[2]) if path else 0
    return Trouble(text, trainer.iteration, back, back_label(back), number)


def describe_unsaved(trainer: Trainer) -> str:
    """Describes a run that is not to be saved: its iteration, and its newest checkpoint."""
    from splatscope.training.files.checkpoint import checkpoints  # loads torch

    trainer.wait_for_files()
    *_, newest = (0, *checkpoints(trainer.out_dir))
    kept = f"Resume from iteration {newest:,}: {resume_line(trainer.out_dir)}"
    words = f"Training stopped at iteration {trainer.iteration:,} and was not saved."
    return f"{words} {kept}" if newest else words


class RunController:
    """Drives a `Trainer` and keeps the run's state.

    A reset, another recipe and going back put another trainer in the place of the first; the controller stays.
    """

    def __init__(
        self, trainer: Trainer, log: Callable[[str, str], None], make_trainer: TrainerFactory | None = None
    ) -> None:
        """`make_trainer` made `trainer` and makes the next ones; a `RunPlan` also has a recipe that can change. `log`
        takes a level and a line for the user."""
        self._log = log
        self._use(make_trainer)
        self._take_over(trainer)

    def _use(self, make_trainer: TrainerFactory | None) -> None:
        """Remembers what makes the run's trainers, and its recipe, if one can be chosen."""
        self._make_trainer = make_trainer
        self.recipe: Recipe | None = None
        if isinstance(make_trainer, RunPlan) and make_trainer.begin is None:
            self.recipe = make_trainer.recipe()

    def _take_over(self, trainer: Trainer) -> None:
        """Begins with a trainer of which nothing has been asked."""
        self.trainer = trainer
        self.state: TrainingState = self._state_at_rest
        self.progress = RunProgress(trainer)
        self._events: Iterator[events.Event] = trainer.run()
        self._memory = MemoryWatch(trainer)
        self._pause_after = 0  # iteration; 0: none
        self._scores_wanted = False  # whatever the state
        self._trouble = ""  # why the run paused by itself, until it is resumed
        self._troubles = 0  # number of such pauses so far
        self._parting = ""  # sentence about a run that was stopped and not saved

    @property
    def _state_at_rest(self) -> TrainingState:
        """Returns the state of a run of which nothing has been asked yet."""
        return "finished" if self.trainer.iteration >= self.trainer.config.iterations else "ready"

    @property
    def active(self) -> bool:
        """Returns True while `advance` has something to do."""
        return self.state in ("running", "stopping") or self._scores_wanted

    @property
    def has_begun(self) -> bool:
        """Returns True once anything was asked of the run; until then its recipe can change."""
        return self.state != "ready" or self.trainer.iteration > 0

    @property
    def open_recipe(self) -> Recipe | None:
        """Returns the recipe while it can be changed."""
        return None if self.has_begun else self.recipe

    def _set_state(self, state: TrainingState) -> None:
        self.state = state
        self._trouble = ""
        self.progress.restart_rate()

    def start(self, until: int | None = None) -> None:
        """Starts or resumes the run, up to an iteration if one is named.

        An iteration past the end makes the run longer, even if the run is over. Raises InputError if the run has passed
        the iteration, and if longer settings cannot be written.
        """
        if until is not None and until <= self.trainer.iteration:
            raise InputError(f"Iteration {until:,} is behind: the run has reached {self.trainer.iteration:,}.")
        if until is not None and until > self.trainer.config.iterations and self.state not in ("stopping", "error"):
            self.trainer.extend(until)
            self._log("info", f"The run continues to iteration {until:,}; the constants of its schedules stay.")
        if self.state == "finished" and until is not None:
            self._events = self.trainer.run()
            self._set_state("running")
        elif self.state in CAN_START:
            self._set_state("running")
        self._pause_after = until if until is not None and until < self.trainer.config.iterations else 0
        self.progress.unsaved = self._parting = ""

    def score(self) -> None:
        """Scores the splats as they are, unless their iteration has been scored. The state stays."""
        if not self.status(0).can_be_scored:
            return
        if self.state == "finished":
            self._events = self.trainer.run()
        self.trainer.ask_for_scores()
        self._scores_wanted = True
        self.progress.doing = LOADING if self.progress.prepared is None else SCORING

    def pause(self) -> None:
        """Keeps everything; the step in flight is already over when this is called."""
        if self.state == "running":
            self._set_state("paused")

    def step(self) -> None:
        """Runs one iteration, then pauses."""
        if self.state in CAN_START:
            self._set_state("running")
            self._pause_after = self.trainer.iteration + 1

    def stop(self, save: bool = True) -> None:
        """Stops the run, and saves it if asked to. It keeps everything, so that it can be resumed."""
        if not save and self.state in ("running", "paused", "stopping"):
            self._parting = describe_unsaved(self.trainer)
            self._set_state("stopped")
        elif self.state in ("running", "paused"):
            self._set_state("stopping")
        elif self.state == "ready":
            self._set_state("stopped")

    # ---- Another trainer in its place --------------------------------------------------------------

    def set_recipe(self, wish: SetRecipe) -> None:
        """Follows another recipe. Raises InputError, and keeps the old one, if it cannot be used or has begun."""
        if not isinstance(self._make_trainer, RunPlan) or self.open_recipe is None:
            raise InputError("The recipe cannot change once training has begun; reset the run first.")
        try:
            plan = self._make_trainer.changed(wish)
            trainer = plan(self.trainer.capture, self.trainer.backend)
        except InputError as error:
            named = (*(name for name, _ in wish.changes), *(("out",) if wish.out is not None else ()))
            self.recipe = replace(self._make_trainer.recipe(), refused=(named, str(error)))
            raise
        self._use(plan)
        self._take_over(trainer)

    def reset(self) -> bool:
        """Throws the run away; True if there was one. Raises InputError while it is running."""
        if self.state in ("running", "stopping"):
            raise InputError("Training is running; pause it before it is reset.")
        make = self._make_trainer
        if not self.has_begun or make is None:
            return False
        self._replace_trainer(make.again() if isinstance(make, RunPlan) else make)
        self._log("info", f"The run is at its beginning again; it will write to {self.trainer.out_dir}.")
        return True

    def go_back(self) -> bool:
        """Returns to the newest checkpoint, or to the run's beginning if there is none; True if it did.

        Does nothing unless the run is paused by an error. Raises InputError while the run is running, and for a
        checkpoint that cannot be read.
        """
        if not self._trouble:
            return False
        path = way_back(self.trainer)
        if path is None:
            return self.reset()
        plan = self._make_trainer
        if self.state in ("running", "stopping") or not isinstance(plan, RunPlan):
            raise InputError("Training is running; pause it before it goes back.")
        from splatscope.training.files.checkpoint import read_checkpoint  # these two load torch
        from splatscope.training.trainer import Beginning

        checkpoint = read_checkpoint(path)
        begin = Beginning(path, checkpoint, iteration=checkpoint.iteration)
        # The run may have been made longer: its own settings, not the plan's.
        self._replace_trainer(replace(plan, config=self.trainer.config, out=self.trainer.out_dir, begin=begin))
        self._make_trainer = plan  # a reset still returns to the run's own beginning
        self.state = "paused"
        self._log("info", f"The run is at iteration {checkpoint.iteration:,} again, that of {path}.")
        return True

    def _replace_trainer(self, make_trainer: TrainerFactory) -> None:
        """Makes another trainer once the present one is freed: a GPU need not have room for both.

        If the other cannot be made, restores this one as it was, from a copy on the host, and raises why.
        """
        from splatscope.training.files.checkpoint import checkpoint_path  # these two load torch
        from splatscope.training.trainer import Beginning, Trainer

        trainer = self.trainer
        capture, backend = trainer.capture, trainer.backend
        if self.state == "error":  # nothing can be asked of it any more
            trainer = make_trainer(capture, backend)
            self._use(make_trainer)
            self._take_over(trainer)
            return
        standing = self.state, self._trouble, self._troubles
        kept, config, out = trainer.snapshot(), trainer.config, trainer.out_dir
        self._set_state("finished")
        self._events = iter(())
        del self.trainer, self._memory, trainer
        if (forget := getattr(backend, "forget", None)) is not None:
            forget()
        gc.collect()  # steps and their buffers refer to each other
        try:
            other = make_trainer(capture, backend)
        except BaseException:
            begin = Beginning(checkpoint_path(out, kept.iteration), kept, iteration=kept.iteration)
            self._take_over(Trainer(capture, config, backend, out, begin))
            self.state, self._trouble, self._troubles = standing
            raise
        self._use(make_trainer)
        self._take_over(other)

    def advance(self) -> bool:
        """Takes one event from the trainer; True if the splats changed. Errors end the run and are raised."""
        try:
            if self.state == "stopping":
                self._save_and_stop()
                return False
            changed, event = False, next(self._events, None)
            while isinstance(event, events.Densified | events.GrowthStopped):  # no iteration has begun after them
                changed |= self._take(event)
                event = next(self._events, None)
        except StandstillError as error:  # the splats are those of the step before; the run can be resumed
            self._events = self.trainer.run()
            self._scores_wanted, self.progress.doing = False, ""
            self._set_state("paused")
            self._trouble = str(error)
            self._troubles += 1
            raise
        except BaseException as error:
            self._scores_wanted = False
            can_be_tried_again = self.progress.prepared is None and isinstance(error, InputError)
            if can_be_tried_again:  # nothing has begun: perhaps with another recipe or folder
                self._events = self.trainer.run()
            if self.state != "paused":
                self._set_state(self._state_at_rest if can_be_tried_again else "error")
            raise
        if event is None:
            self._scores_wanted = False
            self._set_state("finished")
            return changed
        changed |= self._take(event)
        if self.state == "finished" and not self._scores_wanted:
            self._events = iter(())  # another run may write to its folder now
        return changed

    def _take(self, event: events.Event) -> bool:
        """Follows one event and logs its sentence; True if it changed the splats."""
        self.progress.take(event, self.trainer)
        match event:
            case events.Stepped() if 0 < self._pause_after <= event.iteration:
                self._pause_after = 0
                self._set_state("paused")
            case events.Prepared():
                for warning in event.warnings[len(self.trainer.capture.warnings) :]:  # opening logged the others
                    self._log("warning", warning)
                if short := schedules_in_words(self.trainer.config):
                    self._log("info", short)
            case events.Evaluated():
                self._scores_wanted = False
            case events.Finished():
                self._set_state("finished")
            case _:
                pass
        if (text := sentence(event)) is not None:
            is_bad = isinstance(event, events.SaveFailed | events.GrowthStopped) or is_drastic(event)
            self._log("warning" if is_bad else "info", text)
        return isinstance(event, events.Stepped | events.Densified)

    def _save_and_stop(self) -> None:
        try:
            path = self.trainer.save()
        except NotSavedError as error:
            if error.path is None or "checkpoint" in error.what:  # paused, so that stopping can be tried again
                self._set_state("paused")
                raise
            path = error.path
            self._log("warning", str(error))
        self.progress.note = f"Saved {path}"
        self._log("info", f"Training stopped at iteration {self.trainer.iteration}; saved {path}.")
        self._set_state("stopped")

    def save_on_close(self) -> str:
        """Saves a live run as it is and returns a sentence about it; for any other run, waits until its files are
        written. Raises InputError if the run cannot be written."""
        if self.state not in ("running", "paused", "stopping"):
            self.trainer.wait_for_files()
            return self._parting
        path, resumable = self.trainer.save(), self.trainer.config.checkpoint.enabled
        words = f" Resume: {resume_line(self.trainer.out_dir)}" if resumable else ""
        return f"Training stopped at iteration {self.trainer.iteration:,}; saved {path}.{words}"

    def status(self, view_cost: float) -> TrainingStatus:
        """Returns a snapshot for the training panel; `view_cost` is the share of the time that pictures take."""
        trainer, progress, is_running = self.trainer, self.progress, self.state == "running"
        doing = progress.doing if self.active and self.state != "stopping" else ""
        until = self._pause_after if is_running else 0
        left = (until or trainer.config.iterations) - trainer.iteration
        rate = progress.rate if is_running else None
        return replace(
            progress.status(),
            state=self.state,
            doing=doing,
            so_far=progress.so_far if doing else "",
            iteration=trainer.iteration,
            iterations=trainer.config.iterations,
            until=until,
            iterations_per_second=rate,
            eta_seconds=left / rate if rate else None,
            out_dir=trainer.out_dir,
            trouble=describe_trouble(trainer, self._trouble, self._troubles) if self._trouble else None,
            memory=self._memory.now(),
            phase=phase_of(trainer, progress.prepared, progress.refined),
            view_cost=view_cost if is_running else 0.0,
        )
