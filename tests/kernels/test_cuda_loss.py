"""Tests the GPU's loss on the CPU: value and gradient against the definition, and when a step may commit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from splatscope.kernels.cpu.loss import loss_and_gradient
from splatscope.kernels.cuda.launch.compiler import ARCHITECTURES, compile_report, nvrtc_path, read_source
from splatscope.kernels.cuda.step.loss import loss_kernels
from splatscope.kernels.reference import training
from splatscope.kernels.types import Float32
from tests.kernels.test_loss import pair
from tests.support.cuda_loss import LOSS_KINDS, run_loss
from tests.support.cuda_on_cpu.run import is_supported

needs_harness = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")


def float32(array: NDArray[Any]) -> Float32:
    return array.astype(np.float32)


def photograph(height: int, width: int) -> tuple[Float32, NDArray[np.uint8], Float32]:
    """Returns (image, target in 8 bits, the same as floats)."""
    image, target = pair(height, width)
    pixels = np.round(255 * target).astype(np.uint8)
    return image, pixels, (pixels / 255).astype(np.float32)


@needs_harness
@pytest.mark.parametrize("size", [(1, 1), (3, 40), (40, 3), (11, 11), (61, 97)])
@pytest.mark.parametrize("weight", [0.0, 0.2, 1.0])
def test_value_and_gradient_are_those_of_the_definition(size: tuple[int, int], weight: float) -> None:
    image, pixels, target = photograph(*size)
    got = run_loss(image, pixels, weight, seed=1)
    expected, expected_gradient = training.loss(image, target, weight)
    assert got.result["loss"] == pytest.approx(expected, rel=1e-5)
    atol = 2e-5 * np.abs(expected_gradient).max()
    np.testing.assert_allclose(got.gradient, expected_gradient, rtol=1e-3, atol=atol)
    assert (got.result["steps"], got.result["overflow"], got.result["sequence"]) == (1, 0, 67)


@needs_harness
def test_gradient_predicts_the_change_of_the_value() -> None:
    image, pixels, target = photograph(20, 50)
    gradient = run_loss(image, pixels, 0.5).gradient
    direction = np.random.default_rng(1).standard_normal(image.shape, dtype=np.float32)
    direction[np.abs(image - target) < 0.01] = 0  # the corner of |x|
    shift = 3e-3 * direction  # less, and the rounding of the value shows
    ahead = run_loss(float32(image + shift), pixels, 0.5).result["loss"]
    behind = run_loss(float32(image - shift), pixels, 0.5).result["loss"]
    assert (ahead - behind) / 6e-3 == pytest.approx(float((gradient * direction).sum()), rel=2e-3)


@needs_harness
@pytest.mark.parametrize("size", [(13, 64), (26, 128), (27, 129), (38, 192), (80, 70)])
def test_value_and_gradient_are_those_of_the_cpu_where_tiles_end_with_the_image_and_where_not(
    size: tuple[int, int],
) -> None:
    image, pixels, target = photograph(*size)
    expected, expected_gradient = loss_and_gradient(image, target, 0.2)
    got = run_loss(image, pixels, 0.2)
    assert got.result["loss"] == pytest.approx(expected, rel=2e-6)
    atol = 1e-5 * np.abs(expected_gradient).max()
    np.testing.assert_allclose(got.gradient, expected_gradient, rtol=1e-4, atol=atol)


@needs_harness
def test_the_order_in_which_blocks_run_does_not_change_a_bit() -> None:
    image, pixels, _ = photograph(30, 140)
    first, second = (run_loss(image, pixels, 0.2, seed=seed) for seed in (1, 2))
    assert first.result["loss"] == second.result["loss"]
    assert np.array_equal(first.gradient, second.gradient)


@needs_harness
@pytest.mark.parametrize("kind", LOSS_KINDS[1:])
def test_a_background_shows_through_and_pixels_of_no_weight_count_for_nothing(kind: tuple[bool, bool]) -> None:
    image, pixels, target = photograph(33, 50)
    background, random = (0.25, 0.5, 0.75), np.random.default_rng(5)
    coverage, weight = (random.integers(0, 256, (33, 50), np.uint8) for _ in range(2))
    weight[:9] = 0
    parts, weights = [pixels], np.ones((33, 50, 1), np.float32)
    if kind[0]:
        parts.append(coverage)
        target = target + (1 - coverage[..., None] / np.float32(255)) * np.array(background, np.float32)
    if kind[1]:
        parts.append(weight)
        weights = weight[..., None] / np.float32(255)
    memory = np.concatenate([part.ravel() for part in parts])
    got = run_loss(image, memory, 0.2, kind=kind, background=background)
    image, target = float32(weights * image), float32(weights * target)  # as on the CPU: training/steps/host.py
    expected, expected_gradient = training.loss(image, target, 0.2)
    assert got.result["loss"] == pytest.approx(expected, rel=1e-5)
    expected_gradient = expected_gradient * weights
    atol = 2e-5 * np.abs(expected_gradient).max()
    difference = np.abs(image - target)
    is_corner = (difference > 0) & (difference < 1e-6)  # of |x|: rounding decides the sign
    assert is_corner.sum() <= 2
    np.testing.assert_allclose(got.gradient[~is_corner], expected_gradient[~is_corner], rtol=1e-3, atol=atol)


@needs_harness
def test_a_step_is_refused_when_the_loss_is_not_finite_or_the_frame_did_not_fit_or_one_was_refused() -> None:
    image, pixels, _ = photograph(9, 12)
    broken = image.copy()
    broken[4, 3, 1] = np.nan
    refused = run_loss(broken, pixels, 0.2)
    assert (refused.overflow, refused.state["halted"], refused.state["steps"]) == (4, 1, 0)
    assert not np.isfinite(refused.result["loss"])
    halted = run_loss(image, pixels, 0.2, halted=1)
    assert (halted.overflow, halted.state["steps"], halted.state["beta1_power"]) == (4, 0, 1)
    overflowed = run_loss(image, pixels, 0.2, overflow=2, instances_wanted=1 << 33)
    assert (overflowed.overflow, overflowed.state["halted"], overflowed.state["steps"]) == (6, 1, 0)
    assert overflowed.result["instances_wanted"] == 1 << 33
    assert (overflowed.gradient == 7).all()


@pytest.mark.skipif(nvrtc_path() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_kernels_compile_without_spills(architecture: int) -> None:
    names = [name for kind in LOSS_KINDS for name in loss_kernels(*kind)]
    for name, report in compile_report(read_source("loss.cuh"), names, architecture).items():
        assert report.spill_bytes == report.stack_bytes == 0, name
