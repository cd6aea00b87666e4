"""The window with its engine: made together, closed together."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from platformdirs import user_config_dir

from splatscope.app.engine import Engine, EngineConfig
from splatscope.app.plan import RunPlan
from splatscope.app.policy_options import NO_CHOICE, PolicyChoice
from splatscope.kernels.api import BackendName
from splatscope.training.config import TrainConfig
from splatscope.viewer.config import WindowConfig
from splatscope.viewer.display import find_display
from splatscope.viewer.messages import OpenScene
from splatscope.viewer.window import run_window

if TYPE_CHECKING:  # torch loads with the trainer
    from splatscope.training.trainer import Beginning

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
    nvtx: bool = False,
    begin: Beginning | None = None,
    toggles: PolicyChoice = NO_CHOICE,
) -> None:
    """Runs the window until it is closed; a live training run is saved then. `begin` is what training goes on from,
    `toggles` what the panel shows at first.

    Raises InputError if there is no display or the window cannot be opened.
    """
    find_display()  # before anything is started: without a display the window library would end the process
    sys.setswitchinterval(GIL_SWITCH_SECONDS)
    config = EngineConfig(backend=backend, images=images, nvtx=nvtx, toggles=toggles)
    engine = Engine(config, RunPlan(training(), out, begin))
    engine.start()
    if path is not None:
        engine.send(OpenScene(path, then_train=autostart))
    try:
        memory = Path(user_config_dir("splatscope")) / "window.json"
        window = WindowConfig(width=size[0], height=size[1], ui_scale=ui_scale, memory=memory)
        run_window(engine, replace(window, policy=toggles.policy, keeps_filter=toggles.keeps_filter))
    finally:
        engine.close()
