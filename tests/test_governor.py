"""What looking on may cost a run: bounds that hold together, and the price that is told."""

from __future__ import annotations

import pytest

from splatscope.app.governor import MOVING_SECONDS, Governor

LONG_AGO = -10.0


def pictures(
    governor: Governor, seconds: float, moving: bool = False, length: float = 10.0, step: float = 0.001
) -> int:
    """How many pictures are drawn in ten seconds if each takes so long, looked for between steps."""
    drawn, now = 0, 0.0
    while now < length:
        if governor.is_due(now, now if moving else LONG_AGO):
            governor.note(now, seconds)
            drawn += 1
            now += seconds
        now += step
    return drawn


def governed(share: float = 0.25) -> Governor:
    return Governor(share, 0.6, 30.0, 10.0)


def test_quick_pictures_come_at_the_rate_and_slow_ones_take_their_share() -> None:
    assert pictures(governed(), 0.001) == pytest.approx(100, rel=0.05)
    assert pictures(governed(), 0.1) == pytest.approx(25, rel=0.1)
    assert pictures(governed(0.1), 0.1) == pytest.approx(10, rel=0.1)
    assert pictures(Governor(0.25, 0.6, 5.0, 10.0), 0.001) == pytest.approx(50, rel=0.05)


def test_a_moving_camera_gets_more_of_the_time_and_more_pictures() -> None:
    assert pictures(governed(), 0.001, moving=True) == pytest.approx(300, rel=0.01)
    assert pictures(governed(), 0.1, moving=True) == pytest.approx(60, rel=0.05)
    assert pictures(governed(0.8), 0.1, moving=True) == pytest.approx(80, rel=0.05)
    still = governed()
    for began in (0.0, 1.0):
        still.note(began, 0.1)
    assert still.is_due(1.2, 1.2)
    assert not still.is_due(1.2, 1.2 - MOVING_SECONDS)


@pytest.mark.parametrize("step", [0.0003, 0.007, 0.011])
def test_the_rate_is_kept_whatever_a_step_takes(step: float) -> None:
    assert pictures(governed(), 0.001, moving=True, step=step) == pytest.approx(300, rel=0.02)


def test_a_single_picture_that_took_long_keeps_no_other_from_coming() -> None:
    governor = governed()
    for began in (0.0, 0.1):
        governor.note(began, 0.001)
    governor.note(0.2, 0.5)
    assert governor.is_due(0.8, LONG_AGO), "the first of a size: kernels, buffers, a graph"
    governor.note(0.8, 0.5)
    assert not governor.is_due(1.6, LONG_AGO), "now they do take long"
    assert governor.is_due(2.9, LONG_AGO)


def test_the_cost_is_the_share_of_the_time_that_pictures_took() -> None:
    for seconds, cost in ((0.001, 0.01), (0.1, 0.25)):
        governor = governed()
        pictures(governor, seconds)
        assert governor.cost == pytest.approx(cost, rel=0.1)
