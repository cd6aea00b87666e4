"""Tests the warning of a run that continues with cameras other than those it was trained with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splatscope.assets.capture import Capture, View
from splatscope.assets.trained.cameras import write_cameras_json
from splatscope.kernels.backend import Backend
from splatscope.training.events import Prepared
from splatscope.training.files.checkpoint import newest_checkpoint
from splatscope.training.files.moved_cameras import moved_cameras
from splatscope.training.trainer import Beginning, Trainer
from tests.support.small_capture import SHORT

UTM = (512_345.0, 5_401_234.0, 300.0)


@pytest.fixture
def out(capture: Capture, backend: Backend, tmp_path: Path) -> Path:
    """Returns the folder of a run of ten iterations."""
    list(Trainer(capture, replace(SHORT, iterations=10), backend, tmp_path / "run").run())
    return tmp_path / "run"


def moved(view: View, change: Callable[[np.ndarray], object]) -> View:
    """Returns the capture with another camera, whose matrix `change` has altered."""
    matrix = view.camera.matrix.copy()
    change(matrix)
    return replace(view, camera=replace(view.camera, view_from_world=tuple(map(tuple, matrix.tolist()))))


def turn(matrix: np.ndarray) -> None:
    """Turns a camera by two degrees about the world's vertical axis."""
    cosine, sine = np.cos(np.radians(2)), np.sin(np.radians(2))
    matrix[:3, :3] @= np.array([[cosine, 0, sine], [0, 1, 0], [-sine, 0, cosine]])


def shift(matrix: np.ndarray) -> None:
    """Shifts a camera by a hundredth of the ring that the cameras stand on."""
    matrix[0, 3] += 0.1


def warnings_of(capture: Capture, backend: Backend, out: Path, begin: Beginning) -> tuple[str, ...]:
    trainer = Trainer(capture, SHORT, backend, out, begin)
    warnings = next(event for event in trainer.run() if isinstance(event, Prepared)).warnings
    return tuple(warning for warning in warnings if "found or aligned again" in warning)


def test_cameras_found_anew_are_named_when_the_run_goes_on(capture: Capture, backend: Backend, out: Path) -> None:
    begin = Beginning(*newest_checkpoint(out))
    views = capture.views
    for change in (turn, shift):
        one = replace(capture, views=(*views[:3], moved(views[3], change), *views[4:]))
        assert warnings_of(one, backend, out.parent / change.__name__, begin) == (
            f"1 of 24 cameras is not where {out} had it (the first: {views[3].name}): found or aligned again. The "
            f"splats were trained with the earlier ones and may not fit; if the loss begins high, begin a new run.",
        )
    every = replace(capture, views=tuple(moved(view, turn) for view in views))
    (warning,) = warnings_of(every, backend, out, begin)
    assert warning.startswith(f"24 of 24 cameras are not where {out} had them (the first: {views[0].name})")
    assert warnings_of(every, backend, out, begin) == (), "they are what the folder has now"


def test_the_same_cameras_are_no_news(capture: Capture, backend: Backend, out: Path) -> None:
    begin, views = Beginning(*newest_checkpoint(out)), capture.views
    halved = tuple(replace(v, camera=v.camera.resized(v.camera.width // 2, v.camera.height // 2)) for v in views)
    for same in (capture, replace(capture, views=views[4:]), replace(capture, views=halved)):
        assert moved_cameras(begin.path, same) == ()
    elsewhere = replace(capture, offset=UTM)  # what was taken off, so all of it has moved by that
    assert len(moved_cameras(begin.path, elsewhere)) == 1
    (out / "cameras.json").unlink()
    assert moved_cameras(begin.path, elsewhere) == (), "not known"


def test_splats_of_other_tools_are_compared_too_as_they_name_photographs(capture: Capture, out: Path) -> None:
    ply = next(out.glob("point_cloud/*/point_cloud.ply"))
    cameras = json.loads((out / "cameras.json").read_text())
    for entry in cameras:
        entry["img_name"] = Path(entry["img_name"]).stem
    (out / "cameras.json").write_text(json.dumps(cameras))
    assert moved_cameras(ply, capture) == ()
    other = replace(capture, views=tuple(moved(view, shift) for view in capture.views))
    assert len(moved_cameras(ply, other)) == 1
    assert moved_cameras(out / "elsewhere.ply", other) == ()


def test_names_that_two_cameras_share_and_a_width_rounded_otherwise_are_no_news(capture: Capture, out: Path) -> None:
    """Imitates the 2023 release, which leaves out folders, and a lens undistorted at another size, which rounds other
    pixels."""
    cameras = json.loads((out / "cameras.json").read_text())
    twins = [{**entry, "position": [9, 9, 9]} for entry in cameras[:5]]
    rounded = [{**entry, "width": entry["width"] - 2} for entry in cameras[5:]]
    (out / "cameras.json").write_text(json.dumps([*cameras[:5], *twins, *rounded]))
    assert moved_cameras(newest_checkpoint(out)[0], capture) == ()


def test_cameras_in_one_place_are_compared_by_the_distance_to_what_they_show(capture: Capture, out: Path) -> None:
    here = capture.views[0].camera.view_from_world
    views = tuple(replace(view, camera=replace(view.camera, view_from_world=here)) for view in capture.views)
    panorama = replace(capture, views=views)
    write_cameras_json(out / "cameras.json", views)
    cameras = json.loads((out / "cameras.json").read_text())
    for entry in cameras:
        entry["position"] = [value + 1e-6 for value in entry["position"]]  # as a file of fewer digits has it
    (out / "cameras.json").write_text(json.dumps(cameras))
    assert moved_cameras(newest_checkpoint(out)[0], panorama) == ()
    shifted = tuple(moved(view, shift) for view in views)
    assert len(moved_cameras(newest_checkpoint(out)[0], replace(panorama, views=shifted))) == 1


OVERFLOWS = json.dumps(
    [{"img_name": "a", "position": [1, 2, 3], "rotation": [[1, 0, 0]] * 3, "width": 9, "fx": 10**400}]
)


@pytest.mark.parametrize(
    "content",
    [OVERFLOWS, "", "[", "[1]", "{}", '[{"img_name": "00.png", "position": [1]}]', "[" * 100_000],
)
def test_a_damaged_file_beside_a_run_is_passed_over(content: str, capture: Capture, out: Path) -> None:
    (out / "cameras.json").write_text(content)
    assert moved_cameras(newest_checkpoint(out)[0], capture) == ()
