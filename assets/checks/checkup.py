"""Checks a capture before it is trained: what is there, what is odd, what to do about it.

Changes nothing, and decodes no photograph unless asked. `app/commands/doctor.py` adds how long training will take and
how much memory it needs. The window shows the same lines.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import numpy as np

from splatscope.assets.capture import NO_OFFSET, Capture, Kind, View
from splatscope.assets.checks.witnesses import seen_by
from splatscope.assets.geometry.extent import FAR_CAMERA, depth_from_one_place
from splatscope.assets.geometry.upright import guess_up
from splatscope.assets.lens import Lens, as_colmap, straightened
from splatscope.assets.photographs.find import Photographs, Unreadable, left_out
from splatscope.assets.photographs.images import check_decodes
from splatscope.assets.photographs.masks import Masks, problem_of
from splatscope.assets.photographs.undistort import seen
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera
from splatscope.kernels.wording import counted, printable

FEW_VIEWS = 10
SURE_UP = 0.5  # confidence below which the guessed up direction is only a guess
_POINTS_LOOKED_AT = 2000
_FEWEST_POINTS = 100  # with fewer, a view may well see none
_FEW_SEEN = 0.01  # share of the points; a view that sees fewer looks away from the scene
_FEW_SEEN_OF_MEDIAN = 0.1  # of the share that other views see; in a large scene all views see few
_NEAR_MIDDLE = 0.02  # of the width, distance from the middle
_SEARCHED = "a search for cameras looks at what they leave"
_SEARCH_TIME = "a search takes seconds for tens of photographs and minutes for hundreds; it can be stopped and resumed"
_ODD_ANGLES = (10.0, 150.0)  # degrees; horizontal angles of view outside are rare and mostly mistakes
_POSE_DIGITS = 9  # digits of poses that are compared
_ROUNDING = 1e-9  # of coordinates; smaller differences are rounding
_NAMED = 5  # most examples in a line
_KINDS: dict[Kind, str] = {
    "colmap": "COLMAP",
    "blender": "Blender",
    "transforms": "transforms.json with calibrated cameras",
    "polycam": "raw data of Polycam",
    "record3d": "a recording of Record3D",
}


@dataclass(frozen=True)
class Finding:
    """Holds one line of the page."""

    topic: str  # "photographs", "lenses", ...; a reader's warnings have the topic "opening"
    text: str  # one sentence or a list of figures
    is_odd: bool = False
    advice: str = ""  # a sentence on what to do; empty if the text says it

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", printable(self.text))  # it quotes names from files


@dataclass(frozen=True)
class Checkup:
    """Holds the page: facts first, then oddities."""

    path: Path
    findings: tuple[Finding, ...]

    @property
    def facts(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.is_odd)

    @property
    def oddities(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.is_odd)

    def lines(self) -> list[str]:
        """Returns the page as text: facts in two columns, and oddities numbered."""
        width = max(len(finding.topic) for finding in self.facts)
        page = [str(self.path), *(f"  {fact.topic:{width}}  {fact.text}" for fact in self.facts)]
        if not self.oddities:
            return [*page, "Nothing is odd."]
        page.append("Odd:")
        for number, odd in enumerate(self.oddities, 1):
            page.append(f"  {number}. {odd.text} {odd.advice}".rstrip())
        return page


def check_up(capture: Capture, decode: bool = False) -> Checkup:
    """Checks everything a capture says of itself. With `decode`, reads every photograph to its last byte."""
    views = (*capture.views, *capture.test_views)
    findings = [
        *_files(capture),
        *_sizes([(view.camera.width, view.camera.height) for view in views]),
        *(_damage({view.name: view.image_path for view in views}) if decode else ()),
        *_lenses(views),
        *_alpha(capture, views),
        *_masks(views, decode),
        *_points(capture),
        *_cameras(capture),
        *_place(capture),
    ]
    findings += [Finding("opening", warning, is_odd=True) for warning in capture.warnings]
    return Checkup(capture.path, tuple(findings))


def check_up_bare(path: Path, folder: Path, decode: bool = False) -> Checkup:
    """Checks photographs in `folder` that have no cameras yet. With `decode`, reads each to its last byte."""
    photographs = Photographs(folder)
    sizes, unreadable = [], []
    for name in photographs.paths:
        try:
            header = photographs.header(name)
            sizes.append((header.width, header.height))
        except InputError as error:
            unreadable.append((name, str(error)))
    count, where = len(photographs.paths), f" in {folder.name}" if folder != path else ""
    masks = len(Masks(photographs, beside=folder != path).all())
    damage = _damage(photographs.paths) if decode else _unreadable("photographs", unreadable)
    findings = [
        Finding("capture", "photographs without cameras"),
        Finding("photographs", f"{count}{where}"),
        *(_sizes(sizes) if sizes else ()),
        *damage,
        Finding("masks", f"{masks} of {count} have one; {_SEARCHED}" if masks else "none"),
        Finding("cameras", f"none yet; splatscope train {quote(str(path))}, or opening it in the window, finds them"),
        Finding("time", _SEARCH_TIME),
        Finding("points", "none yet; they are found with the cameras"),
        *_few(len(sizes), "20 or more that overlap by two thirds are needed for their cameras to be found."),
    ]
    return Checkup(path, tuple(findings))


def _files(capture: Capture) -> Iterator[Finding]:
    census = capture.census
    models = ", ".join(f"{name} ({count} registered)" for name, count in census.models)
    yield Finding("capture", f"{_KINDS[capture.kind]}{f', model {models}' if len(census.models) == 1 else ''}")
    if len(census.models) > 1:
        yield Finding("models", f"{models}; the first is used")
    tests = f", and {len(capture.test_views)} of the set's own test split" if capture.test_views else ""
    unused = f", {census.unused} more on disk without a camera" if census.unused else ""
    where = f" in {census.folder.name}" if census.folder not in (None, capture.path) else ""
    found = f"{len(capture.views)} of {census.registered} with cameras were found{where}"
    yield Finding("photographs", f"{found}{unused}{tests}")
    if census.missing:
        yield Finding("missing", _some(census.missing))
    yield from _few(len(capture.views))


def _few(
    count: int, advice: str = "A scene is covered by about 50 to 300; what only one of them sees has no depth."
) -> Iterator[Finding]:
    if count < FEW_VIEWS:
        text = f"Only {counted(count, 'photograph')} can be trained on." if count else "None can be trained on."
        yield Finding("photographs", text, True, advice)


def _sizes(of_each: Sequence[tuple[int, int]]) -> Iterator[Finding]:
    sizes = Counter(of_each).most_common()
    shown = ", ".join(f"{count} of {width} x {height}" for (width, height), count in sizes[:_NAMED])
    yield Finding("sizes", shown + (f" and {counted(len(sizes) - _NAMED, 'more size')}" if len(sizes) > _NAMED else ""))


def _damage(paths: Mapping[str, Path]) -> Iterator[Finding]:
    """Reads photographs, by their names, to their ends; reports damage."""

    def problem(path: Path) -> str:
        try:
            check_decodes(path)
        except InputError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="checkup") as pool:
        problems = list(pool.map(problem, paths.values()))
    unreadable = [(name, reason) for name, reason in zip(paths, problems, strict=True) if reason]
    yield Finding("decoding", f"{len(paths) - len(unreadable)} of {len(paths)} can be decoded to the end")
    yield from _unreadable("decoding", unreadable)


def _unreadable(topic: str, unreadable: Sequence[Unreadable]) -> Iterator[Finding]:
    if unreadable:
        yield Finding(topic, left_out(unreadable), True)


def _lenses(views: Sequence[View]) -> Iterator[Finding]:
    lenses = Counter(view.lens for view in views if view.lens is not None)
    pinholes = len(views) - lenses.total()
    shown = [f"{pinholes} without distortion"] if pinholes else []
    for lens, count in list(lenses.items())[:_NAMED]:
        straight = straightened(lens)
        kept = seen(lens)
        blank = f", {1 - kept.mean():.0%} of it unseen and left out" if kept is not None else ""
        shown.append(
            f"{count} {lens.model} that bend by up to {_largest_bend(lens):.0f} px, {lens.width} x {lens.height} "
            f"become {straight.width} x {straight.height}{blank}"
        )
    if len(lenses) > _NAMED:
        shown.append(f"and {counted(len(lenses) - _NAMED, 'more lens', 'more lenses')}")
    yield Finding("lenses", "; ".join(shown))
    angles = np.array([_angle(view.camera) for view in views])
    spread = f"{angles.min():.0f}°" if np.ptp(angles) < 1 else f"{angles.min():.0f}° to {angles.max():.0f}°"
    yield Finding("angles", f"{spread} wide")
    low, high = _ODD_ANGLES
    odd = [view for view, angle in zip(views, angles, strict=True) if not low <= angle <= high]
    if odd:
        text = (
            f"{counted(len(odd), 'photograph')} would be {_angle(odd[0].camera):.0f}° wide, for example {odd[0].name}."
        )
        yield Finding(
            "angles", text, True, "The focal length is in pixels; check that it belongs to these photographs."
        )
    skewed = [v for v in views if abs(v.camera.fx / v.camera.fy - 1) > 0.1]
    if skewed:
        text = (
            "Pixels would not be square (fx and fy differ by over 10%) in "
            f"{counted(len(skewed), 'photograph')}, {skewed[0].name}."
        )
        yield Finding("lenses", text, True, "Check that the cameras were computed from photographs of this shape.")
    yield from _principal_points(views)


def _principal_points(views: Sequence[View]) -> Iterator[Finding]:
    lying = [view for view in views if _is_middle_if_turned(view.camera)]
    outside = [v for v in views if not (0 <= v.camera.cx <= v.camera.width and 0 <= v.camera.cy <= v.camera.height)]
    outside = [view for view in outside if view not in lying]
    for odd, where, advice in (
        (
            lying,
            "is the middle of a picture turned by a quarter",
            "Portrait and landscape are mixed up: export again.",
        ),
        (
            outside,
            "lies outside the picture",
            "Right only where a side was cropped off; else export again.",
        ),
    ):
        if odd:
            camera, count = odd[0].camera, counted(len(odd), "photograph")
            text = f"The principal point of {count} {where}: ({camera.cx:.0f}, {camera.cy:.0f}) on {camera.width} x "
            yield Finding("lenses", f"{text}{camera.height} pixels, for example {odd[0].name}.", True, advice)


def _is_middle_if_turned(camera: Camera) -> bool:
    """Returns True if the principal point is in the middle only if width and height are exchanged."""
    from_middle = abs(camera.cx - camera.height / 2) + abs(camera.cy - camera.width / 2)
    return from_middle < _NEAR_MIDDLE * camera.width < abs(camera.width - camera.height) / 4


def _largest_bend(lens: Lens) -> float:
    """Returns how many px the lens moves the middle of a side, or a corner, from its place in a pinhole's picture."""
    w, h = lens.width, lens.height
    edge = np.array([[0, 0], [w / 2, 0], [w, 0], [w, h / 2], [w, h], [w / 2, h], [0, h], [0, h / 2]], float)
    rays = np.asarray(as_colmap(lens).cam_from_img(edge))
    return float(np.nanmax(np.linalg.norm(rays * lens.params[:2] + lens.params[2:4] - edge, axis=1), initial=0))


