"""Tests COLMAP captures: real ones open with the right views, odd ones open or are refused with a reason."""

from __future__ import annotations

import math
import re
import shutil
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

from splatscope.assets.capture import Capture
from splatscope.assets.colmap.captures import read_colmap
from splatscope.assets.formats import open_capture, open_path
from splatscope.assets.photographs.view_pixels import read_view
from splatscope.assets.sfm.search import NoCamerasError
from splatscope.kernels.errors import InputError
from tests.support.odd_captures import as_binary, make_colmap, make_rig
from tests.support.places import DATA

needs_data = pytest.mark.skipif(not DATA.exists(), reason="the shared test data is not here")


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
        assert capture.points.positions.tolist() == [[i, 0.5, 2] for i in range(11, -1, -1)]  # by id
        assert capture.points.colors[0].tolist() == [11, 20, 30]


def test_a_rig_without_a_pose_leaves_photographs_their_own(tmp_path: Path) -> None:
    make_rig(tmp_path, text=True)
    whole = [view.camera for view in read_colmap(tmp_path).views]
    rigs = tmp_path / "sparse/0/rigs.txt"
    lines = [
        line if line.startswith("#") else re.sub(r" 1 (\S+ ){6}\S+$", " 0", line)
        for line in rigs.read_text().splitlines()
    ]
    rigs.write_text("\n".join(lines) + "\n")
    assert [view.camera for view in read_colmap(tmp_path).views] == whole


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


def test_linked_folders_are_looked_into_once(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path / "set", ("left/a.jpg", "right/b.jpg"))
    (folder / "images/left").rename(tmp_path / "elsewhere")
    (folder / "images/left").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/round").symlink_to(folder / "images")
    capture = read_colmap(folder)
    assert names_of(capture) == ["left/a.jpg", "right/b.jpg"]
    assert capture.census.unused == 0


def test_no_cameras_are_looked_for_beside_half_a_model(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path)
    (folder / "sparse/0/cameras.txt").unlink()
    with pytest.raises(
        InputError, match=r"0 is not a whole COLMAP model: it has images\.txt and points3D\.txt but no cam"
    ):
        open_capture(folder)
    shutil.rmtree(folder / "sparse")
    with pytest.raises(NoCamerasError):
        open_capture(folder)


def test_missing_and_damaged_photographs_are_counted(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path, ("a.jpg", "b.jpg", "c.jpg", "d.jpg"))
    (folder / "images/b.jpg").unlink()
    (folder / "images/c.jpg").write_bytes(b"not a photograph")
    Image.new("RGB", (4, 4)).save(folder / "images/extra.jpg")
    capture = read_colmap(folder)
    assert names_of(capture) == ["a.jpg", "d.jpg"]
    said = " ".join(capture.warnings)
    assert (
        f"3 of 4 photographs found in {folder / 'images'}, 1 missing, for example b.jpg; training goes on without them."
        in said
    )
    assert f"Left out: 1 photograph, c.jpg. {folder / 'images/c.jpg'} is not an image, or is damaged" in said
    assert (capture.census.registered, capture.census.missing, capture.census.unused) == (4, ("b.jpg",), 1)
    shutil.rmtree(folder / "images")
    with pytest.raises(InputError, match=r"no folder of photographs\. Looked for .*images"):
        read_colmap(folder)
    (folder / "images_4").mkdir()
    Image.new("RGB", (10, 8)).save(folder / "images_4/z.png")
    with pytest.raises(InputError, match="Photographs lie in images_4: name that folder with --images"):
        read_colmap(folder)
    with pytest.raises(InputError, match=r"Not one of the 4 photographs .* for example a.jpg. Looked in .*images_4"):
        read_colmap(folder, "images_4")
    Image.new("RGB", (10, 8)).save(folder / "images_4/d.png")
    capture = read_colmap(folder)
    assert names_of(capture) == ["d.png"]
    assert capture.warnings[0] == "There is no folder images; photographs are taken from images_4."


