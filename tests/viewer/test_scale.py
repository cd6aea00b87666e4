"""Tests the heatmap's scale: linear or logarithmic, following the frame or locked; the same on screen and in files."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from splatscope.app.engine.pictures import blend_heatmap, save_screenshot
from splatscope.app.opening.scene import open_scene
from splatscope.app.provenance import Provenance
from splatscope.assets.photographs.images import read_image
from splatscope.kernels.types import Camera
from splatscope.viewer.figures import overlays
from splatscope.viewer.figures.tile_values import make_legend
from splatscope.viewer.messages.scale import HeatScale, labels_with_room
from splatscope.viewer.messages.view import ViewRequest
from tests.assets.test_open_path import make_model
from tests.viewer.test_overlays import some_frame


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("top", [1, 2, 7, 10, 50, 437, 20_000, 1_000_000_000])
def test_labels_rise_from_the_beginning_to_the_end_and_stand_where_their_colours_are(log: bool, top: int) -> None:
    scale = HeatScale(log=log, locked_top=top)
    ticks = scale.ticks(top)
    assert ticks[0] == scale.bottom(top)
    assert (ticks[0] > 0) == log, "a logarithm does not begin at 0"
    assert ticks[-1] == top
    shares = scale.place(ticks, top)
    assert shares[0] == 0.0
    assert shares[-1] == pytest.approx(1.0)
    assert (np.diff(shares) > 0).all()
    assert len(ticks) <= 6


def test_a_logarithmic_scale_spreads_what_a_linear_one_crowds() -> None:
    counts = np.array([[0, 1, 10, 100, 1000, 5000]], np.int32)
    shares = HeatScale(log=True).place(counts, 1000)[0]
    assert shares == pytest.approx([0, 0, 1 / 3, 2 / 3, 1, 1])
    assert HeatScale().place(counts, 1000)[0, 2] == 0.01


def test_one_tile_that_took_very_long_does_not_stretch_the_scale_and_the_legend_says_so() -> None:
    times = np.full((30, 30), 40_000, np.int32)  # ns
    times[:, 0], times[0, 0] = 0, 20_104_000
    words = make_legend("µs per tile", times, HeatScale(), 1000)
    assert [text for text, _ in words.labels] == ["0", "10", "20", "30", "40", "50"]
    assert words.note == "ends at p99, max 20,104"
    locked = make_legend("µs per tile", times, HeatScale(log=True, locked_top=20_000), 1000)
    assert (locked.title, locked.note) == ("µs per tile, log", "max 20,104")
    assert [text for text, _ in locked.labels] == ["0.02", "0.1", "1", "10", "20"]
    times[0, 0] = 50_000
    assert make_legend("µs per tile", times, HeatScale(), 1000).note == "", "nothing is above the end"


def test_labels_that_would_touch_are_left_out_and_the_ends_stay() -> None:
    assert labels_with_room([0, 6, 40, 92, 100], [12] * 5) == [0, 2, 4]
    assert labels_with_room([0, 50, 100], [40, 80, 40], gap=6) == [0, 2]
    assert labels_with_room([0, 5], [12, 12]) == [1], "the end tells more"
    assert labels_with_room([], []) == []


def test_a_locked_scale_gives_the_same_count_the_same_colour_in_every_frame() -> None:
    locked = HeatScale(locked_top=300)
    few, many = (np.array([[100, top]], np.int32) for top in (120, 9000))
    assert locked.top(few) == locked.top(many) == 300
    colors = [overlays.tile_colors(counts, locked.top(counts), locked)[0, 0].tolist() for counts in (few, many)]
    assert colors[0] == colors[1]
    assert HeatScale().top(few) != HeatScale().top(many)


@pytest.mark.parametrize("scale", [HeatScale(log=True), HeatScale(locked_top=150), HeatScale(True, 90)])
def test_a_saved_heatmap_is_the_one_on_the_screen_with_its_counts_beside(tmp_path: Path, scale: HeatScale) -> None:
    frame = some_frame(333, 200)
    camera = Camera.from_matrix(np.eye(4), 333, 200, 200, 200, 166, 100)
    request = ViewRequest(camera, overlay="tiles", overlay_opacity=0.8, scale=scale)
    on_screen = blend_heatmap(overlays.picture_rgba(frame.image), frame, request)
    about = Provenance(Path("/captures/garden"), 3064, "cpu", "2 threads")
    picture, sheet, counts, table = save_screenshot(frame, request, tmp_path, "here", about)
    assert np.array_equal(read_image(sheet)[:200, :333, :3], on_screen[..., :3])
    assert np.array_equal(np.load(counts), frame.tile_counts)
    assert picture.exists()
    rows = list(csv.DictReader(table.open()))
    assert list(rows[0]) == ["tile_column", "tile_row", "splats_listed"]
    for row in (rows[0], rows[25], rows[-1]):
        assert int(row["splats_listed"]) == frame.tile_counts[int(row["tile_row"]), int(row["tile_column"])]
    assert len(rows) == frame.tile_counts.size
    plain = ViewRequest(camera, overlay="tiles", overlay_opacity=0.8)
    linear = blend_heatmap(overlays.picture_rgba(frame.image), frame, plain)
    assert not np.array_equal(on_screen, linear)


def test_a_file_is_named_after_its_scene_and_a_caption_tells_what_it_is_of(tmp_path: Path) -> None:
    splats = open_scene(make_model(tmp_path / "garden.v1") / "point_cloud" / "iteration_7").info
    about = Provenance(splats.path, splats.iteration, "cuda", "NVIDIA H200")
    assert about.caption == "garden.v1, iteration 7, cuda, NVIDIA H200"
    assert about.stamped().startswith("garden.v1-20")
    cup = Provenance(Path("cup.ply"), None, "cpu", "2 threads")
    assert cup.caption == "cup.ply, cpu, 2 threads"
    assert cup.stamped().startswith("cup-20")
