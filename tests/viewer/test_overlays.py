"""Tests pictures, heatmap and legend as arrays, and the resolution of requested pictures."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image, ImageDraw

from splatscope.kernels.types import Camera, Frame
from splatscope.viewer.drawing.plots import decimate
from splatscope.viewer.figures import overlays
from splatscope.viewer.figures.tile_values import make_legend
from splatscope.viewer.messages.run import Curve
from splatscope.viewer.messages.scale import LINEAR, nice_ceiling
from splatscope.viewer.messages.view import ViewRequest
from splatscope.viewer.state.resolution import Resolution


def some_frame(width: int, height: int, top: int = 700) -> Frame:
    rng = np.random.default_rng(5)
    image = rng.uniform(0, 1, (height, width, 3)).astype(np.float32)
    counts = rng.integers(0, top, (-(-height // 16), -(-width // 16)), dtype=np.int32)
    counts.flat[0] = top
    plain = np.zeros((height, width), np.float32)
    return Frame(image, plain, plain, counts, 4321, int(counts.sum()))


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (50, 333), (600, 801)])
def test_a_picture_is_rounded_clamped_and_opaque(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    image = rng.uniform(-0.5, 1.5, (*shape, 3)).astype(np.float32)
    rgba = overlays.picture_rgba(image)
    assert rgba.shape == (*shape, 4)
    assert rgba.dtype == np.uint8
    assert rgba.flags.c_contiguous
    assert (rgba[..., 3] == 255).all()
    assert np.array_equal(rgba[..., :3], np.rint(np.clip(image, 0, 1) * np.float32(255)).astype(np.uint8))


def test_values_that_are_no_colours_do_not_reach_the_screen() -> None:
    image = np.full((4, 4, 3), 0.5, np.float32)
    image[0, 0] = np.nan
    image[0, 1, 2] = np.nan
    image[0, 2], image[0, 3] = np.inf, -np.inf
    rgba = overlays.picture_rgba(image)
    assert rgba[0].tolist() == [[0, 0, 0, 255], [0, 0, 0, 255], [255, 255, 255, 255], [0, 0, 0, 255]]
    assert (rgba[1:, :, :3] == 128).all()


def test_a_picture_is_not_changed_by_being_converted() -> None:
    image = np.random.default_rng(2).uniform(-1, 2, (20, 30, 3)).astype(np.float32)
    copy = image.copy()
    overlays.picture_rgba(image)
    assert np.array_equal(image, copy)


@pytest.mark.parametrize(("width", "height"), [(64, 48), (37, 21), (16, 1), (100, 17)])
def test_every_pixel_of_a_tile_is_shifted_to_the_tiles_colour(width: int, height: int) -> None:
    frame = some_frame(width, height)
    plain = overlays.picture_rgba(frame.image)
    full, half = plain.copy(), plain.copy()
    overlays.blend_tile_heatmap(full, frame.tile_counts, 1.0)
    overlays.blend_tile_heatmap(half, frame.tile_counts, 0.5)
    colors = overlays.tile_colors(frame.tile_counts, LINEAR.top(frame.tile_counts))
    per_pixel = colors[np.arange(height)[:, None] // 16, np.arange(width)[None] // 16]
    assert np.array_equal(full[..., :3], per_pixel)
    assert np.abs(half[..., :3] - (plain[..., :3] / 2 + per_pixel / 2)).max() <= 1
    assert (full[..., 3] == 255).all()
    assert (half[..., 3] == 255).all()


def test_the_colours_rise_from_blue_to_red_and_end_where_the_scale_ends() -> None:
    colors = overlays.tile_colors(np.array([[0, 250, 500, 900, 1000, 5000]], np.int32), 1000)[0].astype(int)
    assert colors[1][2] > colors[1][0]  # blue below
    assert colors[2][1] > max(colors[2][0], colors[2][2])  # green in the middle
    assert colors[3][0] > 2 * colors[3][2]  # red above
    assert colors[4].tolist() == colors[5].tolist() == overlays.TURBO[255].tolist()


def test_the_scale_ends_at_a_round_number_that_holds_the_largest_count() -> None:
    assert [nice_ceiling(v) for v in (0, 9, 10, 11, 50, 51, 734, 1001)] == [
        10,
        10,
        10,
        20,
        50,
        100,
        1000,
        2000,
    ]
    assert LINEAR.ticks(1000) == (0, 200, 400, 600, 800, 1000)
    assert LINEAR.top(np.zeros((0, 0), np.int32)) == 10


def test_the_legend_shows_the_whole_colour_map_upright() -> None:
    legend = overlays.legend(make_legend("splats per tile", np.array([1000], np.int32), LINEAR), 400)
    assert legend.shape[0] == 400
    bar = legend[:, 12, :3]
    shown = [color for color in map(tuple, bar) if color in {tuple(c) for c in overlays.TURBO}]
    assert shown[0] == tuple(overlays.TURBO[255])
    assert shown[-1] == tuple(overlays.TURBO[0])
    assert len(set(shown)) > 200


def test_a_sheet_has_the_signs_that_the_window_has() -> None:
    def drawn(sign: str) -> np.ndarray:
        paper = Image.new("L", (30, 30))
        ImageDraw.Draw(paper).text((2, 2), sign, fill=255, font=overlays.sheet_font(16))
        return np.asarray(paper)

    assert [sign for sign in "µ–×°±" if np.array_equal(drawn(sign), drawn("\uffff"))] == []


@pytest.mark.parametrize(("width", "height"), [(640, 360), (90, 40), (1920, 1080)])
def test_a_heatmap_sheet_holds_the_picture_at_exact_pixels_beside_legend_and_facts(width: int, height: int) -> None:
    frame = some_frame(width, height)
    request = ViewRequest(Camera.from_matrix(np.eye(4), width, height, 100, 100, 0, 0), overlay="tiles")
    sheet = overlays.heatmap_picture(frame, request, "cpu", "garden.ply")
    picture = overlays.picture_rgba(frame.image)
    overlays.blend_tile_heatmap(picture, frame.tile_counts, 0.65)
    assert np.array_equal(sheet[:height, :width], picture)
    assert (sheet[..., 3] == 255).all()
    right, below = sheet[:height, width:, :3], sheet[max(height, 180) :, :, :3]
    assert right.max() > 200  # the legend's text
    assert below.max() > 200  # the line of facts


def test_a_curve_is_decimated_to_mean_and_extremes_of_each_stretch() -> None:
    x = np.arange(10_000, dtype=np.float64)
    y = np.sin(x / 500)
    y[1234], y[50] = 9.0, np.nan
    mean_x, mean, low, high = decimate(Curve(x, y), 100)
    assert len(mean_x) == 100
    assert (np.diff(mean_x) > 0).all()
    assert high.max() == 9.0
    assert np.isfinite(mean).all()
    assert ((low <= mean) & (mean <= high)).all()


@pytest.mark.parametrize("points", [0, 1, 3])
def test_a_short_curve_stays_as_it_is(points: int) -> None:
    x = np.arange(points, dtype=np.float64)
    mean_x, mean, low, high = decimate(Curve(x, 2 * x), 100)
    assert np.array_equal(mean_x, x)
    for values in (mean, low, high):
        assert np.array_equal(values, 2 * x)


def settle(time_of: float, budget: float, fixed: float = 0.0) -> float:
    """Returns the scale after a second of pictures that take `fixed` ms, and `time_of` ms more for a whole viewport."""
    resolution, scale = Resolution(), 1.0
    for _ in range(20):
        scale = resolution.scale(1920, 1080, budget)
        width, height = round(1920 * scale), round(1080 * scale)
        resolution.observe(width, height, fixed + time_of * width * height / (1920 * 1080))
    return scale


def test_a_fast_picture_keeps_its_resolution_and_a_slow_one_gives_way_until_it_is_in_time() -> None:
    assert settle(30.0, 55.0) == 1.0
    for slow in (100.0, 300.0, 700.0):
        scale = settle(slow, 55.0)
        assert slow * scale**2 <= 1.16 * 55.0
        assert slow * (scale + 2 / 16) ** 2 > 55.0  # not lower than needed
    assert settle(400.0, 1000.0) == 1.0


def test_a_cost_that_pixels_do_not_explain_does_not_drive_the_resolution_to_nothing() -> None:
    assert settle(10.0, 55.0, fixed=500.0) > 0.1
    assert settle(100.0, 55.0, fixed=20.0) == pytest.approx(math.sqrt(35.0 / 100.0), abs=0.1)


def test_the_resolution_returns_when_the_view_is_still() -> None:
    resolution = Resolution()
    resolution.observe(1920, 1080, 300.0)
    assert resolution.scale(1920, 1080, 55.0) < 0.5
    assert resolution.scale(1920, 1080, 1000.0) == 1.0
