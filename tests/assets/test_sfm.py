"""Tests a bare folder of photographs: its cameras are found once, cached elsewhere, and are correct."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from splatscope.app.engine.engine import Engine, EngineConfig
from splatscope.app.opening.find_cameras import open_or_find
from splatscope.app.run.plan import RunPlan
from splatscope.assets.capture import Capture
from splatscope.assets.formats import open_capture
from splatscope.assets.lens import Lens
from splatscope.assets.photographs.find import Photographs, Shot, match_views
from splatscope.assets.photographs.images import read_header
from splatscope.assets.photographs.view_pixels import read_view
from splatscope.assets.sfm import search as sfm
from splatscope.assets.sfm.search import CameraSearch, NoCamerasError, known_cameras
from splatscope.assets.sfm.worker import lay_one_out, likely_pairs
from splatscope.kernels.errors import InputError
from splatscope.training.config import DataConfig, TrainConfig
from splatscope.viewer.messages.commands import OpenScene, StartTraining, StopSearch
from splatscope.viewer.messages.view import SearchStatus
from tests.app.test_engine import errors, wait_until
from tests.support.places import DATA

FOX = DATA / "train" / "fox"
needs_fox = pytest.mark.skipif(not FOX.exists(), reason="the shared test data is not here")
SIZE = (432, 768)  # px; 0.4 of each side, which takes a sixth of the time
PHOTOGRAPHS = 10
ORIENTATION = 0x0112  # EXIF tag
NAMES = {1: "{} (1).webp", 2: "more/{}.png", 3: "{}.tif"}  # of photograph k
FLIPPED = {4: (Image.Transpose.ROTATE_180, 3), 6: (Image.Transpose.FLIP_LEFT_RIGHT, 2)}  # and what undoes it
DEGREES, SHARE = 2.0, 0.02  # that found cameras may be turned, and off, as a share of their spread


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keeps results in a test's folder rather than in the user's cache."""
    folder = tmp_path_factory.mktemp("cameras")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sfm, "_cache", lambda: folder)
        yield folder


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns photographs of the fox under names of all kinds, and nothing else."""
    folder = tmp_path_factory.mktemp("photographs") / "der Fuchs ü"
    (folder / "more").mkdir(parents=True)
    for k, path in enumerate(sorted((FOX / "images").glob("*.jpg"))[: 2 * PHOTOGRAPHS : 2]):
        name = NAMES.get(k, "{}.jpg").format(path.stem)
        with Image.open(path) as image:
            small, tags = image.resize(SIZE), Image.Exif()
        if k % 2:  # as telephones store them
            small, tags[ORIENTATION] = small.rotate(90, expand=True), 6
        if k in FLIPPED:
            small, tags[ORIENTATION] = small.transpose(FLIPPED[k][0]), FLIPPED[k][1]
        small.save(folder / name, quality=92, exif=tags)
    (folder / "broken.jpg").write_bytes(b"not a picture")
    return folder


@pytest.fixture(scope="module")
def opened(bare: Path) -> tuple[Capture, list[SearchStatus], list[str]]:
    """Returns the folder opened through the engine, as the window does it: the capture, the messages meanwhile, and the
    log."""
    config = TrainConfig(data=DataConfig(resolution=8))
    engine = Engine(EngineConfig(backend="cpu"), RunPlan(config, bare.parent / "run"))
    told: list[SearchStatus] = []
    engine.start()
    try:
        engine.send(OpenScene(bare))

        def is_open() -> bool:
            status = engine.status()
            if status.search is not None:
                told.append(status.search)
            assert not errors(engine)
            return status.scene is not None

        wait_until(is_open, "the search", seconds=300)
        engine.send(StartTraining(until=3))
        wait_until(lambda: engine.status().training.state == "paused", "three iterations")
        log = [line.text for line in engine.status().log]
    finally:
        engine.close()
    return open_capture(bare), told, log


@needs_fox
def test_found_cameras_stand_where_the_photographs_were_taken(
    bare: Path, opened: tuple[Capture, list[SearchStatus], list[str]]
) -> None:
    capture = opened[0]
    known = {Path(f["file_path"]).stem: f for f in json.loads((FOX / "transforms.json").read_text())["frames"]}
    assert len(capture.views) == PHOTOGRAPHS
    assert {view.name for view in capture.views} >= {"more/0006.png", "0003 (1).webp"}
    turned_by_us = sum(view.turned for view in capture.views)
    assert turned_by_us == PHOTOGRAPHS / 2 + len(FLIPPED) - 1, "TIFFs are turned by who decodes them"
    for view in capture.views:
        with Image.open(FOX / "images" / f"{Path(view.name).stem[:4]}.jpg") as image:
            wanted = np.asarray(image.resize((54, 96))).astype(int)
        got = Image.fromarray(read_view(view).pixels)
        assert got.size == (view.camera.width, view.camera.height)
        assert np.abs(np.asarray(got.resize((54, 96))) - wanted).mean() < 6, view.name
    assert capture.points is not None
    assert len(capture.points.positions) > 500
    found, wanted = [], []
    for view in capture.views:
        found.append(np.linalg.inv(view.camera.matrix))
        matrix = np.array(known[Path(view.name).stem[:4]]["transform_matrix"])
        wanted.append(matrix @ np.diag([1.0, -1.0, -1.0, 1.0]))
    turned, off = pose_errors(np.stack(found), np.stack(wanted))
    assert turned.max() < DEGREES
    assert off.max() < SHARE


def pose_errors(found: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns degrees and shares of the spread that world_from_view matrices [V, 4, 4] differ by after the best
    similarity.
    """
    a, b = found[:, :3, 3], wanted[:, :3, 3]
    a, b = a - a.mean(0), b - b.mean(0)
    u, s, vt = np.linalg.svd(b.T @ a)
    sign = np.diag([1.0, 1.0, np.linalg.det(u @ vt)])
    rotation = u @ sign @ vt
    scale = (s * np.diag(sign)).sum() / (a**2).sum()
    off = np.linalg.norm(scale * a @ rotation.T - b, axis=1) / np.linalg.norm(b, axis=1).max()
    between = np.swapaxes(wanted[:, :3, :3], 1, 2) @ rotation @ found[:, :3, :3]
    cosine = np.clip((np.trace(between, axis1=1, axis2=2) - 1) / 2, -1, 1)
    return np.degrees(np.arccos(cosine)), off


