"""Tests eval, convert and train --resume as a person meets them: real files, real numbers, sentences for mistakes."""

from __future__ import annotations

import json
import shutil
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from plyfile import PlyData, PlyElement

from splatscope.app.main import main
from splatscope.app.options.subcommands import TrainOptions
from splatscope.app.run.from_options import plan_training
from splatscope.assets.photographs.images import read_image
from splatscope.assets.splats.ply import read_ply, write_ply
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Float32, Gaussians
from splatscope.training.config import TrainConfig
from splatscope.training.files.checkpoint import checkpoints
from splatscope.training.recipes import preset
from splatscope.training.scores.perceptual import VGG_WEIGHTS
from tests.support.small_capture import write_blender_set


def splatscope(*arguments: object) -> None:
    main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a finished run of 60 iterations on a small set with its own test views."""
    folder = tmp_path_factory.mktemp("set")
    write_blender_set(folder / "small set")
    options = ("--iterations", 60, "--init", "random", "--set", "initial.random_count=200", "--backend", "cpu")
    splatscope("train", folder / "small set", "--headless", "--out", folder / "out", *options)
    return folder / "out"


# ------------------------------------------------------------------------------------------ eval


def test_float_scores_are_those_the_run_measured(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    splatscope("eval", run, "--precision", "float", "--out", tmp_path, "--backend", "cpu")
    text = capsys.readouterr().out
    assert "the set's own 6 test views; over RGB 1, 1, 1; float render" in text
    measured = json.loads((run / "metrics.json").read_text())["scores"][-1]
    results = json.loads((tmp_path / "results.json").read_text())["ours_60"]
    assert results["PSNR"] == pytest.approx(measured["psnr"], abs=1e-4)
    assert results["SSIM"] == pytest.approx(measured["ssim"], abs=1e-5)


def test_views_that_the_run_did_not_hold_out_are_said_to_be_trained_on(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Covers runs from before the capture's own split was read."""
    earlier = shutil.copytree(run, tmp_path / "earlier")
    settings = json.loads((earlier / "settings.json").read_text())
    assert len(settings["held_out"]) == 6
    for held_out, words in (
        (settings["held_out"][:4], "the run did not hold out 2 of them"),
        ("?", "test views; over"),
    ):
        (earlier / "settings.json").write_text(json.dumps({**settings, "held_out": held_out}))
        splatscope("eval", earlier, "--out", tmp_path, "--backend", "cpu")
        text = capsys.readouterr().out
        assert words in text
        assert ("but trained on too" in text) == (held_out != "?")


def test_the_pictures_on_disk_have_the_scores_in_the_files(run: Path) -> None:
    (run / "results.json").write_text('{"ours_7": {"PSNR": 1.0}}')
    splatscope("eval", run, "--backend", "cpu")
    results = json.loads((run / "results.json").read_text())
    per_view = json.loads((run / "per_view.json").read_text())["ours_60"]
    assert results["ours_7"] == {"PSNR": 1.0}
    assert list(results["ours_60"]) == list(per_view) == ["SSIM", "PSNR"]
    folder = run / "test" / "ours_60"
    names = [f"{i:05}.png" for i in range(6)]
    assert list(per_view["PSNR"]) == names
    for name in names:
        pair = (read_image(folder / kind / name).astype(np.float64) / 255 for kind in ("renders", "gt"))
        error = np.mean(np.square(np.subtract(*pair)))
        assert per_view["PSNR"][name] == pytest.approx(-10 * np.log10(error), abs=1e-3)
    assert results["ours_60"]["PSNR"] == pytest.approx(np.mean(list(per_view["PSNR"].values())))
    protocol = json.loads((folder / "protocol.json").read_text())
    assert protocol["views"]["00001.png"].endswith("04.png")