def _angle(camera: Camera) -> float:
    """Returns the horizontal angle of view in degrees."""
    return float(np.degrees(np.arctan2(camera.cx, camera.fx) + np.arctan2(camera.width - camera.cx, camera.fx)))


def _alpha(capture: Capture, views: Sequence[View]) -> Iterator[Finding]:
    cut_out = sum(view.has_alpha for view in views)
    if not cut_out:
        yield Finding("alpha", "none")
        return
    over = "white" if capture.white_background else "black"
    yield Finding(
        "alpha", f"{cut_out} of {len(views)} have an alpha channel, composited over {over} unless asked otherwise"
    )
    if cut_out < len(views):
        have = "has" if cut_out == 1 else "have"
        text = f"Only {cut_out} of {counted(len(views), 'photograph')} {have} an alpha channel."
        yield Finding(
            "alpha",
            text,
            True,
            "If it masks what moves, train with --alpha mask; if it means nothing, with --alpha ignore.",
        )


def _masks(views: Sequence[View], decode: bool) -> Iterator[Finding]:
    masked = [view for view in views if view.mask is not None]
    without = [view.name for view in views if view.mask is None]
    if not masked:
        yield Finding("masks", "none")
        return
    dynamic = sum(view.mask is not None and view.mask.is_dynamic for view in views)
    but = f", in {dynamic} named dynamic_mask_ those that are not black" if dynamic else ""
    yield Finding("masks", f"{len(masked)} of {len(views)} have one; black pixels count in no loss or score{but}")
    if without:
        have = "has" if len(masked) == 1 else "have"
        text = f"Only {len(masked)} of {counted(len(views), 'photograph')} {have} a mask; without: {_some(without)}."
        yield Finding("masks", text, True, "Those count whole. Make masks for them too if something there is to go.")
    if decode:
        with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="checkup") as pool:
            problems = list(zip(masked, pool.map(problem_of, masked), strict=True))
        for problem, what, advice in (
            ("damaged", "count whole", "Copy or export those masks again."),
            ("black everywhere", "teach nothing", "If white means what to leave out, train with --masks invert."),
            ("black nowhere", "teach nothing", "If black means what to leave out, train with --masks invert."),
        ):
            names = [view.name for view, its in problems if its == problem]
            if names:
                text = f"Masks that are {problem}, so that their photographs {what}: {_some(names)}."
                yield Finding("masks", text, True, advice)