@pytest.mark.parametrize("size", [(80, 60), (64, 64)])
def test_cameras_are_looked_for_on_the_very_pixels_that_training_reads(size: tuple[int, int], tmp_path: Path) -> None:
    """Covers every EXIF tag, and square photographs, whose shape does not tell how they were meant."""
    random = np.random.default_rng(4)
    coarse = random.integers(0, 255, (8, 8, 3), np.uint8)
    stored = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
    for suffix in ("jpg", "png", "tif", "webp", "jp2"):
        for orientation in range(1, 9):
            tags = Image.Exif()
            tags[ORIENTATION] = orientation
            path, place = tmp_path / f"{orientation}.{suffix}", tmp_path / "laid out" / f"{orientation}.{suffix}"
            place.parent.mkdir(exist_ok=True)
            stored.save(path, exif=tags, quality=98)
            place = place.with_suffix(".png") if suffix in ("webp", "jp2") else place
            lay_one_out(path, place)
            header = read_header(path)
            lens = Lens("PINHOLE", *Image.open(place).size, (70.0, 70.0, 30.0, 30.0))
            photographs = Photographs(tmp_path)
            shot = Shot(path.name, lens, np.eye(4), upright=True)
            (view,), warnings, _ = match_views(photographs, [shot], "", folders_may_differ=False)
            assert view.turned == (header.is_tagged and orientation != 1)
            assert not any("rescaled" in text or "Not shaped" in text for text in warnings)
            seen = read_view(view).pixels
            with Image.open(place) as laid:
                assert laid.getexif().get(ORIENTATION, 1) == 1
                found = np.asarray(laid.convert("RGB"))
            assert np.abs(found.astype(int) - seen).mean() < 3, path.name
            place.unlink()


@needs_fox
def test_the_search_is_told_stage_by_stage_and_leaves_the_folder_alone(
    bare: Path, cache: Path, opened: tuple[Capture, list[SearchStatus], list[str]]
) -> None:
    _, told, log = opened
    words = [word for word in ("Reading", "features", "Matching", "Placing") if any(word in s.text for s in told)]
    assert words == ["Reading", "features", "Matching", "Placing"] or words == ["features", "Matching", "Placing"]
    assert any(f"cameras of {PHOTOGRAPHS} of {PHOTOGRAPHS + 1} photographs" in line for line in log)
    assert any("1 is left out" in line for line in log), "the damaged one is spoken of"
    assert len(list(bare.rglob("*.*"))) == PHOTOGRAPHS + 1
    assert not list(cache.glob("*.work"))


