"""Judges whether the cameras and the points of a capture fit each other, first as a whole, then view by view.

If all cameras miss the points, either the cameras' axes are read wrongly or the points belong to something else. Other
readings are then tried, and one that fits is named. Axes are turned; points in another frame are left out, because
splats at random positions train better than those points. `witnesses.py` measures the fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.capture import Axes, Capture, PointCloud, View
from splatscope.assets.checks.witnesses import Colors, Guess, Matrix, ScaledTracks, Tracks, Witness, seen_in
from splatscope.assets.choices import AxesChoice
from splatscope.assets.geometry.upright import guess_up
from splatscope.kernels.types import Camera
from splatscope.kernels.wording import counted

_OTHER_AXES = np.diag([1.0, -1.0, -1.0, 1.0])  # turns OpenCV's axes into OpenGL's and back
_UNITS = (2.54, 3.28084, 10.0, 25.4, 39.37, 100.0, 1e3)  # metres, centimetres, millimetres, inches and feet
_SCALES = (*_UNITS, *(1 / unit for unit in _UNITS))
_FEWEST_VIEWS, _FEWEST_POINTS = 3, 50  # with fewer, the whole is not judged
_LOOKED_AT = 10_000  # most points used
_NEARLY_ALL = 0.9  # share of the points that fitting cameras see
_A_GOOD_PART = 0.05  # share of the points that half of the fitting cameras see
_HARDLY_ANY = 0.1  # share of the points that cameras see that do not fit
_UNLIKE = 0.25  # correlation of colours; right photographs reach 0.5 to 0.7, wrong ones 0.2
_FEWEST_STRAYS, _LEAST_STRAYS = 3, 0.1  # least number and share of views whose colours contradict
_GOOD_ENOUGH = 1 / 3  # share of views; if so many fit and no other reading is better, the others are single faults
_NAMED = 5
_TOPS_DOWN = -0.5  # z of the cameras' mean up
_PARALLEL = 0.05  # smallest eigenvalue of the axes' mean projector; below it they meet nowhere
_SETS = {"opencv": "COLMAP has", "opengl": "a transforms.json has"}
_AXES_IN_WORDS = {"opencv": "OpenCV (y down, z ahead)", "opengl": "OpenGL (y up, z behind)"}
_AGAIN = "Export points and cameras together, in the same coordinates."


@dataclass(frozen=True, eq=False)
class _Hypothesis:
    """Holds another reading of a capture, and what it says is wrong."""

    guess: Guess
    wrong: str  # "axes", "poses" or "points"


def fitted(capture: Capture, written: Axes, axes: AxesChoice = "auto") -> Capture:
    """Returns the capture with its cameras' axes as asked for, and without points that do not belong to the cameras.

    `written` are the axes of the format, with which the cameras were read. `axes` "auto" turns them only if the points
    leave no doubt. Each fault found is a warning.
    """
    if axes not in ("auto", written):
        capture, written = _turned(capture), axes
    cloud = capture.points
    if cloud is None or cloud.lack:
        away = axes == "auto" and written == "opengl" and _look_away([view.camera for view in capture.views])
        return _warned(capture, _LOOKING_AWAY) if away else capture
    found, said = _judged(capture.views, _finite(cloud), written)
    if found is None:
        return _warned(replace(capture, fits=_AT_ODDS not in said), *said)
    if found.wrong == "axes":
        return _with_other_axes(capture, written, axes)
    if found.wrong == "poses":
        return _warned(replace(capture, fits=False), found.guess.words)
    told = f"The points are not in the frame of these cameras: {found.guess.words}. All {len(cloud.positions):,} are "
    told += f"left out, so splats will start at random positions. {_AGAIN}"
    return _warned(replace(capture, points=None), told)


def _judged(views: Sequence[View], cloud: PointCloud, written: Axes) -> tuple[_Hypothesis | None, tuple[str, ...]]:
    """Returns what is wrong with all cameras or points; else sentences about single views and what cannot be judged."""
    if len(views) < _FEWEST_VIEWS or len(cloud.positions) < _FEWEST_POINTS:
        return None, ()
    as_read, tracked, unlike = _as_read(views), False, False
    for witness in _witnesses(views, cloud):
        scores = witness.scores(as_read)
        if np.nanmedian(scores) < witness.fits:
            found = _better(views, witness, float(np.nanmedian(scores)), written)
            if found is not None:
                return found, ()
        # If the reconstruction's own 2D points contradict the cameras, colours do not count.
        can_acquit, judged = not (tracked and isinstance(witness, Colors)), scores[~np.isnan(scores)]
        if can_acquit and np.mean(judged >= witness.fits) >= _GOOD_ENOUGH:
            others = (_OTHER_COLORS,) if isinstance(witness, Tracks) and _show_others(views, cloud, as_read) else ()
            return None, (*_strays(views, scores, witness), *others)
        tracked |= isinstance(witness, Tracks)
        unlike |= isinstance(witness, Colors) and float(np.nanmedian(scores)) < _UNLIKE
    # COLMAP's points have the colours of photographs; others may have any.
    if not tracked and unlike and written == "opencv":
        return _unseen(views, cloud, as_read), (_OTHER_COLORS,)
    return _unseen(views, cloud, as_read), (_AT_ODDS,) if tracked else ()


def _show_others(views: Sequence[View], cloud: PointCloud, as_read: Guess) -> bool:
    """Returns True if the photographs hardly show the colours of the points that their cameras see."""
    colors = Colors(views, cloud)
    return colors.can_tell and float(np.nanmedian(colors.scores(as_read))) < _UNLIKE


def _finite(cloud: PointCloud) -> PointCloud:
    kept = np.isfinite(cloud.positions).all(axis=1)
    ids = None if cloud.ids is None else cloud.ids[kept]
    return PointCloud(cloud.positions[kept], cloud.colors[kept], ids=ids)


def _witnesses(views: Sequence[View], cloud: PointCloud) -> Iterator[Witness]:
    """Yields the witnesses that can tell, the surest first. Photographs are decoded when colours are compared."""
    for kind in (Tracks, ScaledTracks, Colors):
        witness = kind(views, cloud)
        if witness.can_tell:
            yield witness


def _as_read(views: Sequence[View]) -> Guess:
    return Guess(tuple(view.camera.matrix for view in views), np.eye(3))


def _strays(views: Sequence[View], scores: NDArray[np.float64], witness: Witness) -> Iterator[str]:
    """Yields the sentence about single views that do not fit although the others do."""
    names = [view.name for view, score in zip(views, scores, strict=True) if score < witness.strays]
    judged = int(np.count_nonzero(~np.isnan(scores)))
    some = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    if isinstance(witness, Colors):
        if len(names) >= max(_FEWEST_STRAYS, _LEAST_STRAYS * judged):
            yield (
                f"Of {counted(judged, 'photograph')} looked at, {len(names)} show other colours than the points that "
                f"their cameras see: {some}. Their poses seem wrong: find their cameras again, or leave them out."
            )
    elif names:
        is_one = len(names) == 1
        yield (
            f"{len(names)} of {counted(judged, 'photograph')} {'does' if is_one else 'do'} not show the points where "
            f"the reconstruction saw them: {some}. {'Its pose is' if is_one else 'Their poses are'} wrong: find "
            f"{'its camera' if is_one else 'their cameras'} again, or leave {'it' if is_one else 'them'} out."
        )


def _better(views: Sequence[View], witness: Witness, score: float, written: Axes) -> _Hypothesis | None:
    """Returns the other reading that fits best, or None if none fits clearly better than `score`."""
    scored = [(float(np.nanmedian(witness.scores(h.guess))), h) for h in _hypotheses(_as_read(views), written)]
    best, hypothesis = max(scored, key=lambda pair: pair[0])
    return hypothesis if best >= max(witness.fits, score + witness.gain) else None


def _hypotheses(as_read: Guess, written: Axes) -> Iterator[_Hypothesis]:
    cameras, flip = as_read.cameras, _OTHER_AXES
    yield _Hypothesis(_of_cameras(flip @ camera for camera in cameras), "axes")
    inverse: list[Matrix] = [np.linalg.inv(camera).astype(np.float64) for camera in cameras]
    way, other = ("camera-to-world", "world-to-camera")[:: 1 if written == "opencv" else -1]
    words = f"The poses seem to be {way} where {_SETS[written]} {other}: inverted, they fit the points. Export them so."
    for left, right in product((np.eye(4), flip), repeat=2):
        yield _Hypothesis(_of_cameras((left @ camera @ right for camera in inverse), words), "poses")
    if written == "opencv":
        words = (
            "The rotations seem to be stored as x y z w where COLMAP has w x y z: in that order they fit the points. "
            "Write QW first, and open the capture again."
        )
        yield _Hypothesis(_of_cameras(map(_w_was_last, cameras), words), "poses")
    for scale in _SCALES:
        how = f"divided by {1 / scale:,.4g}" if scale < 1 else f"multiplied by {scale:,.4g}"
        yield _Hypothesis(Guess(cameras, np.eye(3) * scale, f"{how}, they would fit"), "points")
    for order, signs in product(permutations(range(3)), product((1.0, -1.0), repeat=3)):
        move = np.diag(signs) @ np.eye(3)[list(order)]
        if not np.array_equal(move, np.eye(3)):
            axes = ", ".join(f"{'-' if sign < 0 else ''}{'xyz'[axis]}" for axis, sign in zip(order, signs, strict=True))
            yield _Hypothesis(Guess(cameras, move, f"with ({axes}) in place of (x, y, z), they would fit"), "points")


def _of_cameras(matrices: Iterator[Matrix] | map[Matrix], words: str = "") -> Guess:
    return Guess(tuple(matrices), np.eye(3), words)


def _w_was_last(camera: Matrix) -> Matrix:
    """Returns the camera whose quaternion was written x y z w and read as w x y z."""
    from scipy.spatial.transform import Rotation

    x, y, z, w = Rotation.from_matrix(camera[:3, :3]).as_quat()
    right = camera.copy()
    right[:3, :3] = Rotation.from_quat([w, x, y, z]).as_matrix()
    return right


def _unseen(views: Sequence[View], cloud: PointCloud, as_read: Guess) -> _Hypothesis | None:
    """Returns what is wrong if most views see none of the points, or nearly no point is seen; else None."""
    points = cloud.positions[:: 1 + len(cloud.positions) // _LOOKED_AT]
    seen = seen_in(points, views, as_read)
    blind = int(np.count_nonzero(~seen.any(axis=1)))
    if 2 * blind <= len(views) and seen.any(axis=0).mean() >= _HARDLY_ANY:
        return None
    axes = _of_cameras(_OTHER_AXES @ camera for camera in as_read.cameras)
    then = seen_in(points, views, axes)
    if then.any(axis=0).mean() >= _NEARLY_ALL and np.median(then.mean(axis=1)) >= _A_GOOD_PART:
        return _Hypothesis(axes, "axes")
    centres = np.array([view.camera.position for view in views])
    distance = float(np.linalg.norm(np.median(points, axis=0) - np.median(centres, axis=0)))
    span = float(np.linalg.norm(np.ptp(centres, axis=0)))
    where = f"{blind} of {counted(len(views), 'photograph')} see none of them"
    where += f", and they lie {_length(distance)} units from the cameras, which span {_length(span)}"
    return _Hypothesis(replace(as_read, words=where), "points")


def _length(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _with_other_axes(capture: Capture, written: Axes, axes: AxesChoice) -> Capture:
    other: Axes = "opengl" if written == "opencv" else "opencv"
    said = f"The axes of the cameras are those of {_AXES_IN_WORDS[other]}, not of {_AXES_IN_WORDS[written]}"
    if axes != "auto":
        return _warned(
            capture, f"{said}: turned, the cameras see the points. Leave out --axes, or give --axes {other}."
        )
    said += f" as {_SETS[written]} them: as written, the cameras look away from the points. They were turned; --axes "
    return _warned(_turned(capture), f"{said}{written} leaves them as they are written.")


def _turned(capture: Capture) -> Capture:
    """Returns the capture with its cameras' other axes."""

    def turned(views: Sequence[View]) -> tuple[View, ...]:
        return tuple(replace(view, camera=_camera_at(view.camera, _OTHER_AXES @ view.camera.matrix)) for view in views)

    return replace(capture, views=turned(capture.views), test_views=turned(capture.test_views))


