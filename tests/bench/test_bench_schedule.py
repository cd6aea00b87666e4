"""Tests the tables of `bench schedule` from given times; measuring itself needs a GPU."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splatscope.app.bench.calibrate import run as run_calibration
from splatscope.app.bench.figures.schedule import draw_figures
from splatscope.app.bench.figures.style import ticks_between
from splatscope.app.bench.measure.results import FORMAT, read_results
from splatscope.app.bench.measure.timelines import figures_of
from splatscope.app.bench.scenes.crowded import crowded_path, crowded_scene
from splatscope.app.bench.scenes.schedule import check_scene, load_frames, orbited, turned
from splatscope.app.bench.schedule import VARIANTS, run_schedule
from splatscope.app.bench.show import run as show
from splatscope.app.bench.tables.schedule import judgements, newest_of, print_scene, speed_ups
from splatscope.app.bench.tables.schedule_document import schedule_table
from splatscope.app.options.bench import CalibrateOptions, ScheduleOptions, ShowOptions
from splatscope.kernels.backends import gpu_is_present
from splatscope.kernels.cpu import CpuBackend
from splatscope.kernels.errors import InputError
from splatscope.kernels.ladder import changed, step
from splatscope.kernels.schedule.calibration import Calibration, calibration_path, store_calibration, stored_calibration
from splatscope.kernels.schedule.rules import Machine, imbalance
from splatscope.kernels.schedule.simulator import simulate
from splatscope.kernels.schedule.timeline import Recording
from tests.support.places import ROOT

STILL_LIFE = ROOT / "assets" / "demo" / "still_life.ply"


def measured() -> dict[str, Any]:
    """Returns two frames as the benchmark keeps them."""
    frames = []
    for ratio, lpt, fixed, policy in ((2.0, 0.9, 0.8, 0.6), (20.0, 0.95, 0.2, 0.25)):
        times = {"grid": 1.0, "lpt": lpt, "h = 4, k = 4": fixed, "h = 16, k = 4": 0.5, "policy": policy, "CaT-GS": 0.1}
        frame = {"ratio": ratio, "blend_ms": times, "frame_ms": times, "schedule_ms": dict.fromkeys(times, 0.01)}
        frames.append(frame | {"psnr": dict.fromkeys(times, 120.0)})
    return {"name": "made up", "frames": frames}


def test_speed_ups_are_over_the_grid_and_only_exact_pictures_can_be_best_of_all() -> None:
    gains = speed_ups(measured())
    np.testing.assert_allclose(gains["policy"], [1 / 0.6, 4.0])
    np.testing.assert_allclose(gains["oracle"], [2.0, 5.0])  # not CaT-GS, whose pictures differ
    np.testing.assert_allclose(gains["best fixed"], gains["h = 4, k = 4"])


def test_the_table_names_every_variant_and_its_worst_picture(capsys: pytest.CaptureFixture[str]) -> None:
    print_scene(measured())
    shown = capsys.readouterr().out
    assert "imbalance 2.00 to 20.00, 2 frames" in shown
    for words in ("h = 16, k = 4", "oracle", "120.0", "CaT-GS"):
        assert words in shown


def results_of(*scenes: dict[str, Any]) -> dict[str, Any]:
    """Returns the results as JSON has them."""
    run = {"format": FORMAT, "command": "splatscope bench", "date": "2026-01-01T00:00:00+00:00", "revision": "abc"}
    return {"run": run, "machine": {"gpu": "a GPU", "driver": "1", "workers": 264}, "scenes": list(scenes)}


def with_recordings(scene: dict[str, Any]) -> dict[str, Any]:
    """Adds recordings of its frames under three schedules."""
    for k, frame in enumerate(scene["frames"]):
        recorded = simulated_recording(seed=k)
        names = ("grid", "lpt", "policy")
        frame["recorded"] = {name: figures_of(recorded, with_tiles=name == "grid") for name in names}
    return scene


def test_each_set_is_judged_by_what_its_kind_promises() -> None:
    skewed = measured()
    found = {(one.of, one.claim): one for one in judgements(results_of(skewed))}
    within = found["made up", "within 2% of the best for each frame"]
    assert within.found == pytest.approx(np.mean([1 / 0.6, 4.0]) / 3.5)
    assert not within.is_met
    over = found["made up", "at least 1.15 x CaT-GS"]
    assert over.found == pytest.approx(np.mean([0.1 / 0.6, 0.1 / 0.25]))
    assert not found["made up", "most skewed: a frame of 5.6 x"].is_met
    assert not any("every frame" in claim for _, claim in found)
    even = measured()
    for frame in even["frames"]:
        frame["ratio"] = 0.8
    (first, *_) = judgements(results_of(even))
    assert first.claim == "at least 0.99 x the grid on every frame"
    assert first.is_met


def test_ticks_of_a_logarithmic_axis_are_a_few_round_numbers() -> None:
    assert ticks_between(0.4, 130) == [0.5, 1, 2, 5, 10, 20, 50, 100]
    for low, high in ((0.9, 1.3), (3.6, 11.0), (1e-3, 1e6), (40.0, 45.0), (0.97, 1.02)):
        ticks = ticks_between(low, high)
        assert 2 <= len(ticks) <= 10, (low, high, ticks)
        assert all(low <= tick <= high for tick in ticks)


def test_written_schedules_are_shown_again_without_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = []
    for name in ("first", "second"):
        scene = measured() | {"name": name}
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(results_of(scene)))
    readme = tmp_path / "notes.md"
    readme.write_text("a <!-- bench:schedule -->old<!-- /bench:schedule --> b")
    show(ShowOptions(tuple(files), readme=readme))
    shown = capsys.readouterr().out
    table = readme.read_text()
    assert "| first | 2–20 | 1.000 | 1.08 | 10.00 |" in table
    assert "[second.json](second.json)" in table
    assert "missed: first, within 2%" in table
    assert all(word in shown for word in ("first: imbalance", "second: imbalance", "What was to be reached"))
    assert max(len(line) for line in shown.splitlines() if str(readme) not in line) <= 100
    other = tmp_path / "other.json"
    other.write_text(json.dumps(results_of()))
    with pytest.raises(InputError, match="different kinds"):
        show(ShowOptions((*files, other)))
    with pytest.raises(InputError, match="holds no schedules"):
        newest_of([(other, json.loads(other.read_text()))])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install matplotlib"):
        show(ShowOptions(tuple(files), figures=tmp_path))
    with pytest.raises(InputError, match="--figures draws figures of schedules"):
        show(ShowOptions((other,), figures=tmp_path))


def test_of_a_set_in_several_files_the_newest_is_shown(tmp_path: Path) -> None:
    files = [tmp_path / "newer.json", tmp_path / "older.json"]
    newer, older = (results_of(measured(), measured() | {"name": name}) for name in ("in both", "in one"))
    newer["scenes"][0]["name"] = "in both"
    newer["scenes"].pop()
    newer["scenes"][0]["splats"] = 7
    newer["run"] |= {"date": "2026-02-01T00:00:00+00:00", "revision": "def"}
    older["scenes"][0]["name"] = "in both"
    for file, results in zip(files, (newer, older), strict=True):
        file.write_text(json.dumps(results))
    found = newest_of([(file, json.loads(file.read_text())) for file in files])
    assert {scene["name"]: scene.get("splats") for scene in found["scenes"]} == {"in both": 7, "in one": None}
    assert found["run"]["revision"] == "def, abc"


def test_the_table_of_schedules_is_what_its_files_say() -> None:
    page = ROOT / "docs" / "heavy-tiles.md"
    text = page.read_text(encoding="utf-8")
    table = text.partition("<!-- bench:schedule -->\n")[2].partition("\n<!-- /bench:schedule -->")[0]
    links = re.findall(r"\]\((\.\./benchmarks/results/[^)]+)\)", table)
    assert links
    files = [page.parent / link for link in links]
    assert schedule_table(newest_of([(file, read_results(file)) for file in files]), links) == table


def test_figures_are_drawn_from_results_alone(tmp_path: Path) -> None:
    for scenes in ([measured()], [with_recordings(measured()), with_recordings(measured() | {"name": "another"})]):
        paths = draw_figures(results_of(*scenes), tmp_path / "figures")
        assert all(path.read_bytes()[:4] == b"\x89PNG" for path in paths)
    assert {"schedule-activity.png", "schedule-simulator.png", "schedule-overall.png"} <= {path.name for path in paths}


def simulated_recording(seed: int) -> Recording:
    """Returns a frame that ran as the simulator has it; half of each list is gone through."""
    listed = np.random.default_rng(seed).integers(0, 900, 60)
    timeline, zero = simulate(listed, Machine(4, 2)), np.zeros(60, np.int64)
    unit, durations = np.arange(60), timeline.end - timeline.start
    columns = (unit, zero, zero + 1, timeline.multiprocessor, zero, timeline.start, timeline.end, durations)
    return Recording(Machine(4, 2), "SM", "cycles", (6, 10), *columns, listed, listed // 2, zero)


def test_what_is_kept_of_a_recorded_frame_is_its_own_figures() -> None:
    recording = simulated_recording(seed=3)
    row = json.loads(json.dumps(figures_of(recording, with_tiles=True)))
    assert row["sm_activity"] == recording.activity
    assert np.mean(row["activity_over_time"]) == pytest.approx(recording.activity, abs=1e-3)
    assert row["simulator"]["walked"]["makespan"] == pytest.approx(0, abs=0.01)
    assert len(row["tiles"]["listed"]) == np.count_nonzero(recording.listed)
    assert sum(row["tiles"]["walked"]) == recording.walked.sum()


def test_every_variant_is_a_policy_that_goes_together() -> None:
    for changes in VARIANTS.values():
        assert changed(step("best"), changes).problems() == []


def test_the_dial_of_the_crowded_scene_is_its_imbalance_ratio_wherever_the_camera_turns() -> None:
    for ratio in (1.0, 30.0):
        gaussians, camera = crowded_scene(ratio, 264, splats=60_000)
        for seen in crowded_path(camera, 3):
            counts = CpuBackend().render(gaussians, seen).tile_counts
            assert imbalance(counts, Machine(132, 2)).ratio == pytest.approx(ratio, rel=0.25)
    with pytest.raises(InputError, match="imbalance ratio is from"):
        crowded_scene(400.0, 264)


def test_a_turning_camera_stays_where_it_is() -> None:
    _, camera = crowded_scene(1.0, 264, splats=100)
    cameras = turned(camera, 5)
    assert cameras[0] == camera
    for one in cameras:
        np.testing.assert_allclose(one.position, camera.position, atol=1e-9)
        np.testing.assert_allclose(one.matrix[:3, :3] @ one.matrix[:3, :3].T, np.eye(3), atol=1e-12)
    assert len({one.view_from_world for one in cameras}) == 5


def test_a_splat_file_is_seen_from_all_around_and_what_is_no_scene_is_named() -> None:
    found = load_frames(str(STILL_LIFE), 792, 4)
    positions = np.array([camera.position for camera in found.cameras])
    middle = positions.mean(axis=0)
    distances = np.linalg.norm(positions - middle, axis=1)
    np.testing.assert_allclose(distances, distances[0], rtol=1e-3)
    assert np.linalg.norm(positions[0] - positions[2]) == pytest.approx(2 * distances[0], rel=1e-3)
    sums = [CpuBackend().render(found.gaussians, camera).tile_counts.sum() for camera in found.cameras]
    assert min(sums) > 0.3 * max(sums)
    for name, words in (("crowded:900", "from 0.5 to 120"), ("crowded:x", "crowded:10"), ("S9", "no splat file")):
        with pytest.raises(InputError, match=words):
            check_scene(name)


def test_an_orbit_keeps_the_distance_and_looks_at_the_middle() -> None:
    _, camera = crowded_scene(1.0, 264, splats=100)
    middle = np.array([0.0, 0.0, 10.0])  # straight ahead
    for angle in (0.4, 2.0):
        moved = orbited(camera, middle, (0.0, 1.0, 0.0), angle)
        seen = moved.matrix @ np.append(middle, 1.0)
        np.testing.assert_allclose(seen[:3], [0.0, 0.0, 10.0], atol=1e-9)


def test_what_a_gpu_told_survives_the_disk_and_nonsense_is_kept_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    stored_calibration.cache_clear()
    assert stored_calibration("NVIDIA H200") == Calibration()
    store_calibration("NVIDIA H200", Calibration(saturating_warps=9.0, chunk=77.0))
    assert stored_calibration("NVIDIA H200") == Calibration(saturating_warps=9.0, chunk=77.0)
    assert stored_calibration("another") == Calibration()
    calibration_path("another").write_text('{"chunk": "many"}')
    stored_calibration.cache_clear()
    assert stored_calibration("another") == Calibration()
    assert Calibration(tail=-3.0, chunk=1e9).clamped() == Calibration(tail=0.0, chunk=2000.0)
    stored_calibration.cache_clear()


@pytest.mark.skipif(gpu_is_present(), reason="there is a GPU")
def test_without_a_gpu_the_complaint_is_one_sentence() -> None:
    with pytest.raises(InputError, match="CUDA"):
        run_calibration(CalibrateOptions())
    with pytest.raises(InputError, match="CUDA"):
        run_schedule(ScheduleOptions())
