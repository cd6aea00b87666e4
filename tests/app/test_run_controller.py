"""Tests the run as the engine drives it: a fault pauses it, and nothing is lost."""

from __future__ import annotations

import fcntl
import os
import pty
import resource
import signal
import subprocess
import sys
import termios
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from splatscope.app.run import memory_forecast
from splatscope.app.run.controller import RunController
from splatscope.app.run.headless import train_in_terminal
from splatscope.app.run.memory_forecast import memory_use
from splatscope.app.run.plan import RunPlan
from splatscope.assets.capture import Capture
from splatscope.assets.splats.ply import read_ply
from splatscope.kernels.backend import Backend
from splatscope.kernels.errors import InputError
from splatscope.training.config import CheckpointConfig, DensifyConfig, TrainConfig
from splatscope.training.errors import NotFiniteError
from splatscope.training.events import Stepped
from splatscope.training.files.checkpoint import checkpoints, newest_checkpoint
from splatscope.training.trainer import Beginning, Trainer
from tests.support.small_capture import SHORT, Poisoned, write_blender_set


@contextmanager
def small_disk() -> Iterator[None]:
    """Lets no file grow past 20 kB, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def run_of(trainer: Trainer) -> tuple[RunController, list[tuple[str, str]]]:
    log: list[tuple[str, str]] = []
    return RunController(trainer, lambda level, text: log.append((level, text))), log


def run_by(plan: RunPlan, capture: Capture, backend: Backend) -> RunController:
    """Returns a run that its plan can make again."""
    return RunController(plan(capture, backend), lambda *_: None, plan)


def advance_until(run: RunController, done: Callable[[], bool]) -> None:
    while not done():
        run.advance()


def test_a_step_that_is_not_finite_pauses_the_run_and_start_goes_on(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    poisoned: Any = Poisoned(backend, 6 + 9, "sh", (5, 0, 1), np.nan)  # the forecast takes six
    run, _ = run_of(Trainer(capture, SHORT, poisoned, tmp_path))
    run.start()
    with pytest.raises(NotFiniteError, match="iteration 9"):
        advance_until(run, lambda: False)
    assert (run.state, run.trainer.iteration) == ("paused", 8)
    run.start()
    advance_until(run, lambda: not run.active)
    assert (run.state, run.trainer.iteration) == ("finished", 40)


def test_after_a_step_that_is_not_finite_the_run_can_go_back_and_ends_as_if_nothing_had_been(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    """Compares bits: on the CPU, a run that went back must end exactly where an undisturbed one does."""
    config = replace(SHORT, checkpoint=CheckpointConfig(interval=5, seconds=0))
    for _ in Trainer(capture, config, backend, tmp_path / "undisturbed").run():
        pass
    poisoned: Any = Poisoned(backend, 6 + 9, "sh", (5, 0, 1), np.nan)
    run = run_by(RunPlan(config, tmp_path / "run"), capture, poisoned)
    run.start()
    with pytest.raises(NotFiniteError):
        advance_until(run, lambda: False)
    trouble = run.status(0).trouble
    assert trouble is not None
    assert (trouble.iteration, trouble.back_to, trouble.back_label) == (8, 5, "Go back to iteration 5")
    assert run.go_back(), "another trainer has taken its place"
    status = run.status(0)
    assert (status.state, status.iteration, status.trouble) == ("paused", 5, None)
    run.start()
    advance_until(run, lambda: not run.active)
    assert run.state == "finished"
    final = "point_cloud/iteration_40/point_cloud.ply"
    assert (tmp_path / "run" / final).read_bytes() == (tmp_path / "undisturbed" / final).read_bytes()


def test_without_a_checkpoint_the_way_back_is_the_beginning_and_going_on_ends_the_offer(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    poisoned: Any = Poisoned(backend, 6 + 9, "sh", (5, 0, 1), np.nan)
    run, _ = run_of(Trainer(capture, SHORT, poisoned, tmp_path))
    run.start()
    with pytest.raises(NotFiniteError):
        advance_until(run, lambda: False)
    trouble = run.status(0).trouble
    assert trouble is not None
    assert (trouble.back_to, trouble.back_label) == (0, "Go back to the beginning")
    run.step()
    assert run.status(0).trouble is None


@dataclass(frozen=True)
class Watched(RunPlan):
    """Notes whether the earlier run still exists when the plan makes another, and may fail to make it."""

    before: list[weakref.ref[Any]] = field(default_factory=list)
    held: list[bool] = field(default_factory=list)
    fails: list[str] = field(default_factory=list)

    def __call__(self, capture: Capture, backend: Backend) -> Trainer:
        self.held.extend(ref() is not None for ref in self.before)
        if self.fails:
            raise InputError(self.fails.pop())
        return super().__call__(capture, backend)


def run_in_trouble(capture: Capture, backend: Backend, out: Path) -> tuple[RunController, Watched]:
    """Returns a run paused at iteration 8, because the gradient of the ninth is not finite; a checkpoint is at 5."""
    poisoned: Any = Poisoned(backend, 6 + 9, "sh", (5, 0, 1), np.nan)
    plan = Watched(replace(SHORT, checkpoint=CheckpointConfig(interval=5, seconds=0)), out)
    run = run_by(plan, capture, poisoned)
    run.start()
    with pytest.raises(NotFiniteError):
        advance_until(run, lambda: False)
    return run, plan


def test_going_back_and_resetting_let_go_of_the_run_before_the_new_one_is_made(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    """Guards a GPU's memory, which would hold both runs at once."""
    run, plan = run_in_trouble(capture, backend, tmp_path / "run")
    for command, iteration in ((run.go_back, 5), (run.reset, 0)):
        plan.before[:] = [weakref.ref(run.trainer), weakref.ref(run.trainer.state.splats.raw.means)]
        assert command()
        assert plan.held == [False, False], command
        plan.held.clear()
        assert run.trainer.iteration == iteration


