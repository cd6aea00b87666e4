"""Disks (2dgs) and Gaussians along rays (3dgut) through the whole CUDA pipeline, on the CPU against the definition."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from splatscope.kernels.cuda.backend import CudaBackend
from splatscope.kernels.ladder import changed, step
from splatscope.kernels.policy import Policy
from splatscope.kernels.primitive import Primitive
from tests.support.cuda_checks import SETTINGS, check, check_finite, scene
from tests.support.cuda_on_cpu.run import is_supported
from tests.support.cuda_pipeline import Kernels, emulated_renderer, pass_for

pytestmark = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")

TILTED: tuple[Primitive, ...] = ("2dgs", "3dgut")
POLICIES: dict[str, Policy] = {
    "best": step("best"),
    "s01": step("s01"),
    "s00": step("s00"),
    "chunks": changed(step("best"), {"schedule.chunk": "all"}),
    "in order": changed(step("best"), {"blend_backward.reduce": "deterministic"}),
    "pairs by block": changed(step("s05"), {"blend_backward.reduce": "pair", "project.layout": "soa"}),
}


@cache
def backend(primitive: Primitive) -> CudaBackend:
    camera = scene("random")[1]
    passes = [pass_for(policy, camera, True, True, primitive) for policy in POLICIES.values()]
    return CudaBackend(
        emulated_renderer(Kernels([*passes, pass_for(POLICIES["best"], camera, False, True, primitive)]))
    )


@pytest.mark.parametrize("primitive", TILTED)
@pytest.mark.parametrize("name", POLICIES)
def test_pictures_and_gradients_are_those_of_the_definition(name: str, primitive: Primitive) -> None:
    check(backend(primitive), POLICIES[name], f"{primitive} random")


@pytest.mark.parametrize("primitive", TILTED)
@pytest.mark.parametrize("name", ["best", "s01"])
def test_what_tempts_to_divide_by_zero_is_drawn_and_differentiated_in_finite_numbers(
    name: str, primitive: Primitive
) -> None:
    check_finite(backend(primitive), POLICIES[name], f"{primitive} awkward")


@pytest.mark.parametrize("primitive", TILTED)
def test_pictures_for_viewing_equal_those_for_training(primitive: Primitive) -> None:
    splats, camera = scene(f"{primitive} random")
    drawn = backend(primitive).render(splats, camera, SETTINGS)
    trained, _ = backend(primitive).forward(splats, camera, SETTINGS)
    np.testing.assert_array_equal(drawn.image, trained.image)
    np.testing.assert_array_equal(drawn.depth, trained.depth)
