"""Tests COLMAP models with single faults: a bad camera, photograph or point is left out and named with place and
reason."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from splatscope.assets.capture import Capture
from splatscope.assets.checks.checkup import check_up
from splatscope.assets.colmap.captures import read_colmap
from splatscope.assets.files.lfs import LFS_SENTENCE
from splatscope.assets.formats import open_path
from splatscope.assets.lens import PARAMETERS, colmap_library
from splatscope.assets.transforms.captures import read_blender
from splatscope.kernels.errors import InputError
from tests.support.odd_captures import as_binary, make_colmap, make_transforms

MODEL = "sparse/0"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
AGAIN = " Correct it, or export the model again from COLMAP."
Edit = Callable[[str], str]


def make_three(folder: Path, binary: bool = False) -> Path:
    """Returns a model of a.jpg, b.jpg and c.jpg, each with a camera of its own; the cameras are lines 2 to 4."""
    make_colmap(folder)
    model = folder / MODEL
    (model / "cameras.txt").write_text("# c\n" + "".join(f"{i} PINHOLE 40 30 50 51 19 16\n" for i in (1, 2, 3)))
    rows = (model / "images.txt").read_text().split("\n\n")[:3]
    rows = [row.replace(" 1 " + row[-5:], f" {i} {row[-5:]}") for i, row in enumerate(rows, 1)]
    (model / "images.txt").write_text("\n\n".join(rows) + "\n\n")
    return as_binary(folder) if binary else folder


def names_of(capture: Capture) -> list[str]:
    return [view.name for view in capture.views]


def change_line(file: Path, number: int, edit: Edit) -> None:
    lines = file.read_text().split("\n")
    lines[number - 1] = edit(lines[number - 1])
    file.write_text("\n".join(lines), errors="surrogateescape")


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda row: row.replace("50", "nan"), ": fx must be a finite number above 0, got nan." + AGAIN),
        (lambda row: row.replace("50", "-nan(ind)"), ": fx must be a finite number above 0, got '-nan(ind)'." + AGAIN),
        (lambda row: row.replace("51", "1e400"), ": fy must be a finite number above 0, got inf." + AGAIN),
        (lambda row: row.replace("51", "-51"), ": fy must be a finite number above 0, got -51.0." + AGAIN),
        (lambda row: row.replace("19", "middle"), ": cx must be a finite number, got 'middle'." + AGAIN),
        (lambda row: row.replace("30", "30.5"), ": HEIGHT must be a whole number of pixels from 1 to 16384, got 30.5."),
        (lambda row: row.replace("40", "wide"), ": WIDTH must be a whole number of pixels from 1 to 16384, got 'wide'"),
        (lambda row: row.removesuffix(" 16"), ": a lens PINHOLE has 4 parameters (fx, fy, cx, cy), got 3." + AGAIN),
        (lambda row: row + " 0.1", ": a lens PINHOLE has 4 parameters (fx, fy, cx, cy), got 5." + AGAIN),
        (lambda row: "2 PINHOLE", " must have CAMERA_ID MODEL WIDTH HEIGHT and the parameters of the lens, got '2 PI"),
        (lambda row: row.replace("PINHOLE", "PANINI"), " uses the camera model PANINI, which is not read; those read"),
        (
            lambda row: row.replace("PINHOLE", "PAN\x1b\udce9"),
            r" uses the camera model PAN\x1b\udce9, which is not read",
        ),
        (lambda row: row.replace("PINHOLE", "SPHERICAL"), "EUCM. Cut the panoramas into perspective pictures first."),
        (lambda row: row + "\n2 PINHOLE 40 30 60 60 19 16", "line 4 (camera 2) is another camera with the id of "),
    ],
)
def test_a_camera_that_makes_no_sense_leaves_out_its_photographs(tmp_path: Path, edit: Edit, said: str) -> None:
    file = make_three(tmp_path) / MODEL / "cameras.txt"
    change_line(file, 3, edit)
    capture = read_colmap(tmp_path)
    assert names_of(capture) == ["a.jpg", "c.jpg"]
    (warning,) = capture.warnings
    assert warning.startswith(f"Left out: 1 photograph, b.jpg. {file}, line ")
    assert said in warning
    assert warning in [odd.text for odd in check_up(capture).oddities]
    assert (capture.census.registered, capture.census.unused) == (3, 0)


def test_a_camera_that_stands_twice_with_the_same_values_is_no_fault(tmp_path: Path) -> None:
    change_line(make_three(tmp_path) / MODEL / "cameras.txt", 3, lambda row: f"{row}\n{row}")
    assert (len(read_colmap(tmp_path).views), read_colmap(tmp_path).warnings) == (3, ())


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda row: "2 nan " + row.split(" ", 2)[2], ": QW must be a finite number, got nan." + AGAIN),
        (lambda row: row.replace(" 0.0 ", " -nan(ind) "), ": TY must be a finite number, got '-nan(ind)'." + AGAIN),
        (lambda row: row.replace(" 0.0 ", " 1e300 "), " is 1e+300 units from the origin; at most 1e+13 are read."),
        (
            lambda row: "2 0 0 0 0 0 0 0 2 b.jpg",
            ": the rotation is a quaternion of four zeros, which says no direction.",
        ),
        (lambda row: row.replace(" 2 b", " 7 b"), " names camera 7, which FOLDER/cameras.txt does not have." + AGAIN),
        (lambda row: row.replace(" 2 b", " two b"), ": CAMERA_ID must be a finite number, got 'two'." + AGAIN),
        (
            lambda row: row.replace(" 2 b", " 1.5 b"),
            ": CAMERA_ID must be a whole number from 0 to 4294967295, got 1.5." + AGAIN,
        ),
    ],
)
def test_a_photograph_whose_pose_or_camera_makes_no_sense_is_left_out(tmp_path: Path, edit: Edit, said: str) -> None:
    folder = make_three(tmp_path) / MODEL
    change_line(folder / "images.txt", 3, edit)
    capture = read_colmap(tmp_path)
    assert names_of(capture) == ["a.jpg", "c.jpg"]
    (warning,) = capture.warnings
    assert warning.startswith(f"Left out: 1 photograph, b.jpg. {folder / 'images.txt'}, line 3")
    assert said.replace("FOLDER", str(folder)) in warning


def patched(file: Path, place: int, content: bytes) -> None:
    file.write_bytes(file.read_bytes()[:place] + content + file.read_bytes()[place + len(content) :])


CAMERA = 4 + 4 + 8 + 8 + 4 * 8  # bytes of a PINHOLE in cameras.bin; a count of 8 bytes comes first


@pytest.mark.parametrize(
    ("name", "place", "content", "said"),
    [
        ("cameras", 8 + CAMERA + 24, struct.pack("<d", np.nan), "record 2 of 3 (camera 2): fx must be a finite number"),
        ("cameras", 8 + CAMERA + 8, struct.pack("<Q", 2**63), "record 2 of 3 (camera 2): WIDTH must be a whole number"),
        (
            "cameras",
            8 + CAMERA,
            struct.pack("<I", 9),
            "record 2 of 3 names camera 2, which FOLDER/cameras.bin does not",
        ),
        (
            "images",
            8 + 64 + 6 + 8 + 4,
            struct.pack("<d", np.inf),
            "record 2 of 3: QW must be a finite number, got inf.",
        ),
        (
            "images",
            8 + 64 + 6 + 8 + 60,
            struct.pack("<I", 8),
            "record 2 of 3 names camera 8, which FOLDER/cameras.bin ",
        ),
    ],
)
def test_a_record_that_makes_no_sense_is_left_out(
    tmp_path: Path, name: str, place: int, content: bytes, said: str
) -> None:
    folder = make_three(tmp_path, binary=True) / MODEL
    patched(folder / f"{name}.bin", place, content)
    capture = read_colmap(tmp_path)
    assert names_of(capture) == ["a.jpg", "c.jpg"]
    (warning,) = capture.warnings
    assert warning.startswith("Left out: 1 photograph, b.jpg. ")
    assert said.replace("FOLDER", str(folder)) in warning


def test_behind_a_model_that_is_not_known_no_camera_can_be_found(tmp_path: Path) -> None:
    file = make_three(tmp_path, binary=True) / MODEL / "cameras.bin"
    patched(file, 8 + CAMERA + 4, struct.pack("<i", 99))
    capture = read_colmap(tmp_path)
    assert names_of(capture) == ["a.jpg"]
    behind, known, unknown = capture.warnings
    assert behind == f"Not read: 1 camera of {file} behind record 2, whose length is not known."
    assert "record 2 of 3 (camera 2) uses the camera model with the id 99, which is not read; those read are" in known
    assert "c.jpg" in unknown
    patched(file, 12, struct.pack("<i", 17))
    with pytest.raises(InputError, match=r"no photograph that can be used.* EQUIRECTANGULAR, .* Cut the panoramas"):
        read_colmap(tmp_path)


def test_the_parameters_of_models_are_those_of_colmap() -> None:
    pycolmap = colmap_library()
    known = range(min(len(PARAMETERS), int(max(pycolmap.CameraModelId.__members__.values(), key=int)) + 1))
    cameras = [pycolmap.Camera.create_from_model_id(0, pycolmap.CameraModelId(i), 1.0, 1, 1) for i in known]
    theirs = [(camera.model_name, len(camera.params)) for camera in cameras]
    assert theirs == [(name, len(names)) for name, names in PARAMETERS.items()][: len(theirs)]
    assert len(theirs) >= 11


def test_faults_of_one_kind_are_told_together(tmp_path: Path) -> None:
    file = make_three(tmp_path) / MODEL / "cameras.txt"
    for line in (3, 4):
        change_line(file, line, lambda row: row.replace("50", "nan"))
    (warning,) = read_colmap(tmp_path).warnings
    assert warning.startswith(f"Left out: 2 photographs, b.jpg, c.jpg. {file}, line 3 (camera 2): fx must be")
    change_line(file, 2, lambda row: row.replace("50", "nan"))
    with pytest.raises(
        InputError, match=r"no photograph that can be used\. Left out: 3 photographs, a\.jpg, .* line 2"
    ):
        read_colmap(tmp_path)


@pytest.mark.parametrize("binary", [False, True])
def test_photographs_with_two_poses_keep_the_first(tmp_path: Path, binary: bool) -> None:
    folder = make_colmap(tmp_path, ("a.jpg", "b.jpg", "c.jpg", "d.jpg"))
    file = folder / MODEL / "images.txt"
    if binary:
        file = as_binary(folder) / MODEL / "images.bin"
        file.write_bytes(file.read_bytes().replace(b"c.jpg", b"a.jpg"))
    else:
        file.write_text(file.read_text().replace("c.jpg", "./a.png"))  # another name of the same file
    capture = read_colmap(folder)
    assert names_of(capture) == ["a.jpg", "b.jpg", "d.jpg"]
    np.testing.assert_allclose(capture.views[0].camera.position, 0, atol=1e-12)
    assert "with different poses: 1 photograph, " in capture.warnings[0]
    assert "the first pose of each is used. Take out the wrong ones; perhaps two models were mer" in capture.warnings[0]
    assert (capture.census.registered, capture.census.unused) == (3, 1)


@pytest.mark.parametrize(
    ("name", "noun", "has"), [("cameras", "cameras", 3), ("images", "images", 3), ("points3D", "points", 12)]
)
def test_a_text_file_that_has_less_than_its_comment_tells_is_told(
    tmp_path: Path, name: str, noun: str, has: int
) -> None:
    file = make_three(tmp_path) / MODEL / f"{name}.txt"
    for promised in (has, has + 4):
        file.write_text(f"# A list\n# Number of {noun}: {promised}, and more\n" + file.read_text())
        said = f"{file} tells of {has + 4} {noun} in its first lines and has {has}: it was edited or cut short."
        assert [said in warning for warning in read_colmap(tmp_path).warnings] == [True] * (promised != has)
        file.write_text(file.read_text().split("\n", 2)[2])


@pytest.mark.parametrize("name", ["cameras", "images", "points3D"])
def test_bytes_behind_the_last_record_are_told(tmp_path: Path, name: str) -> None:
    file = make_three(tmp_path, binary=True) / MODEL / f"{name}.bin"
    file.write_bytes(file.read_bytes() + bytes(5))
    (warning,) = read_colmap(tmp_path).warnings
    assert f"{file} is damaged: it says that it has " in warning
    assert "and 5 more bytes follow, which are not read." in warning


# Points --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [
        "1 0 0 0 9 9",
        "1 0 0 zero 9 9 9 .1",
        "1 0 0 0 nan 9 9 .1",
        "1 nan 0 0 9 9 9 .1",
        "1 1e99 0 0 1 1 1",
        ".5 0 0 9 9 9 .1",
    ],
)
def test_a_line_that_is_no_point_is_left_out_and_named(tmp_path: Path, row: str) -> None:
    file = make_colmap(tmp_path) / MODEL / "points3D.txt"
    file.write_text(f"{file.read_text()}{row}\n{row}\n")
    capture = read_colmap(tmp_path)
    assert capture.points is not None
    assert len(capture.points.positions) == 12
    (warning,) = capture.warnings
    assert warning == (
        f"Left out: 2 of 14 points in {file}, whose id or numbers are missing, not finite or beyond 1e+13, the first "
        f"in line 13: {row!r}."
    )


def test_records_that_are_no_points_are_left_out_and_named(tmp_path: Path) -> None:
    file = make_three(tmp_path, binary=True) / MODEL / "points3D.bin"
    patched(file, 8 + 8, struct.pack("<d", np.nan))
    capture = read_colmap(tmp_path)
    assert capture.points is not None
    assert len(capture.points.positions) == 11
    assert capture.warnings[0].startswith(f"Left out: 1 of 12 points in {file}, whose id or numbers are missing, not ")
    assert "the first in record 1: (nan, 0.5, 2)." in capture.warnings[0]


def write_points(file: Path, rows: list[str]) -> None:
    header = ["ply", "format ascii 1.0", f"element vertex {len(rows)}", *(f"property float {axis}" for axis in "xyz")]
    file.write_text("\n".join([*header, "end_header", *rows, ""]))


def test_points_of_a_ply_that_are_not_finite_are_told(tmp_path: Path) -> None:
    rows = [f"{i} 0 {i % 3}" for i in range(12)]
    folder = make_transforms(tmp_path / "t", ply_file_path="sparse_pc.ply")
    colmap = make_colmap(tmp_path / "c", points=0)
    for capture_of, file in (
        (lambda: read_blender(folder), folder / "sparse_pc.ply"),
        (lambda: read_colmap(colmap), colmap / MODEL / "points3D.ply"),
    ):
        write_points(file, [*rows, "nan 0 0", "0 inf 0"])
        capture = capture_of()
        assert capture.points is not None
        assert len(capture.points.positions) == 12
        assert capture.warnings == (f"Left out: 2 of 14 points in {file}, whose numbers are not finite.",)
        write_points(file, ["nan 0 0"])
        assert f"Left out: 1 of 1 point in {file}, whose numbers are not finite." in capture_of().warnings
        write_points(file, [])
        capture = capture_of()
        assert capture.points is None
        assert ("no points in sparse_pc.ply" if "t" in file.parts else "no 3D points") in " ".join(capture.warnings)
    (colmap / MODEL / "points3D.ply").write_bytes(POINTER)
    assert "it is a Git LFS pointer" in " ".join(read_colmap(colmap).warnings)


# Files that are not what they are called ----------------------------------------------------------


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("name", ["cameras", "images", "points3D"])
def test_a_pointer_of_git_lfs_is_named(tmp_path: Path, name: str, binary: bool) -> None:
    make_three(tmp_path, binary)
    make_colmap(tmp_path, ("a.jpg", "b.jpg"), model="sparse/1")  # smaller: a pointer's bytes are no count
    file = tmp_path / MODEL / f"{name}.{'bin' if binary else 'txt'}"
    file.write_bytes(POINTER)
    if binary and name == "images":
        assert names_of(read_colmap(tmp_path)) == ["a.jpg", "b.jpg"]
    with pytest.raises(InputError) as refusal:
        read_colmap(tmp_path / MODEL)
    assert str(refusal.value) == f"{file} cannot be read: {LFS_SENTENCE}"


@pytest.mark.parametrize("there", [("cameras",), ("cameras", "points3D"), ("images",), ("points3D",)])
@pytest.mark.parametrize("opened", ["", "sparse", "sparse/0"])
@pytest.mark.parametrize("photographs", [True, False])
def test_a_model_that_is_not_whole_says_what_it_lacks(
    tmp_path: Path, there: tuple[str, ...], opened: str, photographs: bool
) -> None:
    folder = make_three(tmp_path / "set", binary=True) / MODEL
    for file in folder.iterdir():
        if file.stem not in there:
            file.unlink()
    write_points(folder / "points3D.ply", ["0 0 0"])  # as the 2023 reference code leaves it there
    if not photographs:
        (tmp_path / "set/images").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError) as refusal:
        open_path(tmp_path / "set" / opened)
    lost = [name for name in ("cameras", "images") if name not in there]
    assert str(refusal.value).startswith(
        f"{folder} is not a whole COLMAP model: it has {' and '.join(f'{name}.bin' for name in there)} but no "
        f"{' and no '.join(f'{name}.bin' for name in lost)}."
    )


def test_half_a_model_beside_a_whole_one_is_told(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path)
    (folder / "sparse/1").mkdir()
    (folder / "sparse/1/cameras.bin").write_bytes(bytes(8))
    (warning,) = read_colmap(folder).warnings
    assert warning == f"{folder / 'sparse/1'} is not a whole COLMAP model: it has cameras.bin but no images.bin."


# Names of photographs ------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [".heic", ".HEIC", ".dng", ".CR2", ".exr", ".3fr", ".mov", ".JPEG", ""])
@pytest.mark.parametrize("folder_differs", [False, True])
def test_photographs_are_found_whatever_their_ending_was(tmp_path: Path, named: str, folder_differs: bool) -> None:
    stems = ("IMG_1", "frame.0001", "frame.0002", "a.b")
    folder = make_colmap(tmp_path, tuple(f"{stem}.jpg" for stem in stems))
    file = folder / MODEL / "images.txt"
    text = file.read_text().replace(".jpg", named)
    if folder_differs:
        for stem in stems:
            text = text.replace(f"1 {stem}", f"1 left/{stem}")
    file.write_text(text)
    capture = read_colmap(folder)
    assert names_of(capture) == sorted(f"{stem}.jpg" for stem in stems)
    assert [view.camera.position[0].round() + 0 for view in capture.views] == [0, 3, 1, 2]
    assert capture.warnings == ()


def test_numbers_and_words_behind_a_dot_are_no_endings(tmp_path: Path) -> None:
    names = ("frame.0001", "frame.0002", "frame.r2", "frame.rectified", "x.b.jpg")
    folder = make_colmap(tmp_path, (*(f"{name}.jpg" for name in names[:4]), "x.jpg", "frame.jpg"))
    file = folder / MODEL / "images.txt"
    file.write_text(file.read_text().replace(".jpg", "").replace("1 x\n", "1 x.b.jpg\n"))
    for name in names[:4]:
        (folder / f"images/{name}.jpg").unlink()
    capture = read_colmap(folder)
    assert names_of(capture) == ["frame.jpg"]
    assert capture.census.missing == names


@pytest.mark.parametrize(
    "written",
    [
        "images\\a.jpg",
        "C:\\data\\room\\images\\a.jpg",
        "/home/me/room/images/a.jpg",
        "../images/a.jpg",
        "./a.jpg",
        "//nas/a.jpg",
    ],
)
def test_paths_of_other_machines_are_understood(tmp_path: Path, written: str) -> None:
    folder = make_colmap(tmp_path, ("a.jpg",))
    file = folder / MODEL / "images.txt"
    file.write_text(file.read_text().replace("a.jpg", written))
    assert names_of(read_colmap(folder)) == ["a.jpg"]


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("stored", ["café.jpg".encode(), b"caf\xe9.jpg", b"CAF\xc9.png"])
def test_names_in_the_letters_of_windows_are_read(tmp_path: Path, binary: bool, stored: bytes) -> None:
    folder = make_colmap(tmp_path, ("wxyz.jpg", "b.jpg"))
    folder = as_binary(folder) if binary else folder
    file = folder / MODEL / ("images.bin" if binary else "images.txt")
    file.write_bytes(file.read_bytes().replace(b"wxyz.jpg", b"caf\xe9.jpg"))
    (folder / "images/wxyz.jpg").rename(folder / "images" / os.fsdecode(stored))
    capture = read_colmap(folder)
    assert {view.name.casefold() for view in capture.views} == {"b.jpg", f"café.{os.fsdecode(stored)[-3:]}"}
    assert capture.warnings == ()


def test_halves_of_letters_are_no_names(tmp_path: Path) -> None:
    folder = make_transforms(tmp_path, [{"file_path": name} for name in ("images/0.png", "images/\ud83d.png")])
    capture = read_blender(folder)
    assert names_of(capture) == ["images/0.png"]
    assert "1 of 2 photographs found" in capture.warnings[0]


def test_a_name_of_many_folders_takes_no_time(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path)
    file = folder / MODEL / "images.txt"
    long = "/d" * 200_000
    file.write_text(file.read_text().replace("a.jpg", f"{long}/a.jpg").replace("b.jpg", f"{long}/lost.jpg"))
    assert names_of(read_colmap(folder)) == ["a.jpg", "c.jpg"]


def test_pictures_that_are_not_read_are_counted_by_kind(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path)
    for name, ending in (("a", "exr"), ("b", "RAF")):
        (folder / f"images/{name}.jpg").rename(folder / f"images/{name}.{ending}")
    Image.new("RGB", (40, 30)).save(folder / "images/b.png")
    assert "Not read: 1 EXR file and 1 RAF file; convert them to JPEG." in read_colmap(folder).warnings[0]
