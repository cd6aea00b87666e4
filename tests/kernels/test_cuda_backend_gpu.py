"""Tests the CUDA backend on a real GPU: pictures and gradients of every rung and toggle against the definition.

Skipped where there is no GPU; test_cuda_pipeline.py runs the same pipeline on the CPU.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from splatscope.app.bench.scenes.schedule import turned
from splatscope.app.bench.scenes.subjects import subject
from splatscope.assets import demo
from splatscope.kernels.backends import gpu_is_present
from splatscope.kernels.constants import SH_C0
from splatscope.kernels.cuda.backend import CudaBackend
from splatscope.kernels.cuda.launch.buffers import Capacity
from splatscope.kernels.cuda.renderer import Renderer
from splatscope.kernels.errors import InputError
from splatscope.kernels.ladder import STEPS, changed, step
from splatscope.kernels.types import Camera, Gaussians, RenderSettings
from tests.support.cuda_checks import (
    ALTERNATIVES,
    BEST,
    IN_ORDER,
    RANDOM,
    SETTINGS,
    check,
    check_bad_values,
    check_class,
    check_decibels,
    check_last_in_front,
    check_nothing_to_see,
    check_one_pixel,
    scene,
)
from tests.support.small_scenes import random_camera, random_scene

pytestmark = pytest.mark.skipif(
    not gpu_is_present() or importlib.util.find_spec("cupy") is None or not torch.cuda.is_available(),
    reason="needs an NVIDIA GPU, CuPy and a torch that can use them",
)


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    renderer = Renderer()
    # All at once, on all processors.
    camera = scene("random")[1]
    for policy in [*(s.policy for s in STEPS.values()), *ALTERNATIVES.values(), *RANDOM, IN_ORDER]:
        renderer.is_ready(policy, training=True, wants_depth=True, camera=camera)
    yield renderer
    renderer.forget()


@pytest.fixture(scope="module")
def backend(renderer: Renderer) -> CudaBackend:
    return CudaBackend(renderer)


@pytest.mark.parametrize("name", ["random", "hand-made", "many"])
@pytest.mark.parametrize("rung", STEPS)
def test_every_step_draws_and_differentiates_like_the_definition(backend: CudaBackend, rung: str, name: str) -> None:
    check(backend, step(rung), name)


@pytest.mark.parametrize("seed", range(len(RANDOM)))
def test_random_combinations_draw_and_differentiate_like_the_definition(backend: CudaBackend, seed: int) -> None:
    check(backend, RANDOM[seed], "random")
    check(backend, RANDOM[seed], "many")


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_a_toggle_changes_the_picture_no_more_than_its_class_says(backend: CudaBackend, name: str) -> None:
    check_class(backend, ALTERNATIVES[name], "many")


@pytest.mark.parametrize("name", ["bf16", "split"])
def test_harmonics_in_16_bits_fit_a_photograph_of_a_trained_scene_as_well(backend: CudaBackend, name: str) -> None:
    trained = subject(str(Path(demo.__file__).with_name("still_life.ply"))).load()
    check_decibels(backend, changed(BEST, {"project.sh_dtype": name}), trained.gaussians, trained.camera)


def large_scene() -> tuple[Gaussians, Camera]:
    camera = random_camera(800, 600)
    return random_scene(camera, 60_000, seed=9), camera


@pytest.mark.parametrize("rung", ["s00", "s01", "s06", "best"])
def test_pictures_repeat_to_the_bit(renderer: Renderer, rung: str) -> None:
    gaussians, camera = large_scene()
    scene, first = renderer.upload(gaussians), None
    for _ in range(20):
        outputs, _ = renderer.complete(lambda: renderer.forward(scene, camera, SETTINGS, step(rung)))
        state = [outputs.image.clone(), outputs.transmittance.clone(), outputs.tile_starts.clone()]
        first = first or state
        assert all(torch.equal(a, b) for a, b in zip(first, state, strict=True))


@pytest.mark.parametrize("launch", ["direct", "graph"])
def test_the_plan_is_the_same_whether_the_last_block_of_ranges_makes_it_or_a_kernel(
    renderer: Renderer, launch: str
) -> None:
    """Changes the counts from frame to frame, so that a block which plans too early uses those of the frame before."""
    gaussians, camera = large_scene()
    scene, wanted, cameras = renderer.upload(gaussians), {}, turned(camera, 4)
    apart = changed(BEST, {"schedule.plan": "apart", "launch.mode": launch, "blend.map": "mixed"})
    for policy in (apart, changed(apart, {"schedule.plan": "ranges"})):
        for turn in range(100 if policy != apart else 1):
            for number, camera in enumerate(cameras):
                draw = partial(renderer.forward, scene, camera, SETTINGS, policy)
                outputs, frame = renderer.complete(draw)
                record = renderer.pipeline.read_schedule()
                assert record is not None
                counts = torch.diff(outputs.tile_starts)
                assert record["heaviest"] == frame["heaviest"] == int(counts.max()), (turn, number)
                decided = {name: int(record[name]) for name in ("total", "in_grid_order", "tile_units", "split_tiles")}
                state = wanted.setdefault(number, (decided, outputs.image.clone(), outputs.tile_starts.clone()))
                assert decided == state[0]
                assert torch.equal(outputs.image, state[1])
                assert torch.equal(outputs.tile_starts, state[2])


def test_integer_sums_make_gradients_repeat_to_the_bit(renderer: Renderer) -> None:
    gaussians, camera = large_scene()
    scene, first = renderer.upload(gaussians), None
    upstream = torch.randn((camera.height, camera.width, 3), device="cuda")
    for _ in range(10):
        renderer.complete(lambda: renderer.forward(scene, camera, SETTINGS, IN_ORDER, training=True))
        gradients = {name: g.clone() for name, g in renderer.backward(upstream).items()}
        first = first or gradients
        assert all(torch.equal(first[name], gradients[name]) for name in first)


def test_a_graph_does_what_launches_do(renderer: Renderer) -> None:
    gaussians, camera = large_scene()
    scene, found = renderer.upload(gaussians), []
    upstream = torch.randn((camera.height, camera.width, 3), device="cuda")
    for launch in ("direct", "graph"):
        policy = changed(IN_ORDER, {"launch.mode": launch})
        for background in ((0.0, 0.0, 0.0), (0.3, 0.2, 0.1), (1.0, 1.0, 1.0)):
            settings = RenderSettings(background=background)
            outputs, _ = renderer.complete(
                lambda s=settings, p=policy: renderer.forward(scene, camera, s, p, training=True)
            )
            found.append([outputs.image.clone(), *(g.clone() for g in renderer.backward(upstream).values())])
    for direct, graph in zip(found[:3], found[3:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(direct, graph, strict=True))
    assert not torch.equal(found[0][0], found[1][0])


def test_a_replayed_frame_never_waits_for_the_host(renderer: Renderer) -> None:
    gaussians, camera = large_scene()
    scene = renderer.upload(gaussians)
    upstream = torch.randn((camera.height, camera.width, 3), device="cuda")
    for _ in range(3):
        renderer.complete(lambda: renderer.forward(scene, camera, SETTINGS, training=True))
        renderer.backward(upstream)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            renderer.forward(scene, camera, SETTINGS, training=True)
            renderer.backward(upstream)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_frame_that_does_not_fit_is_drawn_again_in_larger_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Capacity, "of", lambda count: Capacity(64, 256))
    backend = CudaBackend(Renderer())
    check(backend, BEST, "many")
    assert backend.renderer.capacity.instances > 256


def test_bad_values_are_skipped_and_counted_and_harm_nothing(backend: CudaBackend) -> None:
    check_bad_values(backend, "many")


@pytest.mark.parametrize("rung", ["s00", "s01", "best"])
def test_nothing_to_see_gives_the_background(backend: CudaBackend, rung: str) -> None:
    check_nothing_to_see(backend, rung)


def test_one_pixel_is_a_picture(backend: CudaBackend) -> None:
    check_one_pixel(backend)


def test_more_tiles_than_16_bits_number_and_a_splat_over_all_of_them(backend: CudaBackend) -> None:
    size = 4112  # 257 x 257 tiles
    camera = Camera.from_matrix(np.eye(4), size, size, size, size, size / 2, size / 2)
    rng = np.random.default_rng(2)
    count = 500
    means = np.concatenate([rng.uniform(-0.6, 0.6, (count, 2)), np.ones((count, 1))], 1).astype(np.float32)
    log_scales = np.full((count, 3), np.log(0.004), np.float32)
    means[0], log_scales[0] = (0, 0, 1.5), np.log(1.0)
    sh = (rng.uniform(0, 1, (count, 1, 3)).astype(np.float32) - 0.5) / np.float32(SH_C0)
    quats = np.tile(np.array([1, 0, 0, 0], np.float32), (count, 1))
    gaussians = Gaussians(means, log_scales, quats, np.full(count, 1.0, np.float32), sh)
    frame = backend.render(gaussians, camera, SETTINGS)
    assert (frame.tile_counts >= 1).all()
    assert frame.tile_counts.size == 257 * 257
    # A camera that sees 64 x 48 pixels near the middle; it holds x/z at other limits, which hardly matters there.
    x, y = 2000, 1900
    window = Camera.from_matrix(np.eye(4), 64, 48, size, size, size / 2 - x, size / 2 - y)
    part = backend.render(gaussians, window, SETTINGS)
    np.testing.assert_allclose(frame.image[y : y + 48, x : x + 64], part.image, atol=2e-3)


def test_more_visible_than_24_bits_number_are_told_apart_or_refused_with_numbers() -> None:
    if torch.cuda.mem_get_info()[0] < 32 << 30:
        pytest.skip("needs 32 GiB of free GPU memory")
    camera, others = Camera.from_matrix(np.eye(4), 1024, 1024, 800, 800, 512, 512), 1 << 24
    own = Renderer()
    check_last_in_front(CudaBackend(own), BEST, camera, others)
    with pytest.raises(InputError, match="16,777,216"):  # list entries of s05 have 8 bits for its warps
        check_last_in_front(CudaBackend(own), step("s05"), camera, others)
    own.forget()
    torch.cuda.empty_cache()


def test_stage_times_arrive_without_being_waited_for() -> None:
    gaussians, camera = large_scene()
    backend = CudaBackend(Renderer(timed=True))
    for policy in (BEST, changed(BEST, {"launch.mode": "direct"})):
        frame = [backend.render(gaussians, camera, SETTINGS, policy) for _ in range(4)][-1]
        assert list(frame.stage_ms) == ["project", "depth_sort", "emit", "tile_sort", "ranges", "blend"]
        assert all(0 < ms < 50 for ms in frame.stage_ms.values())
