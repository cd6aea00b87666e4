"""Tests blend.map = adaptive on a real GPU: its choices, and the same bits whichever kernel blends.

Skipped where there is no GPU; test_blend_choice.py says the same of the kernels on the CPU.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from splatscope.app.bench.scenes.crowded import crowded_scene
from splatscope.kernels.backends import gpu_is_present
from splatscope.kernels.cuda.blend_choice import EVEN, MapChoice
from splatscope.kernels.cuda.renderer import Renderer
from splatscope.kernels.cuda.training_step import StepRequest, TrainingStep
from splatscope.kernels.ladder import changed
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Camera, Gaussians, RenderSettings
from tests.kernels.test_blend_choice import blends_wide
from tests.support.cuda_training import IN_ORDER, RATES
from tests.support.small_scenes import random_camera, random_scene

pytestmark = pytest.mark.skipif(
    not gpu_is_present() or importlib.util.find_spec("cupy") is None or not torch.cuda.is_available(),
    reason="needs an NVIDIA GPU, CuPy and a torch that can use them",
)

SETTINGS = RenderSettings(background=(0.2, 0.4, 0.7))
ADAPTIVE = changed(IN_ORDER, {"blend.map": "adaptive"})
SPLIT = {"schedule.chunk": "all", "schedule.chunk_k": "4"}
NEVER, ALWAYS = 10**9, 1e-9  # multiprocessors with which no frame is even, and every one


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    renderer = Renderer()
    yield renderer
    renderer.forget()


def random() -> tuple[Gaussians, Camera]:
    camera = random_camera(803, 597)
    return random_scene(camera, 60_000, seed=9), camera


def chooses(renderer: Renderer, is_wide: bool) -> None:
    """Fixes the choice, whatever earlier frames show."""
    renderer.map_choice = MapChoice(ALWAYS if is_wide else NEVER)
    renderer.map_choice.note({"heaviest": 1, "instances": 1})


@pytest.mark.parametrize("changes", [{}, SPLIT, SPLIT | {"schedule.take": "ticket"}], ids=["whole", "split", "tickets"])
@pytest.mark.parametrize("training", [False, True])
def test_either_kernel_gives_the_same_bits_launched_and_replayed(
    renderer: Renderer, changes: dict[str, str], training: bool
) -> None:
    gaussians, camera = random()
    scene, policy = renderer.upload(gaussians), changed(ADAPTIVE, changes)
    upstream = torch.randn((camera.height, camera.width, 3), device="cuda")
    first: list[Any] = []
    for is_wide in (False, True, True, False, True):
        chooses(renderer, is_wide)
        out, _ = renderer.complete(lambda: renderer.forward(scene, camera, SETTINGS, policy, training, True))
        assert blends_wide(renderer) == is_wide
        assert out.depth is not None
        found = [out.image.clone(), out.transmittance.clone(), out.depth.nan_to_num(-1)]
        if training:
            found += [gradient.clone() for gradient in renderer.backward(upstream).values()]
        first = first or found
        assert all(torch.equal(a, b) for a, b in zip(first, found, strict=True))


@pytest.mark.parametrize("ratio", [0.5, 8.0, 60.0])
def test_the_frame_before_decides_by_its_longest_list(renderer: Renderer, ratio: float) -> None:
    multiprocessors = renderer.memory.multiprocessors
    renderer.map_choice = MapChoice(multiprocessors)
    gaussians, camera = crowded_scene(ratio, 4 * multiprocessors, 100_000)
    scene = renderer.upload(gaussians)
    for number in range(4):  # launched by the first kernel, launched by the one chosen, captured, replayed
        out, record = renderer.complete(lambda: renderer.forward(scene, camera, SETTINGS, ADAPTIVE))
        counts = np.diff(out.tile_starts.cpu().numpy().view(np.uint32).astype(np.int64))
        assert int(record["heaviest"]) == counts.max()
        is_even = counts.max() * multiprocessors / counts.sum() < EVEN
        assert blends_wide(renderer) == (is_even and number > 0)


def test_a_change_of_kernels_never_waits_for_the_gpu(renderer: Renderer) -> None:
    gaussians, camera = random()
    scene = renderer.upload(gaussians)
    upstream = torch.randn((camera.height, camera.width, 3), device="cuda")

    def draw(is_wide: bool) -> None:
        chooses(renderer, is_wide)
        renderer.forward(scene, camera, SETTINGS, ADAPTIVE, training=True)
        renderer.backward(upstream)

    for _ in range(3):
        for is_wide in (False, True):
            renderer.complete(lambda: renderer.forward(scene, camera, SETTINGS, ADAPTIVE, training=True))
            draw(is_wide)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in range(6):
            draw(number % 2 == 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_steps_that_change_over_move_splats_as_steps_that_do_not() -> None:
    gaussians, camera = random()
    photograph = np.random.default_rng(0).integers(0, 256, (camera.height, camera.width, 3), np.uint8)

    def trained(policy: Policy) -> tuple[list[float], Gaussians]:
        training = TrainingStep(gaussians, policy)
        training.map_choice = MapChoice(ALWAYS)
        target, losses = training.targets.add(photograph), []
        for _ in range(12):
            training.run(StepRequest(camera, SETTINGS, target, RATES))
            losses += [outcome.loss for outcome in training.outcomes()]
        losses += [outcome.loss for outcome in training.outcomes(wait=True)]
        assert training.map_choice.is_wide
        return losses, training.splats.gaussians()

    (losses, ours), (wanted_losses, wanted) = trained(ADAPTIVE), trained(IN_ORDER)
    assert losses == wanted_losses
    for name in ("means", "log_scales", "quats", "logit_opacities", "sh"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(wanted, name), err_msg=name)
