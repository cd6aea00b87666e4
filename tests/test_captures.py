"""Datasets: real ones open with the views they should have, odd ones open or say why not."""

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
from splatscope.assets.colmap import read_colmap
from splatscope.assets.formats import open_path
from splatscope.assets.transforms import read_blender
from splatscope.kernels.errors import InputError

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the shared test data is not here")


def make_colmap(
    folder: Path,
    names: tuple[str, ...] = ("a.jpg", "b.jpg", "c.jpg"),
    camera: str = "PINHOLE 40 30 50 51 19 16",
    model: str = "sparse/0",
    points: int = 4,
) -> Path:
    """A text model; camera i stands at (i, 0, 0), turned by i quarter turns about y; images are 40 x 30."""
    target = folder / model
    target.mkdir(parents=True)
    (target / "cameras.txt").write_text(f"# a comment\n1 {camera}\n")
    rows = []
    for i, name in enumerate(names):
        half = i * np.pi / 4
        rotation = np.array(
            [[np.cos(2 * half), 0, np.sin(2 * half)], [0, 1, 0], [-np.sin(2 * half), 0, np.cos(2 * half)]]
        )
        shift = " ".join(str(v) for v in -rotation @ [i, 0, 0])
        rows.append(f"{i + 1} {np.cos(half)} 0 {np.sin(half)} 0 {shift} 1 {name}\n\n")
        (folder / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30)).save(folder / "images" / name)
    (target / "images.txt").write_text("".join(rows), encoding="utf-8")
    (target / "points3D.txt").write_text("".join(f"{9 - i} {i} 0.5 2 {i} 20 30 0.1\n" for i in range(points)))
    return folder


def as_binary(folder: Path) -> Path:
    """Replaces the text model by the binary one that COLMAP's own writer makes of it."""
    import pycolmap

    model = folder / "sparse/0"
    reconstruction = pycolmap.Reconstruction(model)
    for file in model.iterdir():
        file.unlink()
    reconstruction.write_binary(model)
    return folder


def names_of(capture: Capture) -> list[str]:
    return [view.name for view in capture.views]


