"""`splatscope bench window CAPTURE`: times a training run without a window, then with one.

Iterations a second are measured with the window closed, then next to an open window

- whose view is still,
- whose view moves as in a drag,
- which asks for no pictures.

The run makes steps and nothing else: splats are drawn at random, none are added, nothing is scored or saved.

Closed and open are measured in processes of their own, because a window leaves threads and Python's switch interval
behind. Each process is ended from outside once it has sent its figures, or if it sends none. This needs a display, on
which nobody touches the window meanwhile.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dearpygui.dearpygui as dpg
from rich.table import Table

from splatscope.app.bench.measure.machine import describe_device, describe_run
from splatscope.app.bench.measure.results import spread, write_results
from splatscope.app.engine.engine import Engine, EngineConfig
from splatscope.app.open_window import GIL_SWITCH_SECONDS
from splatscope.app.options.bench import WindowOptions
from splatscope.app.run.plan import RunPlan
from splatscope.app.terminal import Terminal
from splatscope.assets.formats import open_capture
from splatscope.kernels.backends import make_backend
from splatscope.kernels.errors import InputError
from splatscope.training.config import CheckpointConfig, DensifyConfig, InitialConfig, TrainConfig
from splatscope.training.events import Prepared, Stepped
from splatscope.viewer.config import WindowConfig
from splatscope.viewer.display import find_display
from splatscope.viewer.messages.commands import OpenScene, SetViewShare
from splatscope.viewer.state.session import Session
from splatscope.viewer.window import Window

FORMAT = "splatscope window cost 1"
NAMES = ("closed", "still", "moving", "no_pictures")
WIDTH, HEIGHT = 1600, 1000  # px of the window, on a display that has room for it
SETTLING_SHARE = 0.2  # time to settle before a measurement, as a share of its seconds
START_SECONDS = 300.0  # longest wait for the first step, while photographs are read and kernels compiled
TURN_PER_SECOND = 0.6  # radians, of the view that moves
NO_PICTURES = SetViewShare(share=1e-6, rate=1e-3)  # one in a thousand seconds

Tell = Callable[[str, dict[str, Any]], None]  # takes the name of a measurement and its figures
Part = Callable[[WindowOptions, Path, Tell], None]


def run(options: WindowOptions) -> None:
    """Measures, prints a table, and writes JSON, if asked for, with each new figure.

    Raises InputError if there is no display, if nothing can be trained, and if a measurement does not come to its end.
    """
    if options.splats < 1 or options.seconds <= 0:
        raise InputError(f"--splats and --seconds must be above 0, got {options.splats} and {options.seconds:g}.")
    find_display()
    name = make_backend(options.backend).name
    capture = options.capture.resolve().name
    words = f"{capture} --splats {options.splats} --seconds {options.seconds:g} --backend {name}"
    phases: dict[str, dict[str, Any]] = {}
    results = {
        "run": describe_run(f"splatscope bench window {words}") | {"format": FORMAT},
        "machine": describe_device(name),
        "capture": capture,
        "splats": options.splats,
        "seconds": options.seconds,
        "backend": name,
        "phases": phases,
    }
    with tempfile.TemporaryDirectory(prefix="splatscope-bench-") as folder:
        for part, count in ((_measure_closed, 1), (_measure_beside_window, len(NAMES) - 1)):
            for phase, figures in _in_a_process(part, count, options, Path(folder)):
                phases[phase] = figures
                figures["share_of_closed"] = round(figures["it_per_s"] / phases["closed"]["it_per_s"], 5)
                if options.out is not None:
                    write_results(options.out, results)
    _print(results)


def _in_a_process(part: Part, count: int, options: WindowOptions, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields `count` figures of a part, then kills its process: a window that is closed saves its run."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_tell_or_say_why, args=(part, options, folder, sender), daemon=True)
    process.start()
    sender.close()  # our end, so that the pipe ends when the process does
    try:
        for _ in range(count):
            if not receiver.poll(limit := START_SECONDS + 2 * options.seconds):
                raise InputError(f"The measurement was ended: it sent no figures for {limit:.0f} s.")
            told = receiver.recv()
            if isinstance(told, str):
                raise InputError(told)
            yield told
    except EOFError as error:
        process.join(10)
        raise InputError(
            f"The measurement ended early, with exit code {process.exitcode}; leave its window open until the end."
        ) from error
    finally:
        process.kill()
        process.join()


def _tell_or_say_why(part: Part, options: WindowOptions, folder: Path, sender: Any) -> None:
    """Sends (name, figures) from its own process, or the sentence of an InputError."""
    try:
        part(options, folder, lambda name, figures: sender.send((name, figures)))
    except InputError as error:
        sender.send(str(error))


def _plan(options: WindowOptions, folder: Path) -> RunPlan:
    config = TrainConfig(
        iterations=10_000_000, save_iterations=(), test_interval=0,
        initial=InitialConfig(source="random", random_count=options.splats),
        densify=DensifyConfig(enabled=False), checkpoint=CheckpointConfig(enabled=False),
    )  # fmt: skip
    return RunPlan(config, folder / "run")


def _measure_closed(options: WindowOptions, folder: Path, tell: Tell) -> None:
    trainer = _plan(options, folder)(open_capture(options.capture), make_backend(options.backend))
    size, begun, first = [0, 0], None, (0.0, 0)
    for event in trainer.run():
        if isinstance(event, Prepared):
            size = [event.width, event.height]
        if not isinstance(event, Stepped):
            continue
        now = time.perf_counter()
        begun = now if begun is None else begun
        if now - begun < SETTLING_SHARE * options.seconds or now == begun:
            first = now, event.iteration
        elif now - first[0] >= options.seconds:
            tell("closed", _rate(first, (now, event.iteration)) | {"photograph_size": size})
            return


def _rate(first: tuple[float, int], last: tuple[float, int]) -> dict[str, Any]:
    """Returns the iterations a second between two points of (seconds, iteration)."""
    rate = (last[1] - first[1]) / (last[0] - first[0])
    return {"it_per_s": round(rate, 1 if rate > 100 else 3), "iterations": [first[1], last[1]]}


class _DrivenSession(Session):
    """Follows a script, one turn each frame, and notes the pictures that come."""

    script: Iterator[None] = iter(())
    frames = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pictures: list[tuple[float, float]] = []  # render_ms, latency_ms

    def poll(self) -> bool:
        next(self.script, None)
        self.frames += 1
        fresh = super().poll()
        if fresh and self.engine.picture is not None:
            self.pictures.append((self.engine.picture.render_ms, self.engine.picture.latency_ms))
        if self.log.error is not None:
            raise InputError(self.log.error.text)
        return fresh


def _measure_beside_window(options: WindowOptions, folder: Path, tell: Tell) -> None:
    plan, trainers = _plan(options, folder), []

    def make_trainer(*opened: Any) -> Any:
        trainers.append(plan(*opened))
        return trainers[-1]

    display = find_display()
    sys.setswitchinterval(GIL_SWITCH_SECONDS)
    engine = Engine(EngineConfig(backend=options.backend), make_trainer)
    engine.start()
    engine.send(OpenScene(options.capture, then_train=True))
    dpg.create_context()
    session = _DrivenSession(engine, WindowConfig(width=WIDTH, height=HEIGHT, ui_scale=1.0), display.scale)
    window = Window(session, display)

    def turn(seconds: float) -> None:
        window.input.stay_awake()  # as a drag does
        session.view.move(lambda nav: nav.orbit(TURN_PER_SECOND * seconds, 0.0))

    def play() -> Iterator[None]:
        while session.engine.picture is None or not trainers or trainers[0].iteration < 1:
            yield
        for name, each_frame in (("still", None), ("moving", turn), ("no_pictures", None)):
            if name == "no_pictures":
                engine.send(NO_PICTURES)
            yield from _frames(SETTLING_SHARE * options.seconds, each_frame)
            first, frames = (time.perf_counter(), trainers[0].iteration), session.frames
            session.pictures.clear()
            yield from _frames(options.seconds, each_frame)
            last = time.perf_counter(), trainers[0].iteration
            if (state := session.engine.status.training.state) != "running":
                raise InputError(f"Training was {state} before the window had been measured.")
            tell(name, _rate(first, last) | _figures(session, session.frames - frames, last[0] - first[0]))

    session.script = play()
    window.run(stop=lambda: False)


def _frames(seconds: float, each_frame: Callable[[float], None] | None) -> Iterator[None]:
    """Lets frames of the window pass for some seconds; `each_frame` gets the seconds since the frame before."""
    begun = before = time.perf_counter()
    while before - begun < seconds:
        yield
        now = time.perf_counter()
        if each_frame is not None:
            each_frame(now - before)
        before = now


def _figures(session: _DrivenSession, frames: int, seconds: float) -> dict[str, Any]:
    """Returns the pictures and frames that the window got meanwhile."""
    assert session.engine.picture is not None
    found: dict[str, Any] = {
        "pictures_per_s": round(len(session.pictures) / seconds, 2),
        "picture_size": list(session.engine.picture.rgba.shape[1::-1]),
        "window_frames_per_s": round(frames / seconds, 1),
    }
    if session.pictures:
        render, latency = zip(*session.pictures, strict=True)
        found |= {"picture_ms": spread(list(render)), "latency_ms": spread(list(latency))}
    return found


def _print(results: dict[str, Any]) -> None:
    phases, machine = results["phases"], results["machine"]
    width, height = phases["closed"]["photograph_size"]
    title = f"{results['capture']} at {width}×{height}, {results['splats']:,} splats, on "
    table = Table(title=title + machine.get("gpu", machine.get("cpu", "")), title_justify="left")
    table.add_column("window", no_wrap=True)
    for column in ("it/s", "of closed", "pictures/s", "picture, ms", "there after, ms", "window frames/s"):
        table.add_column(column, justify="right")
    for name, row in phases.items():
        times = (f"{row[key]['median']:.2f}" if key in row else "" for key in ("picture_ms", "latency_ms"))
        shown, frames = (str(row.get(key, "")) for key in ("pictures_per_s", "window_frames_per_s"))
        table.add_row(
            name.replace("_", " "), f"{row['it_per_s']:,}", f"{row['share_of_closed']:.1%}", shown, *times, frames
        )
    Terminal().print(table)
