"""Tests blending of whole tiles and chunks from a queue, on the CPU in many orders: against the grid and the
definition."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from splatscope.kernels.cuda.launch.buffers import Capacity
from splatscope.kernels.cuda.launch.compiler import ARCHITECTURES, compile_report, nvrtc_path
from splatscope.kernels.cuda.plan import schedule as pipeline_schedule
from splatscope.kernels.cuda.plan.passes import source
from splatscope.kernels.ladder import changed, step
from splatscope.kernels.policy import Policy
from splatscope.kernels.reference.backend import ReferenceBackend
from splatscope.kernels.types import Camera, Float32, Gaussians, RenderSettings
from tests.support.comparison import PARAMETERS, assert_close_with_boundary_band, assert_gradients_close, settled_pixels
from tests.support.cuda_on_cpu.run import is_supported
from tests.support.cuda_pipeline import Emulated, Kernels, Result, pass_for
from tests.support.small_scenes import random_camera, random_scene

needs_emulation = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")

SETTINGS = RenderSettings(background=(0.2, 0.4, 0.7))
ROOM = Capacity(2048, 16384)
IN_ORDER = {"blend_backward.reduce": "deterministic"}
GRID = {"schedule.sched": "grid", "schedule.chunk": "off"}
LPT = {"schedule.sched": "lpt_binned", "schedule.chunk": "off"}
SPLIT = {"schedule.sched": "lpt_binned", "schedule.chunk": "all", "schedule.chunk_k": "4"}
TICKET, INEXACT = {"schedule.take": "ticket"}, {"schedule.exact_stop": "off"}
OTHER_PIXELS = {
    "sign": {"blend.running_T": "off", "blend.sign_T": "on", "blend.map": "columns_8x8"},
    "flag": {
        "blend.running_T": "off",
        "blend.subtile_list": "ballot",
        "blend.map": "columns_8x4",
        "blend_backward.row_combine": "off",
    },
    "inclusive": {"blend.stop": "inclusive"},
    "whole lists": {
        "blend.compaction": "off",
        "blend.cmask": "off",
        "blend_backward.bwd_sync": "block",
        "blend_backward.touched": "off",
        "blend_backward.accum": "rgb",
    },
}
ORDERS: dict[str, dict[str, str]] = {
    "lpt": LPT,
    "lpt by ticket": LPT | TICKET,
    "sorted": LPT | {"schedule.sched": "lpt"},
    "reversed": LPT | {"schedule.sched": "lpt_reverse"},
    "by last frame's work": LPT | {"schedule.sched": "exact_work"},
}
CHUNKS: dict[str, dict[str, str]] = {
    "split": SPLIT,
    "split by ticket": SPLIT | TICKET,
    "split in 16": SPLIT | {"schedule.chunk_k": "16"},
    "split without flag": SPLIT | {"schedule.sat_flag": "off"},
    "split apart": SPLIT | {"schedule.coexec": "off"},
    "split on two streams": SPLIT | {"schedule.coexec": "streams"},
    "split fused": SPLIT | TICKET | {"schedule.coexec": "fused"},
    "split and sorted": SPLIT | {"schedule.sched": "lpt"},
    "fixed": SPLIT | {"schedule.chunk": "fixed", "schedule.chunk_h": "4"},
    "catgs": SPLIT | {"schedule.chunk": "catgs", "schedule.sched": "grid"},
    "length": SPLIT | {"schedule.chunk": "modelled"},
    "length, planned apart": SPLIT | {"schedule.chunk": "modelled", "schedule.plan": "apart"},
    "length by ticket": SPLIT | TICKET | {"schedule.chunk": "modelled"},
    "length apart": SPLIT | {"schedule.chunk": "modelled", "schedule.coexec": "off"},
    "length fused": SPLIT | TICKET | {"schedule.chunk": "modelled", "schedule.coexec": "fused"},
    "seed": SPLIT | {"schedule.chunk": "modelled", "schedule.cost_model": "seed"},
}
LOOSE: dict[str, dict[str, str]] = {
    "split, inexact": SPLIT | INEXACT,
    "split in 16 by ticket, inexact": SPLIT | TICKET | INEXACT | {"schedule.chunk_k": "16"},
}
BASES = {"best": {}} | OTHER_PIXELS
POLICIES: dict[str, Policy] = {
    f"{base}: {name}": changed(step("best"), GRID | IN_ORDER | BASES[base] | changes)
    for base, cases in (
        ("best", {"grid": GRID} | ORDERS | CHUNKS | LOOSE),
        *((base, {"grid": GRID, "split": SPLIT, "inexact": SPLIT | INEXACT}) for base in OTHER_PIXELS),
    )
    for name, changes in cases.items()
}
SPLITTING = [name for name in POLICIES if "split" in name and "inexact" not in name] + ["best: fixed", "best: catgs"]


@cache
def scene(name: str) -> tuple[Gaussians, Camera]:
    """Returns splats with hundreds in every tile's list, and many pixels that end. `uneven`: one tile has most; `thin`:
    no pixel ends."""
    if name == "ends late":
        return ends_late()
    camera = random_camera(61, 45)
    gaussians = random_scene(camera, 1800 if name == "uneven" else 900, seed=4, degree=1)
    gaussians.logit_opacities[:] = np.minimum(gaussians.logit_opacities, -4.5 if name == "thin" else 0.5)
    if name == "uneven":
        rng, moved = np.random.default_rng(1), slice(100, None)
        depth = rng.uniform(1.5, 4.0, (1700, 1))
        ray = (rng.normal(24, 2.5, (1700, 2)) - (camera.cx, camera.cy)) / (camera.fx, camera.fy)
        in_view = np.concatenate([ray * depth, depth], 1)
        gaussians.means[moved] = (in_view - camera.matrix[:3, 3]) @ camera.matrix[:3, :3]
        gaussians.log_scales[moved] = np.log(0.7 / camera.fx * depth)
        gaussians.logit_opacities[moved] = -4.2
    return gaussians, camera


def ends_late() -> tuple[Gaussians, Camera]:
    """Returns splats as wide as the picture: 64 leave 0.009 of the light; one more of 0.99 would leave less than 1e-4,
    so it ends the pixel."""
    camera = Camera.from_matrix(np.eye(4), 16, 16, 16.0, 16.0, 8.0, 8.0)
    opacity = np.full(128, 1 - 0.009 ** (1 / 64))
    opacity[64] = 0.9999
    means = np.zeros((128, 3), np.float32)
    means[:, 2] = np.linspace(2, 3, 128)
    color = np.full((128, 1, 3), -1.0, np.float32)
    color[64:] = 1.5
    return (
        Gaussians(
            means,
            np.full((128, 3), np.log(50.0), np.float32),
            np.tile(np.array([1, 0, 0, 0], np.float32), (128, 1)),
            np.log(opacity / (1 - opacity)).astype(np.float32),
            color,
        ),
        camera,
    )


@cache
def kernels() -> Kernels:
    camera = random_camera(61, 45)
    return Kernels([pass_for(p, camera, training, True) for p in POLICIES.values() for training in (False, True)])


@cache
def upstream(name: str) -> Float32:
    """Returns dL/d(image): random, zero where rounding decides."""
    gaussians, camera = scene(name)
    frame, saved = ReferenceBackend().forward(gaussians, camera, SETTINGS, Policy())
    gradient = np.random.default_rng(0).standard_normal(frame.image.shape).astype(np.float32)
    gradient[~settled_pixels(saved.stages, camera)] = 0
    return gradient


def run(policy: str, name: str, training: bool = False, seed: int = 0, frames: int = 1) -> Result:
    gaussians, camera = scene(name)
    emulated = Emulated(kernels(), gaussians, seed)
    plan = emulated.plan(camera, pass_for(POLICIES[policy], camera, training, True), ROOM)
    results = [emulated.run(plan, camera, SETTINGS, upstream(name) if training else None) for _ in range(frames)]
    return results[-1]


@cache
def by_grid(base: str, name: str, training: bool) -> Result:
    return run(f"{base}: grid", name, training)


def decibels(a: Any, b: Any) -> float:
    return -10 * np.log10(max(float(((a.astype(np.float64) - b) ** 2).mean()), 1e-20))


@needs_emulation
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("training", [False, True])
def test_whole_tiles_in_another_order_give_the_same_bits(order: str, training: bool) -> None:
    for name in ("even", "uneven"):
        wanted = by_grid("best", name, training)
        for seed in (1, 2):
            got = run(f"best: {order}", name, training, seed, frames=2)
            for array in ("image", "transmittance", "depth"):
                np.testing.assert_array_equal(getattr(got, array), getattr(wanted, array), err_msg=array)
            if training:
                assert got.gradients is not None
                for parameter in PARAMETERS:
                    a, b = (getattr(r.gradients, parameter) for r in (got, wanted))
                    np.testing.assert_array_equal(a, b, err_msg=parameter)


@needs_emulation
@pytest.mark.parametrize("policy", [name for name in CHUNKS if name.startswith("length")])
@pytest.mark.parametrize("training", [False, True])
def test_a_frame_that_stays_as_it_lies_has_the_bits_of_the_grid(
    policy: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_schedule, "LEAST_GAIN", 10.0)  # more than can be
    gaussians, camera = scene("uneven")
    wanted, emulated = by_grid("best", "uneven", training), Emulated(kernels(), gaussians, seed=5)
    plan = emulated.plan(camera, pass_for(POLICIES[f"best: {policy}"], camera, training, True), ROOM)
    for _ in range(2):
        got = emulated.run(plan, camera, SETTINGS, upstream("uneven") if training else None)
        record = emulated.pipeline.read_schedule()
        assert record is not None
        assert record["in_grid_order"] == 1
        assert record["tile_units"] == wanted.tile_counts.size
        assert got.frame["heaviest"] == record["heaviest"] == wanted.tile_counts.max()
        np.testing.assert_array_equal(got.image, wanted.image)
        np.testing.assert_array_equal(got.depth, wanted.depth)
        if training:
            assert got.gradients is not None
            assert wanted.gradients is not None
            for parameter in PARAMETERS:
                a, b = (getattr(r.gradients, parameter) for r in (got, wanted))
                np.testing.assert_array_equal(a, b, err_msg=parameter)


@needs_emulation
@pytest.mark.parametrize("policy", SPLITTING)
def test_chunks_stop_where_the_grid_stops_and_differ_by_rounding_only(policy: str) -> None:
    base = policy.partition(":")[0]
    for name, training in itertools.product(("even", "uneven", "ends late"), (False, True)):
        wanted, got = by_grid(base, name, training), run(policy, name, training, seed=3)
        assert np.abs(got.image - wanted.image).max() < 2e-6
        np.testing.assert_allclose(got.transmittance, wanted.transmittance, rtol=3e-5)
        assert got.depth is not None
        assert wanted.depth is not None
        np.testing.assert_allclose(got.depth, wanted.depth, rtol=1e-5)
        assert decibels(got.image, wanted.image) > 120
        if training:
            assert got.gradients is not None
            assert wanted.gradients is not None
            # Inclusive: a pixel may end with next to nothing left, by which light from behind is divided.
            relative = 3e-4 if base == "inclusive" else 3e-5
            assert_gradients_close(got.gradients, wanted.gradients, relative=relative, row_relative=1e-2)


@needs_emulation
@pytest.mark.parametrize("policy", ["best: split", "best: split in 16", "whole lists: split"])
def test_training_on_chunks_in_which_no_pixel_ends_is_training_on_the_grid(policy: str) -> None:
    wanted, got = by_grid(policy.partition(":")[0], "thin", True), run(policy, "thin", True, seed=2)
    assert wanted.transmittance.min() > 1e-3
    assert np.abs(got.image - wanted.image).max() < 2e-6
    assert got.gradients is not None
    assert wanted.gradients is not None
    assert_gradients_close(got.gradients, wanted.gradients, relative=3e-5, row_relative=1e-2)


@needs_emulation
def test_chunks_that_do_not_know_what_is_left_before_them_go_too_far_and_the_picture_shows_it() -> None:
    wanted = by_grid("best", "ends late", False)
    exact, loose = (run(f"best: {name}", "ends late") for name in ("split", "split, inexact"))
    assert decibels(exact.image, wanted.image) > 120
    assert 30 < decibels(loose.image, wanted.image) < 60  # what is dropped in one walk weighs up to a hundredth
    assert np.abs(loose.image - wanted.image).max() < 0.011


@needs_emulation
@pytest.mark.parametrize("base", BASES)
def test_inexact_chunks_are_close_on_ordinary_scenes(base: str) -> None:
    policy = "best: split, inexact" if base == "best" else f"{base}: inexact"
    for name in ("even", "uneven"):
        wanted, got = by_grid(base, name, False), run(policy, name)
        assert decibels(got.image, wanted.image) > 76
        assert np.abs(got.transmittance - wanted.transmittance).max() < 2e-3
    training = run(policy, "even", training=True)  # which is exact whatever the toggle says
    np.testing.assert_allclose(training.transmittance, by_grid(base, "even", True).transmittance, rtol=3e-5)


@needs_emulation
@pytest.mark.parametrize("policy", ["best: split", "best: split fused", "best: split in 16 by ticket, inexact"])
def test_any_order_of_blocks_gives_the_same_bits(policy: str) -> None:
    first = run(policy, "uneven", training="inexact" not in policy)
    for seed in range(1, 5):
        again = run(policy, "uneven", training="inexact" not in policy, seed=seed, frames=2)
        np.testing.assert_array_equal(again.image, first.image)
        np.testing.assert_array_equal(again.depth, first.depth)
        if first.gradients is not None:
            assert again.gradients is not None
            np.testing.assert_array_equal(again.gradients.means, first.gradients.means)


@needs_emulation
def test_pictures_and_gradients_are_those_of_the_definition() -> None:
    gaussians, camera = scene("uneven")
    frame, saved = ReferenceBackend().forward(gaussians, camera, SETTINGS, Policy())
    settled, definition = settled_pixels(saved.stages, camera), ReferenceBackend()
    wanted = definition.backward(saved, upstream("uneven"))
    for policy in ("best: split", "best: length", "whole lists: split"):
        got = run(policy, "uneven", training=True)
        np.testing.assert_array_equal(got.tile_counts, frame.tile_counts.ravel())
        assert_close_with_boundary_band(
            got.image, frame.image, tight=5e-5, flip_size=0.01, flip_fraction=5e-3, band=~settled
        )
        assert got.gradients is not None
        assert_gradients_close(got.gradients, wanted, relative=1e-4, row_relative=1e-2)


@needs_emulation
def test_the_policy_splits_the_heavy_tile_and_where_there_is_no_room_leaves_it_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = by_grid("best", "uneven", False)
    for room, split in ((2048, True), (1, False)):
        monkeypatch.setattr(pipeline_schedule, "POLICY_CHUNKS", room)
        gaussians, camera = scene("uneven")
        emulated = Emulated(kernels(), gaussians)
        plan = emulated.plan(camera, pass_for(POLICIES["best: length"], camera, False, True), ROOM)
        got = emulated.run(plan, camera, SETTINGS)
        record = emulated.pipeline.buffers.take("schedule", (pipeline_schedule.schedule_dtype().itemsize,), "u1")
        schedule = record.view(pipeline_schedule.schedule_dtype())[0]
        assert (schedule["split_tiles"] > 0) == split
        assert (schedule["chunks_wanted"] > 1) == split
        assert schedule["heaviest"] == wanted.tile_counts.max()
        assert decibels(got.image, wanted.image) > 120


@needs_emulation
@pytest.mark.parametrize("policy", ["best: split", "best: length", "best: lpt"])
def test_a_frame_that_does_not_fit_draws_nothing_and_the_next_one_is_whole(policy: str) -> None:
    gaussians, camera = scene("even")
    emulated, made_for = Emulated(kernels(), gaussians), pass_for(POLICIES[policy], camera, True, True)
    plan = emulated.plan(camera, made_for, replace(ROOM, instances=64))
    plan.outputs.image[...] = -1
    result = emulated.run(plan, camera, SETTINGS, upstream("even"))
    assert result.frame["overflow"] == 2
    assert (result.image == -1).all()
    again = emulated.run(emulated.plan(camera, made_for, ROOM), camera, SETTINGS, upstream("even"))
    assert np.abs(again.image - by_grid("best", "even", True).image).max() < 2e-6


@pytest.mark.skipif(nvrtc_path() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_chunks_do_not_cost_whole_tiles_their_occupancy(architecture: int) -> None:
    """Allows at most one block less than without chunks, and hardly a spill: in a kernel that is short of registers the
    compiler orders the loop of whole tiles, too, for few registers instead of for speed."""
    camera = random_camera(61, 45)
    for training in (False, True):
        whole = pass_for(POLICIES["best: grid"], camera, training, False).kernels()
        queued = pass_for(POLICIES["best: split"], camera, training, False).kernels()
        for role, threads in (("blend", 256), ("blend_backward", 128)) if training else (("blend", 256),):
            blocks = []
            for file, name in (whole[role], queued[role]):
                report = compile_report(source(file), [name], architecture)[name]
                blocks.append(report.blocks_per_multiprocessor(threads, architecture))
                assert report.spill_bytes <= 64
            assert blocks[1] >= 0.8 * blocks[0]