def _camera_at(camera: Camera, matrix: Matrix) -> Camera:
    return replace(camera, view_from_world=tuple(map(tuple, matrix.tolist())))


def _look_away(cameras: Sequence[Camera]) -> bool:
    """Returns True if nearly all cameras look away from the place between them where their axes meet, upside down.

    Such a transforms.json has z up. Cameras in the middle of a room also look away from each other, but are upright.
    """
    if len(cameras) < _FEWEST_VIEWS or guess_up(cameras)[0][2] > _TOPS_DOWN:
        return False
    centres = np.array([camera.position for camera in cameras])
    ahead = np.array([camera.matrix[2, :3] for camera in cameras])
    across = np.eye(3) - ahead[:, :, None] * ahead[:, None, :]  # [C, 3, 3] removes the part along each axis
    if np.linalg.eigvalsh(across.mean(axis=0))[0] < _PARALLEL:
        return False
    meeting = np.linalg.solve(across.sum(axis=0), (across @ centres[..., None]).sum(axis=0))[:, 0]
    return bool(np.mean(((meeting - centres) * ahead).sum(axis=1) < 0) >= _NEARLY_ALL)


def _warned(capture: Capture, *said: str) -> Capture:
    return replace(capture, warnings=(*capture.warnings, *said))


_LOOKING_AWAY = (
    "All cameras look away from what lies between them and hang upside down, as they do if their axes are those of "
    f"{_AXES_IN_WORDS['opencv']}. If the photographs show what lies between them, train with --axes opencv."
)
_OTHER_COLORS = (
    "The photographs do not show the colours of the points where their cameras see them. Photographs or points seem to "
    "be of another capture: check that they belong together, and that no photograph was renamed."
)
_AT_ODDS = (
    "The cameras do not see the points where the reconstruction saw them, and no other reading of the files fits. "
    "Cameras and points are of different reconstructions, or damaged: export them together."
)
