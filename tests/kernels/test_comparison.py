"""Tests that the comparison helpers reject wrong pictures and forgive only a few bounded flips."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from splatscope.kernels.policy import Policy
from splatscope.kernels.reference.backend import ReferenceBackend
from splatscope.kernels.reference.picture import Parameters, render
from splatscope.kernels.types import Camera, Gaussians, Gradients, RenderSettings
from tests.support.comparison import PARAMETERS, assert_close_with_boundary_band, assert_gradients_close, settled_pixels
from tests.support.small_scenes import hand_made, pixel_row, pixel_stack, select

assert_same_picture = partial(assert_close_with_boundary_band, tight=1e-5, flip_size=0.01)
assert_same_gradients = partial(assert_gradients_close, relative=1e-4, row_relative=1e-2)


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    scene = hand_made()
    return ReferenceBackend().render(scene.gaussians, scene.camera).image


@pytest.fixture(scope="module")
def gradients() -> Gradients:
    scene, backend = hand_made(), ReferenceBackend()
    frame, saved = backend.forward(scene.gaussians, scene.camera)
    upstream = np.random.default_rng(0).standard_normal(frame.image.shape).astype(np.float32)
    return backend.backward(saved, upstream)


def test_rounding_and_a_few_small_flips_pass(picture: np.ndarray) -> None:
    other = picture + 5e-6 * np.random.default_rng(0).uniform(-1, 1, picture.shape)
    assert_same_picture(other, picture)
    other[7, 9] += 1 / 255
    assert_same_picture(other, picture)


def test_a_shifted_or_brighter_picture_is_rejected(picture: np.ndarray) -> None:
    for wrong in (np.roll(picture, 1, axis=1), picture * 1.001, picture + 2e-5, picture[:, :, ::-1]):
        with pytest.raises(AssertionError, match="pixels differ"):
            assert_same_picture(wrong, picture)


def test_a_missing_splat_is_rejected(picture: np.ndarray) -> None:
    scene = hand_made()
    for name in ("needle", "past the near plane", "tail from a corner", "just above 1/255"):
        rest = [i for i in range(len(scene.names)) if i != scene.row(name)]
        wrong = ReferenceBackend().render(select(scene.gaussians, rest), scene.camera).image
        with pytest.raises(AssertionError, match="pixels differ"):
            assert_same_picture(wrong, picture)


def test_too_many_or_too_large_flips_are_rejected(picture: np.ndarray) -> None:
    many, large = picture.copy(), picture.copy()
    many[3, :5] += 0.005
    with pytest.raises(AssertionError, match="5 pixels differ"):
        assert_same_picture(many, picture)
    large[3, 3] += 0.02
    with pytest.raises(AssertionError, match=r"differs by 0\.02"):
        assert_same_picture(large, picture)


def test_a_flip_outside_the_band_is_rejected(picture: np.ndarray) -> None:
    other = picture.copy()
    other[7, 9] += 1 / 255
    band = np.zeros(picture.shape[:2], bool)
    with pytest.raises(AssertionError, match="away from any threshold"):
        assert_same_picture(other, picture, band=band)
    band[7, 9] = True
    assert_same_picture(other, picture, band=band)


def test_nan_agrees_with_nan_only() -> None:
    depth = np.ones((8, 8))
    depth[2, 2] = np.nan
    assert_same_picture(depth, depth)
    with pytest.raises(AssertionError, match="64 pixels differ"):
        assert_same_picture(np.full((8, 8), np.nan), np.ones((8, 8)))
    with pytest.raises(AssertionError, match="1 pixels differ"):
        assert_same_picture(np.ones((8, 8)), depth, flip_fraction=0.0)
    with pytest.raises(AssertionError, match="pixels differ"):
        assert_same_picture(np.full((8, 8), np.inf), np.ones((8, 8)))


def test_rounded_gradients_pass(gradients: Gradients) -> None:
    rounded = {n: (getattr(gradients, n) * np.float32(1 + 3e-5)).astype(np.float32) for n in PARAMETERS}
    assert_same_gradients(replace(gradients, **rounded), gradients)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_wrong_gradient_is_rejected(gradients: Gradients, name: str) -> None:
    right = getattr(gradients, name)
    weakest = int(np.argsort(np.abs(right.reshape(len(right), -1)).sum(1) + 1e9 * ~gradients.visible)[0])
    scaled, one_row, negated, unseen, absent = right * 1.01, right.copy(), -right, right.copy(), np.zeros_like(right)
    strongest = int(np.abs(right.reshape(len(right), -1)).sum(1).argmax())
    one_row[strongest] *= 1.05
    unseen[~gradients.visible] = 1e-9
    unknown = right.copy()
    unknown[weakest] = np.nan
    for wrong in (scaled, one_row, negated, unseen, absent, unknown):
        with pytest.raises(AssertionError, match=f"d{name}"):
            assert_same_gradients(replace(gradients, **{name: wrong}), gradients)


def test_one_small_but_wrong_row_is_rejected(gradients: Gradients) -> None:
    rows = np.linalg.norm(gradients.means, axis=1)
    small = int(np.argmin(np.where(rows > 2e-3 * rows.max(), rows, np.inf)))
    means = gradients.means.copy()
    means[small] *= -1
    with pytest.raises(AssertionError, match=f"splat {small}"):
        assert_same_gradients(replace(gradients, means=means), gradients, relative=10.0, cosine=-1.0)


def test_pixels_at_a_threshold_are_not_settled() -> None:
    def settled(gaussians: Gaussians, camera: Camera) -> list[bool]:
        stages = render(Parameters.of(gaussians), camera, RenderSettings(), Policy())
        return settled_pixels(stages, camera).ravel().tolist()

    at_cutoff = float(np.exp(0.5 / 2.0) / 255)  # alpha is 1/255 one pixel from the mean, variance 2 px^2
    assert settled(*pixel_row(at_cutoff, variance=2.0, width=3)) == [True, False, True]
    grey = (0.5, 0.5, 0.5)
    assert settled(*pixel_stack([0.98, 0.98, 0.75], [grey] * 3)) == [False]
    assert settled(*pixel_stack([0.98, 0.98, 0.70], [grey] * 3)) == [True]
