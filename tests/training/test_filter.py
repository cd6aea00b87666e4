"""Tests the filters of projection: one definition, the same on every backend, with gradients of finite differences.

The CUDA kernels under each filter are checked with all other toggles in kernels/test_cuda_pipeline.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from splatscope.app.opening.scene import open_scene
from splatscope.assets.splats.ply import write_ply
from splatscope.kernels.backends import make_backend
from splatscope.kernels.constants import COMPENSATION_MIN
from splatscope.kernels.cuda.step.harmonics import bf16_words, joined_words, split_words
from splatscope.kernels.policy import Policy
from splatscope.kernels.reference.backend import ReferenceBackend
from splatscope.kernels.reference.picture import Parameters, project, render
from splatscope.kernels.types import Camera, Gaussians, RenderSettings
from tests.support.comparison import assert_close_with_boundary_band, assert_gradients_close, settled_pixels
from tests.support.small_scenes import hand_made, random_camera, random_scene

FILTERS = ("plain", "compensated", "mip")
SETTINGS = RenderSettings(background=(0.3, 0.1, 0.6))


def filtered(name: str) -> Policy:
    return Policy().with_value("project", "filter", name)


def small_splats(count: int = 30, seed: int = 4) -> tuple[Gaussians, Camera]:
    """Returns splats of about a pixel, which filters matter to."""
    camera = random_camera(48, 32)
    gaussians = random_scene(camera, count, seed=seed)
    gaussians.log_scales[:] -= 1.0
    gaussians.logit_opacities[:] = np.abs(gaussians.logit_opacities) + 1
    return gaussians, camera


@pytest.mark.parametrize("name", ["compensated", "mip"])
def test_light_follows_area_down_to_the_floor_where_it_is_made_good(name: str) -> None:
    """Compares opacity times area on the image with that of the splat without the filter."""
    gaussians, camera = small_splats(1)
    dilation = {"compensated": 0.3, "mip": 0.1}[name]
    for shrink in (0.0, 1.0, 2.0, 9.0):
        smaller = replace(gaussians, log_scales=gaussians.log_scales - np.float32(shrink))
        smaller.logit_opacities[:] = np.inf
        made_good, _ = project(Parameters.of(smaller), camera, name)
        xx, xy, yy = (made_good.covariance[0] - torch.tensor([dilation, 0.0, dilation])).tolist()
        factor = float(made_good.opacity[0])
        if shrink < 9:
            assert factor**2 * float(made_good.determinant[0]) == pytest.approx(xx * yy - xy * xy, rel=1e-5)
        else:
            assert factor == pytest.approx(COMPENSATION_MIN)


@pytest.mark.parametrize("name", FILTERS)
def test_gradients_of_the_definition_are_finite_differences(name: str) -> None:
    gaussians, camera = small_splats(12)
    upstream = torch.from_numpy(np.random.default_rng(3).standard_normal((32, 48, 3)))

    def value(parameters: Parameters) -> torch.Tensor:
        image = render(parameters, camera, SETTINGS, filtered(name)).blended.image
        return (image * upstream).sum()

    leaves, start, step = Parameters.of(gaussians, differentiable=True), Parameters.of(gaussians), 1e-6
    value(leaves).backward()
    random = np.random.default_rng(5)
    for field in ("means", "log_scales", "quats", "logit_opacities"):
        base, expected = getattr(start, field), getattr(leaves, field).grad
        for _ in range(4):
            direction = torch.from_numpy(random.standard_normal(tuple(base.shape)))
            with torch.no_grad():
                ahead, behind = (
                    float(value(replace(start, **{field: base + side * step * direction}))) for side in (1, -1)
                )
            along = float((expected * direction).sum())
            assert (ahead - behind) / (2 * step) == pytest.approx(along, rel=1e-5, abs=1e-6), field


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("scene", ["small", "hand-made"])
def test_the_cpu_draws_and_differentiates_each_filter_like_the_definition(name: str, scene: str) -> None:
    made = hand_made()
    gaussians, camera = small_splats() if scene == "small" else (made.gaussians, made.camera)
    reference, cpu, policy = ReferenceBackend(), make_backend("cpu"), filtered(name)
    expected, kept = reference.forward(gaussians, camera, SETTINGS, policy)
    frame, saved = cpu.forward(gaussians, camera, SETTINGS, policy)
    settled = settled_pixels(kept.stages, camera)
    assert settled.mean() > 0.95
    assert_close_with_boundary_band(frame.image, expected.image, tight=2e-5, flip_size=0.01, band=~settled)
    assert (frame.visible, frame.instances, frame.skipped) == (expected.visible, expected.instances, expected.skipped)
    upstream = np.random.default_rng(0).standard_normal(frame.image.shape).astype(np.float32)
    upstream[~settled] = 0
    wanted = reference.backward(kept, upstream)
    assert_gradients_close(cpu.backward(saved, upstream), wanted, relative=2e-4, row_relative=2e-2)


def test_filters_make_different_pictures_and_plain_is_the_default() -> None:
    gaussians, camera = small_splats()
    images = {name: ReferenceBackend().render(gaussians, camera, SETTINGS, filtered(name)).image for name in FILTERS}
    np.testing.assert_array_equal(images["plain"], ReferenceBackend().render(gaussians, camera, SETTINGS).image)
    assert np.abs(images["plain"] - images["compensated"]).max() > 0.01
    assert np.abs(images["compensated"] - images["mip"]).max() > 0.01


def test_split_harmonics_join_to_the_same_bits_and_their_upper_words_are_the_nearest() -> None:
    random = np.random.default_rng(0)
    bits = random.integers(0, 1 << 32, 1_000_000, dtype=np.uint64).astype(np.uint32)
    edges = np.array([0, 0x8000, 0x7FFF, 0xFFFF, 0x80000000, 0x3F808000, 0xBF818000, 0x7F7FFFFF, 1], np.uint32)
    values = torch.from_numpy(np.concatenate([bits, edges]).view(np.float32).copy())
    upper, lower = split_words(values)
    np.testing.assert_array_equal(joined_words(upper, lower).numpy().view(np.uint32), values.numpy().view(np.uint32))
    plain = torch.randn(100_000)
    ties_apart = (plain.view(torch.int32) & 0xFFFF) != 0x8000
    assert torch.equal(split_words(plain)[0][ties_apart], bf16_words(plain)[ties_apart])


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("SplatRenderMode: mip-0.1", "mip"),
        ("SplatRenderMode: mip", "compensated"),
        ("SplatRenderMode: default", "plain"),
        ("made by hand", "plain"),
        ("not a SplatRenderMode: mip-0.1", "plain"),
    ],
)
def test_a_file_says_by_which_filter_it_wants_to_be_drawn(tmp_path: Path, comment: str, expected: str) -> None:
    gaussians, _ = small_splats()
    for text in (False, True):
        path = tmp_path / f"scene {text}.ply"
        write_ply(path, gaussians, comments=("one more", comment), text=text)
        assert open_scene(path).info.filter == expected
