"""Tests paths: splats, models and captures open; for anything else the error names what was looked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from splatscope.app.main import main
from splatscope.assets import formats
from splatscope.assets.capture import Capture, View
from splatscope.assets.formats import FILE_FORMATS, SplatFile, open_capture, open_path
from splatscope.assets.splats.ply import write_ply
from splatscope.assets.trained.cameras import write_cameras_json
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, Gaussians
from tests.support.places import DATA

needs_data = pytest.mark.skipif(not DATA.exists(), reason="the shared test data is not here")
CAMERA = Camera.from_matrix(np.eye(4), 40, 30, 50, 50, 20, 15)


def splats(count: int = 3) -> Gaussians:
    return Gaussians(*(np.full(shape, count, np.float32) for shape in ((count, 3),) * 2), *more_splats(count))


def more_splats(count: int) -> list[np.ndarray]:
    return [np.ones(shape, np.float32) for shape in ((count, 4), (count,), (count, 1, 3))]


def test_a_new_splat_format_is_one_row_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = formats.FileFormat(".made", "a format made up here", lambda path, offset: splats(5))
    monkeypatch.setattr(formats, "FILE_FORMATS", (row, *FILE_FORMATS))
    (tmp_path / "scene.made").write_bytes(b"not a PLY")
    opened = open_path(tmp_path / "scene.made")
    assert isinstance(opened, SplatFile)
    assert (opened.gaussians.count, opened.filter) == (5, "plain")


def make_model(folder: Path, cfg: str = "Namespace(sh_degree=3, source_path='/gone', white_background=True)") -> Path:
    """Returns a model folder with iterations 7 (three splats) and 30 (four)."""
    for iteration, count in ((7, 3), (30, 4)):
        write_ply(folder / f"point_cloud/iteration_{iteration}/point_cloud.ply", splats(count))
    (folder / "point_cloud/iteration_100").mkdir()  # begun, not yet written
    (folder / "cfg_args").write_text(cfg)
    write_cameras_json(folder / "cameras.json", [View("a.jpg", Path("a.jpg"), CAMERA)])
    return folder


def make_colmap(folder: Path, images: str = "images") -> Path:
    model = folder / "sparse/0"
    model.mkdir(parents=True)
    (model / "cameras.txt").write_text("1 PINHOLE 40 30 50 50 20 15\n")
    (model / "images.txt").write_text("1 1 0 0 0 0 0 0 1 a.png\n\n")
    (model / "points3D.txt").write_text("".join(f"{i} {i} 0 5 9 9 9 0.1\n" for i in range(1, 13)))
    (folder / images).mkdir()
    Image.new("RGB", (40, 30)).save(folder / images / "a.png")
    return folder


def make_blender(folder: Path) -> Path:
    (folder / "train").mkdir(parents=True)
    Image.new("RGB", (40, 30)).save(folder / "train/r_0.png")
    frame = {"file_path": "train/r_0", "transform_matrix": np.eye(4).tolist()}
    (folder / "transforms_train.json").write_text(json.dumps({"camera_angle_x": 1.0, "frames": [frame]}))
    return folder


def open_splats(path: Path) -> SplatFile:
    opened = open_path(path)
    assert isinstance(opened, SplatFile)
    return opened


def test_a_ply_on_its_own_opens_over_black(tmp_path: Path) -> None:
    write_ply(tmp_path / "模型 ü.PLY", splats())
    opened = open_splats(tmp_path / "模型 ü.PLY")
    assert (opened.kind, opened.gaussians.count, opened.cameras, opened.iteration) == ("splats", 3, (), None)
    assert (opened.background, opened.warnings) == ((0, 0, 0), ())


@pytest.mark.parametrize(
    ("inside", "iteration"),
    [
        ("", 30),
        ("point_cloud", 30),
        ("point_cloud/iteration_7", 7),
        ("point_cloud/iteration_7/point_cloud.ply", 7),
    ],
)
def test_a_model_opens_at_its_highest_iteration_or_the_one_pointed_at(
    tmp_path: Path, inside: str, iteration: int
) -> None:
    opened = open_splats(make_model(tmp_path / "output") / inside)
    assert (opened.kind, opened.iteration, opened.gaussians.count) == ("model", iteration, 3 if iteration == 7 else 4)
    assert opened.path.name == "point_cloud.ply"
    assert opened.cameras == (("a.jpg", CAMERA),)
    assert (opened.background, opened.warnings) == ((1, 1, 1), ())


@pytest.mark.parametrize(
    ("cfg", "warned"),
    [
        ("Namespace(white_background=False, x=[1, 2])", False),
        ("Namespace(a=numpy.array(3), white_background='no')", False),
        ("__import__('pathlib').Path('evaluated').write_text('x')", True),
        ("Namespace(white_background=__import__('pathlib').Path('evaluated').write_text('x'))", False),
        ("Namespace(" + "(" * 5000, True),
        ("\x00\xff", True),
        ("", True),
    ],
)
def test_settings_beside_a_model_are_parsed_and_never_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cfg: str, warned: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    opened = open_splats(make_model(tmp_path / "m", cfg))
    assert opened.background == (0, 0, 0)
    assert bool(opened.warnings) == warned
    assert not (tmp_path / "evaluated").exists()


@pytest.mark.parametrize("content", [b"", b"[]", b"[{}]", b"{", b"[1]", b"\xff", b"null"])
def test_damaged_cameras_beside_a_model_are_only_warned_about(tmp_path: Path, content: bytes) -> None:
    (make_model(tmp_path) / "cameras.json").write_bytes(content)
    opened = open_splats(tmp_path)
    assert (opened.gaussians.count, opened.cameras) == (4, ())
    assert opened.warnings[0].startswith("Training cameras ignored: ")


@pytest.mark.parametrize("inside", ["", "images", "sparse", "sparse/0", ".."])
def test_a_dataset_opens_from_one_level_too_deep_or_too_high(tmp_path: Path, inside: str) -> None:
    folder = make_colmap(tmp_path / "above" / "dense 0")
    (folder.parent / "notes.txt").write_text("x")
    target = folder.parent if inside == ".." else folder / inside
    for opened in (open_path(target), open_path(str(target)), open_capture(target)):
        assert isinstance(opened, Capture)
        assert [view.name for view in opened.views] == ["a.png"]
        assert opened.warnings == ()


def test_relative_paths_work_inside_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_colmap(tmp_path / "scene")
    for inside in ("", "images", "sparse", "sparse/0"):
        monkeypatch.chdir(folder / inside)
        assert isinstance(open_path("."), Capture)


def test_another_folder_of_photographs_is_used_when_named_or_pointed_at(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path, images="images_4")
    for opened in (open_path(folder, "images_4"), open_path(folder / "images_4")):
        assert isinstance(opened, Capture)
        assert opened.views[0].image_path == folder / "images_4/a.png"


def test_a_blender_set_opens_from_its_file_and_its_pictures(tmp_path: Path) -> None:
    folder = make_blender(tmp_path / "lego")
    for path in (folder, folder / "train", folder / "transforms_train.json", folder.parent):
        opened = open_path(path)
        assert isinstance(opened, Capture)
        assert (opened.kind, len(opened.views)) == ("blender", 1)


def test_training_wants_a_dataset_even_where_a_model_was_left_in_it(tmp_path: Path) -> None:
    make_model(make_colmap(tmp_path / "both"))
    assert isinstance(open_path(tmp_path / "both"), SplatFile)
    assert isinstance(open_capture(tmp_path / "both"), Capture)
    with pytest.raises(InputError, match="holds trained splats, not photographs"):
        open_capture(make_model(tmp_path / "model"))


@pytest.mark.parametrize("suffix", [f.suffix for f in FILE_FORMATS if f.read is None])
def test_other_splat_formats_are_refused_by_name(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"scene{suffix.upper()}"
    file.write_bytes(b"x")
    for path in (file, tmp_path):
        with pytest.raises(InputError, match=rf"scene\{suffix.upper()} is .*Convert it to PLY first"):
            open_path(path)


def test_what_cannot_be_opened_is_told_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Looked for: a \.ply file; .*transforms\.json.* Found: an empty folder\."):
        open_path(tmp_path)
    for name in ("one", "two"):
        make_colmap(tmp_path / name)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match="holds 2 things that could be opened; choose one: one/, two/"):
        open_path(tmp_path)
    with pytest.raises(InputError, match=r"no file or folder .*three/sparse; .* has notes.txt, one/, two/"):
        open_path(tmp_path / "three/sparse")
    with pytest.raises(InputError, match="is not something that opens here"):
        open_path(tmp_path / "notes.txt")
    with pytest.raises(InputError, match=r"a\.png is a picture; open the dataset folder"):
        open_path(tmp_path / "one/images/a.png")
    (tmp_path / "sog").mkdir()
    for name in ("meta.json", "means_l.webp"):
        (tmp_path / "sog" / name).write_text("{}")
    with pytest.raises(InputError, match="unpacked SOG scene"):
        open_path(tmp_path / "sog")


MESH = b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float y\nproperty float z\n"
MESH += b"end_header\n1 2 3\n"
PACKED = MESH.replace(b"float x", b"uint packed_position")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (MESH, "mesh or point cloud, not splats: its vertices lack f_dc_0 to f_dc_2, opacity, scale_0 to scale_2"),
        (PACKED, "compressed PLY (packed_position and chunks), which is not read. Convert it to a plain PLY first"),
        (b"", "is empty (0 bytes)"),
        (b"<html>", "web page or XML, often a failed download"),
        (MESH[:40], "cut short: its header has no end_header"),
    ],
)
@pytest.mark.parametrize("command", [["render", "--out", "x.png"], ["train", "--headless"], ["doctor"]])
def test_what_is_no_splat_file_ends_every_command_with_status_2_and_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, said: str, command: list[str]
) -> None:
    (tmp_path / "a.ply").write_bytes(content)
    with pytest.raises(SystemExit) as stopped:
        main([command[0], str(tmp_path / "a.ply"), *command[1:]])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_opening_splats_loads_no_heavy_library() -> None:
    heavy = ["torch", "numba", "pycolmap", "dearpygui", "scipy"]
    code = f"import sys, splatscope.assets.formats; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@needs_data
def test_every_shared_file_and_folder_opens_or_says_why() -> None:
    opened, refused = {}, {}
    paths = [DATA, *(p for kind in ("train", "odd", "splats") for p in [DATA / kind, *(DATA / kind).iterdir()])]
    paths += [p for p in (DATA / "odd").glob("*/*") if p.suffix != ".ply"]
    for path in paths:
        try:
            opened[path.name] = open_path(path)
        except InputError as error:
            refused[path.name] = str(error)
    assert opened["inria-9k"].gaussians.count == 9080
    assert (opened["inria-9k"].kind, opened["inria-9k"].iteration) == ("model", 7000)
    assert opened["biker-ply-sh0"].gaussians.count == 152_746
    assert np.isposinf(opened["biker-ply-sh0"].gaussians.logit_opacities).sum() == 198
    assert {"logo-sog-v1", "tiny-4-splats", "train"} <= set(refused)
    assert {"fern", "fox", "colmap-opencv-distorted"} <= set(opened)
    for text in refused.values():
        assert text.endswith(".")
        assert "\n" not in text
        assert len(text) < 600
        assert "Error" not in text
