"""A capture: photographs with cameras, as read from disk before anything is trained.

Readers (`colmap/captures.py`, `transforms/captures.py`) fill these; `photographs/view_pixels.py` turns a view into
pixels and `training/data/dataset.py` a capture into a training set. `checks/agreement.py` judges whether cameras and
points fit each other.
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
Axes = Literal["opencv", "opengl"]  # of a camera: x right, y down, z ahead; or x right, y up, z behind


@dataclass(frozen=True)
class Mask:
    """A picture beside a photograph whose black pixels say what does not show the scene."""

    path: Path
    orientation: int = 1  # EXIF's number of the turn that makes its stored pixels fit the photograph as that is read
    is_dynamic: bool = False  # instant-ngp's: what is not black moves, and only what is black shows the scene


@dataclass(frozen=True, eq=False)
class Sightings:
    """Some points of a reconstruction, and where a photograph shows them by what the reconstruction says."""

    ids: NDArray[np.int64]  # [K] those of `PointCloud.ids`
    rays: NDArray[np.float64]  # [K, 2] x / z and y / z in the frame of the camera


@dataclass(frozen=True)
class View:
    """One photograph: where it lies and the pinhole camera that its picture, as `read_view` gives it, fits."""

    name: str  # path below the images folder, with forward slashes
    image_path: Path
    camera: Camera  # at the size of that picture
    lens: Lens | None = None  # that took the stored photograph, which it will be undistorted with; None: no need
    turned: bool = False  # the photograph is turned as its EXIF tag says, which is what its camera speaks of
    has_alpha: bool = False
    mask: Mask | None = None
    sightings: Sightings | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, eq=False)
class PointCloud:
    """Coloured points of a reconstruction."""

    positions: NDArray[np.float64]  # [P, 3] world units
    colors: NDArray[np.uint8]  # [P, 3]
    remarks: tuple[str, ...] = ()  # a sentence about points of the file that are not among these
    ids: NDArray[np.int64] | None = None  # [P] ascending, in the reconstruction; None: it is not one of COLMAP's

    @property
    def lack(self) -> str:
        """Why it shows nothing of the scene, in a few words; empty if it may show something."""
        count = len(self.positions)
        if count < FEWEST_POINTS:
            return f"too few 3D points ({count})"
        is_one_place = bool((self.positions == self.positions[0]).all())
        return f"{count:,} 3D points that are all in one place" if is_one_place else ""


@dataclass(frozen=True)
class Census:
    """What a reader counted on its way, for people to look at."""

    models: tuple[tuple[str, int], ...] = ()  # name and photographs of each COLMAP model, the one read first
    registered: int = 0  # photographs the cameras name
    missing: tuple[str, ...] = ()  # of those, names of the ones not on disk
    unused: int = 0  # photographs on disk that no camera names
    folder: Path | None = None  # where the photographs lie


@dataclass(frozen=True, eq=False)
class Capture:
    """Everything a dataset folder says. Views are sorted by name."""

    path: Path
    kind: Kind
    views: tuple[View, ...]  # for training and, with --eval, held out of it
    test_views: tuple[View, ...]  # the set's own test split; empty if it has none
    points: PointCloud | None
    white_background: bool  # True for RGBA sets: composited over white unless asked otherwise
    warnings: tuple[str, ...] = ()  # one sentence each: missing images, changed sizes, ...
    offset: Offset = NO_OFFSET  # world units; what was taken off every position: in the files it is added back
    census: Census = field(default_factory=Census)
    fits: bool = True  # cameras and points do as a whole, as far as is known; else single views cannot be judged
