"""Tests the whole CUDA pipeline, forward and backward, on the CPU against the definition: no GPU needed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from splatscope.kernels.cuda import backend as cuda
from splatscope.kernels.cuda.launch.buffers import Capacity
from splatscope.kernels.cuda.plan.planner import EPOCHS
from splatscope.kernels.errors import InputError
from splatscope.kernels.ladder import STEPS, changed, step
from splatscope.kernels.policy import Policy
from splatscope.kernels.reference.backend import ReferenceBackend
from splatscope.kernels.types import Camera, Float32, Frame, RenderSettings
from tests.support.comparison import assert_close_with_boundary_band, assert_gradients_close, settled_pixels
from tests.support.cuda_checks import (
    ALTERNATIVES,
    IN_ORDER,
    RANDOM,
    check,
    check_bad_values,
    check_bits,
    check_class,
    check_decibels,
    check_last_in_front,
    check_nothing_to_see,
    check_one_pixel,
    differing,
)
from tests.support.cuda_on_cpu.run import is_supported
from tests.support.cuda_pipeline import Emulated, Kernels, emulated_renderer, pass_for
from tests.support.random_policies import with_each_toggle
from tests.support.small_scenes import random_camera, random_scene

pytestmark = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")

CAMERA = random_camera(64, 48)
SCENE = random_scene(CAMERA, 100, seed=11, degree=2)
SCENE.sh.view(np.uint32)[...] &= 0xFFFF0000  # bfloat16 holds them, so that all policies make one picture
SETTINGS = RenderSettings(background=(0.2, 0.4, 0.7))
ROOM = Capacity(visible=128, instances=2048)
POLICIES = {
    "best": step("best"),
    "s01": step("s01"),
    "s00": step("s00"),
    "s06_bf16": step("s06_bf16"),
    "best in order": changed(step("best"), {"blend_backward.reduce": "deterministic"}),
    "best by torch": changed(step("best"), {"sort.sorter": "torch", "launch.mode": "direct"}),
}
TRAINED = ("best", "s01", "s00", "s06_bf16", "best in order")
PASSES = {(name, True): pass_for(POLICIES[name], CAMERA, training=True, wants_depth=True) for name in TRAINED}
PASSES |= {(name, False): pass_for(policy, CAMERA, False, True) for name, policy in POLICIES.items()}
CHECKED = {name: rung.policy for name, rung in STEPS.items()} | ALTERNATIVES
CHECKED |= {f"random {number}": policy for number, policy in enumerate(RANDOM)}
SAME_BITS = {
    f"{row.key} = {value}": policy
    for row, value, policy in with_each_toggle(IN_ORDER)
    if row.stage in ("project", "blend", "blend_backward", "project_backward")  # others: test_cuda_queue.py
    and {one.identity for one in differing(IN_ORDER, policy)} == {"B"}
}
IN_WORDS = {name: changed(step("best"), {"project.sh_dtype": name}) for name in ("bf16", "split")}
TRAINING = [*CHECKED.values(), *SAME_BITS.values()]
KERNELS = Kernels(
    [
        *PASSES.values(),
        *(pass_for(policy, CAMERA, True, True) for policy in TRAINING),
        *(pass_for(policy, CAMERA, False, True) for policy in IN_WORDS.values()),
    ]
)


@cache
def expected(bounds: str) -> Any:
    """Returns (frame, what backward needs, settled pixels) by the definition."""
    policy = Policy().with_value("bin", "bounds", bounds)
    frame, saved = ReferenceBackend().forward(SCENE, CAMERA, SETTINGS, policy)
    return frame, saved, settled_pixels(saved.stages, CAMERA)


def upstream_of(bounds: str) -> Float32:
    """Returns dL/d(image): random, zero where rounding decides."""
    frame, _, settled = expected(bounds)
    upstream = np.random.default_rng(0).standard_normal(frame.image.shape).astype(np.float32)
    upstream[~settled] = 0
    return upstream


def assert_is_the_picture(name: str, result: Any) -> None:
    """Checks that counts, lists, image, transmittance and depth are those of the definition."""
    frame, _, settled = expected(POLICIES[name].bin.bounds)
    assert settled.mean() > 0.9
    counters = {name: int(result.frame[name]) for name in ("visible", "instances", "skipped", "overflow")}
    assert counters == {"visible": frame.visible, "instances": frame.instances, "skipped": 0, "overflow": 0}
    np.testing.assert_array_equal(result.tile_counts, frame.tile_counts.ravel())
    band = {"flip_fraction": 5e-3, "band": ~settled}
    for what in ("image", "transmittance"):
        actual, wanted = getattr(result, what), getattr(frame, what)
        assert_close_with_boundary_band(actual, wanted, tight=5e-5, flip_size=0.01, what=what, **band)
    scale = np.nan_to_num(frame.depth, nan=1.0)
    assert_close_with_boundary_band(
        result.depth / scale, frame.depth / scale, tight=1e-4, flip_size=10.0, what="depth", **band
    )


@pytest.mark.parametrize("name", POLICIES)
def test_pictures_for_viewing_are_those_of_the_definition(name: str) -> None:
    emulated = Emulated(KERNELS, SCENE)
    plan = emulated.plan(CAMERA, PASSES[name, False], ROOM)
    assert_is_the_picture(name, emulated.run(plan, CAMERA, SETTINGS))


@pytest.mark.parametrize("name", TRAINED)
def test_gradients_are_those_of_the_definition_frame_after_frame(name: str) -> None:
    bounds = POLICIES[name].bin.bounds
    saved, upstream = expected(bounds)[1], upstream_of(bounds)
    wanted = ReferenceBackend().backward(saved, upstream)
    emulated = Emulated(KERNELS, SCENE, seed=1)
    plan = emulated.plan(CAMERA, PASSES[name, True], ROOM)
    for _ in range(2):  # the second time in buffers that the first has used
        result = emulated.run(plan, CAMERA, SETTINGS, upstream)
        assert_is_the_picture(name, result)
        assert result.gradients is not None
        np.testing.assert_array_equal(result.gradients.visible, wanted.visible)
        relative = 4e-3 if name == "s06_bf16" else 1e-4  # gradients of harmonics are rounded to 8 bits
        assert_gradients_close(result.gradients, wanted, relative=relative, row_relative=1e-2, cosine=1 - 1e-5)


def test_frames_stay_right_when_their_numbers_start_over() -> None:
    emulated = Emulated(KERNELS, SCENE)
    emulated.pipeline._epoch = EPOCHS - 3
    plan = emulated.plan(CAMERA, PASSES["best", False], ROOM)
    for wanted in (EPOCHS - 2, EPOCHS - 1, 1, 2):
        result = emulated.run(plan, CAMERA, SETTINGS)
        assert result.frame["epoch"] == wanted
        assert_is_the_picture("best", result)


def test_integer_sums_make_gradients_repeat_whatever_the_order_of_blocks() -> None:
    upstream, found = upstream_of("row_span"), []
    for seed in (2, 3):
        emulated = Emulated(KERNELS, SCENE, seed)
        plan = emulated.plan(CAMERA, PASSES["best in order", True], ROOM)
        gradients = emulated.run(plan, CAMERA, SETTINGS, upstream).gradients
        assert gradients is not None
        found.append(gradients.means.tobytes() + gradients.quats.tobytes() + gradients.sh.tobytes())
    assert found[0] == found[1]


def test_a_frame_that_does_not_fit_says_so_changes_nothing_and_fits_after_growth() -> None:
    frame = expected("row_span")[0]
    emulated, made_for, room = Emulated(KERNELS, SCENE), PASSES["best", True], Capacity(16, 64)
    for grew in ("visible", "instances"):
        plan = emulated.plan(CAMERA, made_for, room)
        plan.outputs.image[...] = -1
        for gradient in plan.outputs.gradients.values():
            gradient[...] = -2
        result = emulated.run(plan, CAMERA, SETTINGS, upstream_of("row_span"))
        assert (result.image == -1).all()
        assert result.gradients is not None
        assert (result.gradients.means == -2).all()
        assert result.frame["overflow"] == {"visible": 1, "instances": 2}[grew]
        wanted = int(result.frame["visible_wanted"]), int(result.frame["instances_wanted"])
        if grew == "visible":
            assert wanted[0] >= frame.visible  # a few have room for nothing
            assert wanted[1] == 0
            room = replace(room, visible=wanted[0])
        else:
            assert wanted == (room.visible, frame.instances)
            room = replace(room, instances=frame.instances)
    plan = emulated.plan(CAMERA, made_for, room)
    assert_is_the_picture("best", emulated.run(plan, CAMERA, SETTINGS, upstream_of("row_span")))


def test_more_visible_than_a_list_entry_can_name_are_refused_with_numbers() -> None:
    emulated, room = Emulated(KERNELS, SCENE), Capacity((1 << 24) + 4096, 64)
    with pytest.raises(InputError, match=r"16,781,312 .* 16,777,216"):
        emulated.plan(CAMERA, pass_for(step("s05"), CAMERA, True, True), room)


def test_capacity_grows_with_slack_and_refuses_what_cannot_be_numbered() -> None:
    room = Capacity(4096, 65536)
    assert room.grown(4000, 60000, count=10**6) == room
    grown = room.grown(100_000, 70_000, count=10**6)
    assert 100_000 < grown.visible < 140_000
    assert 70_000 < grown.instances < 100_000
    assert room.grown(99_999, 0, count=100_000).visible < 105_000
    with pytest.raises(InputError, match="4,294,967,294"):
        room.grown(0, 2**32 - 2, count=10**6)


# ---- The backend: NumPy in, NumPy out --------------------------------------------------------------------------------


def assert_frame_is(frame: Frame, wanted: Frame, settled: NDArray[np.bool_]) -> None:
    assert (frame.visible, frame.instances, frame.skipped) == (wanted.visible, wanted.instances, wanted.skipped)
    np.testing.assert_array_equal(frame.tile_counts, wanted.tile_counts)
    assert_close_with_boundary_band(
        frame.image, wanted.image, tight=5e-5, flip_size=0.01, flip_fraction=5e-3, band=~settled
    )
    np.testing.assert_array_equal(np.isnan(frame.depth[settled]), np.isnan(wanted.depth[settled]))


def test_the_backend_draws_and_differentiates_like_the_definition() -> None:
    wanted, saved, settled = expected("row_span")
    backend = cuda.CudaBackend(emulated_renderer(KERNELS))
    assert_frame_is(backend.render(SCENE, CAMERA, SETTINGS), wanted, settled)
    frame, ours = backend.forward(SCENE, CAMERA, SETTINGS)
    assert_frame_is(frame, wanted, settled)
    upstream = upstream_of("row_span")
    gradients = backend.backward(ours, upstream)
    definition = ReferenceBackend().backward(saved, upstream)
    np.testing.assert_array_equal(gradients.visible, definition.visible)
    assert_gradients_close(gradients, definition, relative=1e-4, row_relative=1e-2)
    with pytest.raises(ValueError, match="newest"):
        backend.backward(replace(ours, number=ours.number - 1), upstream)


def test_the_backend_sees_what_an_optimiser_changed_in_place() -> None:
    moved = replace(SCENE, means=SCENE.means.copy())
    backend = cuda.CudaBackend(emulated_renderer(KERNELS))
    before = backend.forward(moved, CAMERA, SETTINGS)[0].image
    moved.means[:] += np.float32(0.05)
    after = backend.forward(moved, CAMERA, SETTINGS)[0].image
    assert np.abs(after - before).max() > 0.01
    moved.means[:] -= np.float32(0.05)
    assert np.abs(backend.render(moved, CAMERA, SETTINGS).image - before).max() < 1e-3


def test_a_frame_that_does_not_fit_is_drawn_again_in_larger_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, _, settled = expected("row_span")
    monkeypatch.setattr(Capacity, "of", lambda count: Capacity(16, 64))
    backend = cuda.CudaBackend(emulated_renderer(KERNELS))
    assert_frame_is(backend.render(SCENE, CAMERA, SETTINGS), wanted, settled)
    assert backend.renderer.capacity.visible >= wanted.visible
    assert backend.renderer.capacity.instances >= wanted.instances


def test_a_graph_is_captured_at_the_second_frame_and_dropped_when_buffers_grow() -> None:
    renderer = emulated_renderer(KERNELS)
    launcher, scene = renderer.launcher, renderer.upload(SCENE)
    images = [renderer.forward(scene, CAMERA, SETTINGS, wants_depth=True).image.clone() for _ in range(3)]
    assert (launcher.captured, launcher.replayed) == (1, 2)
    assert torch.equal(images[0], images[1])
    assert torch.equal(images[0], images[2])
    record = renderer.pipeline.read_frame()
    record["instances_wanted"] = 200_000
    renderer.grow(record)
    for _ in range(2):
        assert torch.equal(renderer.forward(scene, CAMERA, SETTINGS, wants_depth=True).image, images[0])
    assert (launcher.captured, launcher.replayed) == (2, 3)


def test_where_profilers_are_told_of_stages_nothing_is_replayed() -> None:
    renderer = emulated_renderer(KERNELS)
    renderer.launcher.nvtx = True
    scene = renderer.upload(SCENE)
    for _ in range(3):
        renderer.forward(scene, CAMERA, SETTINGS, wants_depth=True)
    assert (renderer.launcher.captured, renderer.launcher.replayed) == (0, 0)


# ---- Every step and toggle -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def backend() -> cuda.CudaBackend:
    return cuda.CudaBackend(emulated_renderer(KERNELS))


@pytest.mark.parametrize("scene", ["random", "hand-made"])
@pytest.mark.parametrize("name", CHECKED)
def test_every_policy_draws_and_differentiates_like_the_definition(
    backend: cuda.CudaBackend, name: str, scene: str
) -> None:
    check(backend, CHECKED[name], scene)


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_a_toggle_changes_the_picture_no_more_than_its_class_says(backend: cuda.CudaBackend, name: str) -> None:
    check_class(backend, ALTERNATIVES[name], "random")


@pytest.mark.parametrize("name", SAME_BITS)
def test_a_toggle_of_class_b_leaves_gradients_as_they_are_to_the_bit(backend: cuda.CudaBackend, name: str) -> None:
    check_bits(backend, SAME_BITS[name], "random")


@pytest.mark.parametrize("name", IN_WORDS)
def test_harmonics_in_16_bits_fit_a_photograph_as_well(backend: cuda.CudaBackend, name: str) -> None:
    check_decibels(backend, IN_WORDS[name], random_scene(CAMERA, 200, seed=3), CAMERA)


def test_bad_values_are_skipped_and_counted_and_harm_nothing(backend: cuda.CudaBackend) -> None:
    check_bad_values(backend, "random")


@pytest.mark.parametrize("rung", ["s00", "s01", "best"])
def test_nothing_to_see_gives_the_background(backend: cuda.CudaBackend, rung: str) -> None:
    check_nothing_to_see(backend, rung)


@pytest.mark.parametrize("rung", ["s00", "s05", "s06", "best"])
def test_splats_that_come_last_may_be_in_front(backend: cuda.CudaBackend, rung: str) -> None:
    camera = Camera.from_matrix(np.eye(4), 64, 48, 50, 50, 32, 24)
    check_last_in_front(backend, step(rung), camera, others=12 * 20)


def test_one_pixel_is_a_picture(backend: cuda.CudaBackend) -> None:
    check_one_pixel(backend)
