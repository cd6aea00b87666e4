"""Training without a window: one progress line, a line for each measurement and file, Ctrl-C saves."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from splatscope.app.memory import memory_use
from splatscope.app.policy_options import NO_CHOICE, PolicyChoice, in_words
from splatscope.app.sentences import back_label, duration, sentence
from splatscope.app.session import way_back
from splatscope.app.stop_request import StopRequest
from splatscope.kernels.errors import InputError
from splatscope.kernels.words import counted
from splatscope.training import events
from splatscope.training.errors import NotFiniteError

if TYPE_CHECKING:
    from splatscope.training.trainer import Trainer


def train_in_terminal(trainer: Trainer, toggles: PolicyChoice = NO_CHOICE) -> None:
    """Runs the trainer to its end or to Ctrl-C, from the first step with these toggles; either way the last state is on
    disk and named."""
    console = Console(stderr=False, highlight=False, soft_wrap=True)
    console.print(f"Writing to {trainer.out_dir}")
    if not toggles.is_default:
        policy = toggles.for_training(trainer.config.antialiasing)
        console.print(f"Toggles: {in_words(policy, trainer.backend.name)}")
        try:
            trainer.use(policy)
        except InputError as error:  # for want of memory; it goes on with what it says
            console.print(f"warning: {error}")
    if foreseen := memory_use(trainer).text:
        console.print(f"Memory: {foreseen}")
    start, trained_before = time.perf_counter(), trainer.seconds["training"]
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with StopRequest() as stop, progress:
        task = progress.add_task("Training", total=trainer.config.iterations, figures="")
        line = _Line(console, progress, task, trainer.iteration, lambda: trainer.seconds["training"])
        problem = _pull_events(trainer, line, stop)
    if problem is not None:
        back = way_back(trainer)
        path = trainer.save()
        console.print(f"{problem}\nSaved the splats of iteration {trainer.iteration:,}: {path}")
        console.print(f"Resume: splatscope train --resume {trainer.out_dir}")
        if back is not None:
            console.print(f"{back_label(int(back.stem.rpartition('_')[2]))}: splatscope train --resume {back}")
        raise SystemExit(1)
    if stop.asked:
        path = trainer.save()
        console.print(f"Stopped at iteration {trainer.iteration:,}; saved {path}")
        raise SystemExit(130)
    trained, whole = trainer.seconds["training"] - trained_before, time.perf_counter() - start
    console.print(
        f"Trained {counted(trainer.iteration, 'iteration')} in {duration(whole)}, {duration(trained)} of it in steps; "
        f"{trainer.out_dir}"
    )
    sys.stdout.flush()
    if line.unsaved is not None:
        raise InputError(f"The result is not on disk. {line.unsaved.reason}{_still_there(trainer.out_dir)}")


def _still_there(out_dir: Path) -> str:
    """The sentence about the newest state of a run that is on disk; empty if there is none."""
    from splatscope.training.checkpoint import checkpoints

    stored = checkpoints(out_dir)
    if not stored:
        return ""
    iteration, path = list(stored.items())[-1]
    return f" Iteration {iteration:,} is: splatscope train --resume {path}"


def _pull_events(trainer: Trainer, line: _Line, stop: StopRequest) -> NotFiniteError | None:
    """Runs until the end or a request to stop; returns what kept a step from being taken."""
    try:
        for event in trainer.run():
            line.show(event)
            if stop.asked:
                break
    except NotFiniteError as error:
        return error
    return None


class _Line:
    """What the terminal says of each event. Without a terminal, a line every so often instead of a bar."""

    PLAIN_SECONDS = 10.0

    def __init__(
        self, console: Console, progress: Progress, task: TaskID, first: int, trained: Callable[[], float]
    ) -> None:
        """`first`: the iteration the run begins or goes on from; `trained`: seconds of training so far."""
        self._console, self._progress, self._task = console, progress, task
        self._trained = trained
        self.unsaved: events.SaveFailed | None = None  # why the newest splats are not on disk
        self._rate_start = (trained(), first)  # seconds of training and iteration since which the rate is measured
        self._rate = 0.0
        self._loss = 0.0
        self._psnr = ""
        self._last_plain = time.perf_counter()

    def show(self, event: events.Event) -> None:
        match event:
            case events.Stepped():
                self._step(event)
            case events.Evaluated():
                self._psnr = f"  PSNR {event.psnr:.2f}"
            case events.Prepared():
                for warning in event.warnings:
                    self._console.print(f"warning: {warning}")
            case events.SaveFailed() if "splats" in event.what:
                self.unsaved = event
            case events.Saved():
                self.unsaved = None
            case _:
                pass
        text = sentence(event)
        if text is not None and not isinstance(event, events.Finished):
            self._console.print(text)

    def _step(self, event: events.Stepped) -> None:
        now, trained = time.perf_counter(), self._trained()
        self._loss += 0.02 * (event.loss - self._loss) if self._loss else event.loss
        seconds = trained - self._rate_start[0]
        if seconds > 1.0 or (seconds > 0.1 and not self._rate):
            self._rate = (event.iteration - self._rate_start[1]) / seconds
            self._rate_start = (trained, event.iteration)
        rate = f"{self._rate:6.1f} it/s" if self._rate else "     – it/s"
        figures = f"{rate}  loss {self._loss:.4f}  {counted(event.count, 'splat')}{self._psnr}"
        self._progress.update(self._task, completed=event.iteration, figures=figures)
        if not self._console.is_terminal and now - self._last_plain > self.PLAIN_SECONDS:
            self._last_plain = now
            self._console.print(f"Iteration {event.iteration:,}: {figures.strip()}")
