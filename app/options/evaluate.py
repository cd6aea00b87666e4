"""Declares the options of `splatscope eval`."""

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
class EvalOptions:
    """Score trained splats on held-out photographs: PSNR, SSIM, and LPIPS if it is installed. LPIPS needs the packages
    lpips and torchvision (pip install lpips torchvision) and the weights of its network in torch's cache. Nothing is
    downloaded; a note says what is missing and how to get it."""

    model: Annotated[Path, Positional, arg(metavar="MODEL")]
    """A run's folder, a model folder, or a .ply file."""
    activated: ActivatedChoice = "auto"
    primitive: PrimitiveChoice = None
    dataset: Annotated[Path | None, optional("CAPTURE", "-s", "--source-path")] = None
    """The capture; the run's unless given."""
    out: Annotated[Path | None, optional("FOLDER")] = None
    """Folder for pictures and results.json; the model's folder unless given."""
    iteration: Annotated[int | None, optional("INT")] = None
    """Iteration of a model folder; the highest unless given."""
    split: Literal["test", "train"] = "test"
    """Views to score: the held-out ones (the set's own, else every 8th by name), or those trained on."""
    precision: Literal["8bit", "float"] = "8bit"
    """Round pictures to 8 bits before scoring, as for most published figures, or not."""
    images: Annotated[str | None, optional("NAME", "-i")] = None
    """Folder of photographs inside a COLMAP capture; the run's unless given."""
    resolution: Annotated[int | None, optional("INT", "-r")] = None
    """Size of the photographs, as for train; the run's unless given."""
    white_background: Annotated[bool, arg(aliases=["-w"])] = False
    """Score over white."""
    step: StepChoice = "best"
    toggle: ToggleChoice = ()
    backend: BackendChoice = "auto"
    """What renders; auto is the GPU where one can be used."""
