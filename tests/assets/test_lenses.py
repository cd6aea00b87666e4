"""Tests lenses: every camera model becomes a pinhole picture, once, and a damaged cache does no harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from splatscope.assets.capture import View
from splatscope.assets.lens import Lens, as_colmap, colmap_library, straightened
from splatscope.assets.photographs import undistort
from splatscope.assets.photographs.images import write_png
from splatscope.assets.photographs.undistort import remove_oldest, seen, warp
from splatscope.assets.photographs.view_pixels import read_view
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera
from tests.support.odd_captures import seen_through, waves

W, H = 200, 150
MODELS = {
    "SIMPLE_RADIAL": (160, 101, 74, 0.06),
    "RADIAL": (160, 101, 74, 0.06, -0.03),
    "OPENCV": (160, 162, 101, 74, 0.06, -0.03, 0.002, -0.001),
    "FULL_OPENCV": (160, 162, 101, 74, 0.06, -0.03, 0.002, -0.001, 0.01, 0.02, 0.001, 0.0),
    "SIMPLE_RADIAL_FISHEYE": (120, 101, 74, 0.02),
    "RADIAL_FISHEYE": (120, 101, 74, 0.02, 0.003),
    "OPENCV_FISHEYE": (120, 121, 101, 74, 0.02, 0.003, -0.001, 0.0),
    "FOV": (160, 162, 101, 74, 0.8),
    "THIN_PRISM_FISHEYE": (120, 121, 101, 74, 0.02, 0.003, 0.001, 0.001, -0.001, 0.0, 0.001, 0.001),
    "RAD_TAN_THIN_PRISM_FISHEYE": (120, 121, 101, 74, 0.02, 0.003, 0, 0, 0, 0, 0.001, 0.001, 0.001, 0, 0.001, 0),
    "SIMPLE_DIVISION": (160, 101, 74, -0.08),
    "DIVISION": (160, 162, 101, 74, -0.08),
    "SIMPLE_FISHEYE": (120, 101, 74),
    "FISHEYE": (120, 121, 101, 74),
    "EUCM": (160, 162, 101, 74, 0.5, 1.1),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns an empty cache of undistorted photographs for each test."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setattr(undistort, "_cache_folder", lambda: folder)
    return folder


def lens_of(model: str) -> Lens:
    return Lens.from_colmap(model, W, H, MODELS[model], "here")


def view_through(path: Path, lens: Lens) -> View:
    return View(path.name, path, lens.camera(np.eye(4)), lens)


@pytest.mark.parametrize("model", MODELS)
def test_every_camera_model_is_bent_straight(model: str) -> None:
    lens = lens_of(model)
    assert not lens.is_pinhole
    straight = straightened(lens)
    ours = warp(seen_through(lens, waves), lens).astype(int)
    ideal = seen_through(straight, waves).astype(int)
    assert ours.shape == ideal.shape
    assert min(ours.shape[:2]) > 100
    error = np.abs(ours - ideal)[1:-1, 1:-1]
    assert np.median(error) <= 1
    assert np.percentile(error, 99) <= 4  # half a pixel's shift would make it 10 and more
    bent = np.abs(seen_through(lens, waves)[:100, :100].astype(int) - ideal[:100, :100])
    assert np.percentile(bent, 99) > 10


@pytest.mark.parametrize("model", MODELS)
def test_a_lens_follows_the_size_of_its_photograph_even_stretched(model: str) -> None:
    small = lens_of(model).resized(100, 60)
    rays = np.array([[0.1, -0.2, 1.0], [-0.3, 0.25, 1.0], [0.0, 0.0, 1.0]])
    wide = np.asarray(as_colmap(lens_of(model)).img_from_cam(rays))
    np.testing.assert_allclose(as_colmap(small).img_from_cam(rays), wide * [0.5, 0.4], atol=1e-9)
    one_focal = colmap_camera(model)
    np.testing.assert_allclose(one_focal.img_from_cam(rays), wide, atol=1e-9)


def colmap_camera(model: str) -> Any:
    camera = colmap_library().Camera.create_from_model_name(1, model, 1.0, W, H)
    camera.params = list(MODELS[model])
    return camera


def test_no_distortion_is_a_pinhole_and_fisheye_never_is() -> None:
    zero = {
        "SIMPLE_PINHOLE": (160, 101, 74), "PINHOLE": (160, 162, 101, 74), "SIMPLE_RADIAL": (160, 101, 74, 0),
        "OPENCV": (160, 162, 101, 74, 0, 0, 0, 0), "FULL_OPENCV": (160, 162, 101, 74, *[0] * 8),
        "EUCM": (160, 162, 101, 74, 0, 1), "FOV": (160, 162, 101, 74, 1e-6),
        "RADIAL": (160, 101, 74, 1e-5, 0),  # bends the corner by less than a hundredth of a pixel
    }  # fmt: skip
    for model, params in zero.items():
        lens = Lens.from_colmap(model, W, H, params, "here")
        assert lens.is_pinhole, model
        camera = lens.camera(np.eye(4))
        assert (camera.width, camera.height, camera.fx, camera.cx, camera.cy) == (W, H, 160, 101, 74)
    assert not Lens.from_colmap("FISHEYE", W, H, (120, 120, 100, 75), "here").is_pinhole
    assert not Lens.from_colmap("RADIAL", W, H, (160, 101, 74, 0.002, 0), "here").is_pinhole


@pytest.mark.parametrize(
    ("model", "params", "said"),
    [
        ("EQUIRECTANGULAR", (W, H), "EQUIRECTANGULAR, which is not read; .*perspective pictures"),
        ("NEW_MODEL", (1,), "NEW_MODEL, which is not read; those read are SIMPLE_PINHOLE"),
        ("OPENCV", (160, 0, 1, 1, 0, 0, 0, 0), "focal lengths 160, 0 px"),
        ("FOV", (160, 160, 1, 1, np.nan), "damaged"),
        ("PINHOLE", (1e300, 1e300, 1, 1), r"focal lengths 1e\+300"),
        ("FISHEYE", (1e-9, 1e-9, 1, 1), "makes no sense: focal lengths 1e-09"),
        ("RADIAL", (160, 1e30, 1, 0, 0), r"principal point at \(1e\+30, 1\)"),
    ],
)
def test_lenses_that_cannot_be_used_are_named(model: str, params: tuple[float, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Lens.from_colmap(model, W, H, params, "Camera 7")


def test_what_a_lens_did_not_see_is_left_out() -> None:
    assert seen(lens_of("OPENCV")) is None
    strong = Lens.from_colmap("SIMPLE_RADIAL", W, H, (60, 100, 75, -0.15), "here")
    mask = seen(strong)
    assert mask is not None
    white = warp(np.full((H, W, 3), 255, np.uint8), strong)[..., 0]
    assert mask.shape == white.shape
    assert 0.2 < mask.mean() < 1
    assert (white[mask] == 255).mean() > 0.99  # black where there was nothing


@pytest.mark.parametrize("hidden", [0, 255])
def test_hidden_colour_does_not_bleed_into_what_is_visible(hidden: int) -> None:
    lens = lens_of("OPENCV")
    pixels = np.full((H, W, 4), hidden, np.uint8)
    pixels[..., 3] = 0
    pixels[40:110, 50:150] = (10, 200, 30, 255)
    warped = warp(pixels, lens)
    partly = (warped[..., 3] > 8) & (warped[..., 3] < 250)
    assert partly.sum() > 20
    assert np.abs(warped[partly][:, :3].astype(int) - (10, 200, 30)).max() <= 16  # rounding at little alpha
    assert (warped[..., 3] == 255).mean() > 0.2


def test_a_photograph_is_undistorted_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lens, path = lens_of("OPENCV"), tmp_path / "a ü.png"
    write_png(path, seen_through(lens, waves))
    first = read_view(view_through(path, lens)).pixels
    assert len(list(cache.iterdir())) == 1
    with monkeypatch.context() as context:
        context.setattr(undistort, "warp", lambda *_: pytest.fail("warped again"))
        np.testing.assert_array_equal(read_view(view_through(path, lens)).pixels, first)
    next(cache.iterdir()).write_bytes(b"damaged")
    np.testing.assert_array_equal(read_view(view_through(path, lens)).pixels, first)
    write_png(path, 255 - seen_through(lens, waves))
    os.utime(path, ns=(1, 1))  # another photograph under the same name
    assert np.abs(read_view(view_through(path, lens)).pixels.astype(int) + first - 255).max() <= 1
    other = Lens.from_colmap("OPENCV", W, H, (*MODELS["OPENCV"][:4], 0.03, 0, 0, 0), "here")
    assert not np.array_equal(read_view(view_through(path, other)).pixels, first)


def test_a_cache_that_cannot_be_used_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lens, path = lens_of("OPENCV"), tmp_path / "a.png"
    write_png(path, seen_through(lens, waves))
    (tmp_path / "file").write_text("in the way")
    results = []
    for folder in (None, tmp_path / "file"):
        monkeypatch.setattr(undistort, "_cache_folder", lambda folder=folder: folder)
        results.append(read_view(view_through(path, lens)).pixels)
    np.testing.assert_array_equal(*results)


def test_the_cache_forgets_what_was_used_longest_ago(tmp_path: Path) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    for age, name in enumerate("abcd"):
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, (1000 - age, 1000 - age))
    remove_oldest(folder, 250)
    assert sorted(p.name for p in folder.iterdir()) == ["a", "b"]


def test_transparency_is_a_background_a_mask_or_nothing(tmp_path: Path) -> None:
    pixels = np.zeros((6, 8, 4), np.uint8)
    pixels[..., :3] = (10, 20, 30)
    pixels[:, 4:, 3] = 255
    write_png(tmp_path / "a.png", pixels)
    view = View("a.png", tmp_path / "a.png", Camera.from_matrix(np.eye(4), 8, 6, 10, 10, 4, 3))
    background, mask, ignore = (read_view(view, use) for use in ("background", "mask", "ignore"))
    assert np.array_equal(background.pixels, pixels)
    assert background.mask is None
    assert np.array_equal(mask.pixels, pixels[..., :3])
    assert mask.mask is not None
    assert mask.mask.tolist() == [[False] * 4 + [True] * 4] * 6
    assert np.array_equal(ignore.pixels, pixels[..., :3])
    assert ignore.mask is None
    Image.fromarray(pixels[..., :3]).save(tmp_path / "a.png")  # no alpha: all three are the same
    for use in ("background", "mask", "ignore"):
        opaque = read_view(view, use)
        assert (opaque.pixels.shape, opaque.mask) == ((6, 8, 3), None)
    with pytest.raises(InputError, match="alpha must be one of background, mask, ignore, got 'no'"):
        read_view(view, "no")  # pyright: ignore[reportArgumentType]


def test_a_photograph_that_changed_its_size_since_is_named(tmp_path: Path) -> None:
    path = tmp_path / "small.png"
    write_png(path, np.zeros((3, 4, 3), np.uint8))
    for view in (View("s", path, Camera.from_matrix(np.eye(4), 8, 6, 9, 9, 4, 3)), view_through(path, lens_of("FOV"))):
        with pytest.raises(InputError, match=r"is 4 ?x ?3 pixels"):
            read_view(view)


def test_a_terminate_signal_stays_ours_once_the_lens_library_is_loaded() -> None:
    code = (
        "import os, signal, threading\nfrom splatscope.assets.lens import colmap_library\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('ours'))\n"
        "reader = threading.Thread(target=colmap_library)\nreader.start()\nreader.join()\n"
        "os.kill(os.getpid(), signal.SIGTERM)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ours\n", "")
