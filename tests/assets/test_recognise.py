"""Tests that files that do not open are named by their kind, and that files that open are found by their content."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from splatscope.assets.capture import Capture
from splatscope.assets.files.lfs import LFS_SENTENCE
from splatscope.assets.formats import SplatFile, open_capture, open_path
from splatscope.assets.sfm.search import NoCamerasError
from splatscope.assets.splats.ply import write_ply
from splatscope.kernels.errors import InputError
from tests.assets.test_open_path import splats
from tests.support.odd_captures import make_blender, make_transforms

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 3\n"
METASHAPE = b'<?xml version="1.0"?>\n<document version="2.0.0">\n  <chunk label="a">'
CAMERAS = {
    "cameras.xml": (METASHAPE, "a camera file of Metashape", "File > Export > Export Cameras"),
    "scan.psx": (b"", "a Metashape project", "File > Export > Export Cameras"),
    "blocks.xml": (b"<BlocksExchange>", "BlocksExchange", "Export as COLMAP"),
    "poses.csv": (b"#name,x,y,alt,heading,pitch,roll\n", "RealityScan", "Export > Registration > COLMAP"),
    "a.xmp": (b'<x:xmpmeta><rdf xcr:Position="1">', "RealityScan", "Export > Registration > COLMAP"),
    "bundle.out": (b"# Bundle file v0.3\n", "a camera file of Bundler", "Export as COLMAP"),
    "scene.nvm": (b"NVM_V3 \n", "VisualSFM", "Export as COLMAP"),
    "cameras.sfm": (b'{"version": ["1"], "featuresFolders": []', "Meshroom", "Export as COLMAP"),
    "sfm_data.json": (b'{"sfm_data_version": "0.3"', "OpenMVG", "openMVG_main_openMVG2Colmap"),
    "reconstruction.json": (b'[{"cameras": {', "OpenSfM", "opensfm export_colmap"),
    "frame_00000.json": (b'{"cameraPoseARFrame": [', "3D Scanner App", "transforms.json"),
    "odometry.csv": (b"timestamp, frame", "Stray Scanner", "transforms.json"),
}
OTHERS = {
    "capture.ZIP": (b"", "an archive", "Unpack it"),
    "noending": (b"PK\x03\x04....", "an archive", "Unpack it"),
    "walk.r3d": (b"", "a recording of Record3D", "unpack it and open the folder"),
    "my film.MOV": (b"", "a video", 'ffmpeg -i "my film.MOV" -vf fps=2'),
    "a.heic": (b"", "a photograph in HEIC, which is not read", "magick mogrify -format jpg *.heic"),
    "a.exr": (b"", "a photograph in EXR, which is not read", "magick mogrify -format jpg *.exr"),
    "scan.obj": (b"", "a mesh", "Gaussian splats as PLY"),
    "scan.laz": (b"", "a point cloud", "Gaussian splats as PLY"),
}


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as error:
        open_path(path)
    return str(error.value)


@pytest.mark.parametrize("name", [*CAMERAS, *OTHERS])
def test_exports_of_other_programs_are_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    content, kind, advice = (CAMERAS | OTHERS)[name]
    (tmp_path / name).write_bytes(content)
    assert f"{name} is " in refusal(tmp_path / name)
    for path in (tmp_path / name, *([tmp_path] if "." in name else [])):
        said = refusal(path)
        assert kind in said
        assert advice in said
        assert "Looked for" not in said


def test_what_most_of_a_folder_is_decides_what_is_said(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in ("images/1.HEIC", "images/2.HEIC", "film.mp4", "notes.txt"):
        (tmp_path / name).touch()
    said = refusal(tmp_path)
    assert "images/1.HEIC is a photograph in HEIC (as 1 other file there), which is not read. Convert all" in said
    (tmp_path / "bundle.out").write_text("# Bundle file v0.3")
    assert "bundle.out is a camera file of Bundler, which is not read" in refusal(tmp_path)


@pytest.mark.parametrize("below", ["", "images/"])
@pytest.mark.parametrize("name", CAMERAS)
def test_cameras_of_another_program_are_not_passed_over_for_a_search(tmp_path: Path, name: str, below: str) -> None:
    (tmp_path / "images").mkdir()
    for number in range(3):
        Image.new("RGB", (40, 30)).save(tmp_path / f"images/{number}.jpg")
    with pytest.raises(NoCamerasError):
        open_path(tmp_path)
    (tmp_path / "notes.csv").write_text("just,notes")
    (tmp_path / "images/0.xmp").write_text("<x:xmpmeta>developed in Lightroom")
    with pytest.raises(NoCamerasError):
        open_path(tmp_path)
    (tmp_path / below / name).write_bytes(CAMERAS[name][0])
    said = refusal(tmp_path)
    assert f"{CAMERAS[name][1]}" in said
    assert f"({below}{name}), which is not read. " in said
    assert "move that file away" in said


@pytest.mark.parametrize("name", ["scene", "scene.PLY", "scene.ply.txt", "scene.bin", "scene.splat", "scene.jpg"])
def test_a_ply_opens_by_its_first_line_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    write_ply(tmp_path / "made.ply", splats())
    (tmp_path / "made.ply").rename(tmp_path / name)
    for path in (tmp_path / name, *([tmp_path] if not name.endswith(("jpg", "splat")) else [])):
        opened = open_path(path)
        assert isinstance(opened, SplatFile)
        assert opened.gaussians.count == 3


@pytest.mark.parametrize("name", ["scene", "scene.ply", "scene.bin"])
def test_other_splat_formats_are_named_by_what_they_hold(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"NGSP" + bytes(60)))
    assert f"{name} is an SPZ file; only plain PLY files open" in refusal(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("means_l.webp", b"x")
    assert f"{name} is a SOG file; only plain PLY files open" in refusal(path)
    path.write_bytes(b"glTF\2\0\0\0")
    assert f"{name} is a glTF file; only plain PLY files open" in refusal(path)


def test_the_files_of_a_model_open_their_dataset(tmp_path: Path) -> None:
    from tests.support.odd_captures import make_colmap

    opened = open_path(make_colmap(tmp_path) / "sparse/0/cameras.txt")
    assert isinstance(opened, Capture)
    assert len(opened.views) == 3


@pytest.mark.parametrize("name", ["transforms.json", "images/0.png", "alone/0.jpg", "scene.bin"])
def test_git_lfs_pointers_are_named(tmp_path: Path, name: str) -> None:
    folder = make_transforms(tmp_path)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(POINTER)
    if name == "images/0.png":
        (warning,) = open_capture(folder).warnings
        assert LFS_SENTENCE in warning
    else:
        path = {"alone/0.jpg": folder / "alone", "scene.bin": folder / name}.get(name, folder)
        assert LFS_SENTENCE in refusal(path)


@pytest.mark.parametrize("name", ["transform_train.json", "transform.json", "Cameras.JSON", "transforms_test.json"])
@pytest.mark.parametrize("points", [False, True])
def test_frames_under_another_name_open_and_are_told(tmp_path: Path, name: str, points: bool) -> None:
    folder = make_transforms(tmp_path / "a")
    (folder / "transforms.json").rename(folder / name)
    if points:
        rows = "element vertex 1\nproperty float x\nproperty float y\nproperty float z\nend_header\n1 2 3\n"
        (folder / "sparse_pc.ply").write_text(f"ply\nformat ascii 1.0\n{rows}")
    for path in (folder, folder / name, folder.parent, folder / "images"):
        opened = open_path(path)
        assert isinstance(opened, Capture)
        assert len(opened.views) == 3
        told = f"There is no transforms.json, so the cameras are read from {name}. If that is right, rename it to "
        told += "transforms.json."
        assert (told in opened.warnings) == (path.suffix.lower() != ".json")


def test_several_or_damaged_files_of_frames_under_other_names_are_not_passed_over(tmp_path: Path) -> None:
    folder = make_blender(tmp_path)
    for split in ("train", "test"):
        (folder / f"transforms_{split}.json").rename(folder / f"transform_{split}.json")
    assert "2 files with frames under other names: transform_test.json, transform_train.json. Call" in refusal(folder)
    (folder / "transform_test.json").unlink()
    content = (folder / "transform_train.json").read_bytes()
    (folder / "transform_train.json").write_bytes(content[:-3])
    assert "transform_train.json is not valid JSON: line 1" in refusal(folder)
    (folder / "transform_train.json").write_text(json.dumps({"frames": [{"file_path": "a"}]}))
    with pytest.raises(InputError, match="holds nothing that opens"):
        open_path(folder)


def test_splats_beside_frames_without_their_photographs_are_what_opens(tmp_path: Path) -> None:
    frame = {"file_path": "gone/0.png", "transform_matrix": []}
    (tmp_path / "path.json").write_text(json.dumps({"frames": [frame]}))
    write_ply(tmp_path / "scene.ply", splats())
    assert isinstance(open_path(tmp_path), SplatFile)
