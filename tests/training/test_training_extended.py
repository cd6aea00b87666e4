"""Tests a run that is made longer than its recipe, scored on request, or left unsaved, and the status it shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from splatscope.app.run import memory_forecast
from splatscope.app.run.controller import RunController
from splatscope.app.run.memory_forecast import MemoryWatch
from splatscope.assets.capture import Capture
from splatscope.kernels.backend import Backend
from splatscope.training.config import BudgetConfig, ExposureConfig, McmcConfig, PlateauConfig, ResolutionConfig
from splatscope.training.events import Densified
from splatscope.training.files.checkpoint import newest_checkpoint
from splatscope.training.scores.scorer import Scores
from splatscope.training.trainer import Beginning, Trainer
from tests.support.small_capture import SHORT

FINAL = "point_cloud/iteration_{}/point_cloud.ply"
CONFIGS = {
    "plain": SHORT,
    "everything that depends on the length": replace(SHORT, exposure=ExposureConfig(enabled=True)),
}


def session_of(trainer: Trainer) -> RunController:
    return RunController(trainer, lambda *_: None)


def go_on(session: RunController, until: Callable[[], bool] = lambda: False) -> None:
    while session.active and not until():
        session.advance()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_finished_run_that_is_made_longer_ends_as_a_resume_with_more_iterations_does(
    name: str, capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    config = CONFIGS[name]
    for folder in ("window", "terminal"):
        session = session_of(Trainer(capture, config, backend, tmp_path / folder))
        session.start()
        go_on(session)
        assert session.state == "finished"
        if folder == "window":
            session.start(55)
            assert session.status(0).iterations == 55
            go_on(session)
            assert (session.state, session.trainer.iteration) == ("finished", 55)
    begin = Beginning(*newest_checkpoint(tmp_path / "terminal"))
    for _ in Trainer(capture, replace(config, iterations=55), backend, tmp_path / "terminal", begin).run():
        pass
    longer, resumed = (tmp_path / folder for folder in ("window", "terminal"))
    assert (longer / FINAL.format(55)).read_bytes() == (resumed / FINAL.format(55)).read_bytes()
    assert json.loads((longer / "settings.json").read_text())["training"]["iterations"] == 55


def test_a_stopped_run_goes_past_its_end_when_told_to_and_is_over_there(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    session = session_of(Trainer(capture, SHORT, backend, tmp_path))
    session.start(12)
    go_on(session)
    session.stop()
    go_on(session)
    session.start(50)
    go_on(session)
    assert (session.state, session.trainer.iteration) == ("finished", 50)
    assert (tmp_path / FINAL.format(50)).exists()
    assert not (tmp_path / FINAL.format(40)).exists(), "the old end is none any more"


def test_scores_can_be_asked_for_in_every_state_which_stays_and_the_run_ends_as_if_nobody_had(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    for _ in Trainer(capture, SHORT, backend, tmp_path / "undisturbed").run():
        pass
    out = tmp_path / "run"
    session = session_of(Trainer(capture, SHORT, backend, out))

    def score(state: str) -> None:
        before = session.trainer.iteration
        session.score()
        go_on(session)
        assert (session.state, session.trainer.iteration) == (state, before)
        assert session.status(0).scored_at == before
        if before != 20:  # whose scores are the run's own, and wait for its files
            assert json.loads((out / "metrics.json").read_text())["scores"][-1]["iteration"] == before
        session.score()
        assert not session.active, "it has been scored"

    session.start(13)
    go_on(session)
    score("paused")
    session.start(20)
    go_on(session)
    score("paused")  # before the run scores this iteration itself
    session.start(27)
    go_on(session)
    session.stop()
    go_on(session)
    score("stopped")
    session.start()
    go_on(session, lambda: session.trainer.iteration == 31)
    session.score()
    go_on(session, lambda: session.status(0).scored_at >= 31)
    assert (session.state, session.trainer.iteration) == ("running", 31)
    go_on(session)
    assert session.state == "finished"
    rows = session.trainer.scores
    assert [(row["iteration"], "asked" in row) for row in rows] == [
        (13, True), (20, False), (27, True), (31, True), (40, False),
    ]  # fmt: skip
    assert (out / FINAL.format(40)).read_bytes() == (tmp_path / "undisturbed" / FINAL.format(40)).read_bytes()
    resumed = Trainer(capture, replace(SHORT, iterations=60), backend, out, Beginning(*newest_checkpoint(out)))
    resumed.ask_for_scores()
    session = session_of(resumed)
    assert session.state == "ready"
    assert not session.status(0).can_be_scored, "which is known of this iteration"


def test_scores_that_were_asked_for_end_no_run(capture: Capture, backend: Backend) -> None:
    for asked in (False, True):
        scores = Scores(PlateauConfig(patience=2, after=0))
        for iteration in range(1, 5):
            scores.table.append({"iteration": iteration, "psnr": 20.0, **({"asked": True} if asked else {})})
        assert (scores.plateau() is None) == asked


def test_a_finished_run_can_be_scored_after_its_own_last_scores_are_gone_and_still_be_made_longer(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    config = replace(SHORT, iterations=10)
    for _ in Trainer(capture, config, backend, tmp_path).run():
        pass
    session = session_of(Trainer(capture, config, backend, tmp_path, Beginning(*newest_checkpoint(tmp_path))))
    session.trainer.state.scores.table.clear()
    session.progress.evaluated = None
    session.state = "finished"
    session.score()
    go_on(session)
    assert (session.state, session.status(0).scored_at) == ("finished", 10)
    session.start(14)
    go_on(session)
    assert (session.state, session.trainer.iteration) == ("finished", 14)


def test_a_run_says_what_it_is_doing_instead_of_steps_and_counts_to_where_it_pauses(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    session = session_of(Trainer(capture, SHORT, backend, tmp_path))
    assert session.status(0).doing == "", "nothing was asked of it"
    session.start(20)
    said = [session.status(0).doing]
    while session.active:
        session.advance()
        status = session.status(0)
        said += [status.doing] * (status.doing != said[-1])
        assert not status.so_far or status.doing == "loading photographs", "what is counted is what it says it does"
        if status.state == "running":
            assert status.until == 20
    assert said == ["loading photographs", "compiling kernels", "preparing", ""]
    session.progress.rate = 10.0
    session.start(25)
    assert session.status(0).eta_seconds == pytest.approx(0.5)
    session.start()
    assert session.status(0).eta_seconds == pytest.approx(2.0)
    session.advance()
    assert session.status(0).doing == "scoring"
    go_on(session)
    assert session.status(0).doing == ""


def test_refines_are_foretold_for_every_strategy_and_the_newest_is_told(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    mcmc = replace(SHORT, strategy="mcmc", mcmc=McmcConfig(start=5, stop=30, interval=10, max_splats=150))
    budget = replace(SHORT, strategy="budget", budget=BudgetConfig(start=5, stop=30, interval=10, halvings=0))
    small = replace(SHORT, resolution=ResolutionConfig(num_downscales=1, interval=15))
    for number, config in enumerate((SHORT, mcmc, budget, small)):
        due, foretold = list(config.refines()), {0}
        trainer = Trainer(capture, config, backend, tmp_path / str(number))
        told = [event.iteration for event in trainer.run() if isinstance(event, Densified)]
        assert told == due, config.strategy
        session = session_of(Trainer(capture, config, backend, tmp_path / f"{number}-again"))
        session.start()
        while session.active:
            session.advance()
            foretold.add(session.status(0).phase.next_refine)
        phase = session.status(0).phase
        assert foretold == {0, *due}
        assert phase.last_refine == due[-1]
        assert phase.refined is not None
        assert phase.refined.iteration == due[-1]
        assert (phase.sh_degree, phase.sh_highest) == (2, 3)
        assert (phase.width, phase.height, phase.divisor) == (72, 56, 1)
    session = session_of(Trainer(capture, small, backend, tmp_path / "small"))
    session.start(10)
    go_on(session)
    phase = session.status(0).phase
    assert (phase.width, phase.height, phase.divisor) == (36, 28, 2)


def test_a_run_that_is_left_unsaved_writes_nothing_and_names_the_checkpoint_there_is(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    session = session_of(Trainer(capture, SHORT, backend, tmp_path))
    session.start(12)
    go_on(session)
    session.stop(save=False)
    assert session.save_on_close() == "Training stopped at iteration 12 and was not saved."
    assert not (tmp_path / "point_cloud").exists()
    session.start(14)
    go_on(session)
    session.stop()
    go_on(session)
    session.start(16)
    go_on(session)
    session.stop(save=False)
    said = session.save_on_close()
    assert said.startswith("Training stopped at iteration 16 and was not saved. Resume from iteration 14:")
    assert said.endswith(f"--resume {tmp_path}")


def test_memory_in_use_is_the_most_of_the_last_seconds_so_that_it_does_not_flicker(
    capture: Capture, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, used = [0.0], [2.3, 1.7, 2.2, *[1.8] * 100]
    monkeypatch.setattr(memory_forecast, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(memory_forecast, "_of_machine", lambda: (round(used.pop(0) * 2**30), 8 << 30))
    watch, told = MemoryWatch(Trainer(capture, SHORT, backend, tmp_path)), []
    for _ in range(60):
        told.append(round(watch.now().used / 2**30, 1))
        clock[0] += 0.5
    assert sorted(set(told)) == [1.8, 2.2, 2.3]
    assert sum(a != b for a, b in pairwise(told)) == 2
