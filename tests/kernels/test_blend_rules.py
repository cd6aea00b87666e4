"""Tests the toggles that define a pixel, blend.alpha_cap and blend.stop: every backend honours one definition.

The reference against a scalar renderer and finite differences, then the CPU and the CUDA kernels against it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from splatscope.kernels.constants import ALPHA_CAPS
from splatscope.kernels.cpu.backend import CpuBackend
from splatscope.kernels.ladder import changed
from splatscope.kernels.policy import BlendPolicy, Policy
from splatscope.kernels.reference.backend import ReferenceBackend
from splatscope.kernels.reference.picture import Parameters, render
from splatscope.kernels.types import Camera, Gaussians
from tests.support import brute_force
from tests.support.comparison import assert_close_with_boundary_band, assert_gradients_close, settled_pixels
from tests.support.cuda_blend import BACKGROUND, RULED, RULES, Case, make_case, run, upstream_of
from tests.support.cuda_on_cpu.run import is_supported
from tests.support.small_scenes import random_camera, random_scene

BACKEND = ReferenceBackend()


def policy(rule: str) -> Policy:
    """Returns the default policy with one rule changed."""
    return changed(Policy(), dict(zip(("blend.alpha_cap", "blend.stop"), RULES[rule], strict=True)))


def opaque_scene(camera: Camera, count: int, seed: int) -> Gaussians:
    """Returns random splats, a third of which are as good as opaque."""
    gaussians = random_scene(camera, count, seed=seed)
    gaussians.logit_opacities[::3] = np.random.default_rng(seed).uniform(4, 12, len(gaussians.logit_opacities[::3]))
    return gaussians


@cache
def case(rule: str) -> Case:
    camera = random_camera(48, 32)
    return make_case(opaque_scene(camera, 300, seed=7), camera, policy=policy(rule))


@pytest.mark.parametrize("rule", RULES)
def test_the_picture_of_each_rule_is_that_of_a_scalar_renderer(rule: str) -> None:
    camera = random_camera(20, 18)
    gaussians = opaque_scene(camera, 60, seed=5)
    cap, stop = RULES[rule]
    image, depth, left = brute_force.picture(
        gaussians, camera, BACKGROUND.background, cap=ALPHA_CAPS[cap], inclusive=stop == "inclusive"
    )
    frame = BACKEND.render(gaussians, camera, BACKGROUND, policy(rule))
    np.testing.assert_allclose(frame.image, image, atol=1e-6)
    np.testing.assert_allclose(frame.transmittance, left, atol=1e-6)
    np.testing.assert_allclose(frame.depth, depth, rtol=1e-5)


def test_a_rule_changes_a_pixel_by_no_more_than_it_says() -> None:
    """Compares with 0.99 and exclusive: the last splat weighs 1e-2 at most, and below a cap 1e-2 of light passes."""
    plain = BACKEND.render(case("none").gaussians, case("none").camera, BACKGROUND).image
    brightest = max(1.0, float(np.abs(plain).max()))
    for rule in RULES:
        difference = np.abs(case(rule).expected.image - plain).max()
        assert 1e-5 < difference <= 0.02 * brightest, rule


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["means", "log_scales", "quats", "logit_opacities", "sh"])
def test_gradients_of_each_rule_are_finite_differences(rule: str, name: str) -> None:
    camera = random_camera(24, 20)
    gaussians = random_scene(camera, 40, seed=9)
    # Below each cap, which the gradient ignores, and dense enough that pixels end.
    opacity = np.random.default_rng(9).uniform(0.5, 0.985, 40)
    gaussians.logit_opacities[:] = np.log(opacity / (1 - opacity))
    gaussians.log_scales[:] += 1.5
    upstream = torch.from_numpy(np.random.default_rng(2).standard_normal((20, 24, 3)))

    def value(parameters: Parameters) -> torch.Tensor:
        return (render(parameters, camera, BACKGROUND, policy(rule)).blended.image * upstream).sum()

    parameters = Parameters.of(gaussians, differentiable=True)
    value(parameters).backward()
    gradient = getattr(parameters, name).grad
    start, random = Parameters.of(gaussians), torch.Generator().manual_seed(1)
    agreed = 0
    for _ in range(4):  # a step that moves a threshold is seen at once, and no derivative
        direction = torch.randn(gradient.shape, dtype=torch.float64, generator=random)
        with torch.no_grad():
            ahead, behind = (
                float(value(replace(start, **{name: getattr(start, name) + side * 1e-8 * direction})))
                for side in (1, -1)
            )
        agreed += (ahead - behind) / 2e-8 == pytest.approx(float((gradient * direction).sum()), rel=1e-4, abs=1e-4)
    assert agreed >= 3


@pytest.mark.parametrize("rule", RULES)
def test_the_cpu_honours_each_rule(rule: str) -> None:
    one, cpu = case(rule), CpuBackend()
    frame, saved = cpu.forward(one.gaussians, one.camera, BACKGROUND, policy(rule))
    upstream = upstream_of(one)
    band = {"flip_size": 0.1, "flip_fraction": 5e-3, "band": ~one.settled}
    assert_close_with_boundary_band(frame.image, one.expected.image, tight=2e-5, **band)
    assert_close_with_boundary_band(frame.transmittance, one.expected.transmittance, tight=2e-5, **band)
    wanted = BACKEND.backward(one.saved, upstream)
    assert_gradients_close(cpu.backward(saved, upstream), wanted, relative=1e-3, row_relative=5e-2, cosine=1 - 1e-5)


@pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")
@pytest.mark.parametrize(("base", "rule"), RULED)
def test_cuda_honours_each_rule_with_each_way_to_end_a_pixel(base: str, rule: str) -> None:
    one = case(rule)
    upstream = upstream_of(one)
    result = run(one, RULED[base, rule], upstream)
    band = {"flip_size": 0.1, "flip_fraction": 5e-3, "band": ~one.settled}
    assert_close_with_boundary_band(result.image, one.expected.image, tight=2e-5, **band)
    assert_close_with_boundary_band(result.transmittance, one.expected.transmittance, tight=2e-5, **band)
    assert result.gradients is not None
    wanted = BACKEND.backward(one.saved, upstream)
    assert_gradients_close(result.gradients, wanted, relative=1e-3, row_relative=5e-2, cosine=1 - 1e-5)


def test_a_cap_above_99_hundredths_asks_for_the_inclusive_stop() -> None:
    for backend in ("cpu", "cuda"):
        problems = Policy(blend=BlendPolicy(alpha_cap="cap999")).problems(backend)
        assert len(problems) == 1
        assert "set blend.stop to inclusive first" in problems[0]
    assert policy("none").problems("cpu") == []


def test_settled_pixels_are_told_by_the_cap_of_the_rule() -> None:
    one = case("none")
    assert one.settled.mean() > 0.7
    other = settled_pixels(one.stages, one.camera)
    assert (other != one.settled).any()
