"""Tests the schedule panel: its figures and pictures against schedules made by hand, and the panel in use."""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from splatscope.app.engine.schedule_view import blending_of, list_settings, record_frame, save_recorded_frame
from splatscope.app.provenance import Provenance
from splatscope.kernels.cpu import CpuBackend
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy
from splatscope.kernels.reference.backend import ReferenceBackend
from splatscope.kernels.schedule.rules import CostModel, Machine, imbalance
from splatscope.kernels.schedule.simulator import simulate
from splatscope.kernels.types import Gaussians, RenderSettings
from splatscope.viewer.figures import overlays
from splatscope.viewer.figures.schedule import (
    ASSUMED,
    CUSTOM,
    EXPLAINED,
    HERE,
    THREADS,
    VARIANTS,
    Analyst,
    analyse,
    checks_text,
    machine_name,
    overhead_text,
    ratio_of,
    ratio_text,
    recording_text,
    simulator_error,
    variant_of,
    what_if,
    where,
)
from splatscope.viewer.figures.schedule_plots import (
    CHUNK,
    GROUND,
    IDLE,
    MARKED,
    SHARE,
    WHOLE,
    Spans,
    gantt_image,
    place_of_rank,
    ranked_image,
    ranked_top,
)
from splatscope.viewer.figures.tile_hover import tile_at, tile_box, tile_rows
from splatscope.viewer.figures.tile_values import OVERLAYS, needs_recording, tile_values
from splatscope.viewer.messages.view import BlendMachine, Picture, ViewRequest
from tests.support.display import Program
from tests.support.places import STILL_LIFE, SUPPORT
from tests.support.small_scenes import random_camera, random_scene
from tests.viewer.test_window import SCRIPT, Hands

H200 = BlendMachine("H200", Machine(132, 6, 1.5), CostModel())


def skewed() -> np.ndarray[Any, Any]:
    """Returns [40, 50] counts, one tile far above the others."""
    counts = np.random.default_rng(0).integers(0, 400, (40, 50)).astype(np.int32)
    counts[7, 9] = 60_000
    return counts


# ---- Figures ---------------------------------------------------------------------------------------------------------


def test_figures_are_those_of_the_simulator_and_name_the_heavy_tile() -> None:
    figures = analyse(skewed(), H200, "length")
    assert [v.name for v in figures.variants] == list(VARIANTS)
    assert figures.even == imbalance(skewed(), H200.machine)
    assert figures.of("grid").makespan == pytest.approx(simulate(skewed().ravel(), H200.machine).makespan)
    assert figures.of("length").makespan < 0.5 * figures.of("lpt_binned").makespan
    assert figures.timeline.makespan == figures.of("length").makespan
    assert figures.parts.argmax() == 7 * 50 + 9
    assert ratio_of(skewed(), H200.machine) == pytest.approx(figures.even.ratio)
    assert ratio_of(np.zeros((2, 2), np.int32), H200.machine) == 0.0


def test_another_machine_keeps_what_is_known_of_this_one() -> None:
    assert what_if(H200, HERE, 1, 1) is H200
    assert what_if(H200, "GB10", 1, 1).machine == Machine(48, 6, 1.5)
    assert what_if(H200, CUSTOM, 300, 4).machine == Machine(300, 4, 1.5)
    assert what_if(H200, THREADS, 1, 1).machine == Machine(os.cpu_count() or 1, 1)
    threads = BlendMachine("2 threads", Machine(2, 1), CostModel())
    assert where(threads, HERE) == "On this device, 2 threads, simulated"
    assert where(what_if(threads, "A100", 1, 1), "A100") == "On A100, 108 SMs x 6 blocks, simulated"
    assert list(EXPLAINED) == list(VARIANTS), "a tooltip for each schedule"
    assert what_if(threads, "A100", 1, 1).machine == Machine(108, 6, ASSUMED.machine.saturated_by)
    assert machine_name(threads) == "2 threads"
    assert [ratio_text(ratio) for ratio in (0.0, 0.00606, 0.5, 44.712)] == ["0.00", "0.0061", "0.50", "44.71"]
    # More multiprocessors make the same heavy tile a larger share.
    ratios = [imbalance(skewed(), what_if(H200, name, 1, 1).machine).ratio for name in ("GB10", "RTX A6000", "A100")]
    assert ratios == sorted(ratios)


