"""Turns the events of a training run into figures: curves, scores, the rate of steps and a note.

`controller.py` asks the trainer for events and decides what the run does; here nothing is decided.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from splatscope.app.run.sentences import sentence
from splatscope.app.run.status import refined
from splatscope.training import events
from splatscope.viewer.messages.run import Curve, Refined, TrainingStatus

if TYPE_CHECKING:  # torch loads with the trainer
    from splatscope.training.trainer import Trainer

CURVE_POINTS = 1500  # a curve is halved by averaging pairs when it holds twice as many
LOADING, COMPILING, PREPARING = "loading photographs", "compiling kernels", "preparing"
SCORING, SAVING = "scoring", "saving"
RATE_WINDOW = 2.0  # seconds over which it/s is measured
FIRST_RATE = 0.25  # seconds after which the first it/s is shown


class CurveRecorder:
    """Keeps a growing curve short: past a limit, it averages neighbouring points in pairs."""

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
        """Copies the curve for the window."""
        return Curve(np.array(self._x), np.array(self._y))


class RunProgress:
    """Keeps the newest figures of one run. Holds no trainer, so that a run that is over can be freed."""

    def __init__(self, trainer: Trainer) -> None:
        self.doing = LOADING  # instead of steps, once something is asked of the run
        self.so_far = ""  # how much of `doing` is done
        self.note = ""
        self.unsaved = ""  # why the result is not on disk
        self.prepared: events.Prepared | None = None
        self.refined: Refined | None = None  # what the newest refine did
        self.evaluated: events.Evaluated | None = None
        self.stage_ms: dict[str, float] = {}  # stages of the newest step
        self.rate: float | None = None  # iterations per second
        self._rate_start: tuple[float, int] | None = None  # time and iteration that the rate is measured from
        self._last_loss: float | None = None
        self._loss = CurveRecorder()
        self._psnr = CurveRecorder()
        self._count = CurveRecorder()
        self._step_ms = CurveRecorder()
        self._recall(trainer)

    def _recall(self, trainer: Trainer) -> None:
        """Fills the curves of a resumed run up to its present iteration."""
        losses, scorings = trainer.history
        for iteration, loss in enumerate(losses, trainer.iteration - len(losses) + 1):
            self._loss.add(iteration, loss)
        for scoring in scorings:
            self._psnr.add(scoring.iteration, scoring.psnr)
            self.evaluated = scoring
        for row in trainer.scores:
            if "splats" in row:  # earlier versions did not write it
                self._count.add(row["iteration"], row["splats"])

    def take(self, event: events.Event, trainer: Trainer) -> None:
        """Takes in one event of `trainer`."""
        match event:
            case events.Stepped():
                self._take_step(event)
            case events.Prepared():
                self.prepared, self.doing, self.so_far = event, PREPARING, ""
            case events.Loading() if event.done == event.total:
                self.doing, self.so_far = COMPILING, ""
            case events.Loading():
                self.doing, self.so_far = LOADING, f"{event.done} of {event.total}"
            case events.Evaluating():
                self.doing, self.so_far = SCORING, f"view {event.done} of {event.total}"
            case events.Evaluated():
                self.evaluated, self.note, self.so_far = event, "", ""
                self.doing = SAVING if event.iteration >= trainer.config.iterations else ""
                self._psnr.add(event.iteration, event.psnr)
                self.restart_rate()  # the time spent on scores is not part of any step
            case events.Densified():
                self.refined = refined(event)
            case events.SaveFailed() if event.last and "splats" in event.what:
                self.unsaved = event.reason
            case events.Forecast():
                self.note = sentence(event) or self.note
            case events.Finished():
                lost = f"The result is not on disk. {self.unsaved} Save the splats elsewhere (Ctrl + S)."
                self.note = lost if self.unsaved else f"Saved in {trainer.out_dir}"
            case _:
                pass

    def _take_step(self, event: events.Stepped) -> None:
        self._last_loss = event.loss
        self.stage_ms = event.stage_ms
        self._loss.add(event.iteration, event.loss)
        self._count.add(event.iteration, event.count)
        self._step_ms.add(event.iteration, sum(event.stage_ms.values()))
        self.note = self.doing = self.so_far = ""
        self._measure_rate(event.iteration)

    def restart_rate(self) -> None:
        """Measures the rate from the next step on. The last rate stays until there is another one."""
        self._rate_start = None

    def _measure_rate(self, iteration: int) -> None:
        now = time.perf_counter()
        if self._rate_start is None:
            self._rate_start = (now, iteration)
            return
        seconds = now - self._rate_start[0]
        if seconds > FIRST_RATE:
            self.rate = (iteration - self._rate_start[1]) / seconds
        if seconds > RATE_WINDOW:
            self._rate_start = (now, iteration)

    def status(self) -> TrainingStatus:
        """Returns the figures; `RunController.status` adds the run's state."""
        scores = self.evaluated
        return TrainingStatus(
            loss=self._last_loss,
            psnr=scores.psnr if scores else None,
            ssim=scores.ssim if scores else None,
            psnr_label=scores.label if scores else "PSNR",
            scored_at=scores.iteration if scores else -1,
            loss_curve=self._loss.curve(),
            psnr_curve=self._psnr.curve(),
            count_curve=self._count.curve(),
            step_curve=self._step_ms.curve(),
            stage_ms=self.stage_ms,
            note=self.note,
        )