def test_a_run_stands_where_it_stood_when_it_cannot_go_back_or_be_reset(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    run, plan = run_in_trouble(capture, backend, tmp_path / "run")
    before, offer = run.trainer.snapshot(), run.status(0).trouble
    for command in (run.go_back, run.reset):
        plan.fails.append("There is no room.")
        with pytest.raises(InputError, match="no room"):
            command()
        assert (run.state, run.status(0).trouble) == ("paused", offer)
        after = run.trainer.snapshot()
        assert all(torch.equal(before.tensors[name], after.tensors[name]) for name in before.tensors)
    assert run.go_back(), "the offer stands"
    assert not run.go_back(), "and is taken once"
    run.start()
    advance_until(run, lambda: not run.active)
    assert (run.state, run.trainer.iteration) == ("finished", 40)


def test_memory_is_foreseen_for_the_most_splats_and_what_does_not_fit_is_said(
    capture: Capture, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_forecast, "_of_machine", lambda: (3 << 30, 8 << 30))
    uses = [
        memory_use(Trainer(capture, replace(SHORT, densify=DensifyConfig(max_splats=most)), backend, tmp_path))
        for most in (100_000, 1_000_000, 100_000_000)
    ]
    per_splat = (uses[1].needed - uses[0].needed) / 900_000
    assert 700 < per_splat < 2500, "parameters, moments and gradients of a splat of degree 3 alone are 944 bytes"
    assert [use.needed < use.total for use in uses] == [True, True, False]
    assert uses[1].text.endswith("GiB foreseen for 1,000,000 splats, there are 8.0 GiB.")
    assert f"they hold about {uses[2].fits:,} splats" in uses[2].text
    assert uses[2].fits == pytest.approx((8 << 30) / per_splat, rel=0.05)
    begun = Trainer(capture, replace(SHORT, densify=DensifyConfig(max_splats=1)), backend, tmp_path)
    assert memory_use(begun).splats == begun.gaussians.count > 1, "a run keeps the splats that it begins with"


def test_without_a_cap_memory_is_foreseen_from_the_size_of_the_photographs_and_a_small_one_warns(
    capture: Capture, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses photographs of 72 x 56, and a run that begins with 200 splats."""
    monkeypatch.setattr(memory_forecast, "_of_machine", lambda: (3 << 30, 8 << 30))
    config = replace(SHORT, iterations=30_000, densify=DensifyConfig())
    trainer = Trainer(capture, config, backend, tmp_path)
    use = memory_use(trainer)
    assert (use.ends, use.splats) == (False, 6 * 72 * 56)
    assert use.text.startswith(
        "400 to 24,000 splats are likely without max_splats, by the photographs' size, and take 1 MiB to"
    )
    assert "Set max_splats" not in use.text
    monkeypatch.setattr(memory_forecast, "_of_machine", lambda: (3 << 20, 8 << 20))
    use = memory_use(trainer)
    assert use.needed > use.total > 0
    assert use.splats > use.fits
    assert "Set max_splats, or train smaller pictures" in use.text
    trainer.state.iteration = 15_000
    use = memory_use(trainer)
    assert (use.ends, use.splats) == (True, trainer.gaussians.count), "growth is over"


def test_a_run_that_goes_on_shows_the_curves_of_what_was_before(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    whole = Trainer(capture, SHORT, backend, tmp_path)
    steps = [event for event in whole.run() if isinstance(event, Stepped)]
    losses = [event.loss for event in steps]
    begin = Beginning(*newest_checkpoint(tmp_path))
    run, _ = run_of(Trainer(capture, replace(SHORT, iterations=45), backend, tmp_path, begin))
    status = run.status(0)
    assert (status.iteration, status.psnr_label) == (40, "held-out PSNR")
    active = whole.seconds["loading"] + whole.seconds["training"] + whole.seconds["scoring"]
    assert active < status.phase.seconds == sum(run.trainer.seconds.values()), "the time before it was resumed"
    assert run.trainer.seconds["scoring"] == whole.seconds["scoring"] > 0
    assert status.loss_curve.x.tolist() == list(range(1, 41))
    np.testing.assert_allclose(status.loss_curve.y, losses, rtol=1e-6)
    assert status.psnr_curve.x.tolist() == [20, 40]
    assert status.count_curve.x.tolist() == [20, 40]
    assert status.count_curve.y.tolist() == [steps[20 - 1].count, steps[40 - 1].count]
    run.start()
    advance_until(run, lambda: not run.active)
    assert run.status(0).loss_curve.x.tolist() == list(range(1, 46))
    assert run.status(0).count_curve.x.tolist() == [20, *range(40, 46)]


def test_a_run_that_cannot_begin_is_still_ready_and_begins_once_it_can(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    run, _ = run_of(Trainer(capture, replace(SHORT, iterations=3), backend, tmp_path / "file" / "run"))
    run.start()
    with pytest.raises(InputError, match="cannot be written"):
        advance_until(run, lambda: not run.active)
    assert (run.state, run.has_begun, run.active) == ("ready", False, False)
    (tmp_path / "file").unlink()
    run.start()
    advance_until(run, lambda: not run.active)
    assert run.state == "finished"
    over = Beginning(*newest_checkpoint(tmp_path / "file" / "run"))
    (tmp_path / "other").write_text("no folder")
    run, _ = run_of(Trainer(capture, replace(SHORT, iterations=3), backend, tmp_path / "other" / "run", over))
    run.start(5)
    with pytest.raises(InputError, match="cannot be written"):
        advance_until(run, lambda: not run.active)
    assert (run.state, run.trainer.iteration, run.active) == ("ready", 3, False), "two are left to do"


def test_a_refine_that_leaves_few_of_the_splats_is_a_warning_and_others_are_not(
    capture: Capture, backend: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    list((before := Trainer(capture, replace(SHORT, iterations=10), backend, tmp_path / "before")).run())
    opacities = torch.sigmoid(before.snapshot().tensors["raw.logit_opacities"]).sort().values
    usual, drastic = (
        replace(SHORT, iterations=15, densify=replace(SHORT.densify, smallest_opacity=smallest))
        for smallest in (0.005, opacities[-15].item())
    )

    def refines_told_of(config: TrainConfig, out: Path) -> tuple[list[str], int]:
        run, log = run_of(Trainer(capture, config, backend, out))
        run.start()
        advance_until(run, lambda: not run.active)
        told = [text for level, text in log if level == "warning" and "a refine removed" in text]
        train_in_terminal(Trainer(capture, config, backend, out.with_name(f"{out.name} again")))
        said = " ".join(capsys.readouterr().out.split())
        assert [text in said for text in told] == [True] * said.count("a refine removed")
        return told, run.trainer.gaussians.count

    assert refines_told_of(usual, tmp_path / "usual")[0] == []
    (warning,), left = refines_told_of(drastic, tmp_path / "drastic")
    assert 0 < left <= 30
    assert warning.startswith("Iteration 10: a refine removed ")
    assert f" splats, and {left} splats are left: too faint or too large, by this recipe." in warning


def test_stopping_with_a_full_disk_pauses_and_can_be_tried_again(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    run, log = run_of(Trainer(capture, SHORT, backend, tmp_path))
    run.start()
    advance_until(run, lambda: run.trainer.iteration == 12)
    run.stop()
    with small_disk(), pytest.raises(InputError, match="cannot be written"):
        run.advance()
    assert run.state == "paused"
    run.stop()
    run.advance()
    assert run.state == "stopped"
    saved = read_ply(tmp_path / "point_cloud" / "iteration_12" / "point_cloud.ply")
    np.testing.assert_array_equal(saved.means, run.trainer.gaussians.means)
    assert list(checkpoints(tmp_path)) == [12]
    assert log[-1][0] == "info"


def test_a_stopped_run_is_saved_and_goes_on_to_where_it_would_have_ended(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    for _ in Trainer(capture, SHORT, backend, tmp_path / "undisturbed").run():
        pass
    run, _ = run_of(Trainer(capture, SHORT, backend, tmp_path / "run"))
    for until in (12, 20):  # between two steps, and before the scores of one
        run.start(until)
        advance_until(run, lambda: not run.active)
        run.stop()
        advance_until(run, lambda: not run.active)
        assert (run.state, run.trainer.iteration) == ("stopped", until)
        assert newest_checkpoint(tmp_path / "run")[1].iteration == until
    run.start()
    advance_until(run, lambda: not run.active)
    assert run.state == "finished"
    status = run.status(0)
    assert status.loss_curve.x.tolist() == list(range(1, 41))
    assert status.psnr_curve.x.tolist() == [20, 40]
    final = "point_cloud/iteration_40/point_cloud.ply"
    assert (tmp_path / "run" / final).read_bytes() == (tmp_path / "undisturbed" / final).read_bytes()


def test_a_save_that_fails_says_whether_training_goes_on_and_the_end_names_a_way_out(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    run, log = run_of(Trainer(capture, replace(SHORT, save_iterations=(15,)), backend, tmp_path))
    run.start()
    with small_disk():
        advance_until(run, lambda: not run.active)
    midway, end = (text for level, text in log if level == "warning" and "not saved" in text)
    assert midway.startswith("Iteration 15: splats")
    assert midway.endswith("Training continues.")
    assert end.startswith("Iteration 40: splats")
    assert end.endswith("The run is over.")
    assert run.status(0).note.startswith("The result is not on disk.")
    assert run.status(0).note.endswith("Save the splats elsewhere (Ctrl + S).")


def test_in_the_terminal_the_last_good_state_is_saved_and_named(
    capture: Capture, backend: Backend, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    poisoned: Any = Poisoned(backend, 6 + 9, "sh", (5, 0, 1), np.nan)
    config = replace(SHORT, checkpoint=CheckpointConfig(interval=5, seconds=0))
    with pytest.raises(SystemExit) as end:
        train_in_terminal(Trainer(capture, config, poisoned, tmp_path))
    assert end.value.code == 2
    text, problem = capsys.readouterr()
    assert "the gradient of sh on" in problem
    assert "Saved the splats of iteration 8" in text
    assert f"Resume: splatscope train --resume {tmp_path}\n" in text
    assert f"Go back to iteration 5: splatscope train --resume {tmp_path / 'checkpoints' / 'iteration_5.pt'}\n" in text
    assert list(checkpoints(tmp_path)) == [5, 8]


def test_a_result_that_could_not_be_saved_is_no_success(
    capture: Capture, backend: Backend, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with small_disk(), pytest.raises(InputError, match=r"not on disk.*point_cloud\.ply cannot be written"):
        train_in_terminal(Trainer(capture, SHORT, backend, tmp_path))
    (said,) = (line for line in capsys.readouterr().out.splitlines() if "not saved" in line)
    assert "splats and checkpoint not saved" in said


def test_where_the_end_could_not_be_saved_the_newest_state_on_disk_is_named(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    config = replace(SHORT, checkpoint=CheckpointConfig(interval=5, seconds=0))
    trainer = Trainer(capture, config, backend, tmp_path)
    for event in trainer.run():
        if isinstance(event, Stepped) and event.iteration == 7:
            break
    trainer.wait_for_files()
    words = r"The result is not on disk.* On disk is iteration 5: splatscope train --resume .*_5"
    with small_disk(), pytest.raises(InputError, match=words):
        train_in_terminal(trainer)


def test_a_terminal_that_is_closed_ends_the_run_with_everything_saved(tmp_path: Path) -> None:
    write_blender_set(tmp_path / "set")
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "splatscope.app", "train", str(tmp_path / "set"), "--headless", "--out", "run"]
    process = subprocess.Popen(
        words, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    try:
        said = b""
        while b"it/s" not in said:
            said += os.read(ours, 65536)
        os.close(ours)
        while process.poll() is None:  # shells say it as well, after the kernel
            process.send_signal(signal.SIGHUP)
            time.sleep(0.005)
        assert process.wait(120) == 130
    finally:
        process.kill()
    (iteration,) = checkpoints(tmp_path / "run")
    assert newest_checkpoint(tmp_path / "run")[1].iteration == iteration > 0
    assert read_ply(tmp_path / "run" / "point_cloud" / f"iteration_{iteration}" / "point_cloud.ply").count > 0
