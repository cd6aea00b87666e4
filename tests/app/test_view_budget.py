"""What looking on may cost a run: bounds that hold together, and the price that is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, repeat

import numpy as np
import pytest

from splatscope.app.engine import frame_queue as feed_module
from splatscope.app.engine.frame_queue import FrameQueue
from splatscope.app.engine.measurements import Measurements
from splatscope.app.engine.view_budget import COST_SECONDS, ViewBudget
from splatscope.kernels.backends import make_backend
from splatscope.viewer.messages.view import PhotographWish, ViewRequest
from tests.app.test_engine import ball, looking


def pictures(
    governor: ViewBudget, takes: Iterator[float], moving: bool = False, length: float = 10.0, step: float = 1e-3
) -> list[float]:
    """What the pictures of ten seconds took if they are looked for between steps."""
    drawn, now = [], 0.0
    while now < length:
        if governor.is_due(now, moving):
            drawn.append(next(takes))
            governor.note(now, drawn[-1])
            now += drawn[-1]
        now += step
    return drawn


def governed(share: float = 0.25) -> ViewBudget:
    return ViewBudget(share, 0.6, 30.0, 10.0)


def test_quick_pictures_come_at_the_rate_and_slow_ones_take_their_share() -> None:
    assert len(pictures(governed(), repeat(0.001))) == pytest.approx(100, rel=0.05)
    assert len(pictures(governed(), repeat(0.1))) == pytest.approx(25, rel=0.1)
    assert len(pictures(governed(0.1), repeat(0.1))) == pytest.approx(10, rel=0.1)
    assert len(pictures(ViewBudget(0.25, 0.6, 5.0, 10.0), repeat(0.001))) == pytest.approx(50, rel=0.05)


def test_a_view_that_changes_gets_more_of_the_time_and_more_pictures() -> None:
    assert len(pictures(governed(), repeat(0.001), moving=True)) == pytest.approx(300, rel=0.01)
    assert len(pictures(governed(), repeat(0.1), moving=True)) == pytest.approx(60, rel=0.05)
    assert len(pictures(governed(0.8), repeat(0.1), moving=True)) == pytest.approx(80, rel=0.05)
    still = governed()
    for began in (0.0, 1.0):
        still.note(began, 0.1)
    assert still.is_due(1.2, is_new=True)
    assert not still.is_due(1.2, is_new=False)


@pytest.mark.parametrize("step", [0.0003, 0.007, 0.011])
def test_the_rate_is_kept_whatever_a_step_takes(step: float) -> None:
    assert len(pictures(governed(), repeat(0.001), moving=True, step=step)) == pytest.approx(300, rel=0.02)


def test_pictures_take_no_more_than_their_share_however_unevenly_they_take_it() -> None:
    uneven = np.random.default_rng(5).exponential(0.04, 1000)
    for seconds in (iter(uneven), cycle((0.03, 0.2)), cycle((0.3, 0.5))):
        governor = governed(0.1)
        taken = pictures(governor, seconds, length=100.0)
        assert sum(taken) / 100.0 == pytest.approx(0.1, rel=0.05)
        assert governor.cost(100.0) <= 0.1


def test_a_single_picture_that_took_long_keeps_no_other_from_coming() -> None:
    governor = governed()
    governor.note(0.0, 0.001)
    governor.note(0.1, 20.0)
    assert governor.is_due(20.2, is_new=False), "the first of a size: kernels, buffers, a graph"
    governor.note(20.2, 2.0)
    assert not governor.is_due(28.1, is_new=False), "now they do take long"
    assert governor.is_due(28.3, is_new=False)


@pytest.mark.parametrize(("seconds", "cost"), [(0.001, 0.01), (0.1, 0.25)])
def test_the_cost_is_the_share_of_the_last_seconds_that_pictures_took(seconds: float, cost: float) -> None:
    governor = governed()
    pictures(governor, repeat(seconds), length=10.0)
    for looked in np.arange(10.0, 10.0 + seconds / cost, 0.01):
        assert governor.cost(looked) == pytest.approx(cost, rel=0.1), "also just after a picture"
    assert governor.cost(10.0 + 10 * COST_SECONDS) < 0.1 * cost, "none came any more"


def test_a_view_that_changed_once_is_no_dearer_than_the_two_pictures_it_brings() -> None:
    """As G does: a picture at once, and one when the photograph is read."""
    governor = governed(0.1)
    begun = len(pictures(governor, repeat(0.04), length=10.0))
    for now in (10.0, 10.1):
        assert governor.is_due(now, is_new=True)
        governor.note(now, 0.04)
    assert not governor.is_due(10.2, is_new=False)
    assert governor.cost(10.2) < 0.1 + 2 * 0.04 / COST_SECONDS + 0.01
    assert begun == pytest.approx(25, rel=0.05)


def test_fewer_pixels_are_another_view_only_while_it_comes_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolution that gives way where pictures take long must not bring them sooner, and so cost more still."""
    feed, backend = FrameQueue(governed(), Measurements(lambda *_: None)), make_backend("cpu")
    whole = ViewRequest(looking(0.0))
    coarse = replace(whole, camera=replace(whole.camera.resized(43, 32), fx=40.0, fy=40.0))  # 42.7 px wide, rounded

    def draw(request: ViewRequest, photographs: int = 0) -> None:
        feed.begin(backend, ball(), request, (request, photographs), training=True)
        feed.finish(backend, None)

    assert feed.is_new((whole, 0))
    draw(whole)
    assert not feed.is_new((whole, 0))
    monkeypatch.setattr(feed_module, "SHARPENING_SECONDS", 1e3)
    assert feed.is_new((coarse, 0)), "it has just turned"
    monkeypatch.setattr(feed_module, "SHARPENING_SECONDS", 0.0)
    assert not feed.is_new((coarse, 0))
    draw(coarse)
    assert not feed.is_new((whole, 0))
    beside = replace(whole, photograph=PhotographWish(0))
    narrow = replace(whole, camera=replace(whole.camera, width=32, cx=16.0))
    for other in (ViewRequest(looking(0.1)), beside, narrow):
        assert feed.is_new((other, 0))
    draw(beside)
    assert feed.is_new((beside, 1)), "the photograph has been read"
