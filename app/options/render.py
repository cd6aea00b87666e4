"""Declares the options of `splatscope render`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from splatscope.app.options.fields import (
    ActivatedChoice,
    BackendChoice,
    PrimitiveChoice,
    StepChoice,
    ToggleChoice,
    optional,
)


@dataclass(frozen=True)
class RenderOptions:
    """Render one picture of a scene to PNG, and to float32 NPY if asked."""

    scene: Annotated[Path, Positional, arg(metavar="SCENE")]
    """A splat file (.ply) or a model folder."""
    activated: ActivatedChoice = "auto"
    primitive: PrimitiveChoice = None
    out: Annotated[Path | None, optional("FILE.png")] = None
    """The PNG to write."""
    npy: Annotated[Path | None, optional("FILE.npy")] = None
    """Also write the float32 image [H, W, 3] before any clamping."""
    camera: Annotated[Path | None, optional("FILE.json")] = None
    """Camera JSON: width, height, fx, fy, cx, cy, view_from_world, or one entry of cameras.json."""
    dataset: Annotated[Path | None, optional("CAPTURE")] = None
    """Take the camera from this capture; needs --view."""
    view: Annotated[str | None, optional("NAME")] = None
    """Name of the photograph in --dataset whose camera is used."""
    size: Annotated[str | None, optional("WxH")] = None
    """Size of the picture; the camera's own unless given."""
    background: Annotated[str, arg(metavar="R,G,B")] = "0,0,0"
    """Background colour, each channel 0 to 1."""
    overlay: Literal["none", "tiles", "blended", "depth", "time", "chunks"] = "none"
    """Heatmap over the picture. Of each tile: splats listed (tiles), splats blended (blended), share of the list that
    was walked (depth), time taken (time), chunks (chunks)."""
    stats: Annotated[Path | None, optional("FILE.json")] = None
    """Write counts and stage times as JSON."""
    step: StepChoice = "best"
    toggle: ToggleChoice = ()
    backend: BackendChoice = "auto"
    """What renders; auto is the GPU where one can be used."""
