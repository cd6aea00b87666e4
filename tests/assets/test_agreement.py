"""Tests cameras and points that do not fit each other: faults are named, and sound captures get no warning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splatscope.app.commands.doctor import run as run_doctor
from splatscope.app.opening.find_cameras import open_or_find
from splatscope.app.options.subcommands import DoctorOptions, TrainOptions
from splatscope.app.run.from_options import plan_training
from splatscope.assets.capture import Capture, PointCloud
from splatscope.assets.checks.checkup import check_up
from splatscope.assets.colmap.captures import read_colmap
from splatscope.assets.colmap.model import read_model
from splatscope.assets.formats import open_capture
from splatscope.assets.transforms.captures import read_blender
from splatscope.kernels.errors import InputError
from splatscope.training.config import config_from_dict, config_to_dict
from tests.support.odd_captures import as_binary
from tests.support.places import DATA
from tests.support.seen_points import FLIP, Matrix, around, in_a_room, w_last, write_colmap, write_transforms

SHARED = DATA
TURNED = (
    "The axes of the cameras are those of OpenCV (y down, z ahead), not of OpenGL (y up, z behind) as a "
    "transforms.json has them: as written, the cameras look away from the points. They were turned; --axes opengl "
    "leaves them as they are written."
)
LEFT_OUT = "All 300 are left out, so splats will start at random positions. Export points and cameras together, in the "
Scene = tuple[list[Matrix], PointCloud]


def matrices(capture: Capture) -> np.ndarray:
    return np.array([view.camera.matrix for view in capture.views])


def moved(cloud: PointCloud, positions: np.ndarray) -> PointCloud:
    return PointCloud(positions, cloud.colors)


@pytest.mark.parametrize("scene", [around(), in_a_room()])
def test_right_cameras_are_not_spoken_of_and_those_with_axes_of_opencv_are_turned(tmp_path: Path, scene: Scene) -> None:
    right = read_blender(write_transforms(tmp_path / "right", *scene))
    assert right.warnings == ()
    np.testing.assert_allclose(matrices(right), scene[0], atol=1e-9)
    folder = write_transforms(tmp_path / "opencv", *scene, said=np.linalg.inv)
    turned = read_blender(folder)
    assert turned.warnings == (TURNED,)
    np.testing.assert_allclose(matrices(turned), scene[0], atol=1e-9)
    said = read_blender(folder, axes="opencv")
    assert (said.warnings, turned.points is not None) == ((), True)
    np.testing.assert_allclose(matrices(said), scene[0], atol=1e-9)


def test_axes_that_are_asked_for_stay_and_the_better_ones_are_named(tmp_path: Path) -> None:
    capture = open_capture(write_transforms(tmp_path, *around(), said=np.linalg.inv), axes="opengl")
    np.testing.assert_allclose(matrices(capture), FLIP @ np.array(around()[0]), atol=1e-9)
    (said,) = capture.warnings
    assert said.endswith("turned, the cameras see the points. Leave out --axes, or give --axes opencv.")


def test_axes_are_a_setting_of_the_run_that_its_capture_is_opened_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_transforms(tmp_path, *around(), said=np.linalg.inv)
    for options in (
        TrainOptions(folder, axes="opencv"),
        TrainOptions(folder, set=("data.axes=opencv",)),
    ):
        config = plan_training(options).config
        assert config_from_dict(config_to_dict(config)).data.axes == "opencv"
        assert open_or_find(folder, config.data).warnings == ()
    with pytest.raises(InputError, match=r"data\.axes must be .*auto.*opencv.*opengl"):
        plan_training(TrainOptions(folder, set=("data.axes=blender",)))
    run_doctor(DoctorOptions(folder, axes="opencv", quick=True))
    assert capsys.readouterr().out.endswith("Nothing is odd.\n")
    run_doctor(DoctorOptions(folder, quick=True))
    assert capsys.readouterr().out.endswith(f"Odd:\n  1. {TURNED}\n")


def test_axes_are_told_by_points_without_colours_and_by_cameras_without_points(tmp_path: Path) -> None:
    cameras, cloud = around()
    grey = PointCloud(cloud.positions, np.full(cloud.positions.shape, 128, np.uint8))
    assert read_blender(write_transforms(tmp_path / "grey", cameras, cloud, np.linalg.inv, grey)).warnings == (TURNED,)
    for name, scene, said in (("ring", around(), True), ("room", in_a_room(), False)):
        for wrong in (False, True):
            pose: dict[str, Any] = {"said": np.linalg.inv} if wrong else {}
            folder = write_transforms(tmp_path / f"{name} {wrong}", *scene, **pose)
            (folder / "points.ply").unlink()
            told = [warning for warning in read_blender(folder).warnings if "--axes opencv" in warning]
            assert bool(told) == (wrong and said), (name, wrong)
            capture = read_blender(folder, axes="opencv")
            assert not any("--axes" in warning for warning in capture.warnings)


FRAMES: list[tuple[Callable[[np.ndarray], np.ndarray], str]] = [
    (lambda p: p * 1000, "divided by 1,000, they would fit"),
    (lambda p: p / 1000, "multiplied by 1,000, they would fit"),
    (lambda p: p * 39.37, "divided by 39.37, they would fit"),  # inches
    (lambda p: p[:, [0, 2, 1]] * (1, -1, 1), "with (x, z, -y) in place of (x, y, z), they would fit"),
    (lambda p: p[:, [1, 0, 2]], "with (y, x, z) in place of (x, y, z), they would fit"),
    (
        lambda p: np.add(p, (481_236, 5_456_792, 212)),
        "of 16 photographs see none of them, and they lie 5,477,971 units from the cameras, which span 8.",
    ),
]


@pytest.mark.parametrize(("move", "how"), FRAMES)
def test_points_in_another_frame_are_left_out_and_the_frame_is_named(
    tmp_path: Path, move: Callable[[np.ndarray], np.ndarray], how: str
) -> None:
    cameras, cloud = around()
    capture = read_blender(write_transforms(tmp_path, cameras, cloud, points=moved(cloud, move(cloud.positions))))
    (said,) = capture.warnings
    assert said.startswith("The points are not in the frame of these cameras: ")
    assert how in said
    assert LEFT_OUT in said
    assert capture.points is None
    assert capture.offset == (0, 0, 0)
    np.testing.assert_allclose(matrices(capture), cameras, atol=1e-9)
    odd = [finding.text for finding in check_up(capture).oddities]
    assert odd == [said]  # and nothing is said of single views, or of one place


ORDER = "The rotations seem to be stored as x y z w where COLMAP has w x y z"
INVERTED = "The poses seem to be camera-to-world where COLMAP has world-to-camera: inverted, they fit the points."


@pytest.mark.parametrize("tracks", [True, False])
def test_poses_that_are_all_wrong_in_one_way_are_named_for_it(tmp_path: Path, tracks: bool) -> None:
    cameras, cloud = around()
    inverse = [np.linalg.inv(camera) for camera in cameras]
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("right", "", {}),
        ("x y z w", ORDER, {"quaternion": w_last}),
        ("inverted", INVERTED, {"said": inverse}),
        ("opengl", "not of OpenCV (y down, z ahead) as COLMAP has them", {"said": [FLIP @ c for c in cameras]}),
    ]
    for name, said, options in cases:
        capture = read_colmap(write_colmap(tmp_path / name, cameras, cloud, tracks=tracks, **options))
        assert len(capture.warnings) == bool(said), name
        assert said in " ".join(capture.warnings)
        assert capture.points is not None
        assert {finding.topic for finding in check_up(capture).oddities} <= {"opening", "up"}


def with_wrong(cameras: list[Matrix], count: int) -> list[Matrix]:
    """Returns poses of which the first few are turned by half a circle, so that they look elsewhere."""
    return [np.diag([-1.0, 1, -1, 1]) @ camera if k < count else camera for k, camera in enumerate(cameras)]


def test_single_wrong_poses_are_counted_and_named(tmp_path: Path) -> None:
    cameras, cloud = around()
    seven = write_colmap(tmp_path / "seven", cameras, cloud, with_wrong(cameras, 7))
    said = (
        "7 of 16 photographs do not show the points where the reconstruction saw them: 00.png, 01.png, 02.png, 03.png, "
        "04.png and 2 more. Their poses are wrong: find their cameras again, or leave them out."
    )
    assert read_colmap(seven).warnings == (said,)
    assert read_colmap(as_binary(seven)).warnings == (said,)
    most = read_colmap(write_colmap(tmp_path / "most", cameras, cloud, with_wrong(cameras, 10)))
    assert most.warnings[0].startswith("10 of 16 photographs do not show the points where the reconstruction saw them")
    far = [cameras[0].copy(), *cameras[1:]]
    far[0][:3, 3] *= 1000
    capture = read_colmap(write_colmap(tmp_path / "far", cameras, cloud, far))
    assert capture.warnings == (
        "1 of 16 photographs does not show the points where the reconstruction saw them: 00.png. Its pose is wrong: "
        "find its camera again, or leave it out.",
    )
    assert [finding.topic for finding in check_up(capture).oddities] == ["cameras", "opening"]


def test_single_wrong_poses_without_tracks_are_told_by_colours(tmp_path: Path) -> None:
    cameras, cloud = around()
    for wrong in (5, 9):
        folder = write_colmap(tmp_path / str(wrong), cameras, cloud, with_wrong(cameras, wrong), tracks=False)
        (said,) = read_colmap(folder).warnings
        assert said.startswith(f"Of 16 photographs looked at, {wrong} show other colours than the points that their ")


def test_2d_points_at_another_size_than_the_cameras_are_no_fault(tmp_path: Path) -> None:
    assert read_colmap(write_colmap(tmp_path, *around(), shrunk=4)).warnings == ()


def test_poses_that_fit_no_points_at_all_are_told(tmp_path: Path) -> None:
    cameras, cloud = around()
    folder = write_colmap(tmp_path, cameras, cloud, cameras[5:] + cameras[:5])
    (said,) = read_colmap(folder).warnings
    assert said.startswith("The cameras do not see the points where the reconstruction saw them, and no other reading")


def test_a_focal_length_that_fits_no_2d_points_is_told(tmp_path: Path) -> None:
    folder = write_colmap(tmp_path, *around())
    file = folder / "sparse/0/cameras.txt"
    kind, width, height, f, *rest = file.read_text().split()[1:]
    file.write_text(" ".join(["1", kind, width, height, *[str(2 * float(f))] * 2, *rest[1:]]) + "\n")
    (said,) = read_colmap(folder).warnings
    assert said.startswith("The cameras do not see the points where the reconstruction saw them, and no other reading")


@pytest.mark.parametrize("tracks", [True, False])
def test_photographs_under_each_others_names_are_told(tmp_path: Path, tracks: bool) -> None:
    folder = write_colmap(tmp_path, *around(), tracks=tracks)
    photographs = sorted((folder / "images").iterdir())
    contents = [photograph.read_bytes() for photograph in photographs]
    for photograph, content in zip(photographs, contents[5:] + contents[:5], strict=True):
        photograph.write_bytes(content)
    (said,) = read_colmap(folder).warnings
    assert said.startswith("The photographs do not show the colours of the points where their cameras see them.")


def test_points_of_no_meaning_are_kept_where_cameras_see_them(tmp_path: Path) -> None:
    """Uses points as some tools draw them: at random in a cube, in random colours."""
    cameras, cloud = around()
    rng = np.random.default_rng(9)
    drawn = PointCloud(rng.uniform(-1, 1, (500, 3)), rng.integers(0, 255, (500, 3)).astype(np.uint8))
    capture = read_blender(write_transforms(tmp_path, cameras, cloud, points=drawn))
    assert capture.warnings == ()
    assert capture.points is not None


def test_sightings_are_the_rays_of_points_that_a_photograph_shows(tmp_path: Path) -> None:
    cameras, cloud = around()
    folder = write_colmap(tmp_path, cameras, cloud)
    text = read_model(folder / "sparse/0").shots
    binary = read_model(as_binary(folder) / "sparse/0").shots
    for one, other, camera in zip(text, binary, cameras, strict=True):
        assert one.sightings is not None
        assert other.sightings is not None
        assert 32 <= len(one.sightings.ids) <= 64
        in_view = cloud.positions[one.sightings.ids - 1] @ camera[:3, :3].T + camera[:3, 3]
        np.testing.assert_allclose(one.sightings.rays, in_view[:, :2] / in_view[:, 2:], atol=1e-9)
        np.testing.assert_array_equal(one.sightings.ids, other.sightings.ids)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("train/tumbler", ()),
        ("train/meeting-room", ()),
        ("odd/colmap-opencv-distorted", ()),
        ("faults/transforms-opencv-axes/b-opencv-axes", (TURNED,)),
    ],
)
def test_shared_captures_are_judged_as_they_are(name: str, said: tuple[str, ...]) -> None:
    if not SHARED.exists():
        pytest.skip("the shared test data is not here")
    assert open_capture(SHARED / name).warnings == said