@needs_fox
def test_photographs_that_were_moved_are_known_and_others_are_not(
    bare: Path, opened: tuple[Capture, list[SearchStatus], list[str]], tmp_path: Path
) -> None:
    moved = tmp_path / "moved" / "images"
    shutil.copytree(bare, moved)
    again = open_capture(tmp_path / "moved")
    assert [v.camera for v in again.views] == [v.camera for v in opened[0].views]
    next(moved.glob("*.jpg")).unlink()
    with pytest.raises(NoCamerasError, match="photographs without cameras"):
        open_capture(tmp_path / "moved")


@needs_fox
def test_a_run_does_not_go_on_with_cameras_found_anew(bare: Path, tmp_path: Path, cache: Path, opened: object) -> None:
    run = bare.parent / "run"
    shutil.copytree(cache, tmp_path / "kept")
    try:
        shutil.rmtree(cache)
        with pytest.raises(InputError, match="new ones would not fit the splats of"):
            open_or_find(bare, DataConfig(), run)
    finally:
        shutil.copytree(tmp_path / "kept", cache, dirs_exist_ok=True)
    assert open_or_find(bare, DataConfig(), run).views


@needs_fox
def test_a_search_that_was_stopped_ends_at_once_and_goes_on_where_it_was(
    bare: Path, cache: Path, opened: object, tmp_path: Path
) -> None:
    some = tmp_path / "some"
    some.mkdir()
    for path in sorted(bare.glob("*.jpg"))[1:6]:
        shutil.copy(path, some)
    engine = Engine(EngineConfig(backend="cpu"), RunPlan(TrainConfig()))
    engine.start()
    try:
        engine.send(OpenScene(some))
        wait_until(lambda: (s := engine.status().search) and "features" in s.text and s.share > 0, "features", 120)
        with pytest.raises(InputError, match="being found already"):
            CameraSearch(some)
        engine.send(StopSearch())
        wait_until(lambda: engine.status().search is None, "the end", 60)
        assert engine.status().scene is None
    finally:
        engine.close()
    search = CameraSearch(some)
    try:
        wait_until(lambda: search.poll().stage == "features", "the second search", 120)
        assert search.poll().done > 0, "features were kept"
    finally:
        search.close()
    assert search.over


def test_too_few_photographs_and_ones_that_show_nothing_are_refused_in_a_sentence(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    for k in range(3):
        Image.fromarray(random.integers(0, 255, (60, 80, 3), np.uint8)).save(tmp_path / f"{k}.png")
    search = CameraSearch(tmp_path)
    try:
        deadline = time.monotonic() + 120
        while not search.wait(0.5):
            assert time.monotonic() < deadline
        with pytest.raises(InputError, match="not two of them show enough of the same"):
            search.result()
    finally:
        search.close()
    assert known_cameras(tmp_path) is None
    (tmp_path / "2.png").unlink()
    with pytest.raises(InputError, match="holds 2 photographs; cameras can be found from 3 on"):
        CameraSearch(tmp_path)


def test_photographs_of_which_too_few_can_be_read_are_called_unreadable(tmp_path: Path) -> None:
    for k in range(4):
        (tmp_path / f"{k}.jpg").write_bytes(b"not a picture")
    search = CameraSearch(tmp_path)
    try:
        while not search.wait(0.5):
            pass
        with pytest.raises(InputError, match=r"4 photographs in .*: none of them can be read, and 3 are needed"):
            search.result()
    finally:
        search.close()


def test_of_many_photographs_those_that_look_alike_are_matched() -> None:
    random = np.random.default_rng(2)
    places = random.integers(0, 255, (4, 40, 128))  # what four places look like
    names, shown = [f"{k:03}.jpg" for k in range(160)], [k % 4 for k in range(160)]
    descriptors = [np.clip(places[place] + random.normal(0, 8, (40, 128)), 0, 255).astype(np.uint8) for place in shown]
    pairs = likely_pairs(names, descriptors)
    assert len(pairs) < 160 * 159 / 4
    far = [(int(a[:3]), int(b[:3])) for a, b in pairs if int(b[:3]) - int(a[:3]) >= 10]
    assert np.mean([shown[a] == shown[b] for a, b in far]) > 0.9
    assert all((f"{k:03}.jpg", f"{k + 1:03}.jpg") in pairs for k in range(159))
