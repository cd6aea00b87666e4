"""Tests blend.map = adaptive: what earlier frames lead it to choose, and that both choices give the same bits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from splatscope.kernels.cuda.blend_choice import EVEN, MapChoice
from splatscope.kernels.cuda.launch.buffers import Capacity
from splatscope.kernels.cuda.launch.compiler import ARCHITECTURES, compile_report, nvrtc_path
from splatscope.kernels.cuda.plan.operations import Launch
from splatscope.kernels.cuda.plan.passes import Pass, source
from splatscope.kernels.cuda.plan.planner import Plan
from splatscope.kernels.cuda.renderer import Renderer
from splatscope.kernels.cuda.training_step import TrainingStep
from splatscope.kernels.ladder import changed
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Gaussians, RenderSettings
from tests.kernels.test_training_step import request, snapshot
from tests.support.comparison import PARAMETERS
from tests.support.cuda_on_cpu.run import is_supported
from tests.support.cuda_pipeline import (
    Emulated,
    EmulatedLauncher,
    HostMemory,
    Kernels,
    Result,
    emulated_renderer,
    pass_for,
)
from tests.support.cuda_training import IN_ORDER, StepKernels
from tests.support.small_scenes import random_camera, random_scene

needs_emulation = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")

SETTINGS = RenderSettings(background=(0.2, 0.4, 0.7))
ROOM = Capacity(4096, 32768)
CAMERA = random_camera(157, 93)  # 60 tiles, those at two edges cut
ADAPTIVE, MIXED = (changed(IN_ORDER, {"blend.map": name}) for name in ("adaptive", "mixed"))
SPLIT = {"schedule.chunk": "all", "schedule.chunk_k": "4"}
POLICIES: dict[str, Policy] = {
    name: changed(ADAPTIVE, changes)
    for name, changes in {
        "default": {},
        "split": SPLIT,
        "split apart, by ticket": SPLIT | {"schedule.coexec": "off", "schedule.take": "ticket"},
        "sorted": {"schedule.sched": "lpt", "schedule.chunk": "off"},
        "grid, recorded": {"schedule.sched": "grid", "schedule.chunk": "off", "schedule.record": "on"},
        "whole lists": {
            "blend.compaction": "off",
            "blend.cmask": "off",
            "blend_backward.bwd_sync": "block",
            "blend_backward.touched": "off",
        },
    }.items()
}
EVEN_COUNTS, UNEVEN_COUNTS = {"heaviest": 15, "instances": 10_000}, {"heaviest": 45, "instances": 10_000}


@cache
def scene(name: str) -> Gaussians:
    """Returns a scene. `even`: small splats all over the picture; `crowded`: most of them in one tile."""
    gaussians = random_scene(CAMERA, 2500, seed=4, degree=1)
    rng = np.random.default_rng(1)
    depth = rng.uniform(1.5, 4.0, (2500, 1))
    pixel = rng.uniform((-4, -4), (161, 97), (2500, 2))
    if name == "crowded":
        pixel[300:] = rng.normal(40, 2.0, (2200, 2))
    ray = (pixel - (CAMERA.cx, CAMERA.cy)) / (CAMERA.fx, CAMERA.fy)
    gaussians.means[:] = (np.concatenate([ray * depth, depth], 1) - CAMERA.matrix[:3, 3]) @ CAMERA.matrix[:3, :3]
    gaussians.log_scales[:] = np.log(rng.uniform(1.0, 3.0, (2500, 1)) / CAMERA.fx * depth)
    return gaussians


def either(policy: Policy, training: bool) -> tuple[Pass, Pass]:
    """Returns the pass of 8 x 4 pixels and the pass of 8 x 8."""
    narrow = pass_for(policy, CAMERA, training, wants_depth=True)
    return narrow, replace(narrow, is_wide=True)


@cache
def kernels() -> Kernels:
    return Kernels([p for policy in POLICIES.values() for training in (False, True) for p in either(policy, training)])


def blend_launch(plan: Plan) -> Launch:
    """Returns the last launch of blending."""
    launch = [step for step in plan.forward if step.stage == "blend"][-1]
    assert isinstance(launch, Launch)
    return launch


def blends_wide(renderer: Renderer) -> bool:
    """Returns True if blocks have the threads of the wide pass."""
    return blend_launch(renderer.newest_plan).block == (128,)


# ---- What is chosen --------------------------------------------------------------------------------------------------


def test_wide_warps_are_chosen_where_no_tile_stands_out() -> None:
    for heaviest, is_wide in ((0.9 * EVEN, True), (1.1 * EVEN, False)):
        choice = MapChoice(multiprocessors=132)
        assert not choice.is_wide  # nothing is known yet
        choice.note({"heaviest": int(heaviest * 10**6 / 132), "instances": 10**6})
        assert choice.is_wide == is_wide
        choice.note({"heaviest": 0, "instances": 10**6})  # a frame without a plan
        choice.note({"heaviest": 0, "instances": 0})  # one with nothing in it
        assert choice.is_wide == is_wide


def test_where_each_frame_is_another_view_one_of_them_decides_nothing() -> None:
    newest, mean = MapChoice(132), MapChoice(132, newest=1 / 16)
    for choice in (newest, mean):
        for counts in (EVEN_COUNTS, UNEVEN_COUNTS):
            choice.note(counts)
    assert (newest.is_wide, mean.is_wide) == (False, True)
    for _ in range(16):
        mean.note(UNEVEN_COUNTS)
    assert not mean.is_wide


def test_other_maps_and_frames_without_a_plan_have_no_choice() -> None:
    for changes in ({"blend.map": "mixed"}, {"schedule.sched": "grid", "schedule.chunk": "off"}):
        narrow, wide = either(changed(ADAPTIVE, changes), training=True)
        assert wide.kernels() == narrow.kernels()
        assert not wide.blends_wide
    choice = MapChoice(132)
    choice.note(EVEN_COUNTS)
    assert choice.is_wide_for(ADAPTIVE)
    assert not choice.is_wide_for(MIXED)


def test_a_choice_needs_the_kernels_of_both_maps_and_no_others() -> None:
    mixed, square = (changed(ADAPTIVE, {"blend.map": name}) for name in ("mixed", "columns_8x8"))
    for training in (False, True):
        narrow, wide = (made_for.kernels() for made_for in either(ADAPTIVE, training))
        assert wide == narrow  # so that a choice never waits for the compiler
        expected = pass_for(mixed, CAMERA, training, wants_depth=True).kernels()
        expected["wide blend"] = pass_for(square, CAMERA, training, wants_depth=True).kernels()["blend"]
        assert narrow == expected


# ---- Either gives the same bits --------------------------------------------------------------------------------------


def run(name: str, splats: str, made_for: Pass, seed: int) -> tuple[Result, dict[str, int], Plan]:
    """Returns a frame, what its plan decided, and the plan."""
    emulated = Emulated(kernels(), scene(splats), seed)
    plan = emulated.plan(CAMERA, made_for, ROOM)
    upstream = np.random.default_rng(0).standard_normal((CAMERA.height, CAMERA.width, 3)).astype(np.float32)
    emulated.run(plan, CAMERA, SETTINGS)
    result = emulated.run(plan, CAMERA, SETTINGS, upstream if made_for.training else None)  # in buffers now used
    schedule = emulated.pipeline.read_schedule()
    assert schedule is not None
    decided = {name: int(schedule[name]) for name in ("chunk_units", "tile_units", "heaviest", "split_tiles", "cut")}
    return result, decided, plan


@needs_emulation
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", POLICIES)
def test_either_kernel_gives_the_same_picture_and_gradients_to_the_bit(name: str, training: bool) -> None:
    for splats in ("even", "crowded"):
        made_for = either(POLICIES[name], training)
        (wanted, decided, narrow), (got, also_decided, wide) = (
            run(name, splats, one, seed) for seed, one in enumerate(made_for)
        )
        assert (blend_launch(narrow).block, blend_launch(wide).block) == ((256,), (128,))
        assert decided == also_decided
        assert wanted.frame["heaviest"] == got.frame["heaviest"] == wanted.tile_counts.max()
        for array in ("image", "transmittance", "depth"):
            np.testing.assert_array_equal(getattr(got, array), getattr(wanted, array), err_msg=array)
        if training:
            assert got.gradients is not None
            assert got.gradients.means.any()
            for parameter in PARAMETERS:
                a, b = (getattr(result.gradients, parameter) for result in (got, wanted))
                np.testing.assert_array_equal(a, b, err_msg=parameter)


# ---- Who draws and trains --------------------------------------------------------------------------------------------


@needs_emulation
def test_frames_are_drawn_by_what_the_frame_before_told() -> None:
    renderer = emulated_renderer(kernels())
    renderer.map_choice = MapChoice(6)  # of 60 tiles, even ones hold a tenth of a share each
    scenes = {name: renderer.upload(scene(name)) for name in ("even", "crowded")}

    def draw(name: str) -> Any:
        outputs, _ = renderer.complete(
            lambda: renderer.forward(scenes[name], CAMERA, SETTINGS, POLICIES["default"], wants_depth=True)
        )
        return outputs.image.clone()

    drawn, found = ("even", "even", "even", "crowded", "crowded", "even", "even"), []
    images: dict[str, Any] = {}
    for name in drawn:
        image = draw(name)
        found.append(blends_wide(renderer))
        assert torch.equal(image, images.setdefault(name, image))
        machine = renderer.blend_machine()[0]
        assert machine.blocks_each == 1536 // blend_launch(renderer.newest_plan).block[0]
    assert found == [False, True, True, True, False, False, True]


@needs_emulation
def test_steps_that_change_over_move_splats_as_steps_that_do_not() -> None:
    camera = random_camera(64, 48)
    splats = random_scene(camera, 100, seed=11, degree=2)
    made_for = [pass_for(policy, camera, training=True, wants_depth=False) for policy in (ADAPTIVE, MIXED)]
    built, trained = StepKernels(made_for), []
    for policy in (MIXED, ADAPTIVE):
        device = EmulatedLauncher(3, seconds=60)
        training = TrainingStep(splats, policy, memory=HostMemory(device), kernels=built, launcher=device)
        training.map_choice = MapChoice(1)  # a dozen tiles, none of them with a quarter of all pairs
        losses = []
        for number in range(4):
            training.run(request(training, number % 2))
            losses += [outcome.loss for outcome in training.outcomes(wait=True)]
        blocks = {blend_launch(prepared.plan).block for prepared in training.plans.values()}
        assert blocks == ({(256,), (128,)} if policy is ADAPTIVE else {(256,)})
        assert training.plan_count == len(blocks)
        trained.append((losses, snapshot(training)))
    assert trained[0][0] == trained[1][0]
    for name, array in trained[0][1].items():
        np.testing.assert_array_equal(array, trained[1][1][name], err_msg=name)


# ---- The compiler ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(nvrtc_path() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_neither_kernel_spills_and_both_keep_as_many_warps(architecture: int) -> None:
    for training in (False, True):
        found = either(ADAPTIVE, training)[0].kernels()
        warps = []
        for role, threads in (("blend", 256), ("wide blend", 128)):
            file, name = found[role]
            report = compile_report(source(file), [name], architecture)[name]
            assert report.spill_bytes <= (8 if architecture == 75 else 0), role
            warps.append(report.blocks_per_multiprocessor(threads, architecture) * threads // 32)
        assert warps[1] >= 0.9 * warps[0]
