"""Tests that files of a capture are read only below its folder, and that searches end wherever links lead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from splatscope.assets.files import capture_paths
from splatscope.assets.files.capture_paths import file_below, leads_outside, walk_below
from splatscope.assets.formats import open_capture
from splatscope.assets.photographs.find import Photographs
from splatscope.kernels.errors import InputError
from tests.support.odd_captures import make_transforms

POINTS = "ply\nformat ascii 1.0\nelement vertex 12\nproperty float x\nproperty float y\nproperty float z\nend_header\n"
POINTS += "".join(f"{i} {i * i} 0\n" for i in range(12))


@pytest.mark.parametrize(
    ("name", "outside"),
    [
        ("a/b.ply", False),
        ("./a.ply", False),
        ("a/../b.ply", False),
        ("..b/a", False),
        ("../a", True),
        ("a/../../b", True),
        ("/a", True),
        ("\\a", True),
        ("..\\a", True),
        ("C:\\a", True),
        ("C:/a", True),
    ],
)
def test_what_leads_outside(name: str, outside: bool) -> None:
    assert leads_outside(name) == outside


def test_a_path_from_elsewhere_is_found_by_its_last_parts_and_never_outside(tmp_path: Path) -> None:
    folder = tmp_path / "scene"
    (folder / "points").mkdir(parents=True)
    (folder / "points/a.ply").touch()
    (tmp_path / "secret.ply").touch()
    for name in ("points/a.ply", "/home/else/scene/points/a.ply", "C:\\scene\\points\\a.ply", "../scene/points/a.ply"):
        assert file_below(folder, name) == folder / "points/a.ply"
    for name in ("../secret.ply", str(tmp_path / "secret.ply"), "points/../../secret.ply", "a.ply", "x" * 5000, "a\0"):
        assert file_below(folder, name) is None


@pytest.mark.parametrize("absolute", [False, True])
def test_points_and_photographs_outside_are_told_and_not_read(tmp_path: Path, absolute: bool) -> None:
    (tmp_path / "secret.ply").write_text(POINTS)
    Image.new("RGB", (40, 30)).save(tmp_path / "secret.png")
    above = f"{tmp_path}/" if absolute else "../"
    frames = [{"file_path": "images/0.png"}, {"file_path": f"{above}secret.png"}]
    folder = make_transforms(tmp_path / "scene", frames, ply_file_path=f"{above}secret.ply")
    capture = open_capture(folder)
    assert capture.points is None
    assert len(capture.views) == 1
    said = " ".join(capture.warnings)
    assert f"Not read: 1 photograph outside {folder}, for example {above}secret.png. Files of a" in said
    assert f"Not read: the points {above}secret.ply outside {folder}. Files of a" in said
    (folder / "sparse_pc.ply").write_text(POINTS)
    capture = open_capture(folder)
    assert capture.points is not None
    assert f"Not read: the points {above}secret.ply outside {folder}" in " ".join(capture.warnings)
    make_transforms(folder, frames[1:])
    with pytest.raises(InputError, match="Not read: 1 photograph outside"):
        open_capture(folder)


def test_points_named_by_a_path_of_another_machine_are_found(tmp_path: Path) -> None:
    folder = make_transforms(tmp_path, ply_file_path="/data/somewhere/cloud.ply")
    (folder / "cloud.ply").write_text(POINTS)
    capture = open_capture(folder)
    assert capture.points is not None
    assert len(capture.points.positions) == 12
    assert capture.warnings == ()


def test_linked_folders_are_followed_but_not_into_what_lies_around(tmp_path: Path) -> None:
    store = make_transforms(tmp_path / "store")
    folder = tmp_path / "around/scene"
    folder.mkdir(parents=True)
    Image.new("RGB", (40, 30)).save(tmp_path / "around/other.png")
    (folder / "transforms.json").write_bytes((store / "transforms.json").read_bytes())
    (folder / "images").symlink_to(store / "images")
    (folder / "root").symlink_to("/")
    (folder / "above").symlink_to("..")
    (folder / "self").symlink_to(".")
    (store / "images/back").symlink_to(folder)
    assert sorted(Photographs(folder).paths) == ["images/0.png", "images/1.png", "images/2.png"]
    assert len(open_capture(folder).views) == 3


def test_a_walk_that_finds_too_much_ends_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_paths, "MOST_FILES", 5)
    make_transforms(tmp_path)
    assert sum(len(files) for _, _, files in walk_below(tmp_path)) == 4
    for index in range(2):
        (tmp_path / f"images/more{index}").touch()
    with pytest.raises(InputError, match=r"holds more than 5 files, the last of them in .*images\. Open the folder"):
        open_capture(tmp_path)


def test_a_name_with_odd_bytes_harms_nothing(tmp_path: Path) -> None:
    frames = [{"file_path": name} for name in ("images/0.png", "a\0b", "\ud800", "x" * 5000, "../" * 500)]
    folder = make_transforms(tmp_path, frames, ply_file_path="\ud800\0")
    capture = open_capture(folder)
    assert len(capture.views) == 1
    assert np.isfinite(capture.views[0].camera.matrix).all()
