"""Makes the window and its engine together, and closes them together, whatever ends them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from platformdirs import user_config_dir

from splatscope.app.engine.engine import Engine, EngineConfig
from splatscope.app.options.policy import NO_CHOICE, PolicyChoice
from splatscope.app.run.plan import RunPlan
from splatscope.app.stop_request import StopRequest
from splatscope.app.terminal import say
from splatscope.assets.splats.read_as import AS_USUAL, ReadAs
from splatscope.kernels.backend import BackendName
from splatscope.kernels.errors import InputError
from splatscope.viewer.config import WindowConfig
from splatscope.viewer.display import find_display, watch_display
from splatscope.viewer.messages.commands import OpenScene
from splatscope.viewer.window import run_window

GIL_SWITCH_SECONDS = 0.001  # the engine's Python must not hold up the frame loop for the default 5 ms
DISPLAY_GONE = "The window is gone: the X server has ended, or the connection to it broke."


@dataclass(frozen=True)
class WindowRequest:
    """Lists what a subcommand asks of the window."""

    path: Path | None  # to open at once
    plan: RunPlan  # the run that a capture at `path` gets
    backend: BackendName = "auto"
    images: str = "images"  # folder of the photographs, of captures with several
    read_as: ReadAs = AS_USUAL  # how a splat file is read
    autostart: bool = False  # train at once
    toggles: PolicyChoice = NO_CHOICE  # shown in the panel at first
    nvtx: bool = False  # names for profilers
    size: tuple[int, int] = (1600, 1000)  # px
    ui_scale: float = 0.0  # 0: the display's own


def open_window(wanted: WindowRequest) -> None:
    """Runs the window until it is closed, then saves a live training run.

    Ctrl-C, a terminate signal and the end of the terminal close it too, and raise KeyboardInterrupt once the run is
    saved. If the display disappears, the process ends here. Raises InputError if there is no display, if the window
    cannot be opened, and if the run cannot be saved.
    """
    find_display()  # before anything is started: without a display the window library would end the process
    sys.setswitchinterval(GIL_SWITCH_SECONDS)
    config = EngineConfig(wanted.backend, wanted.images, nvtx=wanted.nvtx, toggles=wanted.toggles)
    engine = Engine(config, wanted.plan)
    engine.start()
    if wanted.path is not None:
        engine.send(OpenScene(wanted.path, then_train=wanted.autostart, read_as=wanted.read_as))
    with StopRequest() as stop:
        try:
            memory = Path(user_config_dir("splatscope")) / "window.json"
            width, height = wanted.size
            window = WindowConfig(width=width, height=height, ui_scale=wanted.ui_scale, preferences_file=memory)
            window = replace(window, policy=wanted.toggles.policy, keeps_filter=wanted.toggles.keeps_filter)
            with watch_display(lambda: _end_without_display(engine)):
                run_window(engine, window, lambda: stop.asked)
        finally:
            if said := engine.close():
                say([said])
    if stop.asked:
        raise KeyboardInterrupt


def _end_without_display(engine: Engine) -> NoReturn:
    """Saves as when the window is closed, prints how, and ends the process with the status of failures (`main.py`).

    Xlib and the window library are on the stack: the program can neither return to them nor shut them down in order.
    """
    try:
        try:
            said = engine.close()
        except InputError as error:
            said = str(error)
        print(f"splatscope: {DISPLAY_GONE} {said}".rstrip(), file=sys.stderr)
    finally:
        os._exit(2)
