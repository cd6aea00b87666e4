"""Disks (2dgs) and Gaussians along rays (3dgut) on a real GPU against the definition.

Skipped where there is no GPU; test_cuda_primitives.py runs the same kernels on the CPU.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from splatscope.kernels.backends import gpu_is_present
from splatscope.kernels.cuda.backend import CudaBackend
from splatscope.kernels.cuda.renderer import Renderer
from splatscope.kernels.cuda.training_step import AdamRates, StepRequest, TrainingStep
from splatscope.kernels.ladder import STEPS, changed, step
from splatscope.kernels.policy import Policy
from splatscope.kernels.primitive import Primitive
from tests.support.cuda_checks import IN_ORDER, SETTINGS, check, check_finite, differing, scene
from tests.support.random_policies import with_each_toggle

pytestmark = pytest.mark.skipif(
    not gpu_is_present() or importlib.util.find_spec("cupy") is None or not torch.cuda.is_available(),
    reason="needs an NVIDIA GPU, CuPy and a torch that can use them",
)

TILTED: tuple[Primitive, ...] = ("2dgs", "3dgut")
# Toggles that leave every bit of picture and gradients as it is.
SAME_BITS = {
    f"{row.key} = {value}": policy
    for row, value, policy in with_each_toggle(IN_ORDER)
    if row.stage in ("schedule", "blend", "sort", "launch", "project_backward")
    and {one.identity for one in differing(IN_ORDER, policy)} == {"B"}
}
REDUCTIONS = ("atomic", "butterfly", "scatter", "pair", "deferred_pair", "transposed", "deterministic")
REDUCED: dict[str, Policy] = {name: changed(step("best"), {"blend_backward.reduce": name}) for name in REDUCTIONS}


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    renderer = Renderer()
    camera = scene("random")[1]
    for primitive in TILTED:
        for policy in (*(rung.policy for rung in STEPS.values()), *SAME_BITS.values(), *REDUCED.values()):
            if not policy.problems():
                renderer.is_ready(policy, True, True, camera, primitive)
    yield renderer
    renderer.forget()


@pytest.fixture(scope="module")
def backend(renderer: Renderer) -> CudaBackend:
    return CudaBackend(renderer)


@pytest.mark.parametrize("primitive", TILTED)
@pytest.mark.parametrize("name", ["random", "many"])
@pytest.mark.parametrize("rung", STEPS)
def test_every_step_draws_and_differentiates_like_the_definition(
    backend: CudaBackend, rung: str, name: str, primitive: Primitive
) -> None:
    check(backend, step(rung), f"{primitive} {name}")


@pytest.mark.parametrize("primitive", TILTED)
@pytest.mark.parametrize("name", REDUCED)
def test_every_way_to_add_up_gives_the_gradients_of_the_definition(
    backend: CudaBackend, name: str, primitive: Primitive
) -> None:
    if not REDUCED[name].problems():
        check(backend, REDUCED[name], f"{primitive} many")


@pytest.mark.parametrize("primitive", TILTED)
@pytest.mark.parametrize("name", SAME_BITS)
def test_a_toggle_of_class_b_leaves_the_bits(backend: CudaBackend, name: str, primitive: Primitive) -> None:
    splats, camera = scene(f"{primitive} many")
    upstream = np.random.default_rng(1).standard_normal((camera.height, camera.width, 3)).astype(np.float32)
    results = []
    for policy in (IN_ORDER, SAME_BITS[name]):
        frame, saved = backend.forward(splats, camera, SETTINGS, policy)
        gradients = backend.backward(saved, upstream)
        results.append((frame.image.copy(), gradients.means.copy(), gradients.quats.copy(), gradients.sh.copy()))
    for before, after in zip(*results, strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("primitive", TILTED)
@pytest.mark.parametrize("rung", ["best", "s01"])
def test_what_tempts_to_divide_by_zero_is_drawn_and_differentiated_in_finite_numbers(
    backend: CudaBackend, rung: str, primitive: Primitive
) -> None:
    check_finite(backend, step(rung), f"{primitive} awkward")


@pytest.mark.parametrize("primitive", TILTED)
def test_training_steps_bring_splats_closer_to_a_picture(backend: CudaBackend, primitive: Primitive) -> None:
    splats, camera = scene(f"{primitive} many")
    wanted = np.clip(backend.render(splats, camera, SETTINGS).image, 0, 1)
    moved = splats.with_arrays({**splats.arrays, "sh": splats.sh + np.float32(0.2)})
    training = TrainingStep(moved, step("best"))
    target = training.targets.add(np.round(wanted * 255).astype(np.uint8))
    rates = AdamRates(1e-5, 5e-3, 1e-3, 0.05, 2.5e-3, 1.25e-4)
    for _ in range(40):
        training.run(StepRequest(camera, SETTINGS, target, rates))
    losses = [outcome.loss for outcome in training.outcomes(wait=True)]
    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < 0.75 * np.mean(losses[:5])
    assert training.splats.gaussians().primitive == primitive
