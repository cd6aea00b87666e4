"""Tests `bench calibrate`: it finds the numbers of a modelled GPU, and refuses impossible times."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from splatscope.app.bench import calibrate
from splatscope.app.bench.calibrate import Calibrator, Changes, GpuStand, Shown, fixed, spoken
from splatscope.kernels.cpu import CpuBackend
from splatscope.kernels.cuda.plan.schedule import costs_of, machine_of
from splatscope.kernels.errors import InputError
from splatscope.kernels.ladder import changed, step
from splatscope.kernels.schedule.calibration import Calibration, store_calibration, stored_calibration
from splatscope.kernels.schedule.rules import CostModel, Machine, variant
from splatscope.kernels.schedule.simulator import simulate
from tests.support.cuda_pipeline import Kernels, emulated_renderer, pass_for
from tests.support.small_scenes import random_camera, random_scene

MS_A_SPLAT = 3e-5


class Modelled:
    """Stands for a GPU as the simulator has it: 20 multiprocessors of 6 blocks, saturated by 2.5 blocks."""

    multiprocessors, workers, warps = 20, 120, 8
    machine = Machine(20, 6, 2.5)
    start, chunk, second_walk = 120.0, 150.0, 0.8

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.counts = np.zeros(0, np.int64)

    def show(self, ratio: float, share: float = 1.0) -> Shown:
        self.asked.append(ratio)
        counts = (share * np.random.default_rng(1).integers(300, 700, 5600)).astype(np.int64)
        counts[77] = ratio * counts.sum() / (self.workers - ratio)
        self.counts = counts
        return Shown(int(counts.sum()), int(counts.max()), counts.size)

    def blend(self, changes: Changes, training: bool = False) -> tuple[float, int]:
        chunked = changes["schedule.chunk"]
        walks_twice = training or changes.get("schedule.exact_stop") != "off"
        model = CostModel(self.chunk, second_pass=self.second_walk if walks_twice else 0.0, start=self.start)
        k = int(changes.get("schedule.chunk_k", 1))
        h = int(changes.get("schedule.chunk_h", 1))
        name = "lpt_binned" if chunked == "off" else chunked
        units = variant(name, self.counts, self.machine, model, h, k)
        ms = MS_A_SPLAT * simulate(units.work, self.machine).makespan
        return ms, int(np.bincount(units.tile)[np.bincount(units.tile) > 1].sum())


def test_the_numbers_a_gpu_was_made_with_are_found_again() -> None:
    found = Calibrator(Modelled()).measure()
    assert found.saturating_warps == pytest.approx(2.5 * 8, rel=0.05)
    assert found.start == pytest.approx(120.0, rel=0.1)
    assert found.chunk == pytest.approx(150.0, rel=0.1)
    assert found.second_walk == pytest.approx(0.8, abs=0.1)
    assert found.training_walk == pytest.approx(0.8, abs=0.15)
    assert 0.0 <= found.clamped().tail <= 0.3


def test_a_small_gpu_is_asked_for_ratios_that_it_can_have() -> None:
    stand = Modelled()
    Calibrator(stand).measure()
    assert max(stand.asked) <= stand.workers / 4


def test_times_and_scenes_that_cannot_be_are_refused() -> None:
    class Empty(Modelled):
        def show(self, ratio: float, share: float = 1.0) -> Shown:
            return Shown(0, 0, 10)

    class Stopped(Modelled):
        def blend(self, changes: Changes, training: bool = False) -> tuple[float, int]:
            return 0.0, 3

    class Deaf(Modelled):
        def blend(self, changes: Changes, training: bool = False) -> tuple[float, int]:
            return super().blend(changes, training)[0], 0

    with pytest.raises(InputError, match="drew no splats"):
        Calibrator(Empty()).measure()
    for stand in (Stopped(), Deaf()):
        with pytest.raises(InputError, match="cannot be"):
            Calibrator(stand).measure()


def test_what_is_found_is_said_in_words_and_what_is_held_back_too() -> None:
    said = spoken("NVIDIA H200", Calibration(18.3, 99.0, 5000.0, -0.2, 0.5, 1.0))
    assert said.startswith("NVIDIA H200: 18.3 warps keep a multiprocessor busy")
    assert "99 splats, a chunk 2000" in said
    assert "Measured chunk was 5e+03, held at 2e+03." in said
    assert "Measured tail was -0.2, held at 0." in said


def test_the_heaviest_tile_is_known_however_tiles_are_scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    camera = random_camera(70, 40)
    gaussians = random_scene(camera, 400, seed=5, degree=0)
    monkeypatch.setattr(calibrate, "crowded_scene", lambda ratio, workers, splats: (gaussians, camera))
    monkeypatch.setattr(calibrate, "stage_times", lambda draw, renderer: draw() and {"blend": 1.0})
    lpt = {"schedule.sched": "lpt_binned", "schedule.chunk": "off"}
    asked = (lpt, lpt | {"schedule.chunk": "all", "schedule.chunk_k": "4"}, fixed(4, 4))
    passes = [pass_for(changed(step("best"), changes), camera, False, False) for changes in asked]
    stand = GpuStand(emulated_renderer(Kernels(passes)), 12, 8)
    wanted = CpuBackend().render(gaussians, camera).tile_counts
    for changes in asked:
        shown = stand.show(1.0)
        assert (shown.total, shown.heaviest) == (wanted.sum(), wanted.max())
        ms, chunks = stand.blend(changes)
        assert ms == 1.0
        assert (chunks > 0) == (changes is not lpt)


def test_the_policy_uses_what_was_stored_for_this_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA Made Up")
    stored_calibration.cache_clear()
    memory: Any = SimpleNamespace(architecture=90, multiprocessors=7)
    kernel: Any = SimpleNamespace(report=None)
    schedule = step("best").schedule
    assert costs_of(schedule, False, memory).chunk == Calibration().chunk
    store_calibration("NVIDIA Made Up", Calibration(16.0, 55.0, 77.0, 0.25, 0.75, 1.25))
    assert costs_of(schedule, False, memory) == CostModel(77.0, 0.25, 0.1, 0.75, 55.0)
    assert costs_of(schedule, True, memory).second_pass == 1.25
    assert machine_of(kernel, 256, memory).saturated_by == 2.0
    stored_calibration.cache_clear()