def test_smaller_copies_of_llff_are_paired_by_their_order(tmp_path: Path) -> None:
    names = ("IMG_9.JPG", "IMG_10.JPG", "IMG_7.JPG")
    folder = make_colmap(tmp_path, names)
    Image.new("RGB", (40, 30)).save(folder / "images/IMG_8.JPG")  # not registered, but copied all the same
    (folder / "images_4").mkdir()
    for i in range(4):
        Image.new("RGB", (20, 15)).save(folder / f"images_4/image{i:03}.png")
    with pytest.raises(InputError, match="Not one of the 3 photographs"):
        read_colmap(folder, "images_4")
    np.save(folder / "poses_bounds.npy", np.zeros((3, 17)))
    capture = read_colmap(folder, "images_4")
    # In order: 10, 7, 8, 9. Camera i stands at (i, 0, 0), and 10 is the second.
    positions = {view.name: round(float(view.camera.position[0]), 6) for view in capture.views}
    assert positions == {"image000.png": 1, "image001.png": 2, "image003.png": 0}
    assert "paired in order" in capture.warnings[0]
    assert names_of(read_colmap(folder)) == sorted(names)


def test_photographs_of_kinds_that_are_not_read_are_mentioned(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path)
    for name in ("a", "b"):
        (folder / f"images/{name}.jpg").rename(folder / f"images/{name}.HEIC")
    assert "without them. Not read: 2 HEIC files; convert them to JPEG." in read_colmap(folder).warnings[0]
    (folder / "images/c.jpg").rename(folder / "images/c.gif")
    with pytest.raises(InputError, match=r"holds 0 images\. Not read: 2 HEIC files and 1 GIF file; convert them"):
        read_colmap(folder)


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


def test_distorted_cameras_open_undistorted_at_the_size_of_the_photograph(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path, camera="SIMPLE_RADIAL 400 300 500 200 150 0.05")
    Image.new("RGB", (400, 300)).save(folder / "images/b.jpg")
    capture = read_colmap(folder)
    small, large = capture.views[0], capture.views[1]
    assert small.lens is not None
    assert (small.lens.model, small.lens.width, small.lens.params[:4]) == ("OPENCV", 40, (50, 50, 20, 15))
    assert (large.camera.fx, large.camera.fy) == (500, 500)
    assert large.camera.width < 400
    assert read_view(large).pixels.shape == (large.camera.height, large.camera.width, 3)
    assert len(capture.warnings) == 1  # that two of them are smaller than the camera says
    plain = read_colmap(make_colmap(tmp_path / "zero", camera="OPENCV 40 30 50 51 19 16 0 0 0 0"))
    assert [view.camera for view in plain.views] == [v.camera for v in read_colmap(make_colmap(tmp_path / "p")).views]
    with pytest.raises(InputError, match=r"cameras\.txt, line 2 \(camera 1\) uses the camera model EQUIRECTANGULAR"):
        read_colmap(make_colmap(tmp_path / "round", camera="EQUIRECTANGULAR 40 30 40 30"))


@pytest.mark.parametrize("text", [False, True], ids=["binary", "text"])
def test_rigs_and_frames_give_each_camera_its_own_pose(tmp_path: Path, text: bool) -> None:
    reconstruction = make_rig(tmp_path, text)
    assert (tmp_path / "sparse/0" / ("frames.txt" if text else "frames.bin")).exists()
    capture = read_colmap(tmp_path)
    poses = {image.name: image.cam_from_world().matrix() for image in reconstruction.images.values()}
    assert len({name.split("_")[0] for name in poses}) == 2
    assert names_of(capture) == sorted(poses)
    for gone in ("", "frames", "rigs"):  # a model copied without one of them, then without both
        if gone:
            (tmp_path / "sparse/0" / f"{gone}.{'txt' if text else 'bin'}").unlink()
            capture = read_colmap(tmp_path)
        for view in capture.views:
            np.testing.assert_allclose(view.camera.matrix[:3], poses[view.name], atol=1e-9)


@pytest.mark.parametrize("tag", [1, 3, 6, 8])
def test_a_sideways_photograph_is_turned_only_if_its_camera_is_upright(tmp_path: Path, tag: int) -> None:
    folder = make_colmap(tmp_path, camera="PINHOLE 40 30 50 51 20 15")
    exif = Image.Exif()
    exif[0x0112] = tag
    pixels = np.zeros((40, 30, 3), np.uint8)
    pixels[:10] = 255  # the stored top
    Image.fromarray(pixels).save(folder / "images/a.jpg", exif=exif, quality=95)
    Image.fromarray(np.zeros((30, 40, 3), np.uint8)).save(folder / "images/b.jpg", exif=exif)
    capture = read_colmap(folder)
    a, b, _ = capture.views
    assert (a.turned, b.turned) == (tag in (6, 8), False)  # b fits its camera as it is stored
    image = read_view(a).pixels
    if not a.turned:
        assert image.shape == (40, 30, 3)
        assert any("Not shaped like the camera: 1 photograph" in text for text in capture.warnings)
        return
    assert (image.shape, a.camera.fx, a.camera.fy) == ((30, 40, 3), 50, 51)
    side = image[:, -10:] if tag == 6 else image[:, :10]  # 6: the stored top is on the right
    assert side.mean() > 240
    assert "Turned as their EXIF tag says, to fit the camera: 1 photograph." in capture.warnings
    assert sum("contradict each other" in text for text in capture.warnings) == 1


