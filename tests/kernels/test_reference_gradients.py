"""Tests the reference's gradients against finite differences, its loss and optimiser against a second source."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from splatscope.kernels.policy import Policy
from splatscope.kernels.reference import training
from splatscope.kernels.reference.backend import ReferenceBackend
from splatscope.kernels.reference.picture import Parameters, render
from splatscope.kernels.types import RenderSettings
from tests.support.small_scenes import NamedScene, hand_made

BACKEND = ReferenceBackend()
SETTINGS = RenderSettings(background=(0.3, 0.1, 0.6))
STEP = 1e-6
UPSTREAM = torch.from_numpy(np.random.default_rng(3).standard_normal((32, 48, 3)))


@pytest.fixture(scope="module")
def scene() -> NamedScene:
    return hand_made()


@pytest.fixture(scope="module")
def analytic(scene: NamedScene) -> Parameters:
    parameters = Parameters.of(scene.gaussians, differentiable=True)
    (value(parameters, scene)).backward()
    gradients = [t.grad for t in parameters.tensors()]
    assert all(g is not None for g in gradients)
    return Parameters(*(g for g in gradients if g is not None))


def value(parameters: Parameters, scene: NamedScene) -> torch.Tensor:
    """Returns a random linear function of the picture: every pixel and channel counts."""
    return (render(parameters, scene.camera, SETTINGS, Policy()).blended.image * UPSTREAM).sum()


def slope(scene: NamedScene, name: str, direction: torch.Tensor) -> float:
    """Returns the central difference of `value` along `direction`, which has the shape of the parameter."""
    start = Parameters.of(scene.gaussians)
    base = getattr(start, name)
    with torch.no_grad():
        ahead, behind = (
            float(value(replace(start, **{name: base + side * STEP * direction}), scene)) for side in (1, -1)
        )
    return (ahead - behind) / (2 * STEP)


@pytest.mark.parametrize("name", ["means", "log_scales", "quats", "logit_opacities"])
def test_gradients_are_finite_differences(scene: NamedScene, analytic: Parameters, name: str) -> None:
    expected = getattr(analytic, name)
    found = torch.zeros_like(expected)
    for element in range(expected.numel()):
        direction = torch.zeros_like(expected)
        direction.view(-1)[element] = 1
        if not (name == "logit_opacities" and element == scene.row("opaque")):  # +inf has no neighbour
            found.view(-1)[element] = slope(scene, name, direction)
    _assert_rows_agree(scene, expected, found)


def test_harmonic_gradients_are_finite_differences(scene: NamedScene, analytic: Parameters) -> None:
    rng = np.random.default_rng(4)
    for row, name in enumerate(scene.names):
        for channel in range(3):
            direction = torch.zeros_like(analytic.sh)
            direction[row, :, channel] = torch.from_numpy(rng.standard_normal(16))
            expected = float((analytic.sh * direction).sum())
            found = slope(scene, "sh", direction)
            assert found == pytest.approx(expected, rel=1e-6, abs=1e-7), (name, channel)


def _assert_rows_agree(scene: NamedScene, expected: torch.Tensor, found: torch.Tensor) -> None:
    for row, name in enumerate(scene.names):
        scale = float(expected[row].abs().max())
        np.testing.assert_allclose(found[row], expected[row], rtol=0, atol=1e-6 * scale + 1e-7, err_msg=name)


def test_cases_without_a_gradient_have_none_and_all_others_have_one(scene: NamedScene, analytic: Parameters) -> None:
    hidden = {"just below 1/255", "behind the camera", "before the near plane", "out of sight"}
    for row, name in enumerate(scene.names):
        moved = [bool(t[row].any()) for t in analytic.tensors()]
        if name in hidden:
            assert not any(moved), name
        elif name == "opaque":
            assert moved == [True, True, True, False, True]
        else:
            assert all(moved), name
    clamped = analytic.sh[scene.row("clamped green")]
    assert not clamped[:, 1].any()
    assert clamped[:, 0].all()
    assert clamped[:, 2].all()


def test_colour_depends_on_where_a_splat_is_seen_from(scene: NamedScene, analytic: Parameters) -> None:
    flat = replace(scene.gaussians, sh=scene.gaussians.sh.copy())
    flat.sh[:, 1:] = 0
    parameters = Parameters.of(flat, differentiable=True)
    value(parameters, replace(scene, gaussians=flat)).backward()
    assert parameters.means.grad is not None
    assert (parameters.means.grad - analytic.means)[scene.row("plain")].norm() > 1e-3 * analytic.means.norm()


def test_means2d_is_the_gradient_per_pixel_of_the_projected_mean(scene: NamedScene) -> None:
    # A shift of the principal point moves every projected mean alike; splats whose x/z is held in the
    # Jacobian would feel it there too, so they are left out.
    free = [i for i, name in enumerate(scene.names) if not name.startswith("tail")]
    gaussians = scene.gaussians
    arrays = (gaussians.means, gaussians.log_scales, gaussians.quats, gaussians.logit_opacities, gaussians.sh)
    gaussians = type(gaussians)(*(a[free] for a in arrays))
    _, saved = BACKEND.forward(gaussians, scene.camera, SETTINGS)
    gradients = BACKEND.backward(saved, UPSTREAM.numpy().astype(np.float32))
    start = Parameters.of(gaussians)
    for axis, name in enumerate(("cx", "cy")):
        sides = []
        for side in (1, -1):
            moved = replace(scene.camera, **{name: getattr(scene.camera, name) + side * STEP})
            with torch.no_grad():
                sides.append(float((render(start, moved, SETTINGS, Policy()).blended.image * UPSTREAM).sum()))
        assert gradients.means2d[:, axis].sum() == pytest.approx((sides[0] - sides[1]) / (2 * STEP), rel=1e-4)


def test_a_pass_can_be_differentiated_twice_and_linearly(scene: NamedScene) -> None:
    _, saved = BACKEND.forward(scene.gaussians, scene.camera, SETTINGS)
    upstream = UPSTREAM.numpy().astype(np.float32)
    once, twice = (BACKEND.backward(saved, factor * upstream) for factor in (1, 2))
    np.testing.assert_allclose(twice.quats, 2 * once.quats, rtol=1e-6)


# ------------------------------------------------------------------------------- loss and optimiser


def scalar_ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Returns SSIM window by window, weights from the formula, zeros outside."""
    offsets = np.arange(-5, 6)
    weights = np.exp(-(offsets[:, None] ** 2 + offsets[None] ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    pad = [(5, 5), (5, 5), (0, 0)]
    a, b = np.pad(a.astype(np.float64), pad), np.pad(b.astype(np.float64), pad)
    values = []
    for y, x, c in np.ndindex(a.shape[0] - 10, a.shape[1] - 10, 3):
        u, v = a[y : y + 11, x : x + 11, c], b[y : y + 11, x : x + 11, c]
        mu, mv = (weights * u).sum(), (weights * v).sum()
        uu, vv = (weights * (u - mu) ** 2).sum(), (weights * (v - mv) ** 2).sum()
        uv = (weights * (u - mu) * (v - mv)).sum()
        values.append((2 * mu * mv + 1e-4) * (2 * uv + 9e-4) / ((mu**2 + mv**2 + 1e-4) * (uu + vv + 9e-4)))
    return float(np.mean(values))


def pair_of_images(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(8)
    target = rng.uniform(0, 1, (height, width, 3)).astype(np.float32)
    return (target + 0.2 * rng.standard_normal(target.shape)).astype(np.float32), target


@pytest.mark.parametrize("size", [(1, 1), (7, 19), (16, 12)])
def test_ssim_is_that_of_one_window_at_a_time(size: tuple[int, int]) -> None:
    image, target = pair_of_images(*size)
    assert training.ssim(image, target) == pytest.approx(scalar_ssim(image, target), abs=1e-9)
    assert training.ssim(target, target) == pytest.approx(1.0)


@pytest.mark.parametrize("weight", [0.0, 0.2, 1.0])
def test_the_loss_and_its_gradient_follow_the_formula(weight: float) -> None:
    image, target = pair_of_images(9, 13)

    def expected(of: np.ndarray) -> float:
        l1 = np.abs(of.astype(np.float64) - target).mean()
        return (1 - weight) * l1 + weight * (1 - scalar_ssim(of, target))

    value, gradient = training.loss(image, target, weight)
    assert value == pytest.approx(expected(image), abs=1e-9)
    assert gradient.shape == image.shape
    direction = np.random.default_rng(9).standard_normal(image.shape)
    wide = image.astype(np.float64)
    found = (expected(wide + 1e-7 * direction) - expected(wide - 1e-7 * direction)) / 2e-7
    assert (gradient * direction).sum() == pytest.approx(found, rel=1e-4)


def test_the_loss_of_equal_images_is_zero_and_flat() -> None:
    _, target = pair_of_images(9, 13)
    value, gradient = training.loss(target, target)
    assert value == pytest.approx(0.0, abs=1e-12)
    assert np.abs(gradient).max() < 1e-12


def test_adam_takes_the_steps_of_torch() -> None:
    rng = np.random.default_rng(10)
    start = rng.standard_normal((7, 3)).astype(np.float32)
    rates = np.array([1e-3, 0.0, 0.05], np.float32)
    parameter, first, second = start.copy(), np.zeros_like(start), np.zeros_like(start)
    columns = [torch.tensor(start[:, i], dtype=torch.float64, requires_grad=True) for i in range(3)]
    torch_adam = torch.optim.Adam(
        [{"params": [c], "lr": float(r)} for c, r in zip(columns, rates, strict=True)], eps=1e-15
    )
    for step in range(1, 6):
        gradient = rng.standard_normal((7, 3)).astype(np.float32) * np.float32(10.0 ** rng.integers(-6, 2))
        training.adam(parameter, gradient, first, second, rates, step)
        for i, column in enumerate(columns):
            column.grad = torch.tensor(gradient[:, i], dtype=torch.float64)
        torch_adam.step()
    expected = torch.stack([c.detach() for c in columns], 1).numpy()
    np.testing.assert_allclose(parameter, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(parameter[:, 1], start[:, 1])
