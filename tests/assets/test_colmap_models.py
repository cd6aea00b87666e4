"""Tests COLMAP models that were edited, shortened or moved after COLMAP wrote them: the rest is read."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from splatscope.assets.capture import Capture
from splatscope.assets.colmap.captures import read_colmap
from splatscope.assets.formats import open_capture
from splatscope.kernels.errors import InputError
from tests.support.odd_captures import make_colmap, make_rig

MODEL = "sparse/0"
HEAD = 4 + 7 * 8 + 4  # of an image in images.bin: id, pose, camera; then its name, then its 2D points
both_kinds = pytest.mark.parametrize("text", [False, True], ids=["binary", "text"])


def poses(capture: Capture) -> dict[str, list[float]]:
    return {view.name: np.round(view.camera.matrix, 9).ravel().tolist() for view in capture.views}


def text_images(file: Path) -> list[tuple[str, str]]:
    """Returns (line of the photograph, line of its 2D points) of a file that COLMAP wrote."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    return list(zip(lines[::2], lines[1::2], strict=True))


def binary_images(file: Path) -> list[tuple[bytes, bytes]]:
    """Returns (head and name, 2D points) of a file that COLMAP wrote."""
    content, place, images = file.read_bytes(), 8, []
    for _ in range(struct.unpack_from("<Q", content)[0]):
        name_end = content.index(b"\0", place + HEAD) + 1
        end = name_end + 8 + 24 * struct.unpack_from("<Q", content, name_end)[0]
        images.append((content[place:name_end], content[name_end:end]))
        place = end
    return images


def edit(model: Path, gone: int, with_2d: bool) -> None:
    """Removes the first `gone` photographs from a model, and every 2D point if asked, and leaves the rest as it is."""
    if (model / "images.bin").exists():
        file = model / "images.bin"
        kept = [head + (points if with_2d else bytes(8)) for head, points in binary_images(file)[gone:]]
        file.write_bytes(struct.pack("<Q", len(kept)) + b"".join(kept))
    else:
        file = model / "images.txt"
        rows = [f"{head}\n{points if with_2d else ''}\n" for head, points in text_images(file)[gone:]]
        file.write_text("".join(rows))


@both_kinds
@pytest.mark.parametrize("rigged", [True, False])
@pytest.mark.parametrize(("gone", "with_2d"), [(1, True), (3, True), (0, False), (2, False)])
def test_points_that_mention_what_was_taken_out_of_the_model_are_read(
    tmp_path: Path, text: bool, rigged: bool, gone: int, with_2d: bool
) -> None:
    make_rig(tmp_path, text)
    whole = read_colmap(tmp_path)
    assert whole.points is not None
    if not rigged:
        for name in ("rigs", "frames"):
            (tmp_path / MODEL / f"{name}.{'txt' if text else 'bin'}").unlink()
    edit(tmp_path / MODEL, gone, with_2d)
    left = read_colmap(tmp_path)
    assert len(left.views) == 6 - gone
    assert poses(left).items() <= poses(whole).items()
    assert left.points is not None
    np.testing.assert_array_equal(left.points.positions, whole.points.positions)
    np.testing.assert_array_equal(left.points.colors, whole.points.colors)
    assert len(left.points.positions) == 40


@pytest.mark.parametrize("names", [("a.jpg", "b.jpg", "c.jpg"), ("my a 1.jpg", "my b 2.jpg", "3 c.jpg")])
@pytest.mark.parametrize("between", ["\n", "\n# a comment\n", "\r\n", "\n\n", "\n\n\n"])
@pytest.mark.parametrize("last", ["", "\n", "\n\n"])
def test_photographs_without_their_line_of_2d_points_are_not_taken_for_one(
    tmp_path: Path, names: tuple[str, ...], between: str, last: str
) -> None:
    whole = read_colmap(make_colmap(tmp_path, names))
    file = tmp_path / MODEL / "images.txt"
    file.write_text(between.join(head for head, _ in text_images(file)) + last, newline="")
    edited = read_colmap(tmp_path)
    assert poses(edited) == poses(whole)
    assert len(edited.views) == 3
    assert edited.warnings == ()


def test_lines_of_2d_points_that_only_some_photographs_have_are_told_apart(tmp_path: Path) -> None:
    whole = read_colmap(make_colmap(tmp_path))
    file = tmp_path / MODEL / "images.txt"
    a, b, c = (head for head, _ in text_images(file))
    numbers = "1 2 3 4 5 6 7 8 9 10 11 12"  # whole numbers, as some writers give them: an image's fields but for a name
    file.write_text(f"{a}\n{numbers}\n{b}\n{c}\n1.5 2.5 -1")
    assert poses(read_colmap(tmp_path)) == poses(whole)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("# c\n1 1 0 0 0 0 0 0 1 a.jpg\n1.5 2.5 none\n", 3),
        ("1 1 0 0 0 0 0 0 1 a.jpg\n2 1 0 0 0 0 0 0 1 0002\n", 2),  # a name like a number, or a line cut short
        ("1 1 0 0 0 0 0 0 1 a.jpg\n\n2 1 0 0 0 0\n", 3),
        ("1 1 0 0 0 0 0 0 1 a.jpg\n\nx 1 0 0 0 0 0 0 1 b.jpg\n1.5 2.5 -1\n", 3),
    ],
)
def test_a_line_that_is_no_photograph_is_passed_over_and_named(tmp_path: Path, content: str, line: int) -> None:
    make_colmap(tmp_path)
    file = tmp_path / MODEL / "images.txt"
    file.write_text(content)
    capture = read_colmap(tmp_path)
    assert [view.name for view in capture.views] == ["a.jpg"]
    (said,) = [warning for warning in capture.warnings if "Passed over" in warning]
    shown = content.splitlines()[line - 1].strip()
    assert said.startswith(f"Passed over: 1 line of {file}, the first of which, line {line}, is neither a photograph")
    assert f"of the one before: {shown!r}." in said
    file.write_text("1 1 0 0 0 0 0 0 1\n\n2 1 0 0 0 0 0 0 1\n\n")  # no names
    with pytest.raises(InputError, match=r"has no photograph that can be used\. Passed over: 2 lines of .*images\.txt"):
        read_colmap(tmp_path)


