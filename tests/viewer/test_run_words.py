"""Tests the words of the panel and the status bar about a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from splatscope.kernels.wording import byte_size
from splatscope.viewer.messages.run import MemoryUse, Phase, Refined, TrainingStatus
from splatscope.viewer.messages.view import EngineStatus, LogLine, SearchStatus
from splatscope.viewer.palette import ACCENT, STATE_COLORS
from splatscope.viewer.state.run_wording import (
    memory_words,
    phase_words,
    progress_words,
    score_label,
    score_words,
    size_words,
    state_word,
)
from splatscope.viewer.state.status_message import NEWS_SECONDS, StatusMessage
from tests.support.fake_engine import SCENE

RUNNING = TrainingStatus(state="running", iteration=412, iterations=7_000)


def test_the_word_for_a_state_is_what_is_being_done_and_only_steps_are_green() -> None:
    search = SearchStatus(Path("photographs"), "Matching", 0.2)
    for status, word, color in (
        (EngineStatus(busy="starting…"), "starting", ACCENT),
        (EngineStatus(busy="opening garden.ply…"), "opening", ACCENT),
        (EngineStatus(search=search), "finding cameras", ACCENT),
        (EngineStatus(), "nothing", STATE_COLORS["none"]),
        (EngineStatus(SCENE, busy="compiling…"), "nothing", STATE_COLORS["none"]),
        (EngineStatus(SCENE, training=TrainingStatus("ready"), busy="compiling kernels…"), "compiling", ACCENT),
        (EngineStatus(SCENE, training=TrainingStatus("ready")), "ready", STATE_COLORS["ready"]),
        (EngineStatus(SCENE, training=replace(RUNNING, doing="loading photographs")), "loading photographs", ACCENT),
        (EngineStatus(SCENE, training=RUNNING, busy="compiling…"), "running", STATE_COLORS["running"]),
        (EngineStatus(SCENE, training=RUNNING, search=search), "running", STATE_COLORS["running"]),
        (EngineStatus(SCENE, training=TrainingStatus("paused", doing="scoring")), "scoring", ACCENT),
    ):
        assert state_word(status, "nothing") == (word, color)


def test_scores_say_of_which_views_they_are_and_after_which_iteration() -> None:
    assert (score_label(RUNNING), score_words(RUNNING)) == ("Score", "")
    for label, word in (("held-out PSNR", "Held-out"), ("training PSNR", "Training")):
        scored = replace(RUNNING, psnr=29.894, ssim=0.9, psnr_label=label, scored_at=0)
        assert (score_label(scored), score_words(scored)) == (word, "29.89 dB, SSIM 0.9000 at 0")


def test_a_run_can_be_scored_once_an_iteration_as_soon_as_it_has_begun() -> None:
    assert RUNNING.can_be_scored
    for status, can in (
        (replace(RUNNING, scored_at=412), False),
        (replace(RUNNING, scored_at=400), True),
        (replace(RUNNING, doing="scoring"), False),
        (replace(RUNNING, state="finished"), True),
        (replace(RUNNING, state="error"), False),
        (replace(RUNNING, state="ready"), True),
        (TrainingStatus("ready"), False),
    ):
        assert status.can_be_scored == can, status


def test_where_a_run_pauses_is_said_beside_where_it_is() -> None:
    assert progress_words(RUNNING) == ("412 / 7,000", "412")
    assert progress_words(replace(RUNNING, until=650))[0] == "412 / 7,000, to pause at 650"


def test_the_phase_names_what_the_newest_refine_did_and_when_the_next_comes() -> None:
    phase = Phase(1, 3, 320, 240, 2, Refined(600, 120, 0, 31, 0), 700, 14_900)
    assert phase_words(phase, 640).splitlines() == [
        "Refined at 600: 120 added, 31 pruned",
        "Next refine at 700, the last at 14,900",
    ]
    assert size_words(phase) == "320 x 240, 1/2 of full size"
    assert (size_words(replace(phase, divisor=1)), size_words(Phase())) == ("320 x 240", "")
    over = Phase(refined=Refined(14_900, 0, 0, 0, 0), last_refine=14_900)
    assert phase_words(over, 20_000) == "Refined at 14,900: nothing to do\nNo refine after 14,900"
    assert phase_words(Phase(), 640) == "Not refined yet\nNo refine is planned", "two lines, so that nothing moves"


def test_memory_is_what_is_in_use_what_there_is_and_what_the_run_needs_in_units_that_fit() -> None:
    use = MemoryUse("Memory", 2_300 << 20, 24_064 << 20, 40 << 20, 1000, True, 10**6)
    longest, *shorter = memory_words(use)
    assert longest == "Memory 2.2 of 23.5 GiB; run needs 40 MiB"
    assert shorter == ["Memory 2.2 of 23.5 GiB", "2.2 of 23.5 GiB", "10%"]
    longest, *_ = memory_words(replace(use, used=312 << 20, ends=False))
    assert longest == "Memory 312 MiB of 23.5 GiB; run needs up to 40 MiB"
    sizes = {0: "0 MiB", 5000: "1 MiB", 1023 << 20: "1023 MiB", (1 << 30) - 1: "1.0 GiB", 140 << 30: "140 GiB"}
    assert {size: byte_size(size) for size in sizes} == sizes


def test_a_forecast_gives_way_to_the_figures_of_the_run_and_what_is_said_later_stays_its_time() -> None:
    news = StatusMessage()
    forecast, saved = LogLine("info", "Forecast", 1), LogLine("info", "Saved", 2)
    assert news.newest(None, False, 0.0) is None
    assert news.newest(forecast, False, 1.0) == forecast
    assert news.newest(forecast, True, 1.5) is None
    assert news.newest(saved, True, 2.0) == saved
    assert news.newest(saved, True, 1.9 + NEWS_SECONDS) == saved
    assert news.newest(saved, True, 2.0 + NEWS_SECONDS) is None
    warning = LogLine("warning", "Two photographs are damaged.", 3)
    assert news.newest(warning, False, 40.0) == warning
    assert news.newest(warning, True, 41.0) == warning, "which matters as much now"
