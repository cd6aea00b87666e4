"""`bench --schedule`: what comes of measured times; measuring itself needs a GPU."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splatscope.app.bench import BenchOptions, run_bench
from splatscope.app.bench_schedule import VARIANTS, ScheduleOptions, print_scene, run_schedule, speed_ups, turned
from splatscope.app.bench_schedule_figures import draw_figures
from splatscope.app.bench_timelines import figures_of
from splatscope.benchmarks.crowded import crowded_scene
from splatscope.kernels.api import gpu_is_present
from splatscope.kernels.cpu import CpuBackend
from splatscope.kernels.errors import InputError
from splatscope.kernels.schedule import Machine, imbalance
from splatscope.kernels.schedule_calibration import Calibration, calibration_path, store_calibration, stored_calibration
from splatscope.kernels.schedule_simulator import simulate
from splatscope.kernels.sm_timeline import Recording
from splatscope.kernels.steps import changed, step


def measured() -> dict[str, Any]:
    """Two frames as the benchmark keeps them."""
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


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_figures_are_drawn_from_results_alone(tmp_path: Path) -> None:
    results = {"scenes": [measured()], "machine": {"gpu": "a GPU"}, "run": {"date": "2026-01-01"}}
    paths = draw_figures(results, tmp_path / "figures")
    assert len(paths) == 5
    for k, frame in enumerate(results["scenes"][0]["frames"]):
        recorded = simulated_recording(seed=k)
        frame["recorded"] = {name: figures_of(recorded, with_tiles=name == "grid") for name in ("grid", "policy")}
    paths = draw_figures(results, tmp_path / "figures")
    assert len(paths) == 8
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in paths)


def simulated_recording(seed: int) -> Recording:
    """A frame that ran as the simulator has it; half of each list is gone through."""
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


def test_the_dial_of_the_crowded_scene_is_its_imbalance_ratio() -> None:
    for ratio in (1.0, 30.0):
        gaussians, camera = crowded_scene(ratio, 264, splats=60_000)
        counts = CpuBackend().render(gaussians, camera).tile_counts
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


def test_what_a_gpu_told_survives_the_disk_and_nonsense_is_kept_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
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
    for options in (BenchOptions(schedule=True), BenchOptions(calibrate=True)):
        with pytest.raises(InputError, match="CUDA"):
            run_bench(options)
    with pytest.raises(InputError, match="of their own"):
        run_bench(BenchOptions(schedule=True, ladder=True))
    with pytest.raises(InputError, match="CUDA"):
        run_schedule(ScheduleOptions())
