"""One training run as the engine sees it: the trainer's events turned into a state, curves and notes.

The trainer's generator is the only loop; this pulls one event at a time so that pictures can be made in
between. It runs on the engine thread alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from splatscope.app.run.memory_forecast import MemoryWatch
from splatscope.app.run.sentences import back_label, is_drastic, sentence
from splatscope.app.run.status import phase_of, refined
from splatscope.kernels.errors import InputError
from splatscope.training import events
from splatscope.training.errors import NotSavedError, StandstillError
from splatscope.training.files.folder import resume_line
from splatscope.training.recipes import schedules_in_words
from splatscope.viewer.messages.run import CAN_START, Curve, Refined, TrainingState, TrainingStatus, Trouble

if TYPE_CHECKING:  # torch loads with the trainer, which is made elsewhere
    from splatscope.kernels.types import Gaussians
    from splatscope.training.trainer import Trainer

CURVE_POINTS = 1500  # a curve is halved by averaging pairs when it holds twice as many
LOADING, COMPILING, PREPARING = "loading photographs", "compiling kernels", "preparing"
SCORING, SAVING = "scoring", "saving"
RATE_WINDOW = 2.0  # seconds over which it/s is measured


class CurveRecorder:
    """A growing curve kept short: past a limit, neighbouring points are averaged in pairs."""

    def __init__(self) -> None:
        self._x: list[float] = []
        self._y: list[float] = []
        self._stride = 1  # samples averaged into one point
        self._pending: list[tuple[float, float]] = []

    def add(self, x: float, y: float) -> None:
        """Appends one sample."""
        self._pending.append((x, y))
        if len(self._pending) < self._stride:
            return
        self._x.append(sum(p[0] for p in self._pending) / self._stride)
        self._y.append(sum(p[1] for p in self._pending) / self._stride)
        self._pending.clear()
        if len(self._x) >= 2 * CURVE_POINTS:
            self._x = [(a + b) / 2 for a, b in zip(self._x[::2], self._x[1::2], strict=False)]
            self._y = [(a + b) / 2 for a, b in zip(self._y[::2], self._y[1::2], strict=False)]
            self._stride *= 2

    def curve(self) -> Curve:
        """A copy for the window."""
        return Curve(np.array(self._x), np.array(self._y))


def way_back(trainer: Trainer) -> Path | None:
    """The newest checkpoint of the run before its present iteration; None if there is none."""
    from splatscope.training.files.checkpoint import checkpoints

    trainer.wait_for_files()  # one that is being written counts
    earlier = [path for iteration, path in checkpoints(trainer.out_dir).items() if iteration < trainer.iteration]
    return earlier[-1] if earlier else None


@dataclass(frozen=True)
class Standing:
    """How a session stands."""

    state: TrainingState
    trouble: str
    troubles: int


class RunController:
    """Start, pause, step and stop a `Trainer`, and say how it is going."""

    def __init__(self, trainer: Trainer, log: Callable[[str, str], None]) -> None:
        self.trainer = trainer
        self.state: TrainingState = self._at_rest
        self._log = log
        self._events: Iterator[events.Event] = trainer.run()
        self._pause_after = 0  # iteration; 0: none
        self._scores_wanted = False  # whatever the state
        self._doing = LOADING  # instead of steps, once something is asked of the run
        self._so_far = ""  # how far that is
        self._prepared: events.Prepared | None = None
        self._refined: Refined | None = None
        self._loss = CurveRecorder()
        self._psnr = CurveRecorder()
        self._count = CurveRecorder()
        self._step_ms = CurveRecorder()
        self._last_loss: float | None = None
        self._evaluated: events.Evaluated | None = None
        self.stage_ms: dict[str, float] = {}  # of the last step
        self._note = ""
        self._unsaved = ""  # why the result is not on disk
        self._trouble = ""  # why the run paused by itself, until it goes on
        self._troubles = 0  # so far
        self._memory = MemoryWatch(trainer)
        self._parting = ""  # of a run that was stopped and not saved
        self._rate: float | None = None
        self._rate_start: tuple[float, int] | None = None
        self._recall()

    def _recall(self) -> None:
        """Draws the curves of a run that goes on up to where it was."""
        losses, scorings = self.trainer.history
        for iteration, loss in enumerate(losses, self.trainer.iteration - len(losses) + 1):
            self._loss.add(iteration, loss)
        for scoring in scorings:
            self._psnr.add(scoring.iteration, scoring.psnr)
            self._evaluated = scoring
        for row in self.trainer.scores:
            if "splats" in row:  # earlier versions did not write it
                self._count.add(row["iteration"], row["splats"])

    @property
    def _at_rest(self) -> TrainingState:
        """Of a run that nothing has been asked of yet."""
        return "finished" if self.trainer.iteration >= self.trainer.config.iterations else "ready"

    @property
    def active(self) -> bool:
        """True while `advance` has something to do."""
        return self.state in ("running", "stopping") or self._scores_wanted

    def start(self, until: int | None = None) -> None:
        """Begins or goes on, up to an iteration if one is named; one past the end makes the run longer, also one that
        is over. Raises InputError if it is behind already, and if longer settings cannot be written."""
        if until is not None and until <= self.trainer.iteration:
            raise InputError(f"Iteration {until:,} is behind: the run has reached {self.trainer.iteration:,}.")
        if until is not None and until > self.trainer.config.iterations and self.state not in ("stopping", "error"):
            self.trainer.extend(until)
            self._log("info", f"The run goes on to iteration {until:,}; the constants of its schedules stay.")
        if self.state == "finished" and until is not None:
            self._events = self.trainer.run()
            self._set_state("running")
        elif self.state in CAN_START:
            self._set_state("running")
        self._pause_after = until if until is not None and until < self.trainer.config.iterations else 0
        self._unsaved = self._parting = ""

    def score(self) -> None:
        """Scores the splats as they are and stays in the state it is in, unless that iteration has been scored."""
        if not self.status(0).can_be_scored:
            return
        if self.state == "finished":
            self._events = self.trainer.run()
        self.trainer.ask_for_scores()
        self._scores_wanted = True
        self._doing = LOADING if self._prepared is None else SCORING

    def pause(self) -> None:
        """Keeps everything; the step in flight is already over when this is called."""
        if self.state == "running":
            self._set_state("paused")

    def step(self) -> None:
        """One iteration, then pause."""
        if self.state in CAN_START:
            self._set_state("running")
            self._pause_after = self.trainer.iteration + 1

    @property
    def has_begun(self) -> bool:
        """True once anything was asked of the run; until then its recipe can change."""
        return self.state != "ready" or self.trainer.iteration > 0

    @property
    def standing(self) -> Standing:
        """What a run that is made again is to show as before."""
        return Standing(self.state, self._trouble, self._troubles)

    @standing.setter
    def standing(self, standing: Standing) -> None:
        self.state, self._trouble, self._troubles = standing.state, standing.trouble, standing.troubles

    @property
    def troubled(self) -> bool:
        """True while it stands paused by itself."""
        return bool(self._trouble)

    def stop(self, save: bool = True) -> None:
        """Saves what is there, if it is to, and stops; as nothing is let go of, the run can go on."""
        if not save and self.state in ("running", "paused", "stopping"):
            self._parting = self._left_behind()
            self._set_state("stopped")
        elif self.state in ("running", "paused"):
            self._set_state("stopping")
        elif self.state == "ready":
            self._set_state("stopped")

    def advance(self) -> bool:
        """Pulls one event. True if the splats changed. Errors end the run and are raised."""
        try:
            if self.state == "stopping":
                return self._stop()
            changed, event = False, next(self._events, None)
            while isinstance(event, events.Densified | events.GrowthStopped):  # a step that began is of no iteration
                changed |= self._take(event)
                event = next(self._events, None)
        except StandstillError as error:  # the splats are those of the step before; the run can go on
            self._events = self.trainer.run()
            self._scores_wanted, self._doing = False, ""
            self._set_state("paused")
            self._trouble = str(error)
            self._troubles += 1
            raise
        except BaseException as error:
            self._scores_wanted = False
            can_be_tried_again = self._prepared is None and isinstance(error, InputError)
            if can_be_tried_again:  # nothing has begun: perhaps with another recipe or folder
                self._events = self.trainer.run()
            if self.state != "paused":
                self._set_state(self._at_rest if can_be_tried_again else "error")
            raise
        if event is None:
            self._scores_wanted = False
            self._set_state("finished")
            return changed
        changed |= self._take(event)
        if self.state == "finished" and not self._scores_wanted:
            self._events = iter(())  # another run may write to its folder now
        return changed

    def _stop(self) -> bool:
        try:
            path = self.trainer.save()
        except NotSavedError as error:
            if error.path is None or "checkpoint" in error.what:  # paused, so that stopping can be tried again
                self._set_state("paused")
                raise
            path = error.path
            self._log("warning", str(error))
        self._note = f"Saved {path}"
        self._log("info", f"Training stopped at iteration {self.trainer.iteration}; saved {path}.")
        self._set_state("stopped")
        return False

    def whole_splats(self) -> Gaussians:
        """Returns the splats with all rows of harmonics that the run's own files have, also those not trained yet."""
        return self.trainer.gaussians.with_sh_degree(self.trainer.config.sh_degree)

    def save_on_close(self) -> str:
        """Saves a live run as it is and says so in a sentence; of one that is over, waits for what is still on its way
        to disk. Raises InputError if it cannot be written."""
        if self.state not in ("running", "paused", "stopping"):
            self.trainer.wait_for_files()
            return self._parting
        path, resumable = self.trainer.save(), self.trainer.config.checkpoint.enabled
        words = f" Resume: {resume_line(self.trainer.out_dir)}" if resumable else ""
        return f"Training stopped at iteration {self.trainer.iteration:,}; saved {path}.{words}"

    def _left_behind(self) -> str:
        """What is said of a run that is not to be saved: where it was, and what there is of it."""
        from splatscope.training.files.checkpoint import checkpoints

        self.trainer.wait_for_files()
        *_, newest = (0, *checkpoints(self.trainer.out_dir))
        kept = f"Resume from iteration {newest:,}: {resume_line(self.trainer.out_dir)}"
        words = f"Training stopped at iteration {self.trainer.iteration:,} and was not saved."
        return f"{words} {kept}" if newest else words

    def _take(self, event: events.Event) -> bool:
        changed = False
        match event:
            case events.Stepped():
                self._last_loss = event.loss
                self.stage_ms = event.stage_ms
                self._loss.add(event.iteration, event.loss)
                self._count.add(event.iteration, event.count)
                self._step_ms.add(event.iteration, sum(event.stage_ms.values()))
                self._note = self._doing = self._so_far = ""
                self._measure_rate(event.iteration)
                if 0 < self._pause_after <= event.iteration:
                    self._pause_after = 0
                    self._set_state("paused")
                changed = True
            case events.Prepared():
                self._prepared, self._doing, self._so_far = event, PREPARING, ""
                for warning in event.warnings[len(self.trainer.capture.warnings) :]:  # the others were there to open it
                    self._log("warning", warning)
                if short := schedules_in_words(self.trainer.config):
                    self._log("info", short)
            case events.Loading():
                is_over = event.done == event.total
                self._doing, self._so_far = (COMPILING, "") if is_over else (LOADING, f"{event.done} of {event.total}")
            case events.Evaluating():
                self._doing = SCORING
                self._so_far = f"view {event.done} of {event.total}"
            case events.Evaluated():
                self._evaluated, self._note, self._so_far = event, "", ""
                self._doing = SAVING if event.iteration >= self.trainer.config.iterations else ""
                self._scores_wanted = False
                self._psnr.add(event.iteration, event.psnr)
                self._rate_start = None  # the time spent evaluating is not the steps'
            case events.Densified():
                self._refined = refined(event)
                changed = True
            case events.SaveFailed() if event.last and "splats" in event.what:
                self._unsaved = event.reason
            case events.Finished():
                lost = f"The result is not on disk. {self._unsaved} Save the splats elsewhere (Ctrl + S)."
                self._note = lost if self._unsaved else f"Saved in {self.trainer.out_dir}"
                self._set_state("finished")
            case _:
                pass
        text = sentence(event)
        if text is not None:
            is_bad = isinstance(event, events.SaveFailed | events.GrowthStopped) or is_drastic(event)
            self._log("warning" if is_bad else "info", text)
            self._note = text if isinstance(event, events.Forecast) else self._note
        return changed

    def let_go(self) -> None:
        """Leaves the run's folder to another run; this one is over."""
        self._set_state("finished")
        self._events = iter(())

    def _set_state(self, state: TrainingState) -> None:
        self.state = state
        self._trouble = ""
        self._rate_start = None

    def _measure_rate(self, iteration: int) -> None:
        now = time.perf_counter()
        if self._rate_start is None:
            self._rate_start = (now, iteration)
            return
        seconds = now - self._rate_start[0]
        if seconds > 0.25:
            self._rate = (iteration - self._rate_start[1]) / seconds
        if seconds > RATE_WINDOW:
            self._rate_start = (now, iteration)

    def _trouble_now(self) -> Trouble | None:
        if not self._trouble:
            return None
        path = way_back(self.trainer)
        back = int(path.stem.rpartition("_")[2]) if path else 0
        return Trouble(self._trouble, self.trainer.iteration, back, back_label(back), self._troubles)

    def status(self, view_cost: float) -> TrainingStatus:
        """A snapshot for the training panel."""
        doing = self._doing if self.active and self.state != "stopping" else ""
        until = self._pause_after if self.state == "running" else 0
        left = (until or self.trainer.config.iterations) - self.trainer.iteration
        rate = self._rate if self.state == "running" else None
        evaluated = self._evaluated
        return TrainingStatus(
            state=self.state,
            doing=doing,
            so_far=self._so_far if doing else "",
            iteration=self.trainer.iteration,
            iterations=self.trainer.config.iterations,
            until=until,
            loss=self._last_loss,
            psnr=evaluated.psnr if evaluated else None,
            ssim=evaluated.ssim if evaluated else None,
            psnr_label=evaluated.label if evaluated else "PSNR",
            scored_at=evaluated.iteration if evaluated else -1,
            iterations_per_second=rate,
            eta_seconds=left / rate if rate else None,
            out_dir=self.trainer.out_dir,
            loss_curve=self._loss.curve(),
            psnr_curve=self._psnr.curve(),
            count_curve=self._count.curve(),
            step_curve=self._step_ms.curve(),
            stage_ms=self.stage_ms,
            note=self._note,
            trouble=self._trouble_now(),
            memory=self._memory.now(),
            phase=phase_of(self.trainer, self._prepared, self._refined),
            view_cost=view_cost if self.state == "running" else 0.0,
        )
