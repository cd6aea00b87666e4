"""Tests captures as transforms files: Blender's, instant-ngp's and nerfstudio's, plain and odd."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from plyfile import PlyData, PlyElement

from splatscope.assets.capture import Capture
from splatscope.assets.formats import open_path
from splatscope.assets.photographs.view_pixels import read_view
from splatscope.assets.transforms.captures import read_blender
from splatscope.kernels.errors import InputError
from tests.support.odd_captures import POSE, make_blender, make_colmap, make_transforms
from tests.support.places import DATA


def names_of(capture: Capture) -> list[str]:
    return [view.name for view in capture.views]


def held_out_of(capture: Capture) -> list[str]:
    return [view.name for view in capture.test_views]


def test_blender_axes_become_ours(tmp_path: Path) -> None:
    capture = read_blender(make_blender(tmp_path))
    assert (capture.kind, capture.white_background, capture.points) == ("blender", True, None)
    assert names_of(capture) == ["train/r_0.png", "train/r_1.png"]
    assert [v.name for v in capture.test_views] == ["test/r_0.png", "test/r_1.png"]
    camera = capture.views[0].camera
    np.testing.assert_allclose(camera.position, [3, -5, 2], atol=1e-12)
    np.testing.assert_allclose(camera.matrix @ [3, 0, 2, 1], [0, 0, 5, 1], atol=1e-12)  # ahead
    np.testing.assert_allclose(camera.matrix @ [4, 0, 2, 1], [1, 0, 5, 1], atol=1e-12)  # right
    np.testing.assert_allclose(camera.matrix @ [3, 0, 3, 1], [0, -1, 5, 1], atol=1e-12)  # up is -y
    assert camera.fx == camera.fy == pytest.approx(20 / np.tan(0.4))
    assert (camera.cx, camera.cy) == (20, 15)
    assert not read_blender(make_blender(tmp_path / "rgb", mode="RGB")).white_background


def test_a_single_file_with_its_own_intrinsics_is_read(tmp_path: Path) -> None:
    make_blender(tmp_path, fl_x=100, fl_y=102, cx=41, cy=29, w=80, h=60, k1=0.0)
    (tmp_path / "transforms_train.json").rename(tmp_path / "transforms.json")
    rows = np.zeros(2, [(n, "f4") for n in "xyz"] + [(n, "u1") for n in ("red", "green", "blue", "alpha")])
    PlyData([PlyElement.describe(rows, "vertex")]).write(tmp_path / "init.ply")
    capture = read_blender(tmp_path)
    camera = capture.views[0].camera
    assert (camera.fx, camera.fy, camera.cx, camera.cy, camera.width) == (50, 51, 20.5, 14.5, 40)
    assert capture.test_views == ()
    assert capture.points is not None
    assert capture.points.positions.shape == (2, 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"k1": "0.05"}, "k1 must be a finite number, got '0.05'"),
        ({"k4": 0.1}, "frame 0 has k4 = 0.1 without being a fisheye lens"),
        ({"camera_model": "EQUIRECTANGULAR"}, "EQUIRECTANGULAR, which is not read; those read are OPENCV, PINHOLE"),
        (
            {"camera_model": "VR180_L"},
            "VR180_L, which is not read; .* Cut the panoramas into perspective pictures first.",
        ),
        (
            {"latlong": True},
            "a lens of another kind, latlong, which is not read; .* Cut the panoramas into perspective",
        ),
        ({"equirectangular": True}, "another kind, equirectangular, .* Cut the panoramas into perspective pictures"),
        ({"orthographic": True}, "another kind, orthographic, which is not read; .* FISHEYE.$"),
        ({"ftheta_p0": 0, "ftheta_p1": 0.01}, "another kind, ftheta_p1, which is not read; .* FISHEYE.$"),
        ({"camera_angle_x": None}, "frame 0 lacks fl_x or camera_angle_x"),
        ({"frames": [{"file_path": None, "transform_matrix": POSE}]}, "frame 0: file_path must be"),
        ({"camera_angle_x": 3.2}, "below pi"),
        ({"frames": []}, "at least one frame"),
        ({"frames": {}}, "at least one frame"),
        ({"frames": [{"file_path": "x"}]}, "frame 0 lacks transform_matrix"),
        ({"frames": [{"file_path": 5, "transform_matrix": POSE}]}, "frame 0: file_path must be"),
        ({"frames": [{"file_path": "x", "transform_matrix": [[2, 0, 0, 0], *POSE[1:]]}]}, "axes have lengths 2"),
        ({"frames": [{"file_path": "x", "transform_matrix": POSE}]}, "Not one of the 1 photograph .*, for example x"),
    ],
)
def test_mistakes_in_transforms_are_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_blender(make_blender(tmp_path, **changes))


def test_what_lies_beside_the_training_views_is_only_warned_about(tmp_path: Path) -> None:
    folder = make_blender(tmp_path)
    (folder / "test/r_0.png").unlink()
    (folder / "points3d.ply").write_text("nothing")
    first, second = read_blender(folder).warnings
    assert first.startswith("Test views: 1 of 2 photographs found")
    assert "for example ./test/r_0;" in first
    assert second.startswith("Points ignored")
    (folder / "transforms_test.json").write_text("{")
    assert read_blender(folder).warnings[0].startswith("Test views ignored: ")


@pytest.mark.parametrize(
    ("said", "model", "distortion"),
    [
        ({"k1": 0.05, "k2": -0.08, "p1": 0.001, "p2": 0.002}, "OPENCV", (0.05, -0.08, 0.001, 0.002)),
        ({"k1": 0.05, "camera_model": "OPENCV", "k3": 0}, "OPENCV", (0.05, 0, 0, 0)),
        ({"k1": 0.05, "k3": 0.01}, "FULL_OPENCV", (0.05, 0, 0, 0, 0.01, 0, 0, 0)),
        ({"k1": 0.05, "k6": 0.01, "k4": 0.02}, "FULL_OPENCV", (0.05, 0, 0, 0, 0, 0.02, 0, 0.01)),
        ({"camera_model": "OPENCV_FISHEYE", "k1": 0.1, "k4": 0.01}, "OPENCV_FISHEYE", (0.1, 0, 0, 0.01)),
        ({"is_fisheye": True, "k2": 0.1}, "OPENCV_FISHEYE", (0, 0.1, 0, 0)),
    ],
)
def test_distortion_is_read_in_the_order_of_each_writer(
    tmp_path: Path, said: dict[str, Any], model: str, distortion: tuple[float, ...]
) -> None:
    capture = open_path(make_transforms(tmp_path, **said))
    assert isinstance(capture, Capture)
    view = capture.views[0]
    assert view.lens is not None
    assert (view.lens.model, view.lens.params) == (model, (50, 51, 19, 16, *distortion))
    assert capture.kind == "transforms"
    assert read_view(view).pixels.shape == (view.camera.height, view.camera.width, 3)


def test_each_frame_may_bring_its_own_camera(tmp_path: Path) -> None:
    frames = [
        {"file_path": "images/0.png", "fl_x": 70, "k1": 0.1},
        {"file_path": "./images/1", "w": 80, "h": 60},  # no extension; and its photograph was made smaller
        {"file_path": "images\\2.png", "transform_matrix": POSE[:3], "k1": 0},
    ]
    own, halved, plain = read_blender(make_transforms(tmp_path, frames)).views
    assert own.lens is not None
    assert own.lens.params == (70, 70, 19, 16, 0.1, 0, 0, 0)  # as instant-ngp: no fl_y that goes with another fl_x
    assert (halved.lens, halved.camera.fx, halved.camera.cy) == (None, 25, 8)
    assert (plain.camera.fx, plain.camera.fy) == (50, 51)
    np.testing.assert_allclose(plain.camera.position, [3, -5, 2], atol=1e-12)


def test_a_frames_own_angle_of_view_wins_over_the_files_focal_lengths(tmp_path: Path) -> None:
    frames = [
        {"file_path": "images/0.png", "camera_angle_x": 0.8},
        {"file_path": "images/1.png", "camera_angle_x": 0.8, "camera_angle_y": 0.7},
        {"file_path": "images/2.png", "camera_angle_x": None, "fl_y": None},
    ]
    cameras = [view.camera for view in read_blender(make_transforms(tmp_path, frames)).views]
    across, up = 20 / np.tan(0.4), 15 / np.tan(0.35)
    assert [(camera.fx, camera.fy) for camera in cameras] == [
        pytest.approx(pair) for pair in ((across, across), (across, up), (50, 51))
    ]
    mixed = make_transforms(tmp_path / "mixed", [{"file_path": "images/0.png", "fl_x": 70}], fl_x=None)  # nerfstudio's
    camera = read_blender(mixed).views[0].camera
    assert (camera.fx, camera.fy) == (70, 51)


def test_null_means_not_given(tmp_path: Path) -> None:
    optional = ("camera_model", "is_fisheye", "k1", "k4", "ply_file_path", "applied_transform", "test_filenames")
    frame = {"file_path": "images/0.png", "mask_path": None, "fl_x": None, "w": None, "camera_model": None}
    folder = make_transforms(tmp_path, [frame])
    file = folder / "transforms.json"
    plain = read_blender(folder)
    file.write_text(json.dumps(json.loads(file.read_text()) | dict.fromkeys(optional)))
    capture = read_blender(folder)
    assert (capture.views[0].lens, capture.warnings) == (None, plain.warnings)
    assert (capture.views[0].camera.fx, capture.views[0].camera.fy) == (50, 51)


def test_a_rolling_shutter_is_said_not_to_be_modelled(tmp_path: Path) -> None:
    frames: list[dict[str, Any]] = [{"file_path": f"images/{i}.png"} for i in (0, 1, 2, 0)]
    frames[1]["rolling_shutter"] = [0, 0, 0, 0]
    said = " ".join(read_blender(make_transforms(tmp_path, frames, rolling_shutter=[0, 0, 1, 0])).warnings)
    assert "A rolling shutter is not modelled: 2 photographs with one taken as seen in an instant." in said
    assert not any("rolling" in warning for warning in read_blender(make_transforms(tmp_path, frames)).warnings)


def test_angles_of_view_give_either_focal_length(tmp_path: Path) -> None:
    folder = make_transforms(tmp_path, fl_x=None, fl_y=None, camera_angle_x=0.8, camera_angle_y=0.7, w=None, h=None)
    camera = read_blender(folder).views[0].camera
    assert (camera.fx, camera.fy) == pytest.approx((20 / np.tan(0.4), 15 / np.tan(0.35)))
    camera = read_blender(make_transforms(tmp_path / "y", fl_x=None, fl_y=33)).views[0].camera
    assert (camera.fx, camera.fy) == (33, 33)


@pytest.mark.parametrize("prefix", ["/home/someone/scene/", "C:/scans/scene/", "../scene/"])
def test_photographs_are_found_after_the_capture_was_moved(tmp_path: Path, prefix: str) -> None:
    frames = [{"file_path": f"{prefix}images/{i}.png"} for i in (0, 2)]
    assert names_of(read_blender(make_transforms(tmp_path, frames))) == ["images/0.png", "images/2.png"]


def test_smaller_copies_are_used_when_named(tmp_path: Path) -> None:
    folder = make_transforms(tmp_path)
    (folder / "images_2").mkdir()
    for i in (0, 2):
        Image.new("RGB", (20, 15)).save(folder / f"images_2/{i}.png")
    for capture in (open_path(folder, "images_2"), open_path(folder / "images_2")):
        assert isinstance(capture, Capture)
        assert names_of(capture) == ["images_2/0.png", "images_2/2.png"]
        assert capture.views[0].camera.fx == 25
    assert len(read_blender(folder).views) == 3


def test_bare_names_are_those_of_photographs_in_images(tmp_path: Path) -> None:
    frames = [{"file_path": name} for name in ("0.png", "1", "2.png")]
    folder = make_transforms(tmp_path, frames, test_filenames=["2"])
    (folder / "images_2").mkdir()
    for i in (0, 2):
        Image.new("RGB", (20, 15)).save(folder / f"images_2/{i}.png")
    capture = read_blender(folder)
    assert (names_of(capture), held_out_of(capture)) == (["images/0.png", "images/1.png"], ["images/2.png"])
    smaller = read_blender(folder, "images_2")
    assert (names_of(smaller), held_out_of(smaller)) == (["images_2/0.png"], ["images_2/2.png"])
    assert "1 missing, for example images_2/1;" in smaller.warnings[0]
    Image.new("RGB", (40, 30)).save(folder / "0.png")  # where the name says
    assert names_of(read_blender(folder)) == ["0.png", "images/1.png"]


def test_a_photograph_with_several_frames_is_used_once_with_the_first(tmp_path: Path) -> None:
    elsewhere = [[1, 0, 0, 9], *POSE[1:]]
    frames: list[dict[str, Any]] = [
        {"file_path": path} for path in ("images/0.png", "./images/0", "images/1.png", "images\\1.png")
    ]
    frames[3]["transform_matrix"] = elsewhere
    capture = read_blender(make_transforms(tmp_path, frames))
    assert names_of(capture) == ["images/0.png", "images/1.png"]
    assert capture.views[1].camera.position[0] == pytest.approx(3)
    assert capture.census.registered == 2
    assert capture.warnings[0] == (
        "Left out: 2 frames whose photograph an earlier frame has, for example of ./images/0; the pose of 1 is "
        "another one, so look at which is right."
    )
    same = read_blender(make_transforms(tmp_path / "same", frames[:2])).warnings[0]
    assert same == "Left out: 1 frame whose photograph an earlier frame has, for example of ./images/0."


def test_missing_frames_and_masks_are_counted(tmp_path: Path) -> None:
    frames = [{"file_path": f"images/{i}.png", "mask_path": "masks/x.png"} for i in (0, 1, 7, 8)]
    folder = make_transforms(tmp_path, frames)
    (folder / "images/1.png").write_bytes(b"no picture")
    capture = read_blender(folder)
    assert names_of(capture) == ["images/0.png"]
    said = " ".join(capture.warnings)
    assert "2 of 4 photographs found" in said
    assert "Left out: 1 photograph, images/1.png. " in said
    assert "Not there: 1 mask that frames name, masks/x.png; those photographs train whole." in said


def write_points(path: Path, positions: np.ndarray) -> None:
    rows = np.zeros(len(positions), [(n, "f8") for n in "xyz"] + [(n, "u1") for n in ("red", "green", "blue")])
    for axis, name in enumerate("xyz"):
        rows[name] = positions[:, axis]
    path.parent.mkdir(parents=True, exist_ok=True)
    PlyData([PlyElement.describe(rows, "vertex")]).write(path)


def test_the_points_a_file_names_are_already_where_its_cameras_are(tmp_path: Path) -> None:
    positions = np.random.default_rng(0).normal(size=(20, 3))
    applied = [[0, 1, 0, 5], [1, 0, 0, 6], [0, 0, -1, 7]]
    folder = make_transforms(tmp_path, applied_transform=applied, ply_file_path="deep/cloud.ply")
    write_points(folder / "sparse_pc.ply", positions + 1)
    assert "The file names the points deep/cloud.ply, which do not exist." not in read_blender(folder).warnings
    write_points(folder / "deep/cloud.ply", positions)
    points = read_blender(folder).points
    assert points is not None
    np.testing.assert_array_equal(points.positions, positions)


def test_points_of_the_colmap_model_beside_it_are_moved_as_its_cameras_were(tmp_path: Path) -> None:
    applied = [[0, 1, 0, 5], [1, 0, 0, 6], [0, 0, -1, 7]]
    folder = make_transforms(tmp_path, applied_transform=applied, ply_file_path="gone.ply")
    make_colmap(folder, model="colmap/sparse/0", images="")
    capture = read_blender(folder)
    assert capture.points is not None
    assert sorted(capture.points.positions.tolist())[0] == [5.5, 6, 5]  # (0, 0.5, 2)
    assert "The file names the points gone.ply, which do not exist." in capture.warnings
    (folder / "colmap/sparse/0/points3D.txt").write_text("1 NONSENSE\n")
    capture = read_blender(folder)
    assert capture.points is None
    assert "Left out: 1 of 1 point in " in capture.warnings[-1]


def test_a_survey_in_transforms_is_read_near_the_origin(tmp_path: Path) -> None:
    far = [[1, 0, 0, 500_003.5], [0, 0, -1, 5_400_000.25], [0, 1, 0, 2], [0, 0, 0, 1]]
    frames = [{"file_path": f"images/{i}.png", "transform_matrix": far} for i in range(3)]
    capture = read_blender(make_transforms(tmp_path, frames))
    assert np.abs(capture.views[0].camera.position).max() < 2
    back = capture.views[0].camera.position + capture.offset
    np.testing.assert_allclose(back, [500_003.5, 5_400_000.25, 2], atol=1e-8)
    assert read_blender(make_transforms(tmp_path / "one", [{"file_path": "images/0.png"}])).offset == (0, 0, 0)


def refusal(folder: Path) -> str:
    try:
        assert read_blender(folder).views
    except InputError as error:
        return str(error)
    return ""


def test_damaged_transforms_never_raise_anything_but_input_errors(tmp_path: Path) -> None:
    optional = {"ply_file_path": "x.ply", "rolling_shutter": [0, 1], "test_filenames": ["images/0.png"]}
    folder = make_transforms(tmp_path, k1=0.02, applied_transform=[[1, 0, 0, 0]] * 3, **optional)
    file = folder / "transforms.json"
    content = json.loads(file.read_text())
    odd: list[Any] = [None, True, "x", [], {}, -1, 0, 1e400, float("nan"), [[1] * 4] * 4, 10**400, "../" * 50]
    refused = 0
    for value in odd:
        for place in (content, content["frames"][0]):
            for key in list(place):
                kept, place[key] = place[key], value
                file.write_text(json.dumps(content))
                place[key] = kept
                refused += refusal(folder).endswith(".")
    assert refused > 60


def test_the_fox_opens_with_its_distortion_taken_out() -> None:
    if not DATA.exists():
        pytest.skip("the shared test data is not here")
    capture = open_path(DATA / "train/fox")
    assert isinstance(capture, Capture)
    assert (len(capture.views), capture.kind) == (50, "transforms")
    assert "50 of 67 photographs found" in capture.warnings[0]
    lens = capture.views[0].lens
    assert lens is not None
    assert lens.params[4:] == (0.0578421, -0.0805099, -0.000980296, 0.00015575)
    assert read_view(capture.views[0]).pixels.shape[:2] == (
        capture.views[0].camera.height,
        capture.views[0].camera.width,
    )


def test_an_llff_capture_without_a_model_is_photographs_without_cameras(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (40, 30)).save(tmp_path / "images/a.png")
    np.save(tmp_path / "poses_bounds.npy", np.zeros((1, 17)))
    with pytest.raises(InputError, match="1 photograph without cameras"):
        open_path(tmp_path)
    shutil.rmtree(tmp_path / "images")
