"""Tests the curves of a run: the points drawn, the numbers next to them, and the saved table."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splatscope.viewer.drawing.plots import TICKS, common_range, log_ticks, stairs, ticks
from splatscope.viewer.figures.tables import curve_rows, view_rows, write_table
from splatscope.viewer.messages.run import EMPTY_CURVE, Curve, TrainingStatus
from splatscope.viewer.messages.view import ViewFigures
from splatscope.viewer.panels.views import in_words
from tests.support.fake_engine import SCENE


def curve(x: object, y: object) -> Curve:
    return Curve(np.asarray(x, np.float64), np.asarray(y, np.float64))


@pytest.mark.parametrize("most", [TICKS, 5])
def test_numbers_beside_a_plot_are_round_within_it_and_few_but_two(most: int) -> None:
    rng = np.random.default_rng(5)
    for _ in range(3000):
        low = rng.uniform(-1, 1) * 10 ** rng.uniform(-6, 7)
        high = low + max(abs(low), 1e-6) * 10 ** rng.uniform(-3, 2)
        found = [value for _, value in ticks(low, high, most)]
        assert 2 <= len(found) <= most, (low, high)
        assert low <= found[0] < found[-1] <= high
        steps = np.diff(found) / 10 ** np.floor(np.log10(found[1] - found[0]) + 1e-9)
        assert np.isclose(steps[:, None], (1, 2, 2.5, 4, 5)).any(axis=1).all()
    assert ticks(9800, 10900) == (("10,000", 10000), ("10,400", 10400), ("10,800", 10800))
    assert [label for label, _ in ticks(9e5, 4e6)] == ["2M", "4M"]


def test_numbers_of_a_logarithmic_plot_are_powers_of_ten_or_round_between_them() -> None:
    assert log_ticks(-2.5, 0.2) == (("0.01", -2.0), ("0.1", -1.0), ("1", 0.0))
    assert len(log_ticks(-9.5, 0.2)) <= TICKS
    between = log_ticks(-1.4, -0.6)
    assert [label for label, _ in between] == ["0.05", "0.1", "0.2"]
    assert [10**value for _, value in between] == pytest.approx([0.05, 0.1, 0.2])
    assert [label for label, _ in log_ticks(-1.3, -1.2)] == ["0.052", "0.056", "0.06"]


def test_a_count_is_drawn_where_it_jumps_and_no_slope_between() -> None:
    counts = np.repeat([100, 140, 140, 90], 100)
    x, y = stairs(curve(np.arange(1, 401), counts), 120)
    assert x.tolist() == [1, 101, 301]
    assert y.tolist() == [100, 140, 90]
    x, y = stairs(curve(np.arange(5000), np.arange(5000)), 120)
    assert len(x) == 120
    assert (x[0], x[-1]) == (0, 4999)


def test_curves_of_a_resumed_run_share_the_iterations_of_the_longest() -> None:
    loss, psnr = curve(np.arange(1, 2001), np.ones(2000)), curve([500, 1000], [20, 22])
    count = curve(np.arange(1714, 2001), np.ones(287))
    assert common_range([loss, psnr, count, EMPTY_CURVE]) == (1, 2000)
    assert common_range([EMPTY_CURVE])[0] < common_range([EMPTY_CURVE])[1]


def test_curves_are_saved_by_iteration_with_gaps_where_one_has_no_point(tmp_path: Path) -> None:
    training = TrainingStatus(
        loss_curve=curve([1, 2, 3], [0.5, 0.25, 0.125]), psnr_curve=curve([2], [21.5]), count_curve=curve([3], [70])
    )
    path = write_table(tmp_path / "run" / "curves.csv", *curve_rows(training))
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["iteration"] for row in rows] == ["1", "2", "3"]
    assert [row["loss"] for row in rows] == ["0.5", "0.25", "0.125"]
    assert [row["held-out_PSNR"] for row in rows] == ["", "21.5", ""]
    assert [row["splats"] for row in rows] == ["", "", "70.0"]


def test_the_table_of_views_names_them_and_their_means_are_told_apart() -> None:
    cameras = (replace(SCENE.cameras[0], is_test=True), *SCENE.cameras[1:3])
    figures = [ViewFigures(k, 2.0 + k, 100 * (k + 1), (640, 480), 20.0 + 4 * k) for k in range(3)]
    columns, rows = view_rows(figures, cameras)
    assert [dict(zip(columns, row, strict=True))["held_out"] for row in rows] == [1, 0, 0]
    assert rows[1][0] == cameras[1].name
    assert in_words(figures, cameras) == (
        "Mean 3.00 ms, 200 instances, PSNR 26.00 dB, held out 20.00 dB. Drawn at 640 x 480."
    )
