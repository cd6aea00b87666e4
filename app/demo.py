"""`splatscope demo`: the bundled scene trains live in the window, or without one, leaving pictures behind."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from splatscope.app import cli
from splatscope.app.commands import display_is_present, make_trainer
from splatscope.app.training_setup import default_out
from splatscope.assets.demo.generate import demo_capture_folder
from splatscope.kernels.words import counted
from splatscope.training.config import TrainConfig
from splatscope.training.recipes import preset

WINDOW_ITERATIONS = 7_000
HEADLESS_ITERATIONS = 1_200
MOST_SPLATS = 30_000


def run_demo(options: cli.Demo) -> None:
    """Renders the capture on first use (into the user cache), then trains it."""
    console = Console(highlight=False, soft_wrap=True)
    started = time.perf_counter()
    folder = demo_capture_folder(
        lambda done, total: console.print(f"Rendering the demo scene: {done} of {total} views")
    )
    out = options.out or default_out("demo")
    if not options.headless and display_is_present():
        from splatscope.app.window import open_window

        iterations = options.iterations or WINDOW_ITERATIONS
        open_window(
            folder,
            backend=options.backend,
            size=(1600, 1000),
            ui_scale=0.0,
            training=lambda: _config(iterations, 500),
            images="images",
            out=out,
            autostart=True,
        )
        return
    console.print(
        "No display: training without a window, pictures go to disk." if not options.headless else "No window."
    )
    _train_and_leave_pictures(options, folder, out, console)
    console.print(f"Demo took {time.perf_counter() - started:.0f} s.")


def _config(iterations: int, test_interval: int) -> TrainConfig:
    """Returns the recipe `fast`, whose schedules fit any length, with a limit on splats: twice as many would halve the
    pace for no visible gain here."""
    recipe = preset("fast", iterations)
    return replace(recipe, test_interval=test_interval, budget=replace(recipe.budget, max_splats=MOST_SPLATS))


def _train_and_leave_pictures(options: cli.Demo, folder: Path, out: Path, console: Console) -> None:
    from splatscope.app.headless import train_in_terminal
    from splatscope.app.pictures import save_screenshot
    from splatscope.assets.formats import open_capture
    from splatscope.kernels.api import make_backend
    from splatscope.viewer.messages import ViewRequest

    iterations = options.iterations or HEADLESS_ITERATIONS
    capture = open_capture(folder)
    backend = make_backend(options.backend)
    config = _config(iterations, 200)
    trainer = make_trainer(capture, config, backend, out)
    train_in_terminal(trainer)
    view = (capture.test_views or capture.views)[0]
    settings = trainer.settings
    request = ViewRequest(view.camera, settings, overlay="tiles")
    frame = backend.render(trainer.gaussians, view.camera, settings)
    written = save_screenshot(frame, request, out, "demo", backend.name)
    total = sum(frame.stage_ms.values())
    stages = ", ".join(f"{name} {ms:.1f}" for name, ms in frame.stage_ms.items())
    console.print(
        f"{counted(frame.visible, 'splat')} visible, {counted(frame.instances, 'instance')}, {total:.1f} ms a "
        f"picture ({stages}); busiest tile lists {int(frame.tile_counts.max()):,}."
    )
    console.print("Look at " + ", ".join(str(path) for path in written))
