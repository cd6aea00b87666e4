"""Declares the options of `splatscope convert`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from splatscope.app.options.fields import ActivatedChoice, PrimitiveChoice, optional


@dataclass(frozen=True)
class ConvertOptions:
    """Write splats as another PLY: binary or ascii, fewer harmonics, without faint splats."""

    source: Annotated[Path, Positional, arg(metavar="IN")]
    """A splat file (.ply), a model folder (its highest iteration), or a run's checkpoint (.pt)."""
    target: Annotated[Path, Positional, arg(metavar="OUT.ply")]
    """The file to write."""
    activated: ActivatedChoice = "auto"
    primitive: PrimitiveChoice = None
    encoding: Literal["binary", "ascii"] = "binary"
    """Encoding of the numbers; both keep every bit."""
    sh_degree: Annotated[int | None, optional("INT")] = None
    """Highest degree of the harmonics to keep; all unless given."""
    min_opacity: Annotated[float | None, optional("FLOAT")] = None
    """Leave out splats fainter than this."""
    overwrite: bool = False
    """Replace a file that exists."""
