"""Declares the options of `splatscope view`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from splatscope.app.options.fields import (
    ActivatedChoice,
    Axes,
    BackendChoice,
    PrimitiveChoice,
    StepChoice,
    ToggleChoice,
    UiScale,
    WindowSize,
    optional,
)


@dataclass(frozen=True)
class ViewOptions:
    """Open the window, empty or on splats (a .ply or a model folder), a run or a capture."""

    path: Annotated[Path | None, Positional, optional("PATH")] = None
    """A splat file (.ply), a model folder, a run's folder, a capture (COLMAP, transforms.json or
    transforms_train.json), or a folder of photographs."""
    activated: ActivatedChoice = "auto"
    primitive: PrimitiveChoice = None
    axes: Axes = "auto"
    backend: BackendChoice = "auto"
    """What renders; auto is an NVIDIA GPU where one can be used, else the CPU."""
    size: WindowSize = "1600x1000"
    ui_scale: UiScale = 0.0
    step: StepChoice = "best"
    toggle: ToggleChoice = ()
    nvtx: bool = False
    """Name the GPU's stages for profilers (Nsight). Kernels are then launched one by one, not as graphs."""