def test_a_policy_is_named_after_the_nearest_variant() -> None:
    named = {
        ("grid", "off"): "grid",
        ("lpt", "off"): "lpt_binned",
        ("grid", "catgs"): "catgs",
        ("lpt", "modelled"): "seed",
    }
    for (order, chunk), name in named.items():
        policy = Policy()
        for toggle, value in (("sched", order), ("chunk", chunk), ("cost_model", "seed")):
            policy = policy.with_value("schedule", toggle, value)
        assert variant_of(policy.schedule) == name


def test_the_analyst_answers_the_newest_question_and_rests() -> None:
    analyst = Analyst()
    assert not analyst.ask(1, skewed(), H200, "length")
    deadline = time.monotonic() + 120
    while not analyst.ask(1, skewed(), H200, "length"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert analyst.newest is not None
    first = analyst.newest
    assert not analyst.ask(2, skewed() + 1, H200, "length")
    assert analyst.resting  # a new picture waits
    analyst.ask(2, skewed() + 1, H200, "grid")  # another choice does not
    assert not analyst.resting
    while not analyst.ask(2, skewed() + 1, H200, "grid"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert analyst.newest is not first
    assert analyst.newest.shown == "grid"


# ---- Pictures of them ------------------------------------------------------------------------------------------------


def by_hand() -> Spans:
    """Returns two multiprocessors of one block: 0 runs tile 0 and a chunk of tile 1; 1 runs a chunk, then is idle."""
    return Spans(
        Machine(2, 1),
        np.array([0.0, 60.0, 0.0]),
        np.array([50.0, 100.0, 30.0]),
        np.array([0, 0, 1]),
        np.array([0, 1, 1]),
        np.array([False, True, True]),
    )


def test_the_gantt_shows_who_is_busy_with_what_and_the_idle_tail() -> None:
    plate = gantt_image(by_hand(), 100, 10)
    assert plate.shape == (10, 100, 4)
    wanted = {(2, 20): WHOLE, (2, 55): GROUND, (2, 80): CHUNK, (7, 10): CHUNK, (7, 50): IDLE, (7, 99): IDLE}
    for (y, x), color in wanted.items():
        assert tuple(plate[y, x, :3]) == color, (y, x)
    marked = gantt_image(by_hand(), 100, 10, marked=1)
    assert tuple(marked[7, 10, :3]) == MARKED
    assert tuple(marked[2, 80, :3]) == MARKED
    assert tuple(marked[2, 20, :3]) == WHOLE
    narrow = gantt_image(by_hand(), 10, 1)  # fewer rows than multiprocessors, and edges within pixels
    assert narrow.shape == (1, 10, 4)
    times, numbers = np.zeros(0), np.zeros(0, np.int64)
    empty = Spans(Machine(3, 2), times, times, numbers, numbers, np.zeros(0, bool))
    assert (gantt_image(empty, 20, 6)[..., 3] == 255).all()


def test_the_time_under_the_bars_is_the_time_that_was_worked() -> None:
    timeline = simulate(np.random.default_rng(1).exponential(10, 300), Machine(5, 1))
    zero = np.zeros(300, np.int64)
    plate = gantt_image(Spans.of_prediction(timeline, zero, np.ones(1, np.int64)), 400, 5).astype(float)
    blue = (plate[..., 2] - GROUND[2]) / (WHOLE[2] - GROUND[2])
    tail = plate[..., 0] > GROUND[0] + 1e-9
    shown = np.where(tail & (plate[..., 2] == IDLE[2]), 0.0, blue).clip(0, 1).mean()
    assert shown == pytest.approx(timeline.sm_activity, abs=0.01)


def test_tiles_by_rank_show_the_cut_and_the_even_share() -> None:
    counts = np.array([[1000, 100, 10, 1]], np.int32)
    plate = ranked_image(counts, np.array([4, 1, 1, 1]), 100.0, 301, 100)
    assert ranked_top(counts) == 1000
    assert tuple(plate[5, 20, :3]) == CHUNK  # between 250 and 1000
    assert tuple(plate[60, 20, :3]) != CHUNK  # a chunk's share of it
    assert tuple(plate[90, 200, :3]) == WHOLE
    assert tuple(plate[33, 280, :3]) == SHARE
    cut = round(place_of_rank(2, 4) * 300)
    assert (plate[1, cut - 2 : cut + 3, :3] == MARKED).all(axis=-1).any()
    assert place_of_rank(1, 1) == 0.0


# ---- Tiles of a picture ----------------------------------------------------------------------------------------------


def recorded_picture(overlay: Any = "blended") -> Picture:
    """Returns a recorded picture of 150 x 100 pixels by the CPU backend."""
    camera = random_camera(150, 100)
    policy = Policy().with_value("schedule", "record", "on")
    frame = CpuBackend().render(random_scene(camera, 2000, seed=2, degree=1), camera, policy=policy)
    return Picture(
        overlays.picture_rgba(frame.image), frame, ViewRequest(camera, policy=policy, overlay=overlay), 1, 1.0
    )


def test_the_tile_under_the_mouse_is_found_and_tells_its_figures() -> None:
    picture, box = recorded_picture(), (10.0, 20.0, 310.0, 220.0)  # twice its size
    assert tile_at(picture, box, (9.0, 100.0)) is None
    assert tile_at(picture, box, (10.0 + 2 * 33, 20.0 + 2 * 17)) == (1, 2)
    assert tile_at(picture, box, (309.9, 219.9)) == (6, 9)
    assert tile_box(picture, box, (1, 2)) == (74.0, 52.0, 106.0, 84.0)
    assert tile_box(picture, box, (6, 9))[2:] == (310.0, 220.0)  # the last ones are cut off
    assert picture.frame.recording is not None
    rows = dict(tile_rows(picture, None, (3, 4)))
    assert rows["tile 4, 3"] == f"{picture.frame.tile_counts[3, 4]:,} splats"
    assert rows["blended"].startswith(f"{picture.frame.recording.per_tile('walked')[3, 4]:,} ")
    assert "thread" in rows["on"]


def test_overlays_that_need_a_recording_are_not_drawn_without_one() -> None:
    picture = recorded_picture()
    for name in OVERLAYS:
        values = tile_values(name, picture.frame)
        assert values is not None
        assert values.shape == picture.frame.tile_counts.shape
    camera = picture.request.camera
    plain = CpuBackend().render(random_scene(camera, 100, seed=2, degree=1), camera)
    assert [name for name in OVERLAYS if tile_values(name, plain) is None] == list(filter(needs_recording, OVERLAYS))


# ---- A recorded frame and its files ----------------------------------------------------------------------------------


def test_a_recorded_frame_is_written_so_that_others_can_read_it(tmp_path: Path) -> None:
    camera = random_camera(150, 100)
    gaussians = random_scene(camera, 2000, seed=2, degree=1)
    recorded = record_frame(CpuBackend(), gaussians, ViewRequest(camera, RenderSettings()))
    recording = recorded.recording
    assert recorded.blend_ms > 0
    assert recorded.plain_ms > 0
    assert f"{recording.timeline.sm_activity:.1%}" in recording_text(recorded)
    assert f"on {recorded.on.name}: off by" in checks_text(recorded)
    assert f"by {simulator_error(recorded):+.1%} (" in checks_text(recorded)
    slower = replace(recorded, blend_ms=1.1 * recorded.plain_ms)
    assert overhead_text(slower) == "recording overhead 10.0% of blending"
    assert overhead_text(replace(slower, blend_ms=recorded.plain_ms)) == "no measurable recording overhead"
    assert list_settings(recorded)[:2] == [
        "150 x 100 px",
        f"K = {recorded.on.machine.workers} x 1 = {recorded.on.machine.workers}",
    ]
    trace, table, figures, *pictures = save_recorded_frame(
        recorded, tmp_path, Provenance(Path("garden"), 3064, "cpu", "2 threads")
    )
    content = json.loads(trace.read_text())
    assert (content["otherData"]["scene"], content["otherData"]["iteration"]) == ("garden", 3064)
    events = [e for e in content["traceEvents"] if e["ph"] == "X"]
    assert sum(e["dur"] for e in events) == pytest.approx((recording.end - recording.start).sum() / 1e3)
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == len(events) == len(recording)
    assert sum(int(row["listed"]) for row in rows) == recorded.counts.sum()
    told = json.loads(figures.read_text())
    assert (told["scene"], told["device"]) == ("garden", "2 threads")
    assert told["sm_activity"] == recording.timeline.sm_activity
    assert told["imbalance_ratio"] == imbalance(recorded.counts, recorded.on.machine).ratio
    for path in pictures:
        assert Image.open(path).size[0] > 1000


def test_who_does_not_blend_by_tiles_says_so() -> None:
    camera = random_camera(32, 32)
    gaussians: Gaussians = random_scene(camera, 10, seed=2, degree=1)
    with pytest.raises(InputError, match="reference backend cannot say"):
        record_frame(ReferenceBackend(), gaussians, ViewRequest(camera))
    assert blending_of(ReferenceBackend()) is None


# ---- The window ------------------------------------------------------------------------------------------------------


@pytest.fixture
def pretended(display: str) -> Iterator[Hands]:
    program = Program(
        display, SCRIPT, ["--size", "1100x820", "--backend", "cuda", "--only", "Heatmap", "Schedule", "Toggles"]
    )
    try:
        yield Hands(program)
    finally:
        program.end()


def click(hands: Hands, name: str) -> None:
    place = hands.program.wait_for(f"{name} in sight", lambda facts: facts["places"][name])["places"][name]
    hands.click(place[0] + 12, place[1] + place[3] // 2)


def test_overlays_are_grey_until_a_frame_has_been_recorded(pretended: Hands) -> None:
    hands = pretended
    click(hands, "blended")
    click(hands, "save frame")
    hands.rest(0.5)
    before = hands.program.facts
    assert before["overlay"] == "none"
    assert not any("SaveRecordedFrame" in command for command in before["commands"]), "there is none yet"
    click(hands, "record frame")
    hands.program.wait_for("the command", lambda facts: any("RecordFrame" in c for c in facts["commands"]))
    hands.rest(0.5)
    click(hands, "blended")
    recording = repr(Policy().with_value("schedule", "record", "on"))
    hands.program.wait_for("pictures that are recorded", lambda facts: facts["shown policy"] == recording)
    assert hands.program.facts["overlay"] == "blended"
    hands.program.wait_for("the tick of what the heatmap adds", lambda facts: facts["shown"]["schedule.record"])
    click(hands, "tiles")
    hands.program.wait_for("the tick to go with it", lambda facts: not facts["shown"]["schedule.record"])
    hands.program.wait_for("pictures that are not", lambda facts: facts["shown policy"] == repr(Policy()))
    click(hands, "save frame")
    hands.program.wait_for("the command", lambda facts: any("SaveRecordedFrame" in c for c in facts["commands"]))
    moved = {name for name, place in hands.program.facts["places"].items() if place != before["places"][name]}
    assert not moved, "controls stay under the mouse"


@pytest.fixture
def real(display: str, tmp_path: Path) -> Iterator[Hands]:
    script = SUPPORT / "schedule_window.py"
    program = Program(display, script, [str(STILL_LIFE), "--size", "1100x860", "--shots", str(tmp_path)])
    try:
        yield Hands(program)
    finally:
        program.end()


def test_a_frame_of_the_cpu_backend_is_recorded_shown_and_saved(real: Hands, tmp_path: Path) -> None:
    hands = real
    before = hands.picture()
    click(hands, "record frame")
    activity = hands.program.wait_for("a recorded frame", lambda facts: facts["recorded"], 60)["recorded"]
    assert 0 < activity <= 1
    click(hands, "depth")
    hands.program.wait_for("its overlay", lambda facts: facts["overlay"] == "depth" and facts["has recording"], 60)
    hands.move(300, 300)
    hands.rest(1.0)
    after = hands.picture()
    assert (before[100:700, :700] != after[100:700, :700]).any(axis=-1).mean() > 0.05  # the heatmap lies over it
    click(hands, "save frame")
    hands.program.wait_for("the files", lambda facts: any("timeline.json" in line for line in facts["log"]), 60)
    assert json.loads(next(tmp_path.glob("*-schedule.json")).read_text())["sm_activity"] == activity
