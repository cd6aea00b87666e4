"""Whether a run that goes on looks from where it looked before: its splats fit the cameras they were trained with.

Found anew, with masks for example, or aligned otherwise, the same photographs have cameras in another place, at
another scale. No step says so: the loss just begins high. `output.py` writes what is compared here.
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

_SAME = 1e-3  # of the length over which cameras stand, of a turn's matrix, of a focal length
_PIXELS = 3  # by which the width of a picture differs when its lens is taken out at another size


def moved_cameras(begin: Path, capture: Capture) -> tuple[str, ...]:
    """The warning about cameras that are not where `cameras.json` of the run has them that wrote `begin`, a checkpoint
    or PLY; none if they are, or if that is not known."""
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
        f"aligned anew. The splats were trained with the earlier ones and may not fit; if the loss begins high, begin "
        f"a new run.",
    )


@dataclass(frozen=True, eq=False)
class _Pose:
    """A camera as `cameras.json` has it."""

    place: NDArray[np.float64]  # [3]
    turn: NDArray[np.float64]  # [3, 3]
    width: float  # px
    focal: float  # widths


def _poses(path: Path) -> dict[str, _Pose]:
    """By name, as far as the file can be understood: not the reader of `assets/trained/cameras.py`, which takes no
    cameras far from the origin, where captures may stand."""
    try:
        entries: Any = read_json(path)
        names = Counter(str(entry["img_name"]) for entry in entries)  # without folders two may be called the same
        return {name: _pose(entry) for entry in entries if names[name := str(entry["img_name"])] == 1}
    except (InputError, ValueError, KeyError, TypeError, ArithmeticError):
        return {}


def _pose(entry: Any) -> _Pose:
    place, turn = np.array(entry["position"], np.float64), np.array(entry["rotation"], np.float64)
    if place.shape != (3,) or turn.shape != (3, 3):
        raise ValueError
    return _Pose(place, turn, float(entry["width"]), float(entry["fx"]) / float(entry["width"]))


def _known_as(view: View, before: dict[str, _Pose]) -> str:
    """The 2023 release names photographs without their folders and endings."""
    return next((name for name in (view.name, Path(view.name).stem) if name in before), "")


def _is_same(view: View, pose: _Pose, capture: Capture, length: float) -> bool:
    camera = view.camera
    stands = np.abs(camera.position + capture.offset - pose.place).max() <= _SAME * length
    looks = np.abs(camera.matrix[:3, :3].T - pose.turn).max() <= _SAME
    rounded = _SAME + _PIXELS / min(camera.width, pose.width)
    return bool(stands and looks and abs(camera.fx / camera.width - pose.focal) <= rounded * pose.focal)
