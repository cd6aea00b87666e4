"""Tests photographs over the picture: placed as their camera tells, compared correctly, within bounded memory."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splatscope.app.engine import photograph_cache
from splatscope.app.engine.photograph_cache import PhotographCache, map_errors, psnr, resample, undo_magnification
from splatscope.app.opening.scene import fit_camera
from splatscope.assets.capture import Mask, View
from splatscope.assets.photographs.images import write_png
from splatscope.kernels.types import Camera
from splatscope.viewer.figures.overlays import TURBO
from splatscope.viewer.messages.view import PhotographWish


def camera(width: int, height: int, focal: float = 90.0) -> Camera:
    return Camera.from_matrix(np.eye(4), width, height, focal, 1.02 * focal, 0.53 * width, 0.46 * height)


def slope(width: int, height: int) -> np.ndarray:
    """Returns values that grow evenly from pixel to pixel, so that resampling keeps them."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    return np.stack([20 + 200 * x / width, 20 + 200 * y / height, 128 + 0 * x], axis=2).round().astype(np.uint8)


@pytest.mark.parametrize(("width", "height"), [(160, 120), (320, 240), (401, 240), (160, 333), (97, 61), (53, 40)])
def test_a_photograph_lies_on_the_pixels_where_its_camera_saw_it(width: int, height: int) -> None:
    taken_by = camera(160, 120)
    seen_by = fit_camera(taken_by, width, height)
    left, top, laid = resample(slope(160, 120), taken_by, seen_by)
    scale = seen_by.fx / taken_by.fx
    assert abs(laid.shape[1] - 160 * scale) <= 2
    assert abs(laid.shape[0] - 120 * scale) <= 2
    assert left + laid.shape[1] <= width
    assert top + laid.shape[0] <= height
    rows, columns = np.mgrid[0 : laid.shape[0], 0 : laid.shape[1]]
    # The photograph's pixel coordinate of each pixel's centre, by the two cameras.
    x = (columns + left + 0.5 - seen_by.cx) / seen_by.fx * taken_by.fx + taken_by.cx - 0.5
    y = (rows + top + 0.5 - seen_by.cy) / seen_by.fy * taken_by.fy + taken_by.cy - 0.5
    inside = (x > 4) & (x < 155) & (y > 4) & (y < 115)
    expected = np.stack([20 + 200 * x / 160, 20 + 200 * y / 120], axis=2)
    assert np.abs(laid[..., :2] - expected)[inside].max() < 1.6


def test_at_its_own_size_a_photograph_is_not_touched() -> None:
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
    left, top, laid = resample(pixels, camera(64, 48), camera(64, 48))
    assert (left, top) == (0, 0)
    assert np.array_equal(laid, pixels)


def test_differences_are_measured_and_coloured() -> None:
    a = np.full((10, 12, 3), 100, np.uint8)
    b = a.copy()
    assert psnr(a, b) == math.inf
    b[...] = 110
    assert psnr(a, b) == pytest.approx(20 * math.log10(255 / 10))
    b[0, 0] = (100, 100, 130)  # 10 on average, as elsewhere
    colors = map_errors(a, b, top=20 / 255)
    assert (colors[..., 3] == 255).all()
    assert (colors[..., :3] == TURBO[127]).all()
    assert (map_errors(a, b, top=10 / 255)[..., :3] == TURBO[255]).all()
    assert (map_errors(a, a, top=0.5)[..., :3] == TURBO[0]).all()


def cache_of(folder: Path, count: int) -> tuple[PhotographCache, list[View], threading.Event]:
    """Returns a cache of `count` plain photographs, the last one damaged."""
    views = []
    for k in range(count):
        write_png(folder / f"{k}.png", np.full((30, 40, 3), 10 * k, np.uint8))
        views.append(View(f"{k}.png", folder / f"{k}.png", camera(40, 30)))
    views[-1].image_path.write_bytes(b"no picture")
    came = threading.Event()
    return PhotographCache(views, (0.0, 0.0, 0.0), "background", "use", came.set), views, came


