"""Tests that no array content crashes the numba backend or spoils a pixel; it counts what it skips."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from splatscope.kernels.backend import Backend
from splatscope.kernels.backends import make_backend
from splatscope.kernels.policy import Policy
from splatscope.kernels.reference.backend import ReferenceBackend
from splatscope.kernels.types import Camera, Frame, Gaussians, Gradients, RenderSettings
from tests.support.comparison import PARAMETERS, assert_close_with_boundary_band
from tests.support.small_scenes import hand_made, joined, random_camera, random_scene, select

REFERENCE = ReferenceBackend()
BACKGROUND = RenderSettings(background=(0.2, 0.4, 0.7))


@pytest.fixture(scope="module")
def cpu() -> Backend:
    return make_backend("cpu")


def assert_sane(
    cpu: Backend, gaussians: Gaussians, camera: Camera, bounds: str = "row_span"
) -> tuple[Frame, Gradients]:
    frame, saved = cpu.forward(gaussians, camera, BACKGROUND, Policy().with_value("bin", "bounds", bounds))
    assert np.isfinite(frame.image).all()
    assert np.isfinite(frame.transmittance).all()
    assert not np.isinf(frame.depth).any()
    gradients = cpu.backward(saved, np.ones_like(frame.image))
    for name in PARAMETERS:
        assert np.isfinite(getattr(gradients, name)).all(), name
    return frame, gradients


@pytest.mark.parametrize("name", ["means", "log_scales", "quats", "logit_opacities", "sh"])
def test_a_value_that_is_not_finite_costs_its_splat_and_no_other(cpu: Backend, name: str) -> None:
    camera = random_camera(64, 48)
    rng = np.random.default_rng(22)
    for value in (np.nan, np.inf, -np.inf):
        gaussians = random_scene(camera, 80, seed=23)
        clean = REFERENCE.render(gaussians, camera, BACKGROUND)
        rows = rng.choice(80, 9, replace=False)
        array = getattr(gaussians, name)
        for row in rows:
            array[row : row + 1].flat[rng.integers(array[row : row + 1].size)] = value
        frame, gradients = assert_sane(cpu, gaussians, camera)
        expected = REFERENCE.render(gaussians, camera, BACKGROUND)
        assert_close_with_boundary_band(frame.image, expected.image, tight=1e-5, flip_size=0.02)
        assert (frame.skipped, frame.visible) == (expected.skipped, expected.visible)
        if name != "logit_opacities" or np.isnan(value):
            assert frame.skipped > 0
            assert frame.visible < clean.visible
            assert not any(getattr(gradients, n)[rows].any() for n in PARAMETERS)


def test_zero_quaternions_and_overflowing_scales_are_skipped(cpu: Backend) -> None:
    scene = hand_made()
    scene.gaussians.quats[0] = 0
    scene.gaussians.log_scales[1, 2] = 89.0
    frame, _ = assert_sane(cpu, scene.gaussians, scene.camera)
    rest = REFERENCE.render(select(scene.gaussians, list(range(2, scene.gaussians.count))), scene.camera, BACKGROUND)
    assert frame.skipped == 2
    assert_close_with_boundary_band(frame.image, rest.image, tight=1e-5, flip_size=0.02)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_scenes_a_million_times_smaller_or_larger_are_those_of_the_reference(cpu: Backend, factor: float) -> None:
    camera = random_camera(64, 48)
    gaussians = random_scene(camera, 80, seed=24)
    gaussians.log_scales[::3] += np.float32(np.log(factor))
    gaussians.log_scales[1::3, 0] += np.float32(np.log(factor))
    frame, _ = assert_sane(cpu, gaussians, camera)
    expected = REFERENCE.render(gaussians, camera, BACKGROUND)
    assert_close_with_boundary_band(frame.image, expected.image, tight=1e-4, flip_size=0.02, flip_fraction=2e-3)
    assert frame.skipped == expected.skipped == 0


@pytest.mark.parametrize("bounds", ["row_span", "aabb_o", "circle3s"])
def test_any_bits_at_all_neither_crash_nor_spoil_a_pixel(cpu: Backend, bounds: str) -> None:
    camera = random_camera(48, 32)
    for seed in range(40):
        rng = np.random.default_rng(100 + seed)
        sane, wild = random_scene(camera, 40, seed), random_scene(camera, 40, seed + 1000)
        for array in (wild.means, wild.log_scales, wild.quats, wild.logit_opacities):
            hit = rng.random(array.shape) < rng.choice([0.05, 0.3, 1.0])
            bits = rng.integers(0, 2**32, array.shape, dtype=np.uint32).view(np.float32)
            array[hit] = bits[hit]
        assert_sane(cpu, joined(sane, wild), camera, bounds)


def test_values_at_the_ends_of_float32_neither_crash_nor_spoil_a_pixel(cpu: Backend) -> None:
    camera = random_camera(48, 32)
    extremes = np.array([0.0, -0.0, 1e-45, 1e-38, 1e-20, 1e-6, 1e6, 1e20, 3e38], np.float32)
    for seed in range(40):
        rng = np.random.default_rng(200 + seed)
        gaussians = random_scene(camera, 60, seed)
        for array in (gaussians.means, gaussians.log_scales, gaussians.quats, gaussians.logit_opacities):
            hit = rng.random(array.shape) < 0.2
            array[hit] = (rng.choice(extremes, array.shape) * rng.choice([-1, 1], array.shape))[hit]
        bright = rng.random(60) < 0.1
        gaussians.sh[bright] *= np.float32(1e30)
        assert_sane(cpu, gaussians, camera)


def test_splats_touching_the_near_plane_and_the_camera_are_sane(cpu: Backend) -> None:
    camera = replace(random_camera(48, 32), near=1e-6)
    gaussians = random_scene(camera, 60, seed=25)
    forward = camera.matrix[2, :3]
    depth = gaussians.means @ forward + camera.matrix[2, 3]
    wanted = np.random.default_rng(3).choice([1e-7, 1e-6, 2e-6, 1e-4, 1e-2], 60)
    gaussians.means[:] += ((wanted - depth)[:, None] * forward).astype(np.float32)
    assert_sane(cpu, gaussians, camera)
