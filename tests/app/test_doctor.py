"""Tests the page about a capture: it lists what the capture holds, names planted faults, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from splatscope.app.commands.doctor import run as run_doctor
from splatscope.app.main import main
from splatscope.app.opening.examine import examine
from splatscope.app.options.subcommands import DoctorOptions
from splatscope.assets.capture import Capture, PointCloud, View
from splatscope.assets.checks.checkup import Checkup, check_up
from splatscope.assets.colmap.captures import read_colmap
from splatscope.assets.formats import open_capture
from splatscope.assets.geometry.recentre import camera_less
from splatscope.kernels.backends import make_backend
from splatscope.training.config import DataConfig, TrainConfig
from tests.support.odd_captures import make_blender, make_colmap, make_transforms
from tests.support.places import DATA
from tests.support.small_capture import looking_at_origin


def fact(checkup: Checkup, topic: str) -> str:
    (found,) = [finding.text for finding in checkup.facts if finding.topic == topic]
    return found


def sound_capture(folder: Path, count: int = 24) -> Capture:
    """Returns photographs of noise round a ball of points; there is nothing odd about it."""
    rng = np.random.default_rng(0)
    views = []
    for i, angle in enumerate(np.linspace(0, 2 * np.pi, count, endpoint=False)):
        path = folder / f"{i:02}.jpg"
        Image.fromarray(rng.integers(0, 255, (56, 72, 3), np.uint8)).save(path)
        centre = np.array([3 * np.cos(angle), 3 * np.sin(angle), 0.5])
        views.append(View(path.name, path, looking_at_origin(centre)))
    points = PointCloud(rng.normal(0, 0.3, (500, 3)), np.full((500, 3), 128, np.uint8))
    return Capture(folder, "colmap", tuple(views), (), points, False)


def test_a_sound_capture_has_nothing_odd_and_all_its_figures(tmp_path: Path) -> None:
    capture = sound_capture(tmp_path)
    checkup = check_up(capture, decode=True)
    assert checkup.oddities == ()
    assert fact(checkup, "sizes") == "24 of 72 x 56"
    assert fact(checkup, "decoding") == "24 of 24 can be decoded to the end"
    assert fact(checkup, "lenses") == "24 without distortion"
    assert fact(checkup, "angles") == "48° wide"  # 2 atan(36 / 80)
    assert fact(checkup, "points") == "500"
    assert fact(checkup, "up").startswith("(0.00, 0.00, 1.00), confidence 0.9")
    page = checkup.lines()
    assert page[0] == str(tmp_path)
    assert page[-1] == "Nothing is odd."
    assert len(page) < 25


def oddities(capture: Capture, decode: bool = False) -> str:
    return " ".join(f"{odd.text} {odd.advice}" for odd in check_up(capture, decode).oddities)


def with_views(capture: Capture, *changed: View) -> Capture:
    return replace(capture, views=(*changed, *capture.views[len(changed) :]))


def test_each_oddity_is_found_where_it_was_put(tmp_path: Path) -> None:
    capture = sound_capture(tmp_path)
    first = capture.views[0]
    far = replace(first, camera=camera_less(first.camera, (-60.0, 0.0, 0.0)))
    assert "1 photograph taken 5 times farther out than most: 00.jpg." in oddities(with_views(capture, far))
    behind = replace(first, camera=looking_at_origin(-first.camera.position))
    turned = behind.camera.matrix.copy()
    turned[:3, 3] = -turned[:3, :3] @ first.camera.position
    away = replace(first, camera=replace(first.camera, view_from_world=tuple(map(tuple, turned.tolist()))))
    assert "Hardly any of the points are seen by 1 photograph: 00.jpg." in oddities(with_views(capture, away))
    narrow = replace(first, camera=replace(first.camera, fx=8000.0))
    said = oddities(with_views(capture, narrow))
    assert "1 photograph would be 1° wide, for example 00.jpg." in said
    assert "Pixels would not be square" in said
    clear = replace(first, has_alpha=True)
    assert "Only 1 of 24 photographs has an alpha channel." in oddities(with_views(capture, clear))
    few = replace(capture, views=capture.views[:3])
    assert "Only 3 photographs can be trained on." in oddities(few)
    rolled = [
        replace(v, camera=replace(v.camera, view_from_world=upside_down(v))) if i % 2 else v
        for i, v in enumerate(capture.views)
    ]
    assert "Which way is up is unclear (confidence 0." in oddities(replace(capture, views=tuple(rolled)))
    close = [replace(v, camera=camera_less(v.camera, tuple(v.camera.position * 0.9999))) for v in capture.views]
    assert "nearly one place, so depths cannot be told." in oddities(replace(capture, views=tuple(close)))
    assert "something the reader saw" in oddities(replace(capture, warnings=("something the reader saw",)))
    same = [replace(v, camera=first.camera) for v in capture.views[1:3]]
    assert (
        "The pose of 2 photographs is that of another one, for example of 01.jpg that of 00.jpg. Unless the camera"
    ) in oddities(with_views(capture, first, *same))
    one = replace(capture, points=None, views=tuple(replace(v, camera=first.camera) for v in capture.views))
    assert "The pose of all 24 photographs is that of another one, " in oddities(one)
    assert "All photographs were taken from nearly one place, so depths cannot be told." in oddities(one)
    beside = replace(first, camera=replace(first.camera, cx=-300.0))
    said = oddities(with_views(capture, beside))
    assert "The principal point of 1 photograph lies outside the picture: (-300, 28) on 72 x 56 pixels" in said
    upright = replace(first, camera=replace(first.camera, cx=28.0, cy=36.0))
    said = oddities(with_views(capture, upright))
    assert "The principal point of 1 photograph is the middle of a picture turned by a quarter: (28, 36) on 72" in said


def test_views_of_a_large_scene_may_all_see_few_of_its_points(tmp_path: Path) -> None:
    capture = sound_capture(tmp_path)
    assert capture.points is not None
    far = np.random.default_rng(1).normal((0, 0, 500), 1, (60_000, 3))  # above them all
    positions = np.concatenate((capture.points.positions, far))
    large = replace(capture, points=PointCloud(positions, np.full(positions.shape, 128, np.uint8)))
    assert check_up(large).oddities == ()


def test_photographs_without_cameras_have_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my photographs"
    (folder / "images").mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 255, (30, 40, 3), np.uint8)
    for i in range(4):
        Image.fromarray(noise).save(folder / "images" / f"{i}.jpg")
    broken = folder / "images/3.jpg"
    broken.write_bytes(broken.read_bytes()[:1000])
    run_doctor(DoctorOptions(folder))
    page = capsys.readouterr().out.splitlines()
    assert page[:5] == [
        str(folder),
        "  capture      photographs without cameras",
        "  photographs  4 in images",
        "  sizes        4 of 40 x 30",
        "  decoding     3 of 4 can be decoded to the end",
    ]
    assert f"  cameras      none yet; splatscope train '{folder}', or opening it in the window, finds them" in page
    assert page[-3] == "Odd:"
    assert page[-2].startswith(f"  1. Left out: 1 photograph, 3.jpg. {broken} is damaged or cut short")
    assert page[-1].startswith("  2. Only 4 photographs can be trained on.")
    run_doctor(DoctorOptions(folder, quick=True))
    assert "decod" not in capsys.readouterr().out


def upside_down(view: View) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, (np.diag([-1.0, -1.0, 1.0, 1.0]) @ view.camera.matrix).tolist()))


def test_only_decoding_finds_half_photographs_and_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = sound_capture(tmp_path)
    for view in capture.views[2:7]:
        view.image_path.write_bytes(view.image_path.read_bytes()[:1000])
    said = oddities(capture, decode=True)
    assert "Left out: 5 photographs, 02.jpg, 03.jpg, 04.jpg and 2 more. " in said
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda *_: pytest.fail("decoded"))
    assert check_up(capture).oddities == ()


def test_distorted_lenses_are_told_with_what_becomes_of_them(tmp_path: Path) -> None:
    folder = make_colmap(tmp_path, tuple(f"{i}.jpg" for i in range(12)), "OPENCV 40 30 50 50 20 15 .2 0 0 0")
    text = fact(check_up(read_colmap(folder)), "lenses")
    assert text.startswith("12 OPENCV that bend by up to ")
    assert "40 x 30 become 3" in text


def test_models_and_a_far_origin_are_told(tmp_path: Path) -> None:
    make_colmap(tmp_path, ("a.jpg",))
    make_colmap(tmp_path, ("a.jpg", "b.jpg"), model="sparse/1", at=(5e5, 5e6, 100))
    checkup = check_up(read_colmap(tmp_path))
    assert fact(checkup, "models") == "1 (2 registered), 0 (1 registered); the first is used"
    assert "which is taken off while training and added back on saving" in fact(checkup, "coordinates")


def test_memory_and_time_are_told_before_training(tmp_path: Path) -> None:
    capture = sound_capture(tmp_path)
    config = TrainConfig(iterations=1000)
    without = examine(capture, config)
    assert [finding.topic for finding in without.findings][-1] == "memory"
    assert "0.9 GiB for a million splats" in fact(without, "memory")
    timed = examine(capture, config, make_backend("cpu"))
    assert "for 1,000 iterations" in fact(timed, "time")
    large = examine(capture, replace(config, data=DataConfig(resolution=1_000_000)))
    assert "at most 16,384" in large.oddities[-1].text


@pytest.mark.parametrize("make", [make_colmap, make_blender, make_transforms])
def test_the_command_prints_one_page_for_every_kind_of_capture(
    tmp_path: Path, make: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(tmp_path / "capture ü")
    main(["doctor", str(folder), "--quick"])
    done = capsys.readouterr()
    assert done.err == ""
    lines = done.out.splitlines()
    assert lines[0] == str(folder)
    assert 10 < len(lines) < 40
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", str(tmp_path / "empty")])
    assert "holds nothing that opens" in capsys.readouterr().err


def test_every_shared_capture_has_a_page() -> None:
    if not DATA.exists():
        pytest.skip("the shared test data is not here")
    expected = {
        "train/tumbler": "",
        "train/lego": "",
        "train/fox": "17 missing",
        "odd/colmap-two-models-wrong-size": "Pixels would not be square",
        "odd/colmap-2img-1point": "Only 2 photographs can be trained on.",
        "odd/scene-derived/mixed-image-formats": "Only 4 of 26 photographs have an alpha channel.",
    }
    for name, said in expected.items():
        checkup = check_up(open_capture(DATA / name))
        odd = " ".join(finding.text for finding in checkup.oddities)
        assert said in odd if said else not odd, name
