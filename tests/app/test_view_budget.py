"""Tests the cost of pictures during a run: the bounds that hold together, and the price that the window shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, repeat

import numpy as np
import pytest

from splatscope.app.engine.frame_queue import SHARPENING_SECONDS, FrameQueue
from splatscope.app.engine.opened import Opened
from splatscope.app.engine.view_budget import COST_SECONDS, ViewBudget
from splatscope.kernels.backends import make_backend
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Gaussians
from splatscope.viewer.messages.view import PhotographWish, ViewRequest
from tests.app.test_engine import ball, looking


def pictures(
    budget: ViewBudget, takes: Iterator[float], moving: bool = False, length: float = 10.0, step: float = 1e-3
) -> list[float]:
    """Returns the times of the pictures in ten seconds, if they are asked for between steps."""
    drawn, now = [], 0.0
    while now < length:
        if budget.is_due(now, moving):
            drawn.append(next(takes))
            budget.note(now, drawn[-1])
            now += drawn[-1]
        now += step
    return drawn


def some_budget(share: float = 0.25) -> ViewBudget:
    return ViewBudget(share, 0.6, 30.0, 10.0)


def test_quick_pictures_come_at_the_rate_and_slow_ones_take_their_share() -> None:
    assert len(pictures(some_budget(), repeat(0.001))) == pytest.approx(100, rel=0.05)
    assert len(pictures(some_budget(), repeat(0.1))) == pytest.approx(25, rel=0.1)
    assert len(pictures(some_budget(0.1), repeat(0.1))) == pytest.approx(10, rel=0.1)
    assert len(pictures(ViewBudget(0.25, 0.6, 5.0, 10.0), repeat(0.001))) == pytest.approx(50, rel=0.05)


def test_a_view_that_changes_gets_more_of_the_time_and_more_pictures() -> None:
    assert len(pictures(some_budget(), repeat(0.001), moving=True)) == pytest.approx(300, rel=0.01)
    assert len(pictures(some_budget(), repeat(0.1), moving=True)) == pytest.approx(60, rel=0.05)
    assert len(pictures(some_budget(0.8), repeat(0.1), moving=True)) == pytest.approx(80, rel=0.05)
    still = some_budget()
    for began in (0.0, 1.0):
        still.note(began, 0.1)
    assert still.is_due(1.2, is_new=True)
    assert not still.is_due(1.2, is_new=False)


@pytest.mark.parametrize("step", [0.0003, 0.007, 0.011])
def test_the_rate_is_kept_whatever_a_step_takes(step: float) -> None:
    assert len(pictures(some_budget(), repeat(0.001), moving=True, step=step)) == pytest.approx(300, rel=0.02)


def test_pictures_take_no_more_than_their_share_however_unevenly_they_take_it() -> None:
    uneven = np.random.default_rng(5).exponential(0.04, 1000)
    for seconds in (iter(uneven), cycle((0.03, 0.2)), cycle((0.3, 0.5))):
        budget = some_budget(0.1)
        taken = pictures(budget, seconds, length=100.0)
        assert sum(taken) / 100.0 == pytest.approx(0.1, rel=0.05)
        assert budget.cost(100.0) <= 0.1


def test_a_single_picture_that_took_long_keeps_no_other_from_coming() -> None:
    budget = some_budget()
    budget.note(0.0, 0.001)
    budget.note(0.1, 20.0)
    assert budget.is_due(20.2, is_new=False), "the first of a size: kernels, buffers, a graph"
    budget.note(20.2, 2.0)
    assert not budget.is_due(28.1, is_new=False), "now they do take long"
    assert budget.is_due(28.3, is_new=False)


@pytest.mark.parametrize(("seconds", "cost"), [(0.001, 0.01), (0.1, 0.25)])
def test_the_cost_is_the_share_of_the_last_seconds_that_pictures_took(seconds: float, cost: float) -> None:
    budget = some_budget()
    pictures(budget, repeat(seconds), length=10.0)
    for looked in np.arange(10.0, 10.0 + seconds / cost, 0.01):
        assert budget.cost(looked) == pytest.approx(cost, rel=0.1), "also just after a picture"
    assert budget.cost(10.0 + 10 * COST_SECONDS) < 0.1 * cost, "none came any more"


def test_a_view_that_changed_once_is_no_dearer_than_the_two_pictures_it_brings() -> None:
    """Imitates the key G: one picture at once, and one when the photograph is read."""
    budget = some_budget(0.1)
    begun = len(pictures(budget, repeat(0.04), length=10.0))
    for now in (10.0, 10.1):
        assert budget.is_due(now, is_new=True)
        budget.note(now, 0.04)
    assert not budget.is_due(10.2, is_new=False)
    assert budget.cost(10.2) < 0.1 + 2 * 0.04 / COST_SECONDS + 0.01
    assert begun == pytest.approx(25, rel=0.05)


class Ball(Opened):
    """Stands for splats while training runs, and a number of photographs that have been read."""

    photographs_so_far = 0

    @property
    def is_training(self) -> bool:
        return True

    @property
    def gaussians(self) -> Gaussians:
        return ball()

    def photographs_read(self, request: ViewRequest) -> int:
        return self.photographs_so_far


def test_fewer_pixels_are_another_view_only_while_it_comes_to_rest() -> None:
    """Guards against a lower resolution that asks for pictures sooner, and so costs even more."""
    now, opened, backend = [0.0], Ball(), make_backend("cpu")
    frames = FrameQueue(some_budget(), lambda *_: None, clock=lambda: now[0])
    whole = ViewRequest(looking(0.0))
    coarse = replace(whole, camera=replace(whole.camera.resized(43, 32), fx=40.0, fy=40.0))  # 42.7 px wide, rounded

    def draw(request: ViewRequest) -> None:
        frames.begin(backend, opened, request, Policy())
        frames.finish(None)

    assert frames.is_new(opened, whole)
    draw(whole)
    assert not frames.is_new(opened, whole)
    now[0] += 0.5 * SHARPENING_SECONDS
    assert frames.is_new(opened, coarse), "it has just turned"
    now[0] += SHARPENING_SECONDS
    assert not frames.is_new(opened, coarse)
    draw(coarse)
    assert not frames.is_new(opened, whole)
    compared = replace(whole, photograph=PhotographWish(0))
    narrow = replace(whole, camera=replace(whole.camera, width=32, cx=16.0))
    for other in (ViewRequest(looking(0.1)), compared, narrow):
        assert frames.is_new(opened, other)
    draw(compared)
    now[0] += 2 * SHARPENING_SECONDS
    assert not frames.is_new(opened, compared)
    opened.photographs_so_far = 1
    assert frames.is_new(opened, compared), "the photograph has been read"
