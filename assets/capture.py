"""Defines a capture: photographs with cameras, as read from disk before anything is trained.

Readers (`colmap/captures.py`, `transforms/captures.py`) fill these classes. `photographs/view_pixels.py` turns a view
into pixels, and `training/data/dataset.py` a capture into a training set. `checks/agreement.py` judges whether cameras
and points fit each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.lens import Lens
from splatscope.kernels.types import Camera

FEWEST_POINTS = 10  # a reconstruction with fewer shows nothing of the scene; see `PointCloud.lack`
IMAGES = "images"  # the folder of photographs unless another is named
NO_OFFSET = (0.0, 0.0, 0.0)
Offset = tuple[float, float, float]
# blender: synthetic sets, built around the origin; transforms: JSON with calibrated cameras
Kind = Literal["colmap", "blender", "transforms", "polycam", "record3d"]
Axes = Literal["opencv", "opengl"]  # axes of a camera: x right, y down, z ahead; or x right, y up, z behind


@dataclass(frozen=True)
class Mask:
    """Names a picture next to a photograph, whose black pixels mark what does not show the scene."""

    path: Path
    orientation: int = 1  # EXIF number of the turn that makes the stored mask fit the photograph as it is read
    is_dynamic: bool = False  # a mask of instant-ngp: pixels that are not black move; only black ones show the scene


@dataclass(frozen=True, eq=False)
class Sightings:
    """Holds some points of a reconstruction, and where in a photograph the reconstruction saw them."""

    ids: NDArray[np.int64]  # [K] as in `PointCloud.ids`
    rays: NDArray[np.float64]  # [K, 2] x / z and y / z in the frame of the camera


@dataclass(frozen=True)
class View:
    """Describes one photograph: its file, and the pinhole camera of the picture that `read_view` returns for it."""

    name: str  # path below the images folder, with forward slashes
    image_path: Path
    camera: Camera  # at the size of the picture that is read
    lens: Lens | None = None  # lens that took the photograph, used to undistort it; None if that is not needed
    turned: bool = False  # the photograph is turned as its EXIF tag says; the camera is for the turned picture
    has_alpha: bool = False
    mask: Mask | None = None
    sightings: Sightings | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, eq=False)
class PointCloud:
    """Holds the coloured points of a reconstruction."""

    positions: NDArray[np.float64]  # [P, 3] world units
    colors: NDArray[np.uint8]  # [P, 3]
    remarks: tuple[str, ...] = ()  # a sentence about points of the file that were left out
    ids: NDArray[np.int64] | None = None  # [P] ascending ids in COLMAP's reconstruction; None if it is not COLMAP's

    @property
    def lack(self) -> str:
        """Returns why the points show nothing of the scene, in a few words; empty if they may show something."""
        count = len(self.positions)
        if count < FEWEST_POINTS:
            return f"too few 3D points ({count})"
        is_one_place = bool((self.positions == self.positions[0]).all())
        return f"{count:,} 3D points that are all in one place" if is_one_place else ""


@dataclass(frozen=True)
class Census:
    """Counts what a reader found, for people to look at."""

    models: tuple[tuple[str, int], ...] = ()  # name and photographs of each COLMAP model, the one read first
    registered: int = 0  # photographs that the cameras name
    missing: tuple[str, ...] = ()  # names of registered photographs that are not on disk
    unused: int = 0  # photographs on disk that no camera names
    folder: Path | None = None  # folder of the photographs


@dataclass(frozen=True, eq=False)
class Capture:
    """Holds all that a dataset folder says. Views are sorted by name."""

    path: Path
    kind: Kind
    views: tuple[View, ...]  # for training; with --eval some are held out
    test_views: tuple[View, ...]  # the set's own test split; empty if it has none
    points: PointCloud | None
    white_background: bool  # True for RGBA sets: composited over white unless asked otherwise
    warnings: tuple[str, ...] = ()  # one sentence each: missing images, changed sizes, ...
    offset: Offset = NO_OFFSET  # world units; subtracted from every position, and added back in files
    census: Census = field(default_factory=Census)
    fits: bool = True  # False: cameras and points as a whole do not fit, so single views cannot be judged
