"""What looking on may cost a run: bounds that hold together, and the price that is told."""

from __future__ import annotations

import pytest

from splatscope.app.governor import MOVING_SECONDS, Governor

LONG_AGO = -10.0


def pictures(governor: Governor, seconds: float, changed: float = LONG_AGO, length: float = 10.0) -> int:
    """How many pictures are drawn in ten seconds if each takes so long, looked for every millisecond."""
    drawn, now = 0, 0.0
    while now < length:
        if governor.is_due(now, now if changed > 0 else changed):
            governor.note(now, seconds)
            drawn += 1
            now += seconds
        now += 0.001
    return drawn


def test_quick_pictures_come_at_the_rate_and_slow_ones_take_their_share() -> None:
    assert pictures(Governor(0.25, 0.6, 30.0), 0.001) == pytest.approx(300, rel=0.05)
    assert pictures(Governor(0.25, 0.6, 30.0), 0.1) == pytest.approx(25, rel=0.05)
    assert pictures(Governor(0.1, 0.6, 30.0), 0.1) == pytest.approx(10, rel=0.1)


def test_a_moving_camera_gets_more_of_the_time() -> None:
    assert pictures(Governor(0.25, 0.6, 30.0), 0.1, changed=1.0) == pytest.approx(60, rel=0.05)
    assert pictures(Governor(0.8, 0.6, 30.0), 0.1, changed=1.0) == pytest.approx(80, rel=0.05)
    still = Governor(0.25, 0.6, 30.0)
    still.note(0.0, 0.1)
    assert still.is_due(0.2, 0.2)
    assert not still.is_due(0.2, 0.2 - MOVING_SECONDS)


def test_the_cost_is_the_share_of_the_time_that_pictures_took() -> None:
    for seconds, cost in ((0.001, 0.03), (0.1, 0.25)):
        governor = Governor(0.25, 0.6, 30.0)
        pictures(governor, seconds)
        assert governor.cost == pytest.approx(cost, rel=0.1)