def test_what_is_odd_in_colours_comments_and_2d_points_alone_is_no_reason_to_refuse_a_model(tmp_path: Path) -> None:
    whole = read_colmap(make_colmap(tmp_path))
    file = tmp_path / MODEL / "points3D.txt"
    file.write_bytes(b"# caf\xe9\n" + file.read_bytes() + b"99 0 0 0 9 300 256 0.1\n")
    images = tmp_path / MODEL / "images.txt"
    a, *rest = (head for head, _ in text_images(images))
    images.write_text(f"+{a}\n1.5 2.5 -1 7\n" + "\n\n".join(rest) + "\n\n")
    edited = read_colmap(tmp_path)
    assert poses(edited) == poses(whole)
    assert edited.points is not None
    assert edited.points.colors[-1].tolist() == [9, 255, 255]


def test_a_byte_order_mark_is_no_damage(tmp_path: Path) -> None:
    make_rig(tmp_path, text=True)
    whole = read_colmap(tmp_path)
    for file in (tmp_path / MODEL).iterdir():
        file.write_text(file.read_text(), encoding="utf-8-sig", newline="\r\n")
    marked = read_colmap(tmp_path)
    assert poses(marked) == poses(whole)
    assert marked.points is not None
    assert len(marked.points.positions) == 40


# Where models lie ----------------------------------------------------------------------------------


def folder_of(capture: Capture, below: Path) -> str:
    (folder,) = {view.image_path.parent.relative_to(below).as_posix() for view in capture.views}
    return folder


@pytest.mark.parametrize("dense", ["dense", "dense/0"])
def test_an_undistorted_copy_opens_where_there_is_nothing_else(tmp_path: Path, dense: str) -> None:
    make_colmap(tmp_path / dense, model="sparse")
    capture = open_capture(tmp_path)
    assert (folder_of(capture, tmp_path), capture.warnings) == (f"{dense}/images", ())
    shutil.move(tmp_path / dense / "images", tmp_path)
    for pointed_at in ("", dense, f"{dense}/sparse", "images"):
        capture = open_capture(tmp_path / pointed_at)
        assert folder_of(capture, tmp_path) == "images"
        assert capture.warnings == (
            f"{tmp_path / 'dense'} has no photographs of its own; those in {tmp_path / 'images'} are used and should "
            "be undistorted ones.",
        )


def test_a_folder_that_only_happens_to_be_called_dense_changes_nothing(tmp_path: Path) -> None:
    room = make_colmap(tmp_path / "dense/room")
    for photograph in (room / "images").iterdir():
        shutil.copy(photograph, room)
    shutil.move(room / "images", tmp_path)  # of the same names, but others'
    capture = open_capture(room)
    assert (folder_of(capture, room), capture.warnings) == (".", ())
    for photograph in room.glob("*.jpg"):
        (room / "photos").mkdir(exist_ok=True)
        shutil.move(photograph, room / "photos")
    (tmp_path / "dense/images").mkdir()
    assert folder_of(open_capture(room), room) == "photos"
    other = make_colmap(tmp_path / "other")
    (other / "images").rename(other / "dense")
    assert folder_of(open_capture(other), other) == "dense"


def test_of_several_undistorted_copies_the_largest_opens_with_its_own_photographs(tmp_path: Path) -> None:
    make_colmap(tmp_path / "dense/0", ("a.jpg",), model="sparse")
    make_colmap(tmp_path / "dense/1", ("b.jpg", "c.jpg"), model="sparse")
    capture = open_capture(tmp_path)
    assert folder_of(capture, tmp_path) == "dense/1/images"
    assert capture.census.models == (("dense/1/sparse", 2), ("dense/0/sparse", 1))


def test_photographs_and_model_at_the_top_come_before_an_undistorted_copy(tmp_path: Path) -> None:
    make_colmap(tmp_path, camera="OPENCV 40 30 50 50 20 15 .1 0 0 0")
    make_colmap(tmp_path / "dense/0", model="sparse")
    capture = open_capture(tmp_path)
    assert (folder_of(capture, tmp_path), capture.warnings) == ("images", ())
    shutil.rmtree(tmp_path / "images")  # COLMAP leaves the photographs it was given where they were
    capture = open_capture(tmp_path)
    assert folder_of(capture, tmp_path) == "dense/0/images"
    assert all(view.lens is None for view in capture.views)
    assert capture.warnings == ("There is no folder images; the undistorted photographs in dense are used.",)
    shutil.rmtree(tmp_path / "dense/0/sparse")  # undistorted photographs do not fit the cameras at the top
    with pytest.raises(InputError, match="no folder of photographs"):
        open_capture(tmp_path)