def test_opening_decodes_no_photograph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_colmap(tmp_path, tuple(f"{i}.jpg" for i in range(20)), "OPENCV 40 30 50 50 20 15 .1 0 0 0")
    Image.new("RGBA", (40, 30)).save(folder / "images/7.png")
    (folder / "images/7.jpg").unlink()
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda *_: pytest.fail("decoded"))
    assert len(read_colmap(folder).views) == 20


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_a_survey_is_read_near_the_origin_without_losing_a_hair(tmp_path: Path, binary: bool) -> None:
    at = (500_123.25, 5_400_321.5, 312.75)
    near = read_colmap(make_colmap(tmp_path / "near"))
    folder = make_colmap(tmp_path / "far", at=at)
    far = read_colmap(as_binary(folder) if binary else folder)
    offset = np.array(far.offset)
    assert np.linalg.norm(offset - at) < 20
    assert "lies far from the origin, about (500," in far.warnings[-1]
    for a, b in zip(near.views, far.views, strict=True):
        np.testing.assert_allclose(b.camera.position + offset, a.camera.position + at, atol=1e-8)
        np.testing.assert_allclose(b.camera.matrix[:3, :3], a.camera.matrix[:3, :3], atol=1e-12)
    assert near.points is not None
    assert far.points is not None
    np.testing.assert_array_equal(far.points.positions + offset, near.points.positions + at)
    assert near.offset == (0, 0, 0)


def test_the_model_with_most_photographs_is_taken(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path, ("a.jpg",))
    make_colmap(folder, ("a.jpg", "b.jpg"), model="sparse/1")
    make_colmap(folder, ("c.jpg",), model="sparse/2")
    capture = read_colmap(folder)
    assert names_of(capture) == ["a.jpg", "b.jpg"]
    assert "3 COLMAP models found; using 1 with 2 photographs, not 0 (1), 2 (1)." in capture.warnings[0]
    assert capture.census.models == (("1", 2), ("0", 1), ("2", 1))
    assert names_of(read_colmap(folder / "sparse/0")) == ["a.jpg"]  # pointed at, so meant
    make_colmap(folder, ("c.jpg", "a.jpg"), model="distorted/sparse/0")
    assert names_of(read_colmap(folder)) == ["a.jpg", "b.jpg"]  # before undistortion, and no better
    make_colmap(folder, ("c.jpg", "b.jpg", "a.jpg"), model="distorted/sparse/1", images="input")
    capture = read_colmap(folder)
    assert "5 COLMAP models found; using distorted/sparse/1 with 3 photographs" in capture.warnings[0]
    assert {view.image_path.parent.name for view in capture.views} == {"input"}


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@pytest.mark.parametrize("points", ["missing", "empty", "none", "few", "in one place"])
def test_a_model_without_points_opens(tmp_path: Path, binary: bool, points: str) -> None:
    folder = make_colmap(tmp_path, points={"none": 0, "few": 4}.get(points, 12))
    if points == "in one place":
        rows = [row.split() for row in (folder / "sparse/0/points3D.txt").read_text().splitlines()]
        same = (" ".join([row[0], "1", "2", "3", *row[4:]]) for row in rows)
        (folder / "sparse/0/points3D.txt").write_text("\n".join(same) + "\n")
    file = (as_binary(folder) if binary else folder) / "sparse/0" / ("points3D.bin" if binary else "points3D.txt")
    if points == "missing":
        file.unlink()
    elif points == "empty":
        file.write_bytes(b"")
    capture = read_colmap(folder)
    lack = {"few": "too few 3D points (4)", "in one place": "12 3D points that are all in one place"}.get(points)
    assert (len(capture.views), capture.points is None) == (3, lack is None)
    assert f"{lack or 'no 3D points'}, so splats will start at random" in capture.warnings[0]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_one_to_three_photographs_open(tmp_path: Path, count: int) -> None:
    capture = read_colmap(make_colmap(tmp_path, tuple(f"{i}.jpg" for i in range(count)), points=0))
    assert len(capture.views) == count
    assert capture.offset == (0, 0, 0)


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
    for name in ("cameras", "images", "points3D"):
        file = folder / f"sparse/0/{name}.bin"
        content = file.read_bytes()
        for end in range(1, len(content), 7):
            file.write_bytes(content[:end])
            assert f"{file} is cut short or damaged: it ends " in outcome(folder)
        file.write_bytes(content)
    assert outcome(folder) == ""


