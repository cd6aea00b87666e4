"""Warns if the cameras of a resumed run have moved: its splats fit only the cameras they were trained with.

If cameras are found again, with masks for example, or aligned in another way, the same photographs have cameras in
another place and at another scale. No step reports that: the loss just begins high. `output.py` writes the cameras.json
that is compared here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.capture import Capture, View
from splatscope.assets.files.json_fields import read_json
from splatscope.assets.geometry.extent import scene_extent
from splatscope.assets.trained.model_folder import model_of
from splatscope.kernels.errors import InputError
from splatscope.kernels.wording import counted
from splatscope.training.files.folder import run_of

_SAME = 1e-3  # tolerance: of the length that cameras span, of a rotation matrix, of a focal length
_PIXELS = 3  # px by which the width of a picture differs when it is undistorted at another size


def moved_cameras(begin: Path, capture: Capture) -> tuple[str, ...]:
    """Returns the warning about cameras that are not where the `cameras.json` next to `begin`, a checkpoint or PLY, has
    them. Empty if all are there, or if that is not known."""
    model = model_of(begin)
    folder = model[0] if model else run_of(begin)
    before = {} if folder is None else _poses(folder / "cameras.json")
    views = (*capture.views, *capture.test_views)
    pairs = [(view, before[name]) for view in views if (name := _known_as(view, before))]
    if not pairs:
        return ()
    places = np.array([pose.place for _, pose in pairs])
    extent = scene_extent([view.camera for view in views], capture.points)
    length = max(float(np.ptp(places, axis=0).max()), extent)
    moved = [view.name for view, pose in pairs if not _is_same(view, pose, capture, length)]
    if not moved:
        return ()
    which = f"{len(moved):,} of {counted(len(pairs), 'camera')}"
    are = "is not" if len(moved) == 1 else "are not"
    return (
        f"{which} {are} where {folder} had {'it' if len(moved) == 1 else 'them'} (the first: {moved[0]}): found or "
        f"aligned again. The splats were trained with the earlier ones and may not fit; if the loss begins high, begin "
        f"a new run.",
    )


@dataclass(frozen=True, eq=False)
class _Pose:
    """Holds a camera as `cameras.json` has it."""

    place: NDArray[np.float64]  # [3]
    turn: NDArray[np.float64]  # [3, 3]
    width: float  # px
    focal: float  # widths


def _poses(path: Path) -> dict[str, _Pose]:
    """Returns the cameras of a file by name; empty if it cannot be understood.

    The reader in `assets/trained/cameras.py` refuses cameras far from the origin, where captures may be.
    """
    try:
        entries: Any = read_json(path)
        names = Counter(str(entry["img_name"]) for entry in entries)  # without folders, two may have one name
        return {name: _pose(entry) for entry in entries if names[name := str(entry["img_name"])] == 1}
    except (InputError, ValueError, KeyError, TypeError, ArithmeticError):
        return {}


def _pose(entry: Any) -> _Pose:
    place, turn = np.array(entry["position"], np.float64), np.array(entry["rotation"], np.float64)
    if place.shape != (3,) or turn.shape != (3, 3):
        raise ValueError
    return _Pose(place, turn, float(entry["width"]), float(entry["fx"]) / float(entry["width"]))


def _known_as(view: View, before: dict[str, _Pose]) -> str:
    """Returns the name of a view in `before`, or "". The 2023 release names photographs without folder and ending."""
    return next((name for name in (view.name, Path(view.name).stem) if name in before), "")


def _is_same(view: View, pose: _Pose, capture: Capture, length: float) -> bool:
    camera = view.camera
    stands = np.abs(camera.position + capture.offset - pose.place).max() <= _SAME * length
    looks = np.abs(camera.matrix[:3, :3].T - pose.turn).max() <= _SAME
    rounded = _SAME + _PIXELS / min(camera.width, pose.width)
    return bool(stands and looks and abs(camera.fx / camera.width - pose.focal) <= rounded * pose.focal)
