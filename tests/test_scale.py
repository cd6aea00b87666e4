"""The heatmap's scale: linear or logarithmic, following the frame or locked; screen, legend and file agree on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from splatscope.app.pictures import compose, save_screenshot
from splatscope.assets.images import read_image
from splatscope.kernels.types import Camera
from splatscope.viewer import overlays
from splatscope.viewer.messages import ViewRequest
from splatscope.viewer.scale import HeatScale
from tests.test_overlays import some_frame


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("top", [1, 7, 10, 50, 437, 20_000, 1_000_000_000])
def test_labels_rise_from_zero_to_the_end_and_stand_where_their_colours_are(log: bool, top: int) -> None:
    scale = HeatScale(log=log, locked_top=top)
    ticks = scale.ticks(top)
    assert ticks[0] == 0
    assert ticks[-1] == top
    shares = scale.place(ticks, top)
    assert shares[0] == 0.0
    assert shares[-1] == pytest.approx(1.0)
    assert (np.diff(shares) > 0).all()
    assert len(ticks) <= 11


def test_a_logarithmic_scale_spreads_what_a_linear_one_crowds() -> None:
    counts = np.array([[0, 1, 9, 99, 999, 5000]], np.int32)
    shares = HeatScale(log=True).place(counts, 999)[0]
    assert shares == pytest.approx([0, 0.1003, 1 / 3, 2 / 3, 1, 1], abs=1e-3)
    assert HeatScale().place(counts, 999)[0, 2] < 0.01


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
    on_screen = compose(frame, request)
    picture, sheet, counts, *_ = save_screenshot(frame, request, tmp_path, "here", "cpu")
    assert np.array_equal(read_image(sheet)[:200, :333, :3], on_screen[..., :3])
    assert np.array_equal(np.load(counts), frame.tile_counts)
    assert picture.exists()
    linear = compose(frame, ViewRequest(camera, overlay="tiles", overlay_opacity=0.8))
    assert not np.array_equal(on_screen, linear)