ODD_NUMBERS = (math.nan, math.inf, -1.0, 0.0, 1e300, 5e-324)
ODD_WORDS = (*map(str, ODD_NUMBERS), "1e400", "-nan(ind)", "abc", "", "#", "9" * 400, "\0", "1.5")


def damaged(content: bytes, is_text: bool, random: np.random.Generator) -> bytes:
    """Returns the content with a bit turned, a part gone, or a number or word in place of another."""
    place, other = sorted(random.integers(len(content), size=2))
    kind = random.integers(3)
    if kind == 0:
        return content[:place] + bytes([content[place] ^ 1 << random.integers(8)]) + content[place + 1 :]
    if kind == 1:
        return content[:place] + content[other + 1 :]
    if is_text:
        words = content.split(b" ")
        words[random.integers(len(words))] = random.choice(ODD_WORDS).encode()
        return b" ".join(words)
    number = struct.pack("<d", random.choice(ODD_NUMBERS)) if other % 2 else struct.pack("<Q", 2 ** random.integers(64))
    return content[:place] + number + content[place + 8 :]


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@pytest.mark.parametrize("lens", ["PINHOLE 40 30 50 51 19 16", "OPENCV_FISHEYE 40 30 50 51 19 16 .1 .01 0 0"])
def test_damaged_models_never_raise_anything_but_input_errors(tmp_path: Path, binary: bool, lens: str) -> None:
    folder = make_colmap(tmp_path, camera=lens)
    folder = as_binary(folder) if binary else folder
    random = np.random.default_rng(0)
    outcomes = Counter()
    for name in ("cameras", "images", "points3D"):
        file = folder / f"sparse/0/{name}.{'bin' if binary else 'txt'}"
        content = file.read_bytes()
        for _ in range(30):
            file.write_bytes(damaged(content, not binary, random))
            try:
                outcomes["told" if read_colmap(folder).warnings else "silent"] += 1
            except InputError:
                outcomes["refused"] += 1
        file.write_bytes(content)
    assert outcomes["refused"] > 10
    assert outcomes["told"] > 0


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
        ("fern", 20, 0, 10091),
        ("../odd/colmap-opencv-distorted", 29, 0, 7562),
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
        if view in capture.views[:: views // 6]:
            image = read_view(view).pixels[..., :3] @ [0.299, 0.587, 0.114]
            column, row = pixels[inside].astype(int).T
            grey = capture.points.colors[inside] @ [0.299, 0.587, 0.114]
            agreement.append(np.corrcoef(image[row, column], grey)[0, 1])
    assert seen.mean() > 0.99
    # Points behind others disagree with what the pixel shows; photographs in the wrong order give about 0.
    assert np.median(agreement) > 0.4


def lands_inside(points: np.ndarray, camera: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns pixels [P, 2], and a mask of those inside the photograph and in front of the camera."""
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
    ],
)
def test_real_captures_that_cannot_be_read_say_why(folder: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_path(DATA / folder)


@needs_data
@pytest.mark.parametrize(
    ("folder", "views", "said"),
    [
        ("colmap-two-models-wrong-size", 34, "3 COLMAP models found; using distorted/sparse/1 with 44"),
        ("colmap-txt-simple-pinhole-4img", 4, ""),
        ("colmap-2img-1point", 2, "too few 3D points (1)"),
        ("scene-derived/names-spaces-subfolders", 26, "rescaled to the real size of 26"),
        ("scene-derived/mixed-image-formats", 26, "Turned as their EXIF tag says, to fit the camera: 3"),
        ("scene-derived/zero-points", 12, "no 3D points"),
        ("blender-style-1-image", 1, ""),
    ],
)
def test_real_odd_captures_open_with_a_word_of_warning(folder: str, views: int, said: str) -> None:
    capture = open_path(DATA / "odd" / folder)
    assert isinstance(capture, Capture)
    assert len(capture.views) == views
    assert said in " ".join(capture.warnings)