def _points(capture: Capture) -> Iterator[Finding]:
    if capture.points is None:
        yield Finding("points", "none; splats start at random positions")
        return
    positions = capture.points.positions
    yield Finding("points", f"{len(positions):,}")
    if capture.points.lack or not capture.fits:
        return  # the reader has reported it
    sample = positions[:: 1 + len(positions) // _POINTS_LOOKED_AT]
    # `agreement.py` has judged views with 2D points of the reconstruction by these when the capture opened.
    views = [view for view in capture.views if view.sightings is None or capture.points.ids is None]
    shares = np.array([seen_by(sample, view.camera).mean() for view in views])
    few = min(_FEW_SEEN, _FEW_SEEN_OF_MEDIAN * float(np.median(shares))) if views else 0.0
    away = [view.name for view, share in zip(views, shares, strict=True) if share <= few]
    if away and len(positions) >= _FEWEST_POINTS:
        text = f"Hardly any of the points are seen by {counted(len(away), 'photograph')}: {_some(away)}."
        yield Finding("points", text, True, "Their poses are wrong, or they show something else; leave them out.")


def _cameras(capture: Capture) -> Iterator[Finding]:
    positions = np.array([view.camera.position for view in capture.views])
    distances = np.linalg.norm(positions - np.median(positions, axis=0), axis=1)
    median = float(np.median(distances))
    yield Finding("cameras", f"within {distances.max():.3g} units of their middle, half of them within {median:.3g}")
    far = [(d, v.name) for d, v in zip(distances, capture.views, strict=True) if d > FAR_CAMERA * median > 0]
    if far and len(positions) >= FEW_VIEWS:  # the middle of fewer views means little
        names = [name for _, name in sorted(far, reverse=True)]
        text = f"{counted(len(far), 'photograph')} taken {FAR_CAMERA:.0f} times farther out than most: {_some(names)}."
        advice = "They do not count for the extent of the scene; leave them out if their poses are wrong."
        yield Finding("cameras", text, True, advice)
    cameras = [view.camera for view in capture.views]
    yield from _same_poses(capture.views)
    is_one_place = distances.max() <= _ROUNDING * np.abs(positions).max()
    if len(cameras) > 2 and (is_one_place or depth_from_one_place(cameras, capture.points) is not None):
        text = "All photographs were taken from nearly one place, so depths cannot be told."
        yield Finding("cameras", text, True, "Walk around the scene instead of turning on the spot.")


def _same_poses(views: Sequence[View]) -> Iterator[Finding]:
    first: dict[bytes, View] = {}
    pairs = []
    for view in views:
        earlier = first.setdefault(np.round(view.camera.matrix, _POSE_DIGITS).tobytes(), view)
        if earlier is not view:
            pairs.append((view.name, earlier.name))
    if pairs:
        of = f"all {len(views)} photographs" if len(first) == 1 else counted(len(pairs), "photograph")
        text = f"The pose of {of} is that of another one, for example of {pairs[0][0]} that of {pairs[0][1]}."
        yield Finding("cameras", text, True, "Unless the camera stood still, one of each pair is wrong; export again.")


def _place(capture: Capture) -> Iterator[Finding]:
    positions = np.array([view.camera.position for view in capture.views])
    if capture.offset == NO_OFFSET:
        yield Finding("coordinates", f"up to {np.abs(positions).max():.3g} from the origin")
    else:
        place = ", ".join(f"{value:,.0f}" for value in capture.offset)
        yield Finding("coordinates", f"about ({place}), which is taken off while training and added back on saving")
    up, confidence = guess_up(view.camera for view in capture.views)
    x, y, z = (round(value, 2) + 0.0 for value in up)  # + 0.0 removes minus zero
    yield Finding("up", f"({x:.2f}, {y:.2f}, {z:.2f}), confidence {confidence:.2f}")
    if confidence < SURE_UP:
        text = (
            f"Which way is up is unclear (confidence {confidence:.2f}): the cameras are rolled or look straight down."
        )
        yield Finding("up", text, True, "Set it by hand in the window; training does not depend on it.")


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
