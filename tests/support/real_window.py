"""Opens the real window on a real engine, and prints the engine's state, for tests that drive it from outside.

Run as a program with what to open. It differs from `splatscope PATH` only in what it prints and in forgetting all,
and in what a test asks it to pretend: gradients that are not finite, kernels that take long to compile.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from splatscope.app.engine.engine import Engine, EngineConfig
from splatscope.app.run.plan import RunPlan
from splatscope.kernels.backend import Backend
from splatscope.kernels.backends import make_backend
from splatscope.training.config import CheckpointConfig, TrainConfig
from splatscope.viewer import window
from splatscope.viewer.config import WindowConfig
from splatscope.viewer.messages.commands import OpenScene
from tests.support.window_places import PLACES, REPORT_SECONDS, SHOWN, count_frames, moment, tell_places

PAGE_BYTES = 4096


def tell(**facts: object) -> None:
    """Prints a line on stdout; all other output of the program goes to stderr."""
    sys.__stdout__.write(json.dumps(facts) + "\n")  # pyright: ignore[reportOptionalMemberAccess]
    sys.__stdout__.flush()  # pyright: ignore[reportOptionalMemberAccess]


def report(engine: Engine) -> None:
    """Prints the facts again and again."""
    while True:
        picture, status = engine.picture(), engine.status()
        training = status.training
        facts = {
            **moment(),
            "pictures": picture.serial if picture else 0,
            "resident": int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES,
            "scene": str(status.scene.path) if status.scene else "",
            "up": list(status.scene.up) if status.scene else [],
            "errors": [line.text for line in status.log if line.level == "error"],
            "state": training.state,
            "iteration": training.iteration,
            "infos": [line.text for line in status.log if line.level == "info"],
            "trouble": training.trouble.text if training.trouble else "",
            "places": dict(PLACES),
            "shown": dict(SHOWN),
        }
        tell(**facts)
        time.sleep(REPORT_SECONDS)


class SlowToCompile:
    """Stands for a backend whose training kernels are compiled once a file is there."""

    def __init__(self, backend: Any, compiled: Path) -> None:
        self._backend, self._compiled = backend, compiled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def warm_up(self, training: bool = False) -> None:
        if training:
            while not self._compiled.exists():
                time.sleep(0.02)
        self._backend.warm_up(training=training)


def pretend(options: argparse.Namespace) -> Callable[..., Backend]:
    """Returns a function that makes the backend."""
    from tests.support.small_capture import Poisoned

    def make(*arguments: Any, **named: Any) -> Any:
        backend: Any = make_backend(*arguments, **named)
        if options.poison:
            backend = Poisoned(backend, 6 + options.poison, "sh", (5, 0, 1), float("nan"))  # the forecast takes six
        return SlowToCompile(backend, options.compiling) if options.compiling else backend

    return make


def main() -> None:
    """Opens the window until it is closed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--out", type=Path, help="where a run writes")
    parser.add_argument("--iterations", type=int, default=30_000)
    parser.add_argument("--checkpoint", type=int, default=0, help="iterations between checkpoints")
    parser.add_argument("--poison", type=int, default=0, help="the iteration whose gradient is not finite")
    parser.add_argument("--compiling", type=Path, help="file without which training kernels are still compiling")
    parser.add_argument("--only", nargs="*", help="titles of the panels to have")
    options = parser.parse_args()
    sys.stdout = sys.stderr
    count_frames()
    if options.only:
        window.PANELS = tuple(panel for panel in window.PANELS if panel.title in options.only)
        tell_places()
    config = TrainConfig(iterations=options.iterations, checkpoint=CheckpointConfig(interval=options.checkpoint))
    engine = Engine(EngineConfig(backend="cpu"), RunPlan(config, options.out), pretend(options))
    engine.start()
    engine.send(OpenScene(options.path))
    threading.Thread(target=report, args=(engine,), daemon=True).start()
    window.run_window(engine, WindowConfig(width=1000, height=700, ui_scale=1.0))
    engine.close()
    tell(closed=True)


if __name__ == "__main__":
    main()
