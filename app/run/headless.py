"""Trains without a window: prints a progress line and a line for each measurement and file; Ctrl-C saves.

If the output is not a terminal, it prints a line every ten seconds instead of the progress line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TaskID, TimeRemainingColumn

from splatscope.app.options.policy import NO_CHOICE, PolicyChoice, in_words
from splatscope.app.run.controller import way_back
from splatscope.app.run.memory_forecast import memory_use
from splatscope.app.run.sentences import back_label, sentence
from splatscope.app.stop_request import StopRequest
from splatscope.app.terminal import Terminal, column
from splatscope.assets.checks.checkup import check_up
from splatscope.kernels.errors import InputError
from splatscope.kernels.wording import counted, duration, printable
from splatscope.training import events
from splatscope.training.errors import StandstillError
from splatscope.training.files.folder import newest_on_disk, resume_line
from splatscope.training.recipes import schedules_in_words

if TYPE_CHECKING:
    from splatscope.training.trainer import Trainer


def train_in_terminal(trainer: Trainer, toggles: PolicyChoice = NO_CHOICE) -> None:
    """Runs the trainer with these toggles to its end or to Ctrl-C, then saves the last state and prints its path.

    A second Ctrl-C ends the run without saving, and prints what is on disk.
    """
    try:
        _train(trainer, toggles)
    except KeyboardInterrupt:
        stored = newest_on_disk(trainer.out_dir)
        print(f"splatscope: stopped at once, at iteration {trainer.iteration:,}. {stored}", file=sys.stderr)
        raise SystemExit(130) from None


def _train(trainer: Trainer, toggles: PolicyChoice) -> None:
    console = Terminal()
    console.print(f"Writing to {trainer.out_dir}")
    if not toggles.is_default:
        policy = toggles.for_training(trainer.config.antialiasing)
        console.print(f"Toggles: {in_words(policy, trainer.backend.name)}")
        try:
            trainer.use(policy)
        except InputError as error:  # no memory for these toggles; the run keeps those that the message names
            console.print(f"warning: {error}")
    odd = [f"{finding.text} {finding.advice}".rstrip() for finding in check_up(trainer.capture).oddities]
    for warning in odd:
        console.print(f"warning: {warning}")
    if foreseen := memory_use(trainer).text:
        console.print(f"Memory: {foreseen}")
    if short := schedules_in_words(trainer.config):
        console.print(short)
    start, trained_before, first = time.perf_counter(), trainer.seconds["training"], trainer.iteration
    progress = Progress(
        column("{task.description}"),
        BarColumn(),
        column("{task.completed:,.0f}/{task.total:,.0f}"),
        column("{task.fields[figures]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with StopRequest() as stop, progress:
        task = progress.add_task("Training", total=trainer.config.iterations, figures="")
        line = _Line(console, progress, task, first, lambda: trainer.seconds["training"], odd)
        problem = _pull_events(trainer, line, stop)
    if problem is not None:
        _save_at_standstill(trainer, problem, console)
        raise SystemExit(2)
    if stop.asked:
        path = trainer.save()
        console.print(f"Stopped at iteration {trainer.iteration:,}; saved {path}")
        console.print(f"Resume: {resume_line(trainer.out_dir)}")
        raise SystemExit(130)
    trained, whole = trainer.seconds["training"] - trained_before, time.perf_counter() - start
    done = counted(trainer.iteration - first, "iteration") + (f", up to {trainer.iteration:,}," if first else "")
    console.print(f"Trained {done} in {duration(whole)}, {duration(trained)} of it in steps; {trainer.out_dir}")
    if (lost := line.unsaved) is not None and lost.iteration == trainer.iteration:
        is_lost = "splats" in lost.what
        what = "The result is not on disk." if is_lost else f"Not all is on disk: no {' and '.join(lost.what)}."
        raise InputError(f"{what} {lost.reason} {newest_on_disk(trainer.out_dir)}")


def _save_at_standstill(trainer: Trainer, problem: StandstillError, console: Terminal) -> None:
    """Prints why the run cannot continue, before anything else can go wrong, then saves and prints how to resume."""
    print(f"splatscope: {problem}", file=sys.stderr)
    back = way_back(trainer)
    path = trainer.save()
    console.print(f"Saved the splats of iteration {trainer.iteration:,}: {path}")
    console.print(f"Resume: {resume_line(trainer.out_dir, problem.remedy)}")
    if back is not None:
        label = back_label(int(back.stem.rpartition("_")[2]))
        console.print(f"{label}: {resume_line(back, problem.remedy)}")


def _pull_events(trainer: Trainer, line: _Line, stop: StopRequest) -> StandstillError | None:
    """Runs until the end or a request to stop; returns the error that kept the run from continuing."""
    try:
        for event in trainer.run():
            line.show(event)
            if stop.asked:
                break
    except StandstillError as error:
        return error
    return None


class _Line:
    """Shows each event in the terminal, or prints a line every `PLAIN_SECONDS` if there is no terminal."""

    PLAIN_SECONDS = 10.0

    def __init__(
        self,
        console: Terminal,
        progress: Progress,
        task: TaskID,
        first: int,
        trained: Callable[[], float],
        told: Sequence[str],
    ) -> None:
        """Begins at iteration `first`. `trained` returns the seconds of training so far; `told` are warnings that were
        printed already."""
        self._told = told
        self._console, self._progress, self._task = console, progress, task
        self._trained = trained
        self.unsaved: events.SaveFailed | None = None  # the newest failure
        self._rate_start = (trained(), first)  # seconds of training and iteration since which the rate is measured
        self._rate = 0.0
        self._loss = 0.0
        self._psnr = ""
        self._last_plain = time.perf_counter()  # when the newest plain line was printed

    def show(self, event: events.Event) -> None:
        match event:
            case events.Stepped():
                self._step(event)
            case events.Loading() if event.done < event.total:
                self._plain(f"Reading photographs: {event.done:,} of {event.total:,}")
            case events.Evaluating() if event.done < event.total:
                self._plain(f"Scoring views: {event.done:,} of {event.total:,}")
            case events.Evaluated():
                self._psnr = f"  PSNR {event.psnr:.2f}"
            case events.Prepared():
                for warning in (warning for warning in event.warnings if printable(warning) not in self._told):
                    self._console.print(f"warning: {warning}")
            case events.SaveFailed():
                self.unsaved = event
            case _:
                pass
        text = sentence(event)
        if text is not None and not isinstance(event, events.Finished):
            self._console.print(text)

    def _step(self, event: events.Stepped) -> None:
        trained = self._trained()
        self._loss += 0.02 * (event.loss - self._loss) if self._loss else event.loss
        seconds = trained - self._rate_start[0]
        if seconds > 1.0 or (seconds > 0.1 and not self._rate):
            self._rate = (event.iteration - self._rate_start[1]) / seconds
            self._rate_start = (trained, event.iteration)
        rate = f"{self._rate:6.1f} it/s" if self._rate else "     – it/s"
        figures = f"{rate}  loss {self._loss:.4f}  {counted(event.count, 'splat')}{self._psnr}"
        self._progress.update(self._task, completed=event.iteration, figures=figures)
        if self._rate:
            self._plain(f"Iteration {event.iteration:,}: {figures.strip()}")

    def _plain(self, text: str) -> None:
        """Prints a line if there is no bar and the last plain line is old."""
        now = time.perf_counter()
        if not self._console.is_terminal and now - self._last_plain > self.PLAIN_SECONDS:
            self._last_plain = now
            self._console.print(text)
