"""Declares the options of `splatscope doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from splatscope.app.options.fields import Axes, BackendChoice


@dataclass(frozen=True)
class DoctorOptions:
    """Check a capture before training: what it holds, what is odd, how long training will take."""

    dataset: Annotated[Path, Positional, arg(metavar="CAPTURE")]
    """The capture: a COLMAP folder or a folder with transforms.json or transforms_train.json."""
    images: Annotated[str, arg(aliases=["-i"], metavar="NAME")] = "images"
    """Folder of photographs inside a COLMAP capture."""
    axes: Axes = "auto"
    resolution: Annotated[int, arg(aliases=["-r"])] = -1
    """Photograph size used for the time and memory estimates; same values as `train -r`."""
    iterations: int = 30_000
    """Length of the run in the time estimate."""
    quick: bool = False
    """Decode no photograph and measure nothing."""
    backend: BackendChoice = "auto"
    """What computes while time is measured."""
