"""Tests the CPU loss against its float64 definition, finite differences, and itself at another thread count."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from splatscope.kernels.cpu.loss import loss_and_gradient, mean_ssim
from splatscope.kernels.reference import training


def pair(height: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns a target with flat, smooth and noisy regions and an image near it that leaves [0, 1] here and there."""
    rng = np.random.default_rng(seed)
    target = np.zeros((height, width, 3), np.float32)
    target[:, width // 3 :] = np.linspace(0, 1, width - width // 3)[None, :, None]
    target[height // 2 :] += rng.random((height - height // 2, width, 3), dtype=np.float32)
    image = target + 0.2 * rng.standard_normal(target.shape, dtype=np.float32)
    image[: height // 4, : width // 4] = 0.3
    return image, np.clip(target, 0, 1)


@pytest.mark.parametrize("size", [(1, 1), (3, 40), (40, 3), (11, 11), (61, 83)])
@pytest.mark.parametrize("weight", [0.0, 0.2, 1.0])
def test_value_and_gradient_are_those_of_the_definition(size: tuple[int, int], weight: float) -> None:
    image, target = pair(*size)
    value, gradient = loss_and_gradient(image, target, weight)
    expected, expected_gradient = training.loss(image, target, weight)
    assert value == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-3, atol=2e-5 * np.abs(expected_gradient).max())


def test_gradient_predicts_the_change_of_the_value() -> None:
    image, target = pair(48, 64)
    _, gradient = loss_and_gradient(image, target, 0.5)
    direction = np.random.default_rng(1).standard_normal(image.shape, dtype=np.float32)
    direction[np.abs(image - target) < 0.01] = 0  # the corner of |x|
    step = np.float32(1e-3)
    ahead = loss_and_gradient(image + step * direction, target, 0.5)[0]
    behind = loss_and_gradient(image - step * direction, target, 0.5)[0]
    assert (ahead - behind) / (2 * step) == pytest.approx(float((gradient * direction).sum()), rel=1e-3)


def test_a_perfect_image_has_no_loss_and_no_gradient() -> None:
    _, target = pair(30, 50)
    value, gradient = loss_and_gradient(target, target, 0.2)
    assert value == pytest.approx(0, abs=1e-6)
    assert np.abs(gradient).max() < 1e-6 / 50
    assert mean_ssim(target, target) == pytest.approx(1, abs=1e-6)


def test_ssim_is_that_of_the_definition() -> None:
    image, target = pair(70, 45)
    assert mean_ssim(image, target) == pytest.approx(training.ssim(image, target), abs=1e-5)


def test_thread_count_does_not_change_a_bit() -> None:
    image, target = pair(67, 90)
    threads = numba.get_num_threads()
    results = []
    try:
        for count in {1, threads}:
            numba.set_num_threads(count)
            results.append(loss_and_gradient(image, target, 0.2))
    finally:
        numba.set_num_threads(threads)
    assert all(value == results[0][0] for value, _ in results)
    assert all(np.array_equal(gradient, results[0][1]) for _, gradient in results)


def test_a_row_that_is_not_finite_makes_the_loss_not_finite() -> None:
    image, target = pair(20, 20)
    image[7, 3, 1] = np.nan
    assert not np.isfinite(loss_and_gradient(image, target, 0.2)[0])
