"""Compares disks (2dgs) and Gaussians along rays (3dgut) on the CPU backend with the definition."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from splatscope.kernels.cpu import CpuBackend
from splatscope.kernels.policy import Policy
from splatscope.kernels.primitive import Primitive
from tests.support.cuda_checks import SETTINGS, check, check_finite, scene
from tests.support.random_policies import changed_policies

TILTED: tuple[Primitive, ...] = ("2dgs", "3dgut")
POLICIES = changed_policies(("bin.bounds", "blend.stop"), "cpu")


@pytest.fixture(scope="module")
def cpu() -> CpuBackend:
    return CpuBackend()


@pytest.mark.parametrize("primitive", TILTED)
def test_pictures_and_gradients_are_those_of_the_definition(cpu: CpuBackend, primitive: Primitive) -> None:
    check(cpu, Policy(), f"{primitive} random")


@pytest.mark.parametrize("primitive", TILTED)
@pytest.mark.parametrize("name", POLICIES)
def test_toggles_mean_what_the_definition_says(cpu: CpuBackend, name: str, primitive: Primitive) -> None:
    check(cpu, POLICIES[name], f"{primitive} random")


@pytest.mark.parametrize("primitive", TILTED)
def test_what_tempts_to_divide_by_zero_is_drawn_and_differentiated_in_finite_numbers(
    cpu: CpuBackend, primitive: Primitive
) -> None:
    check_finite(cpu, Policy(), f"{primitive} awkward")


@pytest.mark.parametrize("primitive", TILTED)
def test_results_do_not_depend_on_the_number_of_threads(cpu: CpuBackend, primitive: Primitive) -> None:
    splats, camera = scene(f"{primitive} many")
    upstream = np.random.default_rng(2).standard_normal((camera.height, camera.width, 3)).astype(np.float32)
    before, results = numba.get_num_threads(), []
    try:
        for threads in (1, before):
            numba.set_num_threads(threads)
            frame, saved = cpu.forward(splats, camera, SETTINGS)
            gradients = cpu.backward(saved, upstream)
            results.append((frame.image.copy(), frame.depth.copy(), gradients.means.copy(), gradients.quats.copy()))
    finally:
        numba.set_num_threads(before)
    for one, many in zip(*results, strict=True):
        np.testing.assert_array_equal(one, many)
