"""Tests timed training steps: several runs from one start, and two spreads kept apart."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from splatscope.app.bench import train
from splatscope.app.bench.measure.process import in_a_process
from splatscope.app.bench.train import BLOCKS, together
from splatscope.app.options.bench import TrainBenchOptions
from splatscope.assets.formats import open_capture
from splatscope.kernels.backends import make_backend
from splatscope.kernels.errors import InputError
from splatscope.training.trainer import Trainer
from tests.support import measurements
from tests.support.small_capture import SHORT, write_blender_set


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gives only the first measurement a process of its own; the others run here, after fewer steps."""
    made: list[str] = []

    def measured(measure: Callable[..., Any], *arguments: Any) -> Any:
        made.append(measure.__name__)
        return in_a_process(measure, *arguments) if len(made) == 1 else measure(*arguments)

    monkeypatch.setattr("splatscope.app.bench.train.in_a_process", measured)
    monkeypatch.setattr("splatscope.app.bench.train.WARM_UP", 4)
    return made


def test_steps_are_timed_in_runs_from_one_start_and_the_spread_between_them_is_told_from_that_of_blocks(
    tmp_path: Path, capsys: pytest.CaptureFixture, one_process: list[str]
) -> None:
    write_blender_set(tmp_path / "ring")
    start = Trainer(open_capture(tmp_path / "ring"), SHORT, make_backend("cpu"), tmp_path / "run").save()
    train.run(TrainBenchOptions(tmp_path / "ring", start, train_steps=2, runs=2, out=tmp_path / "steps.json"))
    assert one_process == ["_run", "_run"]
    stored = json.loads((tmp_path / "steps.json").read_text())
    assert stored["run"]["command"] == "splatscope bench train ring --resume point_cloud.ply -n 2 --runs 2"
    training = stored["training"]
    assert (training["width"], training["step"]["runs"]) == (72, 2)
    assert [run["step"]["runs"] for run in training["runs"]] == [BLOCKS, BLOCKS]
    text = capsys.readouterr().out
    assert "from run to run" in text
    assert "medians of 2 runs, each a process of its own" in text
    assert f"extremes of {BLOCKS} blocks of 2 steps, in the widest run" in text


def run_of(low: float, median: float, high: float) -> dict[str, Any]:
    step = {"median": median, "min": low, "max": high, "p10": low, "p90": high, "runs": BLOCKS}
    return {"splats": 7, "peak_gib": median, "step": step, "stages": {"loss": {**step, "median": 0.1 * median}}}


def test_runs_are_put_together_by_their_medians() -> None:
    found = together([run_of(0.9, 1.0, 9.0), run_of(1.9, 2.0, 2.1), run_of(2.9, 4.0, 4.1)])
    assert (found["step"]["min"], found["step"]["median"], found["step"]["max"]) == (1.0, 2.0, 4.0)
    assert (found["splats"], found["peak_gib"]) == (7, 4.0)
    assert found["stages"]["loss"]["median"] == pytest.approx(0.2)
    assert [run["step"]["max"] for run in found["runs"]] == [9.0, 2.1, 4.1]


def test_a_measurement_that_cannot_be_made_is_a_sentence_also_from_its_own_process(
    tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    assert in_a_process(os.getpid) != os.getpid()
    with pytest.raises(InputError, match="There is no training preset 'x'"):
        in_a_process(measurements.refused)
    with pytest.raises(InputError, match="ended early, with exit code 3"):
        in_a_process(os._exit, 3)
    with pytest.raises(InputError, match="ended early, by SIGKILL"):
        in_a_process(measurements.killed)
    with pytest.raises(InputError, match=r"^RuntimeError at tests/support/measurements\.py, line \d+: no picture\.$"):
        in_a_process(measurements.crashed)
    assert capfd.readouterr().err == "", "no traceback beside it"
    with pytest.raises(InputError, match="--runs must be at least 1, got 0"):
        train.run(TrainBenchOptions(tmp_path, Path("y.ply"), runs=0))
    with pytest.raises(InputError, match="There is no capture x; give the path"):
        train.run(TrainBenchOptions(Path("x")))


def test_what_was_timed_before_a_run_failed_is_shown_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_only(_1: object, _2: object, _3: object, is_first: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        if not is_first:
            raise InputError("The photographs went away.")
        sizes = {"capture": "ring", "sh_degree": 0, "width": 72, "height": 56}
        return run_of(0.9, 1.0, 1.1) | sizes, {"backend": "nothing"}

    monkeypatch.setattr(train, "in_a_process", one_only)
    options = TrainBenchOptions(tmp_path, runs=3, out=tmp_path / "steps.json")
    with pytest.raises(InputError, match=r"^The photographs went away\. The figures are those of 1 run before it\.$"):
        train.run(options)
    assert "1.000 ms" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "steps.json").read_text())["training"]["runs"]) == 1
