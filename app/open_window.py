"""The window with its engine: made together, closed together, whatever it is that ends them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from platformdirs import user_config_dir

from splatscope.app.engine.engine import Engine, EngineConfig
from splatscope.app.options.policy import NO_CHOICE, PolicyChoice
from splatscope.app.run.plan import RunPlan
from splatscope.app.stop_request import StopRequest
from splatscope.app.terminal import say
from splatscope.assets.splats.activated import Activated
from splatscope.kernels.backend import BackendName
from splatscope.kernels.errors import InputError
from splatscope.training.config import TrainConfig
from splatscope.viewer.config import WindowConfig
from splatscope.viewer.display import find_display, watch_display
from splatscope.viewer.messages.commands import OpenScene
from splatscope.viewer.window import run_window

if TYPE_CHECKING:  # torch loads with the trainer
    from splatscope.training.trainer import Beginning

GIL_SWITCH_SECONDS = 0.001  # the engine's Python must not hold up the frame loop for the default 5 ms
DISPLAY_GONE = "The window is gone: the X server has ended, or the connection to it broke."


def open_window(
    path: Path | None,
    *,
    backend: BackendName,
    size: tuple[int, int],
    ui_scale: float,
    training: Callable[[], TrainConfig],
    images: str,
    out: Path | None,
    autostart: bool,
    nvtx: bool = False,
    begin: Beginning | None = None,
    toggles: PolicyChoice = NO_CHOICE,
    activated: Activated = "auto",
) -> None:
    """Runs the window until it is closed; a live training run is saved then. `begin` is what training goes on from,
    `toggles` what the panel shows at first, `activated` how splats at `path` are read. Ctrl-C, a terminate signal and
    the end of the terminal close it too, and raise KeyboardInterrupt once the run is saved. If the display goes, the
    process ends here.

    Raises InputError if there is no display or the window cannot be opened, and if the run cannot be saved.
    """
    find_display()  # before anything is started: without a display the window library would end the process
    sys.setswitchinterval(GIL_SWITCH_SECONDS)
    config = EngineConfig(backend=backend, images=images, nvtx=nvtx, toggles=toggles)
    engine = Engine(config, RunPlan(training(), out, begin))
    engine.start()
    if path is not None:
        engine.send(OpenScene(path, then_train=autostart, activated=activated))
    with StopRequest() as stop:
        try:
            memory = Path(user_config_dir("splatscope")) / "window.json"
            window = WindowConfig(width=size[0], height=size[1], ui_scale=ui_scale, preferences_file=memory)
            window = replace(window, policy=toggles.policy, keeps_filter=toggles.keeps_filter)
            with watch_display(lambda: _end_without_display(engine)):
                run_window(engine, window, lambda: stop.asked)
        finally:
            if said := engine.close():
                say([said])
    if stop.asked:
        raise KeyboardInterrupt


def _end_without_display(engine: Engine) -> NoReturn:
    """Saves as when the window is closed, says so and ends the process with the status of other failures (`main.py`).
    What is on the stack, Xlib and the window library, cannot be gone back to, nor be taken down in order."""
    try:
        try:
            said = engine.close()
        except InputError as error:
            said = str(error)
        print(f"splatscope: {DISPLAY_GONE} {said}".rstrip(), file=sys.stderr)
    finally:
        os._exit(2)
