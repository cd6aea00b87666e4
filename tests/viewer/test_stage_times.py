"""Tests stage times: which frames count, how many make a mean, how many are requested; and a measurement in words.

No window; `test_window_toggles.py` uses the panel.
"""

from __future__ import annotations

import math

import pytest

from splatscope.kernels.policy import toggle_table
from splatscope.viewer.figures.stage_times import (
    DRAWING_MS,
    ENOUGH_FOR_MEAN,
    ENOUGH_FOR_P99,
    LEAST,
    RECENT,
    WANTED,
    StageTimes,
    figure,
    figures,
)
from splatscope.viewer.messages.view import Comparison, StageChange
from splatscope.viewer.panels.comparison_table import change_in_words, column_names, in_words
from splatscope.viewer.panels.toggles import origin, short_reason


def times_of(*blends: float, setting: str = "best", view: object = "here") -> StageTimes:
    times = StageTimes()
    for blend in blends:
        times.add({"project": 1.0, "blend": blend}, setting, view)
    return times


def test_the_first_frame_after_a_change_is_a_warm_up_and_does_not_count() -> None:
    times = times_of(174.0, 76.0, 77.0)
    assert times.table[:, 1].tolist() == [76.0, 77.0]
    times.add({"project": 1.0, "blend": 300.0}, "s00", "here")
    assert (len(times), times.in_words("frame")) == (0, "1 frame, a warm-up")
    assert times.table[:, 1].tolist() == [300.0], "shown until there is another one"
    times.add({"project": 1.0, "blend": 90.0}, "s00", "here")
    assert times.table[:, 1].tolist() == [90.0]
    times.add({"project": 1.0}, "s00", "here")  # another backend's stages
    assert (len(times), times.stages) == (0, ("project",))


def test_frames_of_one_view_are_counted_apart_from_those_of_a_moving_one() -> None:
    times = times_of(9.0, 1.0)
    for k in range(4):
        times.add({"project": 1.0, "blend": 10.0 + k}, "best", k)
    assert times.table[:, 1].tolist() == [10.0, 11.0, 12.0, 13.0]
    assert times.in_words("frame") == "4 frames, moving"
    times.add({"project": 1.0, "blend": 50.0}, "best", 3)  # it has come to rest
    assert times.table[:, 1].tolist() == [50.0]
    assert times.in_words("frame") == "1 frame, this view"


def test_training_steps_have_no_view_and_are_counted_from_the_second() -> None:
    times = StageTimes()
    for k in range(RECENT + 5):
        times.add({"forward": float(k), "adam": 1.0})
        if k == 2:
            assert times.in_words("step") == "2 steps"
    assert times.in_words("step") == f"last {RECENT} steps"
    times.forget()
    assert len(times) == 0


def test_a_mean_and_a_percentile_are_shown_only_of_enough_frames() -> None:
    for blends in ([76.6], [174.1, 76.6]):
        one = figures(times_of(*blends).table[:, 1])
        assert (one.newest, one.mean, one.p99) == (76.6, None, None)
    some = figures(times_of(*range(ENOUGH_FOR_MEAN + 1)).table[:, 1])
    assert some.mean == pytest.approx(2.0)
    assert some.p99 is None
    many = figures(times_of(*range(ENOUGH_FOR_P99 + 1)).table[:, 1])
    assert many.p99 is not None
    assert [figure(value) for value in (None, 0.0412, 76.62, 174.1)] == ["     –", " 0.041", " 76.62", " 174.1"]


def test_a_still_view_is_drawn_until_there_are_enough_frames_and_rests_in_between() -> None:
    assert times_of(10.0).wants_more(seconds=0.01, picture_ms=10.0)
    assert not times_of(10.0).wants_more(seconds=0.009, picture_ms=10.0), "half of the time is left to others"
    assert not times_of(*[1.0] * (WANTED + 1)).wants_more(1.0, 1.0)
    slow = [DRAWING_MS] * LEAST
    assert times_of(*slow).wants_more(10.0, DRAWING_MS), "a few at any rate"
    assert not times_of(*slow, DRAWING_MS).wants_more(10.0, DRAWING_MS)


def test_a_change_is_told_with_its_interval_and_what_follows() -> None:
    told = {
        "-0.265 ms (-0.310 to -0.121): faster": StageChange("sort", 3.084, 2.819, -0.310, -0.121),
        "+7.400 ms (-3.100 to +21.04): within noise": StageChange("", 69.2, 76.6, -3.1, 21.04),
        "+46.80 ms (+45.10 to +48.90): slower": StageChange("blend", 14.4, 61.2, 45.1, 48.9),
        "+1.000 ms, too few pairs to tell": StageChange("", 1.0, 2.0, -math.inf, math.inf),
    }
    assert [change_in_words(change) for change in told.values()] == list(told)
    result = Comparison("best", "s00", 20, 20, max_difference=0.0, psnr=math.inf)
    assert in_words(result) == "20 pairs, measured in turns. The pictures are identical."
    assert column_names(result) == ("best", "s00")
    assert column_names(Comparison("best, exp = expf", "s00 with 4 changes", 20)) == ("other", "current")


def test_a_switch_names_what_it_needs_and_every_tag_is_explained() -> None:
    rows = {row.key: row for row in toggle_table("cuda")}
    assert short_reason(rows["blend.cmask"], ["on"]) == "needs compaction"
    assert short_reason(rows["blend.running_T"], ["on"]) == "needs branchless, sign T"
    assert short_reason(rows["blend.cmask"], []) == ""
    assert origin(rows["bin.bounds"]) == "s01b: added by this rung of the ladder."
    assert origin(rows["schedule.record"]) == "own: not in the ladder."
