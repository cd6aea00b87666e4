"""A capture: photographs with cameras, as read from disk before anything is trained.

Readers (`colmap.py`, `transforms.py`) fill these; `training/dataset.py` turns them into images. Nothing
here decodes a picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.types import Camera


@dataclass(frozen=True)
class View:
    """One photograph: where it lies and the camera that took it, at the photograph's real size."""

    name: str  # path below the images folder, with forward slashes
    image_path: Path
    camera: Camera


@dataclass(frozen=True, eq=False)
class PointCloud:
    """Coloured points of a reconstruction."""

    positions: NDArray[np.float64]  # [P, 3] world units
    colors: NDArray[np.uint8]  # [P, 3]


@dataclass(frozen=True, eq=False)
class Capture:
    """Everything a dataset folder says. Views are sorted by name."""

    path: Path
    kind: Literal["colmap", "blender"]
    views: tuple[View, ...]  # for training and, with --eval, held out of it
    test_views: tuple[View, ...]  # the set's own test split; empty if it has none
    points: PointCloud | None
    white_background: bool  # True for RGBA sets: composited over white unless asked otherwise
    warnings: tuple[str, ...] = ()  # one sentence each: missing images, changed sizes, ...