def wait_for(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_a_magnified_photograph_does_not_hold_is_no_error() -> None:
    rng = np.random.default_rng(5)
    photograph = rng.integers(0, 200, (30, 40, 3), dtype=np.uint8)
    detail = np.array([[5, 0], [0, 5]], np.uint8)[..., None].repeat(3, axis=2)  # no pixel of the photograph sees it
    picture = photograph.repeat(2, axis=0).repeat(2, axis=1) + np.tile(detail, (30, 40, 1))
    assert psnr(undo_magnification(picture, 2.0), photograph) > 35.0
    assert undo_magnification(photograph, 0.5) is photograph, "a photograph seen smaller is compared as it is seen"


def test_photographs_are_read_on_a_thread_and_a_damaged_one_says_so(tmp_path: Path) -> None:
    cache, views, came = cache_of(tmp_path, 3)
    rgba = np.full((60, 80, 4), 30, np.uint8)
    seen_by = fit_camera(views[1].camera, 80, 60)
    assert "reading" in cache.compare(PhotographWish(1), rgba, seen_by).note
    assert came.wait(120)
    shown = cache.compare(PhotographWish(1, error_top=0.5), rgba, seen_by)
    assert shown.rgba is not None
    assert shown.rgba[20, 30].tolist() == [10, 10, 10, 255]
    assert shown.psnr == pytest.approx(20 * math.log10(255 / 20))
    assert shown.size == (40, 30), "no more than the photograph holds"
    assert shown.errors is not None
    assert cache.compare(PhotographWish(1), rgba, seen_by).rgba is shown.rgba, "resampled once"
    cache.photograph(2)
    wait_for(lambda: cache.photograph(2))
    assert "2.png is not an image" in cache.compare(PhotographWish(2), rgba, seen_by).note
    assert "no photograph" in cache.compare(PhotographWish(7), rgba, seen_by).note
    cache.close()


def test_what_a_mask_leaves_out_is_dimmed_and_is_no_error(tmp_path: Path) -> None:
    cache, views, _ = cache_of(tmp_path, 3)
    write_png(tmp_path / "m.png", np.repeat(np.array([[0] * 20 + [255] * 20], np.uint8), 30, axis=0))
    views[1] = replace(views[1], mask=Mask(tmp_path / "m.png"))
    rgba = np.full((60, 80, 4), 30, np.uint8)
    rgba[:, :40] = 255  # as far from the photograph as can be, where that does not count
    seen_by = fit_camera(views[1].camera, 80, 60)
    wait_for(lambda: cache.photograph(1) is not None)
    shown = cache.compare(PhotographWish(1, error_top=0.5), rgba, seen_by)
    assert shown.rgba is not None
    assert shown.errors is not None
    assert shown.rgba[20, [10, 70], 0].tolist() == [10 // 4, 10]
    assert shown.psnr == pytest.approx(20 * math.log10(255 / 20), abs=0.2)
    assert (shown.errors[20, 10, :3] == TURBO[0]).all()
    assert not (shown.errors[20, 70, :3] == TURBO[0]).all()
    cache.close()


def test_what_is_kept_of_many_photographs_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photograph_cache, "KEPT_BYTES", 3 * 40 * 30 * 3)
    monkeypatch.setattr(photograph_cache, "THUMBNAILS", 4)
    cache, _views, _ = cache_of(tmp_path, 9)
    for index in range(8):
        wait_for(lambda index=index: cache.photograph(index) is not None)
    assert len(cache._photographs) == 3
    cache.want_small(range(9))
    wait_for(lambda: set(cache.thumbnails()) == {5, 6, 7, 8})
    assert cache.thumbnails()[8].shape == (84, 112, 3), "the damaged one is marked"
    cache.want_small([100, -1])
    cache.close()
    cache._thread.join(10)
    assert not cache._thread.is_alive()
