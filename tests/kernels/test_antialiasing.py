"""Tests training with a filter other than the plain one: steps, scores, files and continued runs all use it.

The filters themselves, with their gradients against finite differences: training/test_filter.py. Whole runs on the
steps of a GPU: training/test_device_training.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from splatscope.app.main import main
from splatscope.app.opening.scene import open_scene
from splatscope.app.options.subcommands import TrainOptions
from splatscope.app.run.from_options import plan_training
from splatscope.assets.capture import Capture
from splatscope.assets.splats.ply import read_filter, read_ply, write_ply
from splatscope.assets.splats.ply_table import read_comments
from splatscope.kernels.backend import Backend
from splatscope.kernels.backends import make_backend
from splatscope.kernels.cpu import CpuBackend
from splatscope.kernels.cuda.launch.compiler import ARCHITECTURES, compile_report, nvrtc_path
from splatscope.kernels.cuda.plan.passes import fused_name, source
from splatscope.kernels.ladder import changed
from splatscope.kernels.policy import Filter, Policy
from splatscope.training.config import DensifyConfig, InitialConfig, TrainConfig
from splatscope.training.events import Resumed, Stepped
from splatscope.training.files.checkpoint import newest_checkpoint
from splatscope.training.trainer import Beginning, Trainer
from tests.kernels.test_training_step import CAMERA, SCENE, SETTINGS, photograph, request
from tests.support.cuda_on_cpu.run import is_supported
from tests.support.cuda_pipeline import pass_for
from tests.support.cuda_training import IN_ORDER, PARAMETERS, RATES, Plain, emulated_step, filtered
from tests.support.small_capture import SHORT, write_blender_set
from tests.support.small_scenes import random_camera

FILTERS: tuple[Filter, ...] = get_args(Filter)
OTHERS = FILTERS[1:]
COMMENTS = {"plain": [], "compensated": ["SplatRenderMode: mip"], "mip": ["SplatRenderMode: mip-0.1"]}


def splatscope(*arguments: object) -> None:
    main([str(argument) for argument in arguments])


# ---- Steps -----------------------------------------------------------------------------------------------------------


def test_steps_under_each_filter_are_those_of_the_definition_and_not_each_others(
    capture: Capture, tmp_path: Path
) -> None:
    small = InitialConfig(scale_factor=0.1)  # splats of less than a pixel, which filters matter to
    config = replace(SHORT, iterations=4, densify=DensifyConfig(enabled=False), test_interval=0, initial=small)
    found = {}
    for name in FILTERS:
        losses = []
        for backend in (make_backend("cpu"), make_backend("reference")):
            out = tmp_path / f"{name} {backend.name}"
            events = list(Trainer(capture, replace(config, antialiasing=name), backend, out).run())
            losses.append([event.loss for event in events if isinstance(event, Stepped)])
        assert losses[0] == pytest.approx(losses[1], rel=1e-4), name
        found[name] = losses[0]
    for name in OTHERS:
        assert found[name][0] != pytest.approx(found["plain"][0], rel=1e-3)


@pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")
@pytest.mark.parametrize("name", OTHERS)
def test_fused_steps_of_the_gpu_follow_those_of_the_cpu_under_each_filter_and_toggles_leave_it(name: str) -> None:
    policy = filtered(IN_ORDER, name)
    training, plain = emulated_step(SCENE, policy), Plain(SCENE, CpuBackend(), policy)
    losses = []
    for number in range(4):
        training.want(IN_ORDER)
        training.run(request(training, number % 2))
        losses.append(plain.run(CAMERA, SETTINGS, photograph(number % 2), RATES, 0.2))
    assert training.policy == policy, "splats are trained for one way of drawing them"
    outcomes = training.outcomes(wait=True)
    assert [outcome.loss for outcome in outcomes] == pytest.approx(losses, rel=1e-5)
    assert not any(outcomes[-1].skipped.values())
    ours = training.splats.gaussians()
    for field in PARAMETERS:
        got, wanted, start = (getattr(g, field) for g in (ours, plain.gaussians, SCENE))
        assert np.linalg.norm(got - wanted) < 0.02 * np.linalg.norm(wanted - start), field


@pytest.mark.skipif(nvrtc_path() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("adam", "allowance"), [("fused", 0), ("lazy_sh", 32)])
def test_a_filter_costs_the_kernel_that_steps_no_registers(adam: str, allowance: int, architecture: int) -> None:
    """Checks spills too: `lazy_sh` may move eight registers of the parts that hardly ever run."""
    names = []
    for filter in FILTERS:
        policy = filtered(changed(Policy(), {"optimizer.adam": adam}), filter)
        _, plain = pass_for(policy, random_camera(64, 48), True, False).kernels()["project_backward"]
        names.append(fused_name(plain, policy))
    for name, report in compile_report(source("project_backward_adam.cuh"), names, architecture).items():
        assert report.registers <= 96, name
        assert report.spill_bytes <= allowance, name


# ---- From the command line to the files and back ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("antialiasing") / "set"
    write_blender_set(folder)
    return folder


@pytest.fixture(scope="module")
def runs(small_set: Path) -> dict[str, Path]:
    """Returns the folder of a short run with each filter."""
    folders = {name: small_set.parent / name for name in FILTERS}
    options = ("--iterations", 30, "--init", "random", "--set", "initial.random_count=200", "--backend", "cpu")
    for name, folder in folders.items():
        given = () if name == "plain" else ("--antialiasing", name)
        splatscope("train", small_set, "--headless", "--out", folder, *options, *given)
    return folders


def splats_of(run: Path) -> Path:
    return run / "point_cloud" / "iteration_30" / "point_cloud.ply"


@pytest.mark.parametrize("name", FILTERS)
def test_eval_scores_saved_splats_as_their_run_did_and_a_toggle_still_wins(
    runs: dict[str, Path], tmp_path: Path, name: str
) -> None:
    assert read_comments(splats_of(runs[name])) == COMMENTS[name]
    measured = json.loads((runs[name] / "metrics.json").read_text())["scores"][-1]["psnr"]
    other = "mip" if name == "plain" else "plain"
    found = []
    for given in ((), ("--toggle", f"project.filter={other}")):
        out = tmp_path / f"eval {len(found)}"
        splatscope("eval", runs[name], "--precision", "float", "--out", out, "--backend", "cpu", *given)
        found.append(json.loads((out / "results.json").read_text())["ours_30"]["PSNR"])
    assert found[0] == pytest.approx(measured, abs=1e-4)
    assert abs(found[1] - measured) > 1e-3


def test_what_goes_on_from_a_run_or_its_splats_keeps_their_filter_unless_told_otherwise(
    runs: dict[str, Path], small_set: Path
) -> None:
    def planned(resume: Path, **options: Any) -> TrainConfig:
        return plan_training(TrainOptions(small_set, resume=resume, iterations=60, **options)).config

    for name in FILTERS:
        for path in (runs[name], splats_of(runs[name])):
            assert planned(path).antialiasing == name
            assert planned(path, antialiasing="compensated").antialiasing == "compensated"
            assert planned(path, set=("antialiasing=plain",)).antialiasing == "plain"


def test_convert_keeps_the_filter_of_a_file_and_of_a_checkpoint(runs: dict[str, Path], tmp_path: Path) -> None:
    for name in FILTERS:
        for path in (splats_of(runs[name]), runs[name] / "checkpoints" / "iteration_30.pt"):
            target = tmp_path / f"{name}{path.suffix}.ply"
            splatscope("convert", path, target)
            assert read_comments(target) == COMMENTS[name]


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_that_is_written_is_read_back_and_beats_what_comments_said_before(
    tmp_path: Path, name: Filter
) -> None:
    write_ply(tmp_path / "a.ply", SCENE, filter=name)
    write_ply(tmp_path / "b.ply", SCENE, comments=["SplatRenderMode: default", *COMMENTS[name]], filter=name)
    for file in ("a.ply", "b.ply"):
        assert read_filter(tmp_path / file) == name
        assert open_scene(tmp_path / file).info.filter == name
    assert read_comments(tmp_path / "b.ply") == ["SplatRenderMode: default", *COMMENTS[name]]


# ---- Checkpoints -----------------------------------------------------------------------------------------------------


def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    config = replace(SHORT, antialiasing="mip")
    whole = Trainer(capture, config, backend, tmp_path / "whole")
    assert len(list(whole.run())) > 40
    half = Trainer(capture, config, backend, tmp_path / "half")
    for event in half.run():
        if isinstance(event, Stepped) and event.iteration == 20:
            break
    half.save()
    begin = Beginning(*newest_checkpoint(tmp_path / "half"))
    rest = Trainer(capture, config, backend, tmp_path / "half", begin)
    remarks = [event.remark for event in rest.run() if isinstance(event, Resumed)]
    assert remarks == [""]
    tensors, others = (trainer.snapshot().tensors for trainer in (whole, rest))
    for name, tensor in tensors.items():
        assert torch.equal(tensor, others[name]), name


def test_another_filter_than_before_is_one_sentence(
    runs: dict[str, Path], capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    list(Trainer(capture, replace(SHORT, iterations=10, antialiasing="mip"), backend, tmp_path / "mip").run())
    checkpoint = Beginning(*newest_checkpoint(tmp_path / "mip"))
    file = Beginning(splats_of(runs["mip"]), splats=read_ply(splats_of(runs["mip"])), filter="mip")
    told = {}
    for name in ("plain", "mip"):
        for begin in (checkpoint, file):
            trainer = Trainer(capture, replace(SHORT, antialiasing=name), backend, tmp_path / f"{name}-on", begin)
            told[name, begin is file] = next(event.remark for event in trainer.run() if isinstance(event, Resumed))
    sentence = "Its splats were trained with antialiasing = mip and continue with plain."
    assert told["plain", False] == sentence
    assert told["plain", True].endswith(sentence)
    assert not any("antialiasing" in told["mip", is_file] for is_file in (False, True))
