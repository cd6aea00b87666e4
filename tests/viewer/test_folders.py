"""Tests the list of the file browser: sorted by kind, for any folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from splatscope.kernels.errors import InputError
from splatscope.viewer.state import folders
from splatscope.viewer.state.folders import folder_of, kind_of, list_folder


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"0123456789")


def test_rows_are_folders_by_what_they_hold_then_splat_files(tmp_path: Path) -> None:
    make(tmp_path, "zoo.ply", "Alpha.PLY", "notes.txt", ".hidden.ply", ".git/", "plain/", "Lego/transforms_train.json",
         "garden/sparse/0/cameras.bin", "phone/colmap/sparse/0/", "auto/dense/0/sparse/", "nerf/transforms.json",
         "trained/cfg_args", "inria/point_cloud/iteration_7/", "holiday/1.jpg", "holiday/2.JPG", "holiday/3.png",
         "albums/1.jpg", "albums/2.jpg", "albums/3.jpg", "albums/more/", "two/1.jpg", "two/2.jpg")  # fmt: skip
    make(tmp_path, "sog/meta.json", "sog/means_l.webp", "sog/quats.webp", "sog/sh0.webp", "phone2/metadata",
         "phone2/rgbd/0.jpg", "poly/keyframes/cameras/", "misnamed/transform_train.json", "noise")  # fmt: skip
    for name in ("bare", "scene.ply.txt"):
        (tmp_path / name).write_bytes(b"ply\nformat")
    listing = list_folder(tmp_path)
    assert [(row.path.name, row.kind) for row in listing.rows] == [
        ("albums", "folder"), ("auto", "capture"), ("garden", "capture"), ("holiday", "photographs"),
        ("inria", "model"), ("Lego", "capture"), ("misnamed", "capture"), ("nerf", "capture"), ("phone", "capture"),
        ("phone2", "capture"), ("plain", "folder"), ("poly", "capture"), ("sog", "folder"), ("trained", "model"),
        ("two", "folder"), ("Alpha.PLY", "splats"), ("bare", "splats"), ("scene.ply.txt", "splats"),
        ("zoo.ply", "splats"),
    ]  # fmt: skip
    assert listing.rows[-1].size == 10
    assert [row.path.name for row in listing.rows if not row.opens] == ["albums", "plain", "sog", "two"]
    assert (listing.left_out, listing.problem) == (0, "")


def test_a_folder_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    listing = list_folder(tmp_path / "gone")
    assert listing.rows == ()
    assert listing.problem == f"{tmp_path / 'gone'} cannot be read: No such file or directory."


def test_dangling_and_circular_links_are_left_out(tmp_path: Path) -> None:
    os.symlink(tmp_path / "nowhere.ply", tmp_path / "dangling.ply")
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe.ply")
    assert list_folder(tmp_path).rows == ()


def test_a_very_long_folder_is_cut_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "MOST", 3)
    make(tmp_path, *(f"{k}.ply" for k in range(5)))
    listing = list_folder(tmp_path)
    assert (len(listing.rows), listing.left_out) == (3, 2)


def test_a_typed_path_leads_to_its_folder(tmp_path: Path) -> None:
    make(tmp_path, "in/side.ply")
    assert folder_of("in", tmp_path) == tmp_path / "in"
    assert folder_of(f' "{tmp_path}/in/side.ply" ', Path("/")) == tmp_path / "in"
    assert kind_of(tmp_path / "in" / "side.ply") == "splats"
    assert kind_of(tmp_path / "none.ply") is None
    with pytest.raises(InputError, match="There is no folder"):
        folder_of("not/there/at/all", tmp_path)
