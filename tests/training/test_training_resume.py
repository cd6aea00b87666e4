"""Tests that nothing is lost: a resumed run is the same run, a killed one continues, failed writes stop nothing."""

from __future__ import annotations

import pickle
import resource
import subprocess
import sys
import time
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from splatscope.assets.capture import Capture
from splatscope.assets.splats.ply import read_ply, write_ply
from splatscope.kernels.backend import Backend
from splatscope.kernels.errors import InputError
from splatscope.training.config import (
    BudgetConfig,
    CheckpointConfig,
    DataConfig,
    ExposureConfig,
    McmcConfig,
    ResolutionConfig,
    TrainConfig,
)
from splatscope.training.errors import NotFiniteError
from splatscope.training.events import Densified, Event, Finished, Resumed, Saved, SaveFailed, Stepped
from splatscope.training.files import run_record, saving
from splatscope.training.files.checkpoint import Checkpoint, checkpoints, newest_checkpoint, read_checkpoint
from splatscope.training.strategies.factory import STRATEGIES
from splatscope.training.trainer import Beginning, Trainer
from tests.support.places import ROOT
from tests.support.small_capture import KILLED, SHORT, Poisoned


def of_type(events: list[Event], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def everything(trainer: Trainer) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns all tensors of a run as NumPy, and its scores without times."""
    snapshot = trainer.snapshot()
    scores = [{k: v for k, v in row.items() if k != "training_seconds"} for row in snapshot.info["scores"]]
    return {name: tensor.numpy() for name, tensor in snapshot.tensors.items()}, scores


def assert_same(a: Trainer, b: Trainer) -> None:
    (tensors, scores), (others, other_scores) = everything(a), everything(b)
    assert tensors.keys() == others.keys()
    for name, values in tensors.items():
        np.testing.assert_array_equal(values, others[name], name)
    assert scores == other_scores
    assert a.snapshot().info["random"] == b.snapshot().info["random"]


def stopped_after(trainer: Trainer, iteration: int) -> Trainer:
    run = trainer.run()
    for event in run:
        if isinstance(event, Stepped) and event.iteration == iteration:
            break
    trainer.save()
    return trainer


LONG = replace(SHORT, iterations=60)
EVERYTHING = replace(
    LONG,
    exposure=ExposureConfig(enabled=True),
    resolution=ResolutionConfig(num_downscales=1, interval=25),
    data=replace(LONG.data, random_background=True),
)
RECIPES = {
    "adaptive": LONG,
    "adaptive with everything": EVERYTHING,
    "mcmc": replace(
        LONG,
        strategy="mcmc",
        opacity_penalty=0.01,
        scale_penalty=0.01,
        mcmc=McmcConfig(start=5, interval=10, max_splats=200, dead_opacity=0.1),
    ),
    "budget": replace(
        LONG, strategy="budget", budget=BudgetConfig(start=5, stop=50, interval=10, max_splats=250, halving_interval=20)
    ),
}


def test_a_run_of_every_strategy_is_resumed_here() -> None:
    missing = set(STRATEGIES) - {config.strategy for config in RECIPES.values()}
    assert not missing, "add a run of 60 iterations with at least four refines to RECIPES for each"


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    recipe: str, capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    config = RECIPES[recipe]
    whole = Trainer(capture, config, backend, tmp_path / "whole")
    events = list(whole.run())
    assert len(of_type(events, Densified)) >= 4
    stopped_after(Trainer(capture, config, backend, tmp_path / "halves"), 30)
    resumed = Trainer(capture, config, backend, tmp_path / "halves", Beginning(*newest_checkpoint(tmp_path / "halves")))
    assert resumed.iteration == 30
    rest = list(resumed.run())
    assert [e.loss for e in of_type(rest, Stepped)] == [e.loss for e in of_type(events, Stepped)][30:]
    assert of_type(rest, Resumed)[0].remark == ""
    assert_same(whole, resumed)
    last = (tmp_path / name / "point_cloud" / "iteration_60" / "point_cloud.ply" for name in ("whole", "halves"))
    assert len({path.read_bytes() for path in last}) == 1


def test_a_finished_run_goes_on_past_its_last_iteration(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    list(Trainer(capture, replace(SHORT, iterations=30), backend, tmp_path / "short").run())
    begin = Beginning(*newest_checkpoint(tmp_path / "short"))
    resumed = Trainer(capture, replace(SHORT, iterations=60), backend, tmp_path / "short", begin)
    assert list(resumed.run())[-1] == Finished(60)
    whole = Trainer(capture, replace(SHORT, iterations=60), backend, tmp_path / "long")
    list(whole.run())
    splats, others = whole.snapshot().group("raw"), resumed.snapshot().group("raw")
    assert all(torch.equal(splats[name], others[name]) for name in splats)


def test_a_killed_process_goes_on_from_its_last_checkpoint_to_the_same_end(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    out, rng = tmp_path / "killed", np.random.default_rng(3)
    command = [sys.executable, "-m", "tests.support.small_capture", str(capture.path), str(out)]
    reached = saved = 0
    for _ in range(2):  # from the beginning, and resumed
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert process.stdout is not None
        first = int(process.stdout.readline())
        assert first == saved + 1
        for _ in range(int(rng.integers(2, 12))):
            reached = max(reached, int(process.stdout.readline() or reached))
        process.kill()
        for line in process.stdout:  # said before the signal came
            reached = max(reached, int(line))
        process.wait()
        saved = max(checkpoints(out), default=0)
        assert saved == 0 or newest_checkpoint(out)[1].iteration == saved  # the newest is whole
        assert saved <= reached
    last = Trainer(capture, KILLED, backend, out, Beginning(*newest_checkpoint(out)))
    list(last.run())
    whole = Trainer(capture, KILLED, backend, tmp_path / "whole")
    list(whole.run())
    assert_same(whole, last)
    assert not list(out.rglob(".*"))  # nothing half-written is left


def test_only_the_newest_checkpoints_are_kept(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    config = replace(SHORT, save_iterations=(5, 10, 15, 20), checkpoint=CheckpointConfig(seconds=0, keep=2))
    list(Trainer(capture, config, backend, tmp_path).run())
    assert list(checkpoints(tmp_path)) == [20, 40]


def test_a_run_that_goes_on_from_an_earlier_checkpoint_is_not_taken_for_the_later_one(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    list(Trainer(capture, replace(SHORT, save_iterations=(20,)), backend, tmp_path).run())
    begin = Beginning(checkpoints(tmp_path)[20], read_checkpoint(checkpoints(tmp_path)[20]))
    later = checkpoints(tmp_path)[40].read_bytes()
    trainer = stopped_after(Trainer(capture, SHORT, backend, tmp_path, begin), 25)
    assert list(checkpoints(tmp_path)) == [20, 25]
    assert newest_checkpoint(tmp_path)[1].iteration == trainer.iteration == 25
    assert (tmp_path / "checkpoints" / "iteration_40.pt.old").read_bytes() == later


def test_a_damaged_checkpoint_gives_way_to_the_one_before(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    list(Trainer(capture, replace(SHORT, save_iterations=(20,)), backend, tmp_path).run())
    path = checkpoints(tmp_path)[40]
    path.write_bytes(path.read_bytes()[:5000])
    assert newest_checkpoint(tmp_path)[1].iteration == 20
    checkpoints(tmp_path)[20].write_bytes(b"")
    with pytest.raises(InputError, match=r"iteration_40\.pt is damaged"):
        newest_checkpoint(tmp_path)


def test_what_a_resumed_run_cannot_take_over_is_said(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    list(Trainer(capture, replace(SHORT, iterations=10), backend, tmp_path).run())
    litter = tmp_path / "point_cloud" / "iteration_10" / ".point_cloud.0123abcd.ply"
    litter.write_bytes(b"half")
    path = checkpoints(tmp_path)[10]
    fewer = replace(capture, views=capture.views[:-1])
    every_fifth = replace(SHORT, data=replace(SHORT.data, holdout_interval=5))
    for config, views, words in (
        (replace(SHORT, strategy="budget"), capture, "another strategy"),
        (SHORT, fewer, "training views are others, so a new epoch begins."),
        (every_fifth, capture, "a new epoch begins, and 4 of 5 held-out views were trained on before: scores flatter."),
    ):
        begin = Beginning(path, read_checkpoint(path))
        events = list(Trainer(views, config, backend, tmp_path, begin).run())
        assert words in of_type(events, Resumed)[0].remark
        assert events[-1] == Finished(40)
    assert not litter.exists()


class Trap:
    def __reduce__(self) -> Any:
        return print, ("code from a checkpoint was run",)


def test_a_checkpoint_runs_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"format": "splatscope checkpoint 1", "info": Trap()}, tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Trap()))
    for name in ("a.pt", "b.pt"):
        with pytest.raises(InputError, match="not a checkpoint"):
            read_checkpoint(tmp_path / name)
    assert capsys.readouterr().out == ""


def test_a_full_disk_is_reported_and_training_goes_on(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    trainer = Trainer(capture, replace(SHORT, save_iterations=(10, 20)), backend, tmp_path)
    events: list[Event] = []
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for event in trainer.run():
            events.append(event)
            if isinstance(event, Stepped):  # no file may grow past 8 kB until iteration 30
                if event.iteration == 29:
                    trainer.wait_for_files()
                limit = before[0] if event.iteration >= 30 else 8_000
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    failed = of_type(events, SaveFailed)
    assert [event.iteration for event in failed] == [10, 20], "one sentence a save"
    assert failed[0].what == ("splats", "checkpoint")
    assert "point_cloud.ply cannot be written: the file would be larger" in failed[0].reason
    assert [event.iteration for event in of_type(events, Saved)] == [40]
    assert list(checkpoints(tmp_path)) == [40]
    assert not list(tmp_path.rglob(".*"))


def test_a_slow_disk_holds_up_the_run_rather_than_fill_the_memory_and_loses_nothing(
    capture: Capture, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: weakref.WeakSet[saving.Snapshot] = weakref.WeakSet()
    most, written, write = 0, [], saving.write_checkpoint

    def slowly(path: Path, checkpoint: Checkpoint) -> None:
        nonlocal most
        most = max(most, len(alive))
        time.sleep(0.15)
        write(path, checkpoint)
        written.append(checkpoint.iteration)

    class Counted(saving.Snapshot):
        def __init__(self, *content: Any, **options: Any) -> None:
            super().__init__(*content, **options)
            alive.add(self)

    monkeypatch.setattr(saving, "write_checkpoint", slowly)
    monkeypatch.setattr(run_record, "Snapshot", Counted)
    config = replace(SHORT, save_iterations=tuple(range(1, 21)))
    events = list(Trainer(capture, config, backend, tmp_path).run())
    assert [event.iteration for event in of_type(events, Saved)] == [*range(1, 21), 40]
    assert written == [*range(1, 21), 40]
    assert most <= 4, "one being written, one waiting, one to be handed over, and one just done with"


def test_a_folder_that_refuses_checkpoints_still_gets_its_splats(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    events = list(Trainer(capture, SHORT, backend, tmp_path).run())
    (failed,) = of_type(events, SaveFailed)
    assert failed.what == ("checkpoint",)
    assert "checkpoints" in failed.reason
    assert [event.iteration for event in of_type(events, Saved)] == [40]
    assert events[-1] == Finished(40)


def test_a_gradient_that_is_not_finite_is_named_and_the_run_goes_on_without_that_step(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    config = replace(SHORT, data=replace(SHORT.data, eval=False))
    poisoned: Any = Poisoned(backend, 6 + 11, "quats", (7, 2), np.inf)  # the forecast takes six
    trainer = Trainer(capture, config, poisoned, tmp_path)
    events: list[Event] = []
    with pytest.raises(NotFiniteError, match=r"iteration 11: the gradient of quats on \d\d\.png .* first 7") as error:
        events.extend(trainer.run())
    assert (error.value.iteration, error.value.tensor) == (11, "gradient of quats")
    assert trainer.iteration == 10
    assert all(np.isfinite(getattr(trainer.gaussians, name)).all() for name in ("means", "quats", "sh"))
    count = trainer.gaussians.count
    rest = list(trainer.run())
    assert rest[0].iteration == 11  # pyright: ignore[reportAttributeAccessIssue]
    assert rest[0].count == count  # density control of iteration 10 is not repeated  # pyright: ignore
    assert rest[-1] == Finished(40)


def test_a_run_begins_with_the_splats_of_a_file_and_steps_of_the_usual_size(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    list(Trainer(capture, SHORT, backend, tmp_path / "first").run())
    path = tmp_path / "first" / "point_cloud" / "iteration_40" / "point_cloud.ply"
    splats = read_ply(path)
    config = TrainConfig(iterations=5001, test_interval=0, data=DataConfig(eval=True))
    trainer = Trainer(capture, config, backend, tmp_path / "second", Beginning(path, splats=splats, iteration=5000))
    assert (trainer.iteration, trainer.sh_degree) == (5000, 3)
    events = list(trainer.run())
    (resumed,) = of_type(events, Resumed)
    assert "no moments" in resumed.remark
    assert [event.iteration for event in of_type(events, Stepped)] == [5001]
    moved = np.abs(trainer.gaussians.quats - splats.quats)
    assert moved.max() == pytest.approx(config.rates.quats, rel=0.01)  # Adam's first step is one rate long


def test_positions_are_written_where_the_capture_has_them(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    offset = (1000.0, -20.0, 3.0)
    trainer = Trainer(replace(capture, offset=offset), replace(SHORT, iterations=1), backend, tmp_path)
    list(trainer.run())
    path = tmp_path / "point_cloud" / "iteration_1" / "point_cloud.ply"
    np.testing.assert_allclose(read_ply(path).means, trainer.gaussians.means + np.array(offset, np.float32), atol=1e-4)
    again = Trainer(
        replace(capture, offset=offset), SHORT, backend, tmp_path, Beginning(path, splats=read_ply(path), iteration=1)
    )
    np.testing.assert_allclose(again.gaussians.means, trainer.gaussians.means, atol=1e-4)
    write_ply(tmp_path / "x.ply", again.gaussians)
