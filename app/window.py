"""The window with its engine: made together, closed together."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from splatscope.app.commands import make_trainer
from splatscope.app.engine import Engine, EngineConfig
from splatscope.kernels.api import BackendName
from splatscope.training.config import TrainConfig
from splatscope.viewer.config import WindowConfig
from splatscope.viewer.display import find_display
from splatscope.viewer.messages import OpenScene
from splatscope.viewer.window import run_window

GIL_SWITCH_SECONDS = 0.001  # the engine's Python must not hold up the frame loop for the default 5 ms


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
) -> None:
    """Runs the window until it is closed; a live training run is saved then.

    Raises InputError if there is no display or the window cannot be opened.
    """
    find_display()  # before anything is started: without a display the window library would end the process
    sys.setswitchinterval(GIL_SWITCH_SECONDS)
    engine = Engine(
        EngineConfig(backend=backend, images=images),
        lambda capture, made: make_trainer(capture, training(), made, out),
    )
    engine.start()
    if path is not None:
        engine.send(OpenScene(path, then_train=autostart))
    try:
        run_window(engine, WindowConfig(width=size[0], height=size[1], ui_scale=ui_scale))
    finally:
        engine.close()
