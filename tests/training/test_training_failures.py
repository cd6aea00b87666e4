"""Tests that a failure ends a run in one sentence and loses neither state nor file nor the reason."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from splatscope.app.run.controller import RunController
from splatscope.app.run.headless import train_in_terminal
from splatscope.app.run.plan import RunPlan
from splatscope.assets.capture import Capture
from splatscope.assets.splats.ply import read_ply, write_ply
from splatscope.kernels.backend import Backend
from splatscope.kernels.errors import InputError
from splatscope.training.config import BudgetConfig, CheckpointConfig, DataConfig, DensifyConfig, TrainConfig
from splatscope.training.errors import NoSplatsLeftError, NotSavedError
from splatscope.training.events import Event, Finished, Prepared, Resumed, Stepped
from splatscope.training.files.beginning import Beginning
from splatscope.training.files.checkpoint import Checkpoint, newest_checkpoint
from splatscope.training.files.folder import checkpoints, only_writer
from splatscope.training.recipes import with_settings
from splatscope.training.trainer import Trainer
from tests.support.small_capture import SHORT, Poisoned, make_capture

OFTEN = replace(SHORT, save_iterations=(10, 20), checkpoint=CheckpointConfig(seconds=0, keep=9))


def stopped_at(trainer: Trainer, iteration: int) -> None:
    for event in trainer.run():
        if isinstance(event, Stepped) and event.iteration == iteration:
            return


def remark_of(events: list[Event]) -> str:
    return next(event.remark for event in events if isinstance(event, Resumed))


def test_a_refine_that_would_leave_no_splat_is_not_carried_out_and_its_settings_are_named(
    capture: Capture, backend: Backend, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    fading = replace(SHORT, densify=DensifyConfig(start=5, interval=10, smallest_opacity=0.9, max_splats=300))
    with pytest.raises(SystemExit) as end:
        train_in_terminal(Trainer(capture, fading, backend, tmp_path))
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert "densify.smallest_opacity = 0.9 (usually 0.005)" in err
    assert f"Resume: splatscope train --resume {tmp_path} --set densify.smallest_opacity=" in out
    path, checkpoint = newest_checkpoint(tmp_path)
    assert checkpoint.iteration == 10
    assert checkpoint.tensors["strategy.pull"].any(), "the refine's statistics are still those before it"
    remedy = out.partition("--set ")[2].splitlines()[0].split(" ")
    resumed = Trainer(capture, with_settings(fading, remedy), backend, tmp_path, Beginning(path, checkpoint))
    assert list(resumed.run())[-1] == Finished(40)


WAYS_TO_EMPTY: dict[str, tuple[TrainConfig, str, str]] = {
    "a reset": (
        replace(SHORT, densify=DensifyConfig(start=5, interval=10, reset_interval=9, reset_opacity=1e-4)),
        "fainter than densify.smallest_opacity = 0.005",
        "densify.reset_opacity = 0.0001 (usually 0.01)",
    ),
    "size": (
        replace(SHORT, densify=DensifyConfig(start=5, interval=10, reset_interval=15, large_share=1e-9)),
        "larger than densify.large_share = 1e-09 of the scene",
        "densify.large_share = 1e-09 (usually 0.1)",
    ),
    "a budget": (
        replace(SHORT, strategy="budget", budget=BudgetConfig(start=5, interval=10, stop=40, smallest_opacity=1)),
        "fainter than budget.smallest_opacity = 1",
        "budget.smallest_opacity = 1 (usually 0.005)",
    ),
}


@pytest.mark.parametrize("way", WAYS_TO_EMPTY)
def test_whatever_rule_would_remove_every_splat_the_splats_stay_and_the_remedy_leaves_some(
    capture: Capture, backend: Backend, tmp_path: Path, way: str
) -> None:
    config, rule, setting = WAYS_TO_EMPTY[way]
    trainer = Trainer(capture, config, backend, tmp_path)
    with pytest.raises(NoSplatsLeftError) as error:
        list(trainer.run())
    assert rule in str(error.value)
    assert setting in str(error.value)
    assert "photographs" not in str(error.value), "settings are to blame"
    assert trainer.gaussians.count > 0
    trainer.save()
    for name, value in (assignment.split("=") for assignment in error.value.remedy):
        assert not name.endswith("smallest_opacity") or float(value) <= DensifyConfig().smallest_opacity, "no stricter"
    config = with_settings(config, error.value.remedy)
    resumed = Trainer(capture, config, backend, tmp_path, Beginning(*newest_checkpoint(tmp_path)))
    assert next(e for e in resumed.run() if isinstance(e, Stepped)).count > 0


def test_where_no_setting_is_to_blame_the_photographs_are(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    trainer = Trainer(capture, replace(SHORT, densify=DensifyConfig(start=5, interval=10)), backend, tmp_path)
    run = trainer.run()
    for event in run:
        if isinstance(event, Stepped) and event.iteration == 10:
            trainer.gaussians.logit_opacities[:] = -9
            break
    with pytest.raises(NoSplatsLeftError, match="Check that the photographs show something"):
        list(run)


def blank(capture: Capture, folder: Path, count: int) -> Capture:
    """Returns the capture with its first photographs replaced by ones that are transparent everywhere."""
    folder.mkdir()
    for view in capture.views[:count]:
        Image.new("RGBA", (view.camera.width, view.camera.height)).save(folder / view.name)
    views = [replace(v, image_path=folder / v.name) if i < count else v for i, v in enumerate(capture.views)]
    return replace(capture, views=tuple(views))


def test_views_without_a_pixel_that_counts_are_in_no_score_and_nothing_but_them_is_refused(
    backend: Backend, tmp_path: Path
) -> None:
    (tmp_path / "capture").mkdir()
    capture = make_capture(tmp_path / "capture", cut_out=True)
    config = replace(SHORT, iterations=1, data=DataConfig(alpha="mask"))
    with pytest.raises(InputError, match=r"--alpha mask leaves out every pixel of 24 photographs.*--alpha ignore"):
        list(Trainer(blank(capture, tmp_path / "all", 24), config, backend, tmp_path / "a").run())
    some = Trainer(blank(capture, tmp_path / "most", 20), config, backend, tmp_path / "b")
    list(some.run())
    assert [view.name for view in some.dataset.tested] == ["20.png", "21.png", "22.png", "23.png"]
    held_out = replace(config, data=DataConfig(alpha="mask", eval=True, holdout_interval=23))
    first = blank(replace(capture, views=capture.views[:23]), tmp_path / "first", 1)
    events = list(Trainer(first, held_out, backend, tmp_path / "c").run())
    prepared = next(event for event in events if isinstance(event, Prepared))
    assert prepared.label == "training PSNR"
    assert any("Nothing can be scored on the 1 view held out" in warning for warning in prepared.warnings)


@pytest.mark.parametrize("obstacle", ["metrics.json", "checkpoints", "point_cloud"])
def test_what_can_be_written_is_whatever_one_part_of_a_save_meets(
    capture: Capture, backend: Backend, tmp_path: Path, obstacle: str
) -> None:
    trainer = Trainer(capture, OFTEN, backend, tmp_path)
    stopped_at(trainer, 8)
    if obstacle == "metrics.json":
        (tmp_path / obstacle).mkdir()
    else:
        (tmp_path / obstacle).write_text("in the way")
    what = {"metrics.json": "scores", "checkpoints": "checkpoint", "point_cloud": "splats"}[obstacle]
    with pytest.raises(
        NotSavedError, match=f"Iteration 8: {what} not saved.*{obstacle}.*On disk is iteration 8"
    ) as error:
        trainer.save()
    assert error.value.what == (what,)
    assert (error.value.path is None) == (what == "splats")
    assert (8 in checkpoints(tmp_path)) == (what != "checkpoint")


def test_why_a_run_stands_still_is_said_also_where_its_state_cannot_be_saved(
    capture: Capture, backend: Backend, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    for name in ("checkpoints", "point_cloud"):
        (tmp_path / name).write_text("in the way")
    poisoned: Any = Poisoned(backend, 6 + 9, "sh", (5, 0, 1), np.nan)
    with pytest.raises(NotSavedError, match=r"splats and checkpoint not saved.*Nothing of the run is on disk"):
        train_in_terminal(Trainer(capture, SHORT, poisoned, tmp_path))
    assert "the gradient of sh on" in capsys.readouterr().err


def test_a_write_that_fails_leaves_no_empty_folder_that_a_later_run_takes_for_a_model(
    capture: Capture, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(capture, SHORT, backend, tmp_path)
    stopped_at(trainer, 3)
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(NotSavedError, match="the disk is full"):
            trainer.save()
    assert not (tmp_path / "point_cloud").exists()
    assert not (tmp_path / "checkpoints").exists()
    RunPlan(SHORT, tmp_path)(capture, backend)


def test_a_folder_with_checkpoints_alone_is_not_begun_anew(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    list(Trainer(capture, OFTEN, backend, tmp_path).run())
    shutil.rmtree(tmp_path / "point_cloud")
    with pytest.raises(InputError, match=r"holds checkpoints up to iteration 40; give another --out, --resume"):
        RunPlan(SHORT, tmp_path)(capture, backend)


def test_checkpoints_that_another_run_wrote_since_this_one_looked_are_not_set_aside(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    stopped = Trainer(capture, OFTEN, backend, tmp_path)
    stopped_at(stopped, 5)
    late = Trainer(capture, SHORT, backend, tmp_path)  # has looked at the folder, as `begin` has now
    stopped.save()
    begin = Beginning(*newest_checkpoint(tmp_path))
    list(Trainer(capture, OFTEN, backend, tmp_path, Beginning(*newest_checkpoint(tmp_path))).run())
    before = sorted((tmp_path / "checkpoints").iterdir())
    for trainer in (Trainer(capture, SHORT, backend, tmp_path, begin), late):
        with pytest.raises(InputError, match=r"is at iteration 40\. Continue from there: splatscope train --resume"):
            list(trainer.run())
    assert sorted((tmp_path / "checkpoints").iterdir()) == before


def test_a_run_of_a_lower_degree_cuts_the_harmonics_it_goes_on_with(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    list(Trainer(capture, replace(SHORT, sh_interval=5, sh_degree=2), backend, tmp_path).run())
    ply = tmp_path / "point_cloud" / "iteration_40" / "point_cloud.ply"
    config = replace(SHORT, iterations=45, sh_degree=1, sh_interval=5)
    for begin in (Beginning(*newest_checkpoint(tmp_path)), Beginning(ply, splats=read_ply(ply), iteration=40)):
        trainer = Trainer(capture, config, backend, tmp_path / f"from{begin.path.suffix}", begin)
        assert "cut from degree 2 to 1" in remark_of(list(trainer.run()))
        assert read_ply(trainer.save()).sh_degree == trainer.snapshot().tensors["first.sh"].shape[1] // 2 - 1 == 1


def test_splats_that_no_step_can_use_are_left_out_and_counted(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    list(Trainer(capture, SHORT, backend, tmp_path).run())
    path, checkpoint = newest_checkpoint(tmp_path)
    count = len(checkpoint.tensors["raw.means"])

    def changed(**rows: int) -> Checkpoint:
        tensors = {name: tensor.clone() for name, tensor in checkpoint.tensors.items()}
        for name, row in rows.items():
            tensors[name.replace("_", ".", 1)][row] = 0 if name == "raw_quats" else np.nan
        return replace(checkpoint, tensors=tensors)

    config = replace(SHORT, iterations=60)
    begin = Beginning(path, changed(raw_means=7, raw_quats=3, second_sh=count - 1))
    trainer = Trainer(capture, config, backend, tmp_path / "a", begin)
    assert trainer.gaussians.count == count - 3
    remark = remark_of(list(trainer.run()))
    assert f"Left out: 3 splats of {path}: 2 with a number that is not finite, 1 without a rotation" in remark
    assert "the first in row 3, counted from 0" in remark
    splats = read_ply(tmp_path / "point_cloud" / "iteration_40" / "point_cloud.ply")
    splats.means[5] = np.inf
    splats.logit_opacities[6] = np.inf  # an opacity of one
    splats.log_scales[8, 1] = 100  # e^100 is no float32
    splats.sh[9, 0, 2] = 1e38  # finite, but its error squared is not
    ply = tmp_path / "odd.ply"
    write_ply(ply, splats)
    trainer = Trainer(capture, config, backend, tmp_path / "b", Beginning(ply, splats=read_ply(ply)))
    assert trainer.gaussians.count == count - 3
    splats.means[:] = np.nan
    with pytest.raises(InputError, match=f"{count} splats of .* none is left to continue with"):
        Trainer(capture, config, backend, tmp_path / "c", Beginning(ply, splats=splats))


def test_a_damaged_checkpoint_is_named_and_where_all_are_the_splats_are_offered(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    list(Trainer(capture, OFTEN, backend, tmp_path).run())
    stored = checkpoints(tmp_path)
    stored[40].write_bytes(stored[40].read_bytes()[:5000])
    begin = Beginning(*newest_checkpoint(tmp_path))
    remark = remark_of(list(Trainer(capture, SHORT, backend, tmp_path, begin).run()))
    assert "Passed over: " in remark
    assert f"{stored[40]} is damaged" in remark
    for path in checkpoints(tmp_path).values():
        path.write_bytes(b"")
    splats = tmp_path / "point_cloud" / "iteration_40" / "point_cloud.ply"
    with pytest.raises(InputError) as error:
        newest_checkpoint(tmp_path)
    assert "an earlier" not in str(error.value)
    assert str(error.value).endswith(f"To begin with its splats: splatscope train --resume {splats}")


@pytest.mark.parametrize("move", [lambda p: p + np.array([0, 0, 500]), lambda p: p * 1e30], ids=["above", "too far"])
def test_splats_that_no_camera_sees_are_told_of_before_the_first_step(
    capture: Capture, backend: Backend, tmp_path: Path, move: Callable[[np.ndarray], np.ndarray]
) -> None:
    def warnings(of: Capture) -> tuple[str, ...]:
        events = Trainer(of, replace(SHORT, iterations=1), backend, tmp_path).run()
        return next(event.warnings for event in events if isinstance(event, Prepared))

    assert not any("in sight" in warning for warning in warnings(capture))
    assert capture.points is not None
    moved = replace(capture, points=replace(capture.points, positions=move(capture.points.positions)))
    (said,) = (warning for warning in warnings(moved) if "in sight" in warning)
    assert "--init random" in said


def test_a_folder_that_is_removed_while_a_run_writes_there_is_made_whole_and_held_again(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    names = {"cfg_args", "settings.json", "cameras.json", "input.ply"}
    for event in Trainer(capture, OFTEN, backend, out).run():
        if isinstance(event, Stepped) and event.iteration == 5:
            assert names <= {path.name for path in out.iterdir()}
            shutil.rmtree(out)
        if isinstance(event, Stepped) and event.iteration == 39:
            out.mkdir(exist_ok=True)
            with pytest.raises(InputError, match="Another run is writing"), only_writer(out):
                pass
    assert names <= {path.name for path in out.iterdir()}
    assert max(checkpoints(out)) == 40


def test_a_folder_that_another_run_has_taken_meanwhile_is_left_to_it(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    trainer = Trainer(capture, SHORT, backend, out)
    run = trainer.run()
    while trainer.iteration < 5:
        next(run)
    shutil.rmtree(out)
    with (
        only_writer(out),
        pytest.raises(NotSavedError, match=r"splats and checkpoint and scores not saved\. Another run"),
    ):
        trainer.save()
    assert not list(out.iterdir())
    trainer.save()
    assert checkpoints(out)


def test_a_window_pauses_before_such_a_refine_and_keeps_the_splats_when_it_closes(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    config, _, setting = WAYS_TO_EMPTY["a budget"]
    session = RunController(Trainer(capture, config, backend, tmp_path), lambda *_: None)
    session.start()
    refused = None
    while refused is None:
        try:
            session.advance()
        except NoSplatsLeftError as error:
            refused = error
    assert session.state == "paused"
    trouble = session.status(0).trouble
    assert trouble is not None
    assert setting in trouble.text == str(refused)
    assert "saved" in session.save_on_close()
    assert list(checkpoints(tmp_path)) == [session.trainer.iteration]


def test_scores_that_cannot_be_written_do_not_keep_a_run_from_stopping(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    log: list[str] = []
    session = RunController(Trainer(capture, SHORT, backend, tmp_path), lambda _, text: log.append(text))
    session.start(until=5)
    while session.active:
        session.advance()
    (tmp_path / "metrics.json").mkdir()
    session.stop()
    session.advance()
    assert session.state == "stopped"
    assert any("scores not saved" in text for text in log)


def test_a_path_through_a_link_that_leads_back_to_itself_is_refused(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "link")
    with pytest.raises(InputError, match="cannot be written"):
        list(Trainer(capture, SHORT, backend, tmp_path / "link" / "run").run())