def test_text_and_binary_models_give_the_cameras_they_describe(tmp_path: Path) -> None:
    text = read_colmap(make_colmap(tmp_path / "t"))
    binary = read_colmap(as_binary(make_colmap(tmp_path / "b")))
    assert [v.camera for v in text.views] == [v.camera for v in binary.views]
    assert (text.kind, names_of(text), text.test_views, text.warnings) == (
        "colmap",
        ["a.jpg", "b.jpg", "c.jpg"],
        (),
        (),
    )
    assert not text.white_background
    camera = text.views[1].camera
    assert (camera.width, camera.height) == (40, 30)
    assert (camera.fx, camera.fy, camera.cx, camera.cy) == (50, 51, 19, 16)
    np.testing.assert_allclose(camera.position, [1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(camera.matrix @ [-4, 0, 0, 1], [0, 0, 5, 1], atol=1e-12)  # a quarter turn: looks to -x
    for capture in (text, binary):
        assert capture.points is not None
        assert capture.points.positions.tolist() == [[i, 0.5, 2] for i in (3, 2, 1, 0)]  # by id
        assert capture.points.colors[0].tolist() == [3, 20, 30]


def test_names_with_spaces_letters_and_folders_are_found(tmp_path: Path) -> None:
    names = ("left cam/IMG (0) copy.jpg", "right/ünï 日本.jpg", "right/IMG (0) copy.jpg")
    for folder in (make_colmap(tmp_path / "t ä", names), make_colmap(tmp_path / "u", names)):
        assert names_of(read_colmap(folder)) == sorted(names)


@pytest.mark.parametrize("stored", ["A.JPG", "a.png", "A.Tiff"])
def test_renamed_photographs_are_found(tmp_path: Path, stored: str) -> None:
    folder = make_colmap(tmp_path)
    (folder / "images/a.jpg").unlink()
    Image.new("RGB", (40, 30)).save(folder / "images" / stored)
    assert names_of(read_colmap(folder)) == sorted([stored, "b.jpg", "c.jpg"])


def test_photographs_moved_to_other_folders_are_found_only_if_all_were(tmp_path: Path) -> None:
    names = ("l/1.jpg", "l/2.jpg", "r/2.jpg")
    folder = make_colmap(tmp_path, names)
    (folder / "images/l/2.jpg").unlink()
    assert names_of(read_colmap(folder)) == ["l/1.jpg", "r/2.jpg"]  # not r/2.jpg twice
    shutil.rmtree(folder / "images")
    for name in ("1.jpg", "2.jpg"):
        (folder / "images").mkdir(exist_ok=True)
        Image.new("RGB", (40, 30)).save(folder / "images" / name)
    assert names_of(read_colmap(folder)) == ["1.jpg"]  # 2.jpg might be either


def test_missing_and_damaged_photographs_are_counted(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path, ("a.jpg", "b.jpg", "c.jpg", "d.jpg"))
    (folder / "images/b.jpg").unlink()
    (folder / "images/c.jpg").write_bytes(b"not a photograph")
    Image.new("RGB", (4, 4)).save(folder / "images/extra.jpg")
    capture = read_colmap(folder)
    assert names_of(capture) == ["a.jpg", "d.jpg"]
    said = " ".join(capture.warnings)
    assert f"3 of 4 photographs found in {folder / 'images'}, 1 missing, for example b.jpg." in said
    assert "Left out as damaged: 1 photograph, for example c.jpg." in said
    shutil.rmtree(folder / "images")
    with pytest.raises(InputError, match=r"no folder of photographs\. Looked for .*images"):
        read_colmap(folder)
    (folder / "images_4").mkdir()
    Image.new("RGB", (10, 8)).save(folder / "images_4/z.png")
    with pytest.raises(InputError, match="Photographs lie in images_4: name that folder with --images"):
        read_colmap(folder)
    with pytest.raises(InputError, match=r"Not one of the 4 photographs .* for example a.jpg. Looked in .*images_4"):
        read_colmap(folder, "images_4")


def test_intrinsics_follow_the_real_size_of_each_photograph(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path)
    Image.new("RGB", (20, 15)).save(folder / "images/a.jpg")
    Image.new("RGB", (30, 40)).save(folder / "images/b.jpg")
    capture = read_colmap(folder)
    a = capture.views[0].camera
    assert (a.width, a.height, a.fx, a.fy, a.cx, a.cy) == (20, 15, 25, 25.5, 9.5, 8)
    assert "rescaled to the real size of 1 photograph: a.jpg is 20 x 15, its camera 40 x 30" in capture.warnings[0]
    assert "Not shaped like the camera: 1 photograph;" in capture.warnings[1]
    assert "b.jpg is 30 x 40" in capture.warnings[1]


def test_cut_out_photographs_ask_for_a_white_background(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path, ("a.png", "b.png"))
    assert not read_colmap(folder).white_background
    for name in ("a.png", "b.png"):
        Image.new("RGBA", (40, 30)).save(folder / "images" / name)
    assert read_colmap(folder).white_background


@pytest.mark.parametrize("camera", ["SIMPLE_RADIAL 40 30 50 20 15 0.01", "OPENCV 40 30 50 50 20 15 .1 0 0 0"])
def test_distorted_cameras_are_refused_by_name(tmp_path: Path, camera: str) -> None:
    folder = make_colmap(tmp_path, camera=camera)
    with pytest.raises(InputError, match=rf"camera model {camera.split()[0]}; .*image_undistorter"):
        read_colmap(folder)


def test_the_model_with_most_photographs_is_taken(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path, ("a.jpg",))
    make_colmap(folder, ("a.jpg", "b.jpg"), model="sparse/1")
    make_colmap(folder, ("c.jpg",), model="sparse/2")
    capture = read_colmap(folder)
    assert names_of(capture) == ["a.jpg", "b.jpg"]
    assert capture.warnings[0] == "3 COLMAP models found; using 1 with 2 photographs, not 0 (1), 2 (1)."
    assert names_of(read_colmap(folder / "sparse/0")) == ["a.jpg"]  # pointed at, so meant


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@pytest.mark.parametrize("points", ["missing", "empty", "none"])
def test_a_model_without_points_opens(tmp_path: Path, binary: bool, points: str) -> None:
    folder = make_colmap(tmp_path, points=0 if points == "none" else 3)
    file = (as_binary(folder) if binary else folder) / "sparse/0" / ("points3D.bin" if binary else "points3D.txt")
    if points == "missing":
        file.unlink()
    elif points == "empty":
        file.write_bytes(b"")
    capture = read_colmap(folder)
    assert (len(capture.views), capture.points) == (3, None)
    assert "no 3D points, so splats will start at random" in capture.warnings[0]


def test_a_quaternion_off_unit_length_still_gives_a_rotation(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path)
    file = folder / "sparse/0/images.txt"
    file.write_text(file.read_text().replace("1 1.0 0 0.0 0", "1 1.01 0 0.0 0"))
    rotation = read_colmap(folder).views[0].camera.matrix[:3, :3]
    np.testing.assert_allclose(rotation.T @ rotation, np.eye(3), atol=1e-12)


def outcome(folder: Path) -> str:
    try:
        read_colmap(folder)
    except InputError as error:
        return str(error)
    return ""


def test_binary_files_cut_anywhere_are_refused_in_words(tmp_path: Path) -> None:
    folder = as_binary(make_colmap(tmp_path))
    for file in sorted((folder / "sparse/0").iterdir()):
        content = file.read_bytes()
        for end in range(1, len(content), 7):
            file.write_bytes(content[:end])
            assert f"{file} is cut short or damaged: it ends " in outcome(folder)
        file.write_bytes(content)
    assert outcome(folder) == ""


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_damaged_models_never_raise_anything_but_input_errors(tmp_path: Path, binary: bool) -> None:
    folder = as_binary(make_colmap(tmp_path)) if binary else make_colmap(tmp_path)
    random = np.random.default_rng(0)
    refused = 0
    for file in sorted((folder / "sparse/0").iterdir()):
        content = file.read_bytes()
        for _ in range(80):
            damaged = bytearray(content)
            damaged[random.integers(len(content))] ^= 1 << random.integers(8)
            file.write_bytes(damaged)
            refused += bool(outcome(folder))
        file.write_bytes(content)
    assert refused > 20


# Blender -------------------------------------------------------------------------------------------

POSE = [[1, 0, 0, 3], [0, 0, -1, -5], [0, 1, 0, 2], [0, 0, 0, 1]]  # OpenGL: looks along world +y, world z is up


def make_blender(folder: Path, names: tuple[str, ...] = ("r_0", "r_1"), mode: str = "RGBA", **changes: Any) -> Path:
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True)
        frames = [{"file_path": f"./{split}/{name}", "transform_matrix": POSE} for name in names]
        content = {"camera_angle_x": 0.8, "frames": frames} | changes
        (folder / f"transforms_{split}.json").write_text(json.dumps(content))
        for name in names:
            Image.new(mode, (40, 30)).save(folder / split / f"{name}.png")
    return folder


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
        ({"k1": 0.05}, r"lens is distorted \(k1 = 0.05\)"),
        ({"camera_model": "OPENCV_FISHEYE"}, "OPENCV_FISHEYE"),
        ({"camera_angle_x": None}, "camera_angle_x must be a finite number above 0, got None"),
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
    assert first.endswith("for example ./test/r_0.")
    assert second.startswith("Points ignored")
    (folder / "transforms_test.json").write_text("{")
    assert read_blender(folder).warnings[0].startswith("Test views ignored: ")


# Real captures -------------------------------------------------------------------------------------


@needs_data
@pytest.mark.parametrize(
    ("name", "views", "test_views", "points"),
    [
        ("tumbler", 77, 0, 9262),
        ("bonsai", 292, 0, 52581),
        ("stitch", 81, 0, 15772),
        ("meeting-room", 128, 0, 5751),
        ("lego", 100, 25, None),
    ],
)
def test_real_captures_open_and_their_points_land_in_their_photographs(
    name: str, views: int, test_views: int, points: int | None
) -> None:
    capture = open_path(DATA / "train" / name)
    assert isinstance(capture, Capture)
    assert (len(capture.views), len(capture.test_views)) == (views, test_views)
    assert names_of(capture) == sorted(names_of(capture))
    if points is None:
        assert capture.white_background
        center = np.zeros((1, 3))  # Blender scenes are built around the origin, and every camera sees it
        assert all(lands_inside(center, view.camera)[1].all() for view in capture.views)
        return
    assert capture.points is not None
    assert capture.points.positions.shape == (points, 3)
    seen = np.zeros(points, bool)
    agreement = []
    for view in capture.views:
        pixels, inside = lands_inside(capture.points.positions, view.camera)
        seen |= inside
        if view in capture.views[:: views // 8]:
            image = np.asarray(Image.open(view.image_path).convert("L"), float)
            column, row = pixels[inside].astype(int).T
            grey = capture.points.colors[inside] @ [0.299, 0.587, 0.114]
            agreement.append(np.corrcoef(image[row, column], grey)[0, 1])
    assert seen.mean() > 0.99
    # Points behind others disagree with what the pixel shows; photographs in the wrong order give about 0.
    assert np.median(agreement) > 0.4


def lands_inside(points: np.ndarray, camera: Any) -> tuple[np.ndarray, np.ndarray]:
    """Pixels [P, 2] and which of them lie inside the photograph, in front of the camera."""
    in_view = points @ camera.matrix[:3, :3].T + camera.matrix[:3, 3]
    depth = in_view[:, 2]
    safe = np.where(depth > camera.near, depth, 1)
    pixels = in_view[:, :2] / safe[:, None] * [camera.fx, camera.fy] + [camera.cx, camera.cy]
    inside = (depth > camera.near) & (pixels >= 0).all(axis=1) & (pixels < [camera.width, camera.height]).all(axis=1)
    return pixels, inside


@needs_data
@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("odd/colmap-truncated-bins", "images.bin is cut short or damaged: it ends inside image 14 of 82"),
        ("odd/colmap-opencv-distorted", "camera model OPENCV"),
        ("train/fern", "camera model SIMPLE_RADIAL"),
        ("train/fox", r"distorted \(k1 = 0.0578421, k2"),
    ],
)
def test_real_captures_that_cannot_be_read_say_why(folder: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_path(DATA / folder)


@needs_data
@pytest.mark.parametrize(
    ("folder", "views", "said"),
    [
        ("colmap-two-models-wrong-size", 2, "45 of 47 photographs"),
        ("colmap-txt-simple-pinhole-4img", 4, ""),
        ("colmap-2img-1point", 2, ""),
        ("scene-derived/names-spaces-subfolders", 26, "rescaled to the real size of 26"),
        ("scene-derived/mixed-image-formats", 26, "Not shaped like the camera: 3 photographs"),
        ("scene-derived/zero-points", 12, "no 3D points"),
        ("blender-style-1-image", 1, ""),
    ],
)
def test_real_odd_captures_open_with_a_word_of_warning(folder: str, views: int, said: str) -> None:
    capture = open_path(DATA / "odd" / folder)
    assert isinstance(capture, Capture)
    assert len(capture.views) == views
    assert said in " ".join(capture.warnings)
