"""Tests saving while steps run, without a GPU: the files hold the run as it was, and steps hardly wait."""

from __future__ import annotations

import threading
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from splatscope.assets.capture import Capture
from splatscope.kernels.backend import Backend
from splatscope.kernels.backends import make_backend
from splatscope.kernels.cuda.backend import CudaBackend
from splatscope.kernels.cuda.training_step import TrainingStep
from splatscope.kernels.errors import NoRoomError
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Gaussians
from splatscope.training.config import CheckpointConfig, DensifyConfig, McmcConfig, TrainConfig
from splatscope.training.errors import NoSplatsLeftError, NotFiniteError
from splatscope.training.events import Stepped
from splatscope.training.files import run_record, saving
from splatscope.training.files.checkpoint import checkpoint_path, read_checkpoint
from splatscope.training.files.saving import RunFiles
from splatscope.training.trainer import Trainer
from tests.support.cuda_on_cpu.run import is_supported
from tests.support.cuda_pipeline import emulated_renderer
from tests.support.cuda_training import IN_ORDER, LAZY, emulated_step, kept_as, step_kernels
from tests.support.late_fetch import PATIENCE, assert_same_run, run_with_files_held_back, settled_after
from tests.support.small_capture import SHORT, make_capture

# Rows are moved and added, after the checkpoint as well as before it.
MOVING = replace(
    SHORT,
    iterations=12,
    sh_interval=3,
    test_iterations=(8,),
    test_interval=0,
    strategy="mcmc",
    mcmc=McmcConfig(start=1, stop=12, interval=3, max_splats=150),
)
SAVED = replace(MOVING, checkpoint=CheckpointConfig(seconds=0, interval=7, keep=9))


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return make_capture(tmp_path_factory.mktemp("capture"), scale=0.5)  # 3 x 2 tiles: the harness is slow


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[], CudaBackend]:
    """Makes backends whose training steps run on this processor."""
    if not is_supported():
        pytest.skip("needs Linux and g++")

    def training_step(backend: CudaBackend, gaussians: Gaussians, *_: Any) -> TrainingStep:
        return emulated_step(gaussians, IN_ORDER)

    monkeypatch.setattr(CudaBackend, "training_step", training_step)
    monkeypatch.setattr(CudaBackend, "warm_up", lambda *_, **__: None)
    return lambda: CudaBackend(emulated_renderer(step_kernels()))


