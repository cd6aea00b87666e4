"""Trains the bundled scene in the window, or without a window and then saves pictures: `splatscope demo`."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from splatscope.app.engine.pictures import save_screenshot
from splatscope.app.options.subcommands import DemoOptions
from splatscope.app.provenance import Provenance
from splatscope.app.run.headless import train_in_terminal
from splatscope.app.run.plan import RunPlan, default_out
from splatscope.app.terminal import Terminal
from splatscope.assets.demo.generate import demo_capture_folder
from splatscope.assets.formats import open_capture
from splatscope.kernels.backends import make_backend
from splatscope.kernels.wording import counted
from splatscope.training.config import TrainConfig
from splatscope.training.recipes import preset
from splatscope.viewer.display import display_is_present
from splatscope.viewer.messages.view import ViewRequest

WINDOW_ITERATIONS = 7_000
HEADLESS_ITERATIONS = 1_200
MOST_SPLATS = 30_000


def run(options: DemoOptions) -> None:
    """Renders the capture on first use (into the user cache), then trains it."""
    console = Terminal()
    started = time.perf_counter()
    folder = demo_capture_folder(
        lambda done, total: console.print(f"Rendering the demo scene: {done} of {total} views")
    )
    out = options.out or default_out("demo")
    if not options.headless and display_is_present():
        from splatscope.app.open_window import WindowRequest, open_window  # loads the window's library

        iterations = options.iterations or WINDOW_ITERATIONS
        plan = RunPlan(_config(iterations, 500), out)
        open_window(WindowRequest(folder, plan, options.backend, autostart=True))
        return
    console.print(
        "No display: training without a window, pictures go to disk." if not options.headless else "No window."
    )
    _train_and_leave_pictures(options, folder, out, console)
    console.print(f"Demo took {time.perf_counter() - started:.0f} s.")


def _config(iterations: int, test_interval: int) -> TrainConfig:
    """Returns the recipe `fast`, which fits any length of run, with a limit on splats: twice as many would halve the
    pace for no visible gain here."""
    recipe = preset("fast", iterations)
    return replace(recipe, test_interval=test_interval, budget=replace(recipe.budget, max_splats=MOST_SPLATS))


def _train_and_leave_pictures(options: DemoOptions, folder: Path, out: Path, console: Terminal) -> None:

    iterations = options.iterations or HEADLESS_ITERATIONS
    capture = open_capture(folder)
    backend = make_backend(options.backend)
    config = _config(iterations, 200)
    trainer = RunPlan(config, out)(capture, backend)
    train_in_terminal(trainer)
    view = (capture.test_views or capture.views)[0]
    settings = trainer.settings
    request = ViewRequest(view.camera, settings, overlay="tiles")
    frame = backend.render(trainer.gaussians, view.camera, settings)
    about = Provenance(folder, trainer.iteration, backend.name, backend.device)
    written = save_screenshot(frame, request, out, "demo", about)
    total = sum(frame.stage_ms.values())
    stages = ", ".join(f"{name} {ms:.1f}" for name, ms in frame.stage_ms.items())
    console.print(
        f"{counted(frame.visible, 'splat')} visible, {counted(frame.instances, 'instance')}, {total:.1f} ms a "
        f"picture ({stages}); busiest tile lists {int(frame.tile_counts.max()):,}."
    )
    console.print("Look at " + ", ".join(str(path) for path in written))
