"""Tests what a run without a window prints: at its start, in a log on its way, at its end, and when it is stopped."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.progress import Progress

from splatscope.app.opening import find_cameras
from splatscope.app.run import headless
from splatscope.app.run.headless import train_in_terminal
from splatscope.app.terminal import Terminal
from splatscope.assets.capture import Capture
from splatscope.assets.sfm.search import SearchProgress
from splatscope.kernels.backend import Backend
from splatscope.training.config import BudgetConfig, CheckpointConfig, McmcConfig, TrainConfig
from splatscope.training.events import Event, Stepped
from splatscope.training.files.checkpoint import checkpoints, newest_checkpoint
from splatscope.training.recipes import PRESETS, preset, schedules_in_words, with_settings
from splatscope.training.trainer import Beginning, Trainer
from tests.support.small_capture import SHORT

EVERY_FIFTH = replace(SHORT, checkpoint=CheckpointConfig(interval=5, seconds=0))


class Interrupted(Trainer):
    """Presses Ctrl-C after iteration 12."""

    def run(self) -> Iterator[Event]:
        for event in super().run():
            if isinstance(event, Stepped) and event.iteration == 12:
                os.kill(os.getpid(), signal.SIGINT)
            yield event


class Impatient(Interrupted):
    """Presses Ctrl-C once more while the run is saved."""

    def save(self) -> Path:
        self.wait_for_files()
        raise KeyboardInterrupt


def test_ctrl_c_saves_and_prints_the_way_on(
    capture: Capture, backend: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        train_in_terminal(Interrupted(capture, SHORT, backend, tmp_path))
    assert end.value.code == 130
    text = capsys.readouterr().out
    assert "Stopped at iteration 12; saved" in text
    assert f"Resume: splatscope train --resume {tmp_path}\n" in text
    assert newest_checkpoint(tmp_path)[1].iteration == 12


def test_ctrl_c_while_it_saves_names_the_newest_checkpoint_there_is(
    capture: Capture, backend: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        train_in_terminal(Impatient(capture, EVERY_FIFTH, backend, tmp_path))
    assert end.value.code == 130
    (said,) = capsys.readouterr().err.splitlines()
    (*_, (iteration, path)) = checkpoints(tmp_path).items()  # of 10, unless that of 5 was still being written then
    assert 5 <= iteration < 12
    assert said.startswith("splatscope: stopped at once, at iteration 12. ")
    assert said.endswith(f"iteration {iteration}: splatscope train --resume {path}")


def test_the_end_counts_what_this_run_did_and_small_times_are_not_zero(
    capture: Capture, backend: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_in_terminal(Trainer(capture, SHORT, backend, tmp_path))
    first = capsys.readouterr().out
    assert re.search(r"^Trained 40 iterations in [1-9][\d.]* m?s, [1-9][\d.]* m?s of it in steps; ", first, re.M)
    assert re.search(r"^Forecast: about [1-9][\d.]* m?s \([\d.]*[1-9][\d.]* m?s a step now\)", first, re.M)
    begin = Beginning(*newest_checkpoint(tmp_path))
    train_in_terminal(Trainer(capture, replace(SHORT, iterations=46), backend, tmp_path, begin))
    assert "Trained 6 iterations, up to 46, in " in capsys.readouterr().out


def test_a_log_has_lines_about_reading_steps_and_scoring_and_none_before_a_rate_is_known(
    capture: Capture,
    backend: Backend,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(headless._Line, "PLAIN_SECONDS", 0.0)
    train_in_terminal(Trainer(capture, replace(SHORT, iterations=120, test_interval=60), backend, tmp_path))
    text = capsys.readouterr().out
    assert "Reading photographs: 12 of 24" in text
    assert "Scoring views: 1 of 3" in text
    steps = re.findall(r"^Iteration [\d,]+: +([^ ]+) it/s +loss", text, re.M)
    assert steps
    assert all(float(rate) > 0 for rate in steps)


def test_what_the_page_finds_odd_is_printed_once_before_training(
    capture: Capture, backend: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away = capture.views[3].camera
    far = replace(away, view_from_world=((*away.view_from_world[0][:3], 500.0), *away.view_from_world[1:]))
    views = (*capture.views[:3], replace(capture.views[3], camera=far), *capture.views[4:])
    train_in_terminal(Trainer(replace(capture, views=views), SHORT, backend, tmp_path))
    text = capsys.readouterr().out
    for said in (
        "warning: Hardly any of the points are seen by 1 photograph: 03.png. Their poses are wrong, or they show",
        "warning: 1 photograph taken 5 times farther out than most: 03.png. They do not count for the extent",
        "warning: 3 photographs are missing.",
    ):
        assert text.count(said) == 1
        assert text.index(said) < text.index("Read 24 photographs")


def test_a_log_of_a_search_for_cameras_has_true_counts_all_the_while(capsys: pytest.CaptureFixture[str]) -> None:
    console = Terminal()
    bar = Progress(console=console, disable=True)
    line = find_cameras._Line(console, bar, bar.add_task(""))
    line.PLAIN_SECONDS = 0.0
    for done in range(3):
        line.show([SearchProgress("reading", done, 9)])
    # Stages that are over between two looks are told with what they came to.
    line.show([SearchProgress("reading", 9, 9), SearchProgress("features", 9, 9), SearchProgress("matching", 12, 36)])
    line.PLAIN_SECONDS = 600.0
    line.show([SearchProgress("reading", 9, 9), SearchProgress("features", 9, 9), SearchProgress("matching", 36, 36)])
    line.end()
    assert capsys.readouterr().out.splitlines() == [
        *(f"Reading photographs: {done} of 9…" for done in range(3)),
        "Reading photographs: 9 of 9.",
        "Finding features: 9 of 9 photographs.",
        "Matching: 12 of 36 pairs…",
        "Matching: 36 of 36 pairs.",
    ]


def test_a_run_shorter_than_its_schedules_says_so_once(
    capture: Capture, backend: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_in_terminal(Trainer(capture, SHORT, backend, tmp_path))
    (said,) = (line for line in capsys.readouterr().out.splitlines() if "before its schedules do" in line)
    assert "growth ends at 15,000" in said
    assert "the rate of the means has fallen at 30,000" in said


@pytest.mark.parametrize("name", PRESETS)
def test_only_fast_recipes_fit_their_schedules_to_a_short_run(name: str) -> None:
    assert schedules_in_words(preset(name)) == ""
    assert bool(schedules_in_words(preset(name, 7_000))) == (name not in ("fast", "fast_mcmc"))
    resumed = schedules_in_words(replace(preset(name), iterations=100))
    assert "The recipes fast and fast_mcmc fit theirs" in resumed, "resumed runs keep the schedules they have"


def test_a_fast_run_with_more_small_pictures_than_fit_is_not_told_to_be_fast() -> None:
    config = with_settings(preset("fast", 60), ["resolution.schedule=halving", "resolution.num_downscales=3"])
    assert schedules_in_words(config) == (
        "The run ends at iteration 60, before its schedules do: photographs have their full size at 9,000."
    )


@pytest.mark.parametrize(
    "config",
    [
        replace(SHORT, strategy="budget", budget=BudgetConfig(start=5, stop=35, interval=10, max_splats=7)),
        replace(SHORT, strategy="mcmc", mcmc=McmcConfig(start=5, stop=35, interval=10, max_splats=7)),
        replace(SHORT, densify=replace(SHORT.densify, max_splats=7)),
    ],
)
def test_a_budget_below_the_first_splats_is_said_once_and_never_grows(
    config: TrainConfig, capture: Capture, backend: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = Trainer(capture, config, backend, tmp_path)
    first = trainer.gaussians.count
    train_in_terminal(trainer)
    said = f"The run begins with {first:,} splats, more than the 7 that growth may reach, so none will be added."
    assert capsys.readouterr().out.count(said) == 1
    assert trainer.gaussians.count <= first
