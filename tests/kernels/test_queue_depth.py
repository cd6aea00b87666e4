"""Tests the number of steps queued ahead of the GPU: those of a set time, learnt from when steps end."""

from __future__ import annotations

import pytest

from splatscope.kernels.cuda.queue_depth import FIRST, LEAST, MOST, QUEUED_SECONDS, QueueDepth


def learn(depth: QueueDepth, seconds: float, steps: int = 200, start: float = 0.0, at_once: int = 1) -> float:
    """Runs steps of one length, reported `at_once` at a time; returns the time after them."""
    for number in range(1, steps + 1):
        depth.finished(start + seconds * (-(-number // at_once) * at_once))
    return start + seconds * steps


@pytest.mark.parametrize("at_once", [1, 4, 6])
def test_what_is_queued_keeps_the_gpu_busy_for_the_set_time(at_once: int) -> None:
    for milliseconds in (0.5, 1.0, 2.0):
        depth = QueueDepth()
        learn(depth, 1e-3 * milliseconds, at_once=at_once)
        assert depth.steps * 1e-3 * milliseconds == pytest.approx(QUEUED_SECONDS, rel=0.4)


def test_short_steps_have_a_limit_and_long_ones_never_leave_the_gpu_waiting() -> None:
    depth = QueueDepth()
    assert depth.steps == FIRST
    end = learn(depth, 2e-5)
    assert depth.steps == MOST
    learn(depth, 0.1, start=end)
    assert depth.steps == LEAST


def test_a_pause_between_steps_is_not_taken_for_their_length() -> None:
    depth = QueueDepth()
    end = learn(depth, 1e-3)
    before = depth.steps
    depth.restart()
    end = learn(depth, 1e-3, start=end + 30.0)
    assert depth.steps == before
    end = learn(depth, 1e-3, steps=40, start=end + 5.0)  # not told of
    assert depth.steps >= before // 2
    learn(depth, 1e-3, start=end)
    assert depth.steps == before