@pytest.mark.parametrize("policy", [IN_ORDER, LAZY, kept_as(IN_ORDER, "split"), kept_as(IN_ORDER, "bf16")])
def test_a_checkpoint_is_of_its_iteration_however_many_steps_are_taken_before_it_is_fetched(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    trainer = Trainer(capture, SAVED, gpu(), tmp_path / "run")
    trainer.use(policy)
    run_with_files_held_back(trainer, 11, monkeypatch)
    settled = Trainer(capture, MOVING, gpu(), tmp_path / "settled")
    settled.use(policy)
    wanted = settled_after(settled, 7)
    assert_same_run(read_checkpoint(checkpoint_path(tmp_path / "run", 7)), wanted)


def test_a_checkpoint_on_the_cpu_is_of_its_iteration_too(
    capture: Capture, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_with_files_held_back(Trainer(capture, SAVED, backend, tmp_path / "run"), 11, monkeypatch)
    wanted = settled_after(Trainer(capture, MOVING, backend, tmp_path / "settled"), 7)
    assert_same_run(read_checkpoint(checkpoint_path(tmp_path / "run", 7)), wanted)


def test_where_there_is_no_room_for_a_copy_steps_wait_and_the_files_are_the_same(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(Trainer(capture, SAVED, gpu(), tmp_path / "roomy").run())
    refused = []

    def refusing(tensors: Any) -> Any:
        refused.append(len(tensors))
        raise NoRoomError("The GPU has no room.")

    monkeypatch.setattr(saving, "Held", refusing)
    list(Trainer(capture, SAVED, gpu(), tmp_path / "full").run())
    assert len(refused) == 1, "at the end nothing is held"
    for iteration in (7, 12):
        full, roomy = (read_checkpoint(checkpoint_path(tmp_path / name, iteration)) for name in ("full", "roomy"))
        assert_same_run(full, roomy)
    name = "point_cloud/iteration_12/point_cloud.ply"
    assert (tmp_path / "full" / name).read_bytes() == (tmp_path / "roomy" / name).read_bytes()


def test_what_a_save_holds_up_is_shown_by_the_step_that_came_late(
    capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(saving.Snapshot):
        def __init__(self, *content: Any, **options: Any) -> None:
            time.sleep(0.2)
            super().__init__(*content, **options)

    monkeypatch.setattr(run_record, "Snapshot", Slow)
    trainer = Trainer(capture, SAVED, make_backend("cpu"), tmp_path)
    saved = [event.stage_ms["saving"] for event in trainer.run() if isinstance(event, Stepped)]
    assert saved[7] >= 200, "the step after iteration 7"
    assert sum(saved) / 1e3 < trainer.seconds["saving"], "the rest is the wait at the end"
    assert sum(saved[:7]) + sum(saved[8:]) < saved[7]


class Clock:
    """Counts seconds that pass when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(saving, "time", Namespace(monotonic=lambda: self.now))

    def saves_of(self, files: RunFiles, seconds: float, stall: float = 0.0) -> list[float]:
        """Returns the seconds since the first step at which a run of this length saves; each save holds it up for
        `stall`.
        """
        begin, found, iteration = self.now, [], 0
        while self.now < begin + seconds:
            iteration += 1
            if files.due(iteration, last=False):
                found.append(self.now - begin)
                files.save((), lambda: self._taken(stall), None)
                files.wait()
            self.now += 0.5
        return found

    def _taken(self, stall: float) -> Any:
        self.now += stall
        return Namespace(iteration=1, checkpoint=None)


def test_a_young_run_is_saved_whenever_its_age_has_doubled_and_later_every_ten_seconds(
    capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RunFiles(capture, TrainConfig(), tmp_path)
    assert Clock(monkeypatch).saves_of(files, 50) == [2, 4, 8, 16, 26, 36, 46]
    own = replace(TrainConfig(), checkpoint=CheckpointConfig(seconds=1))
    assert Clock(monkeypatch).saves_of(RunFiles(capture, own, tmp_path), 5) == [1, 2, 3, 4]
    never = replace(TrainConfig(), checkpoint=CheckpointConfig(seconds=0))
    assert Clock(monkeypatch).saves_of(RunFiles(capture, never, tmp_path), 50) == []


def test_saves_that_hold_up_steps_are_so_rare_that_it_is_a_fiftieth_of_the_time(
    capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RunFiles(capture, TrainConfig(), tmp_path)
    assert Clock(monkeypatch).saves_of(files, 160, stall=1.0) == [2, 53, 104, 155]


def test_nothing_is_queued_behind_a_checkpoint_that_is_being_written(
    capture: Capture, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, write, is_fast = [], saving.write_checkpoint, threading.Event()

    def slowly(path: Path, checkpoint: Any) -> None:
        assert is_fast.wait(PATIENCE)
        written.append(checkpoint.iteration)
        write(path, checkpoint)

    monkeypatch.setattr(saving, "write_checkpoint", slowly)
    config = replace(SHORT, test_interval=0, checkpoint=CheckpointConfig(seconds=0, interval=1))
    for event in Trainer(capture, config, backend, tmp_path).run():
        if isinstance(event, Stepped) and event.iteration == 20:
            is_fast.set()
    assert written[0] == 1
    assert written[1] >= 20, "those that came due meanwhile are left out"
    assert written[-1] == config.iterations


@pytest.mark.parametrize("told_late", [0, 3])
def test_a_run_that_goes_on_behind_a_gradient_left_out_has_a_loss_for_each_iteration(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told_late: int
) -> None:
    outcomes, kept, lacks = TrainingStep.outcomes, [], {"sh": 1}

    def late_and_lacking(training: TrainingStep, wait: bool = False) -> list[Any]:
        kept.extend(outcomes(training, wait))
        told = [kept.pop(0) for _ in range(len(kept) if wait else len(kept) - told_late)]
        return [replace(o, skipped={**o.skipped, **lacks}) if o.steps >= 6 else o for o in told]

    monkeypatch.setattr(TrainingStep, "outcomes", late_and_lacking)
    trainer = Trainer(capture, replace(MOVING, strategy="adaptive"), gpu(), tmp_path / "run")
    with pytest.raises(NotFiniteError, match="its numbers stay"):
        list(trainer.run())
    lacks.clear()  # the GPU counts anew
    trainer.snapshot()
    list(trainer.run())
    assert trainer.iteration == len(trainer.history[0]) == 12
    assert all(0 < loss < 1 for loss in trainer.history[0])


def test_a_refine_on_a_gpu_that_would_leave_no_splat_leaves_them_all(
    capture: Capture, gpu: Callable[[], CudaBackend], tmp_path: Path
) -> None:
    config = replace(SHORT, densify=DensifyConfig(start=1, interval=4, smallest_opacity=0.9, max_splats=150))
    trainer = Trainer(capture, config, gpu(), tmp_path)
    with pytest.raises(NoSplatsLeftError, match=r"densify\.smallest_opacity = 0\.9"):
        list(trainer.run())
    trainer.save()
    stored = read_checkpoint(checkpoint_path(tmp_path, 4))
    assert len(stored.tensors["raw.means"]) == len(stored.tensors["strategy.pull"]) == 120
    assert stored.tensors["strategy.pull"].any()
    with pytest.raises(NoSplatsLeftError):
        next(event for event in trainer.run() if isinstance(event, Stepped))