def test_lpips_is_measured_where_its_weights_are_and_its_absence_is_said(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    class Network:
        def __init__(self, net: str, verbose: bool) -> None:
            assert net == "vgg"

        def eval(self) -> Network:
            return self

        def __call__(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            assert a.shape == b.shape == (1, 3, 56, 72)
            assert 0 <= float(a.min()) <= float(a.max()) <= 1
            return (a - b).abs().mean()

    package: Any = types.ModuleType("lpips")
    package.LPIPS = Network
    monkeypatch.setitem(sys.modules, "lpips", package)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    splatscope("eval", run, "--out", tmp_path / "without", "--backend", "cpu")
    assert "LPIPS is left out: the weights" in capsys.readouterr().out
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / VGG_WEIGHTS).write_bytes(b"")
    splatscope("eval", run, "--out", tmp_path / "with", "--backend", "cpu")
    assert "LPIPS is left out" not in capsys.readouterr().out
    results = json.loads((tmp_path / "with" / "results.json").read_text())["ours_60"]
    assert list(results) == ["SSIM", "PSNR", "LPIPS"]
    assert 0 < results["LPIPS"] < 0.5


def test_a_file_of_unknown_origin_needs_its_capture_named(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "loose.ply"
    path.write_bytes((run / "point_cloud" / "iteration_60" / "point_cloud.ply").read_bytes())
    with pytest.raises(SystemExit) as end:
        splatscope("eval", path)
    assert end.value.code == 2
    options = ("--dataset", run.parent / "small set", "--out", tmp_path / "out", "--backend", "cpu")
    splatscope("eval", path, *options)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(results) == ["loose"]


def test_a_splat_that_no_picture_shows_is_said_beside_the_scores(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    splats = read_ply(run / "point_cloud" / "iteration_60" / "point_cloud.ply")
    splats.means[2] = np.nan
    write_ply(tmp_path / "odd.ply", splats)
    dataset = ("--dataset", run.parent / "small set")
    splatscope("eval", tmp_path / "odd.ply", *dataset, "--out", tmp_path, "--backend", "cpu")
    assert f"warning: Not usable: 1 splat of {tmp_path / 'odd.ply'} with a number" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------ convert


def odd_splats() -> Gaussians:
    rng = np.random.default_rng(0)

    def values(*shape: int) -> Float32:
        return rng.standard_normal(shape).astype(np.float32) * np.float32(1e3)

    splats = Gaussians(values(50, 3), values(50, 3), values(50, 4), values(50), values(50, 16, 3) * np.float32(1e-30))
    splats.logit_opacities[:4] = (np.inf, -np.inf, np.nan, 1e-45)
    return splats


def assert_same(a: Gaussians, b: Gaussians) -> None:
    for name in ("means", "log_scales", "quats", "logit_opacities", "sh"):
        np.testing.assert_array_equal(getattr(a, name).view(np.uint32), getattr(b, name).view(np.uint32), name)


def test_text_and_binary_hold_the_same_bits_and_comments(tmp_path: Path) -> None:
    splats = odd_splats()
    write_ply(tmp_path / "a.ply", splats, ["made by hand", "second line"])
    splatscope("convert", tmp_path / "a.ply", tmp_path / "text.ply", "--encoding", "ascii")
    splatscope("convert", tmp_path / "text.ply", tmp_path / "b.ply")
    assert_same(read_ply(tmp_path / "text.ply"), splats)
    assert (tmp_path / "a.ply").read_bytes() == (tmp_path / "b.ply").read_bytes()
    stored = PlyData.read(str(tmp_path / "text.ply"))
    assert stored.text
    assert stored.comments == ["made by hand", "second line"]


def test_a_checkpoint_converts_to_the_splats_it_holds(run: Path, tmp_path: Path) -> None:
    splatscope("convert", run / "checkpoints" / "iteration_60.pt", tmp_path / "a.ply", "--sh-degree", 3)
    assert_same(read_ply(tmp_path / "a.ply"), read_ply(run / "point_cloud" / "iteration_60" / "point_cloud.ply"))


def test_harmonics_are_cut_and_faint_splats_left_out(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    splats = odd_splats()
    splats.logit_opacities[:] = np.linspace(-5, 5, 50)
    write_ply(tmp_path / "a.ply", splats)
    splatscope("convert", tmp_path / "a.ply", tmp_path / "b.ply", "--sh-degree", 1, "--min-opacity", 0.5)
    kept = read_ply(tmp_path / "b.ply")
    assert (kept.count, kept.sh_degree) == (25, 1)
    np.testing.assert_array_equal(kept.sh, splats.sh[25:, :4])
    assert "25 fainter than 0.5 left out" in capsys.readouterr().out


def test_nothing_is_overwritten_unasked_and_what_is_dropped_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    write_ply(tmp_path / "a.ply", odd_splats())
    data = PlyData.read(str(tmp_path / "a.ply"))["vertex"].data
    wide = np.zeros(len(data), [*data.dtype.descr, ("label", "<i4")])
    for name in data.dtype.names or ():
        wide[name] = data[name]
    PlyData([PlyElement.describe(wide, "vertex")]).write(str(tmp_path / "extra.ply"))
    before = (tmp_path / "a.ply").read_bytes()
    with pytest.raises(SystemExit):
        splatscope("convert", tmp_path / "extra.ply", tmp_path / "a.ply")
    assert "--overwrite" in capsys.readouterr().err
    assert (tmp_path / "a.ply").read_bytes() == before
    splatscope("convert", tmp_path / "extra.ply", tmp_path / "a.ply", "--overwrite")
    assert "not kept: label" in capsys.readouterr().out
    splatscope("convert", tmp_path / "a.ply", tmp_path / "a.ply", "--overwrite", "--sh-degree", 0)
    assert read_ply(tmp_path / "a.ply").sh_degree == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--sh-degree", 4), "from 0 to 3"),
        (("--min-opacity", 1.5), "less than 1"),
        (("--min-opacity", 0.999999), "leaves no splat"),
    ],
)
def test_wrong_options_of_convert_are_named(
    options: tuple[object, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    splats = odd_splats()
    splats.logit_opacities[:] = 0
    write_ply(tmp_path / "a.ply", splats)
    with pytest.raises(SystemExit):
        splatscope("convert", tmp_path / "a.ply", tmp_path / "b.ply", *options)
    assert words in capsys.readouterr().err
    assert not (tmp_path / "b.ply").exists()


# ------------------------------------------------------------------------------------------ train's options


def test_options_of_train_reach_the_settings_they_name(run: Path) -> None:
    options = TrainOptions(
        dataset=run.parent / "small set", preset="fast", iterations=1000, max_splats=777, warmup_length=20,
        num_downscales=2, sh_degree_interval=50, alpha="mask", exposure=True, init="random", patience=3,
        set=("budget.interval=10",),
    )  # fmt: skip
    config = plan_training(options).config
    assert (config.strategy, config.iterations, config.rates.means_steps) == ("budget", 1000, 1000)
    assert (config.budget.max_splats, config.budget.start, config.budget.interval) == (777, 20, 10)
    assert (config.resolution.schedule, config.resolution.num_downscales, config.sh_interval) == ("halving", 2, 50)
    assert (config.data.alpha, config.exposure.enabled, config.initial.source) == ("mask", True, "random")
    assert config.plateau.patience == 3
    assert plan_training(TrainOptions(dataset=options.dataset)).config == TrainConfig()


# ------------------------------------------------------------------------------------------ resume


def test_a_resumed_run_has_its_own_settings_and_capture_but_for_what_is_given(run: Path) -> None:
    plan = plan_training(TrainOptions(resume=run, iterations=90, set=("rates.quats=0.002",)))
    assert plan.begin is not None
    assert plan.begin.checkpoint is not None
    assert plan.capture is not None
    assert (plan.capture.name, plan.out) == ("small set", run)
    assert (plan.config.iterations, plan.config.initial.random_count) == (90, 200)
    assert plan.config.rates.quats == 0.002
    elsewhere = plan_training(TrainOptions(resume=run / "checkpoints" / "iteration_60.pt", iterations=61))
    assert elsewhere.out == run.absolute()
    with pytest.raises(InputError, match="at iteration 60 already, and the run is to end at 60"):
        plan_training(TrainOptions(resume=run))
    with pytest.raises(InputError, match="keeps its own settings"):
        plan_training(TrainOptions(resume=run, iterations=90, preset="mcmc"))


def test_a_run_killed_before_it_saved_anything_is_to_be_begun_anew(run: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    killed.mkdir()
    for name in ("settings.json", "input.ply"):
        (killed / name).write_bytes((run / name).read_bytes())
    with pytest.raises(
        InputError,
        match=f"nothing to resume. Begin it again: splatscope train '.*small set' --settings {killed} --out {killed}",
    ):
        plan_training(TrainOptions(resume=killed))


def test_a_ply_in_a_runs_folder_knows_its_capture_and_settings(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "moved"
    shutil.copytree(run, folder)
    ply = folder / "point_cloud" / "iteration_60" / "point_cloud.ply"
    for words in (ply, ply.parent):
        plan = plan_training(TrainOptions(resume=words, iterations=90))
        assert plan.begin is not None
        assert (plan.begin.checkpoint, plan.begin.iteration) == (None, 60)
        assert (plan.capture, plan.config.initial.random_count) == (run.parent / "small set", 200)
        assert plan.out != folder, "its scores are not overwritten by those of another run"
        assert plan.remark == ""
    assert plan_training(TrainOptions(resume=ply, preset="mcmc")).config == preset("mcmc")
    (folder / "settings.json").write_text("{")
    with pytest.raises(InputError, match=r"settings\.json is not valid JSON.* Give the capture"):
        plan_training(TrainOptions(resume=ply))
    named = TrainOptions(dataset=run.parent / "small set", resume=ply, preset="fast", iterations=90)
    assert plan_training(named).config == preset("fast", 90), "nothing of the damaged file is needed"
    (folder / "settings.json").unlink()
    plan = plan_training(TrainOptions(resume=ply))
    assert plan.capture == run.parent / "small set", "by cfg_args"
    assert plan.config == replace(TrainConfig(), data=replace(TrainConfig().data, white_background=True))
    loose = tmp_path / "loose.ply"
    loose.write_bytes(ply.read_bytes())
    with pytest.raises(InputError, match="needs a capture"):
        plan_training(TrainOptions(resume=loose))


def test_a_run_without_checkpoints_begins_with_its_newest_splats_and_says_what_is_missing(
    run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    shutil.rmtree(folder / "checkpoints")
    plan = plan_training(TrainOptions(resume=folder, iterations=90))
    assert plan.begin is not None
    assert plan.begin.path == folder / "point_cloud" / "iteration_60" / "point_cloud.ply"
    assert plan.remark.startswith(f"{folder} has no checkpoint, so a new run begins with its newest splats, ")
    assert "iteration 60: Adam's moments" in plan.remark
    (folder / "checkpoints").mkdir()
    shutil.copy(checkpoints(run)[60], folder / "checkpoints" / "last.pt")
    remark = plan_training(TrainOptions(resume=folder, iterations=90)).remark
    assert remark.startswith(f"{folder} has no checkpoint called iteration_N.pt, so a new run begins with")
    assert remark.endswith(
        f"There is last.pt; to continue from it: splatscope train --resume {folder}/checkpoints/last.pt"
    )
    assert plan_training(TrainOptions(resume=folder / "checkpoints/last.pt", iterations=90)).remark == ""
    shutil.rmtree(folder / "checkpoints")
    (folder / "settings.json").write_text((run / "settings.json").read_text().replace("small set", "no set"))
    with pytest.raises(InputError, match=r"no set, on which .*point_cloud\.ply was trained, does not exist"):
        plan_training(TrainOptions(resume=folder, iterations=90))


def test_settings_edited_beside_a_checkpoint_are_not_used_and_that_is_said(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    assert plan_training(TrainOptions(resume=folder, iterations=90)).remark == ""
    settings = json.loads((folder / "settings.json").read_text())
    settings["training"]["rates"]["opacity"] = 0.05
    settings["training"]["densify"]["start"] = 10
    for content, words in (
        (json.dumps(settings), " is not used: it differs from the checkpoint in rates.opacity, densify.start. Change "
         "settings with --set, for example --set rates.opacity=0.05"),
        ("{", " cannot be understood; the checkpoint's settings are used and written there again."),
    ):  # fmt: skip
        (folder / "settings.json").write_text(content)
        plan = plan_training(TrainOptions(resume=folder, iterations=90))
        assert plan.remark == f"{folder / 'settings.json'}{words}"
        assert plan.config.rates.opacity == 0.025


def test_a_folder_that_is_taken_is_refused_before_cameras_are_searched_for(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    for k in range(3):
        Image.new("RGB", (64, 48), (k, 0, 0)).save(tmp_path / f"{k}.png")
    with pytest.raises(SystemExit):
        splatscope("train", tmp_path, "--headless", "--out", run)
    assert "already holds a trained model; give another --out" in capsys.readouterr().err


def test_the_settings_of_another_run_are_a_recipe_but_for_its_photographs(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "recipe.json"
    stored = json.loads((run / "settings.json").read_text())
    stored["training"]["data"]["images"] = "images_8"
    stored["training"]["data"]["eval"] = True
    file.write_text(json.dumps(stored))
    dataset = run.parent / "small set"
    config = plan_training(TrainOptions(dataset, settings=file, iterations=99, set=("rates.opacity=0.04",))).config
    assert (config.iterations, config.initial.random_count, config.rates.opacity) == (99, 200, 0.04)
    assert (config.data.images, config.data.eval) == ("images", True)
    assert plan_training(TrainOptions(dataset, settings=run)).config.initial.random_count == 200, "a folder will do"
    loose = tmp_path / "loose.ply"
    write_ply(loose, odd_splats())
    assert plan_training(TrainOptions(dataset, settings=file, resume=loose)).config.initial.random_count == 200
    for options, words in (
        (TrainOptions(settings=file), "needs a capture"),
        (TrainOptions(dataset, settings=file, preset="fast"), "two recipes; give one"),
        (TrainOptions(settings=file, resume=run), "--settings does not go with --resume"),
        (TrainOptions(dataset, settings=tmp_path / "none.json"), "does not exist"),
        (
            TrainOptions(dataset, settings=dataset / "transforms_train.json"),
            "does not hold the settings of a run",
        ),
    ):
        with pytest.raises(InputError, match=words):
            plan_training(options)


def test_a_run_goes_on_in_its_folder_by_the_command_line(run: Path, capsys: pytest.CaptureFixture) -> None:
    splatscope("train", "--resume", run, "--iterations", 80, "--headless", "--backend", "cpu")
    text = capsys.readouterr().out
    assert "Continuing from iteration 60" in text
    assert (run / "point_cloud" / "iteration_80" / "point_cloud.ply").is_file()
    scores = json.loads((run / "metrics.json").read_text())["scores"]
    assert [row["iteration"] for row in scores] == [60, 80]


def test_splats_without_a_run_are_a_beginning_without_moments(run: Path, tmp_path: Path) -> None:
    loose = tmp_path / "loose.ply"
    write_ply(loose, odd_splats())
    options = TrainOptions(dataset=run.parent / "small set", resume=loose, iterations=70)
    plan = plan_training(options)
    assert plan.begin is not None
    assert (plan.begin.checkpoint, plan.begin.iteration) == (None, 0)
    stored = run / "point_cloud" / "iteration_60" / "point_cloud.ply"
    plan = plan_training(replace(options, resume=stored))
    assert plan.begin is not None
    assert plan.begin.iteration == 60
    with pytest.raises(InputError, match="at iteration 60 already, and the run is to end at 50"):
        plan_training(replace(options, resume=stored, iterations=50))
    with pytest.raises(InputError, match="is a capture, not a run"):
        plan_training(replace(options, resume=run.parent / "small set"))
