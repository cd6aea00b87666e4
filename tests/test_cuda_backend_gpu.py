"""The CUDA backend on a real GPU: pictures and gradients of every step and toggle against the definition.

Skipped where there is no GPU; test_cuda_pipeline.py runs the same pipeline on the CPU.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from splatscope.kernels import reference
from splatscope.kernels.api import gpu_is_present
from splatscope.kernels.constants import SH_C0
from splatscope.kernels.cuda import CudaBackend
from splatscope.kernels.cuda_buffers import Capacity
from splatscope.kernels.policy import Policy, toggle_table
from splatscope.kernels.renderer import Renderer
from splatscope.kernels.steps import STEPS, changed, step
from splatscope.kernels.types import Camera, Float32, Frame, Gaussians, RenderSettings
from tests.comparison import PARAMETERS, assert_close_with_boundary_band, assert_gradients_close, settled_pixels
from tests.random_policies import random_policy, with_each_toggle
from tests.small_scenes import hand_made, random_camera, random_scene

pytestmark = pytest.mark.skipif(
    not gpu_is_present() or importlib.util.find_spec("cupy") is None or not torch.cuda.is_available(),
    reason="needs an NVIDIA GPU, CuPy and a torch that can use them",
)

SETTINGS = RenderSettings(background=(0.2, 0.4, 0.7))
BEST = step("best")
IN_ORDER = changed(BEST, {"blend_backward.reduce": "deterministic"})
RANDOM = [random_policy(np.random.default_rng(seed)) for seed in range(8)]
ALTERNATIVES = {f"{row.key} = {value}": policy for row, value, policy in with_each_toggle(BEST)}


def bf16_scene(gaussians: Gaussians) -> Gaussians:
    """The same with harmonics that bfloat16 holds, so that all policies make one picture."""
    gaussians.sh.view(np.uint32)[...] &= 0xFFFF0000
    return gaussians


@cache
def scene(name: str) -> tuple[Gaussians, Camera]:
    if name == "hand-made":
        made = hand_made()
        return bf16_scene(made.gaussians), made.camera
    if name == "many":  # lists of several batches, uneven edges
        camera = random_camera(203, 117)
        return bf16_scene(random_scene(camera, 3000, seed=5)), camera
    camera = random_camera(64, 48)
    return bf16_scene(random_scene(camera, 200, seed=3, degree=2)), camera


@cache
def expected(name: str, bounds: str) -> tuple[Frame, Any, NDArray[np.bool_]]:
    """(frame, what backward needs, settled pixels) by the definition."""
    gaussians, camera = scene(name)
    policy = Policy().with_value("bin", "bounds", bounds)
    frame, saved = reference.ReferenceBackend().forward(gaussians, camera, SETTINGS, policy)
    # A needle's conic, kept in single precision, moves its alpha by a few 1e-5.
    margin = 1e-3 if name == "hand-made" else 1e-4
    return frame, saved, settled_pixels(saved.stages, camera, alpha_margin=margin)


@cache
def upstream_of(name: str, bounds: str) -> Float32:
    """dL/d(image): random, zero where rounding decides."""
    frame, _, settled = expected(name, bounds)
    upstream = np.random.default_rng(0).standard_normal(frame.image.shape).astype(np.float32)
    upstream[~settled] = 0
    return upstream


@cache
def wanted_gradients(name: str, bounds: str) -> Any:
    return reference.ReferenceBackend().backward(expected(name, bounds)[1], upstream_of(name, bounds))


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


def check(backend: CudaBackend, policy: Policy, name: str) -> None:
    """Picture and gradients of a policy are those of the definition."""
    gaussians, camera = scene(name)
    bounds = policy.bin.bounds
    frame, _, settled = expected(name, bounds)
    got, saved = backend.forward(gaussians, camera, SETTINGS, policy)
    assert abs(got.visible - frame.visible) <= 1
    assert abs(got.instances - frame.instances) <= 1e-3 * frame.instances
    assert got.tile_counts.sum() == got.instances
    band = {"flip_size": 0.01, "flip_fraction": 5e-3, "band": ~settled}
    assert_close_with_boundary_band(got.image, frame.image, tight=5e-5, **band)
    assert_close_with_boundary_band(got.transmittance, frame.transmittance, tight=5e-5, what="transmittance", **band)
    gradients = backend.backward(saved, upstream_of(name, bounds))
    relative = 4e-3 if policy.project.sh_dtype == "bf16" else 3e-4
    wanted = wanted_gradients(name, bounds)
    assert_gradients_close(gradients, wanted, relative=relative, row_relative=3e-2, cosine=1 - 1e-5)


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
    policy = ALTERNATIVES[name]
    gaussians, camera = scene("many")
    upstream = upstream_of("many", "row_span")
    images, gradients = [], []
    for one in (BEST, policy):
        frame, saved = backend.forward(gaussians, camera, SETTINGS, one)
        images.append(frame.image)
        gradients.append(backend.backward(saved, upstream))
    differing = {row.key: row for row in toggle_table("cuda") if one_differs(BEST, policy, row.stage, row.name)}
    classes = {row.identity for row in differing.values()}
    if policy.bin.bounds == "aabb_o":
        classes.discard("Q")  # the same pixels blend the same splats
    difference = np.abs(images[0] - images[1]).max(2)
    if classes <= {"B"}:
        assert not difference.any(), f"{sorted(differing)} change {np.count_nonzero(difference)} pixels"
    elif classes <= {"B", "R"}:
        assert (difference > 1e-5).mean() <= 1e-4, f"{sorted(differing)}: by {difference.max():.2g}"
        assert difference.max() <= 1e-2
    else:
        assert difference.max() <= 0.05
        return
    for parameter in PARAMETERS:
        a, b = (getattr(g, parameter).astype(np.float64) for g in gradients)
        assert np.linalg.norm(a - b) <= 2e-4 * np.linalg.norm(a), parameter


def one_differs(a: Policy, b: Policy, stage: str, name: str) -> bool:
    return a.value(stage, name) != b.value(stage, name)


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
        policy = changed(IN_ORDER, {"launch.launch": launch})
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
    gaussians, camera = scene("many")
    random = np.random.default_rng(9)
    bad = replace(gaussians, **{name: getattr(gaussians, name).copy() for name in FIELDS})
    for name in FIELDS:
        values = getattr(bad, name).reshape(gaussians.count, -1)
        rows = random.choice(gaussians.count, 60, replace=False)
        columns = random.integers(0, values.shape[1], len(rows))
        values[rows, columns] = random.choice([np.nan, np.inf, -np.inf], len(rows))
    bad.quats[7] = 0
    wanted = reference.ReferenceBackend().render(bad, camera, SETTINGS)
    for rung in ("s00", "s01", "s06", "best"):
        frame, saved = backend.forward(bad, camera, SETTINGS, step(rung))
        assert np.isfinite(frame.image).all()
        if rung != "s00":  # its square bounds see other splats
            assert frame.skipped == wanted.skipped
            assert np.abs(frame.image - wanted.image).mean() < 1e-4
        gradients = backend.backward(saved, np.ones_like(frame.image))
        for name in PARAMETERS:
            assert np.isfinite(getattr(gradients, name)).all(), name


FIELDS = ("means", "log_scales", "quats", "logit_opacities", "sh")


@pytest.mark.parametrize("rung", ["s00", "s01", "best"])
def test_nothing_to_see_gives_the_background(backend: CudaBackend, rung: str) -> None:
    gaussians, camera = scene("random")
    away = Camera.from_matrix(np.diag([1.0, -1.0, -1.0, 1.0]) @ camera.matrix, 33, 17, 30, 30, 16, 8)
    nothing = replace(gaussians, **{name: getattr(gaussians, name)[:0] for name in FIELDS})
    faint = replace(gaussians, logit_opacities=np.full(gaussians.count, -20, np.float32))
    for splats, view in ((nothing, camera), (faint, away)):
        frame, saved = backend.forward(splats, view, SETTINGS, step(rung))
        assert (frame.visible, frame.instances) == (0, 0)
        np.testing.assert_allclose(
            frame.image, np.broadcast_to(np.array(SETTINGS.background, np.float32), frame.image.shape)
        )
        assert np.isnan(frame.depth).all()
        assert not backend.backward(saved, np.ones_like(frame.image)).means.any()


def test_one_pixel_is_a_picture(backend: CudaBackend) -> None:
    gaussians, camera = scene("random")
    tiny = camera.resized(1, 1)
    wanted = reference.ReferenceBackend().render(gaussians, tiny, SETTINGS)
    for rung in ("s00", "s01", "best"):
        np.testing.assert_allclose(backend.render(gaussians, tiny, SETTINGS, step(rung)).image, wanted.image, atol=0.02)


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


def test_stage_times_arrive_without_being_waited_for() -> None:
    gaussians, camera = large_scene()
    backend = CudaBackend(Renderer(timed=True))
    for policy in (BEST, changed(BEST, {"launch.launch": "direct"})):
        frame = [backend.render(gaussians, camera, SETTINGS, policy) for _ in range(4)][-1]
        assert list(frame.stage_ms) == ["project", "depth_sort", "emit", "tile_sort", "ranges", "blend"]
        assert all(0 < ms < 50 for ms in frame.stage_ms.values())
