"""Tests the definition: thresholds to the number, invariants, what is dropped, and a second renderer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from splatscope.kernels.constants import SH_C0
from splatscope.kernels.policy import Policy
from splatscope.kernels.reference.backend import ReferenceBackend
from splatscope.kernels.reference.picture import Parameters, Stages, render, sh_basis
from splatscope.kernels.reference.tiles import list_tiles
from splatscope.kernels.types import Camera, Gaussians, RenderSettings
from tests.support import brute_force
from tests.support.comparison import PARAMETERS, assert_gradients_close, rearranged
from tests.support.small_scenes import (
    POSE,
    hand_made,
    joined,
    logit,
    pixel_row,
    pixel_stack,
    random_camera,
    random_scene,
    select,
)

BACKEND = ReferenceBackend()
BOUNDS = ("row_span", "aabb_o", "circle3s")
RED, GREEN, BLUE = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)


def policy(bounds: str) -> Policy:
    return Policy().with_value("bin", "bounds", bounds)


def stages_of(gaussians: Gaussians, camera: Camera, bounds: str = "row_span") -> Stages:
    with torch.no_grad():
        return render(Parameters.of(gaussians), camera, RenderSettings(), policy(bounds))


def test_the_hand_made_scene_holds_the_cases_it_names() -> None:
    scene = hand_made()
    camera, projected = scene.camera, stages_of(scene.gaussians, scene.camera).projected
    at = {scene.names[row]: position for position, row in enumerate(projected.index.tolist())}
    hidden = {"just below 1/255", "behind the camera", "before the near plane", "out of sight"}
    assert set(scene.names) - set(at) == hidden

    ratio = (projected.mean_px - torch.tensor([camera.cx, camera.cy])) / torch.tensor([camera.fx, camera.fy])
    low = torch.tensor([-camera.cx - 0.15 * 48, -camera.cy - 0.15 * 32]) / torch.tensor([camera.fx, camera.fy])
    high = torch.tensor([48 * 1.15 - camera.cx, 32 * 1.15 - camera.cy]) / torch.tensor([camera.fx, camera.fy])
    beyond = {name: ((ratio[i] < low) | (ratio[i] > high)).tolist() for name, i in at.items()}
    assert beyond.pop("tail from the left") == [True, False]
    assert beyond.pop("tail from below") == [False, True]
    assert beyond.pop("tail from a corner") == [True, True]
    assert not np.any(list(beyond.values()))

    assert projected.opacity[at["opaque"]] == 1
    assert projected.opacity[at["just above 1/255"]] * 255 == pytest.approx(1.05)
    needle = projected.covariance[at["needle"]]
    assert needle[0] + needle[2] > 500 * projected.determinant[at["needle"]] / (needle[0] + needle[2])
    counts = np.bincount(stages_of(scene.gaussians, camera).lists.splat)
    assert counts[at["covers many tiles"]] == 6 == np.prod(camera.tiles)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_picture_is_that_of_a_scalar_renderer(bounds: str, seed: int) -> None:
    camera = random_camera(24, 16)
    gaussians = random_scene(camera, count=30, seed=seed)
    background = (0.2, 0.5, 0.9)
    frame = stages_of(gaussians, camera, bounds)
    got = BACKEND.render(gaussians, camera, RenderSettings(background), policy(bounds))
    image, depth, transmittance = brute_force.picture(gaussians, camera, background, square=bounds == "circle3s")
    np.testing.assert_allclose(got.image, image, atol=1e-6)
    np.testing.assert_allclose(got.depth, depth, rtol=1e-6)
    np.testing.assert_allclose(frame.blended.transmittance.numpy(), transmittance, atol=1e-12)


def test_the_hand_made_picture_is_that_of_a_scalar_renderer() -> None:
    scene = hand_made()
    image, depth, _ = brute_force.picture(scene.gaussians, scene.camera, degree=2)
    got = BACKEND.render(scene.gaussians, scene.camera, RenderSettings(sh_degree=2))
    np.testing.assert_allclose(got.image, image, atol=1e-6)
    np.testing.assert_allclose(got.depth, depth, rtol=1e-6)


def test_the_harmonics_are_scipys_and_orthonormal() -> None:
    heights, weights = np.polynomial.legendre.leggauss(8)
    angles = 2 * np.pi * np.arange(16) / 16
    z, angle = (a.ravel() for a in np.meshgrid(heights, angles, indexing="ij"))
    ring = np.sqrt(1 - z * z)
    directions = np.stack([ring * np.cos(angle), ring * np.sin(angle), z], 1)
    basis = sh_basis(torch.from_numpy(directions)).numpy()
    area = np.repeat(weights, 16) * 2 * np.pi / 16
    np.testing.assert_allclose(basis.T @ (basis * area[:, None]), np.eye(16), atol=1e-12)
    expected = [brute_force.real_harmonics(d, 3) for d in directions[::7]]
    np.testing.assert_allclose(basis[::7], expected, atol=1e-12)


# ------------------------------------------------------------------------------- thresholds, by hand


def test_weights_of_a_stack_are_those_computed_by_hand() -> None:
    gaussians, camera = pixel_stack([0.5, 0.25, 0.8], [RED, GREEN, BLUE])
    frame = BACKEND.render(gaussians, camera, RenderSettings((1.0, 1.0, 1.0)))
    left = 0.5 * 0.75 * 0.2
    np.testing.assert_allclose(frame.image[0, 0], [0.5 + left, 0.125 + left, 0.3 + left], atol=1e-6)
    np.testing.assert_allclose(frame.transmittance, [[left]], atol=1e-6)
    depth = (0.5 * 1 + 0.125 * 2 + 0.3 * 3) / (0.5 + 0.125 + 0.3)
    np.testing.assert_allclose(frame.depth, [[depth]], rtol=1e-6)
    assert (frame.visible, frame.instances, frame.tile_counts.tolist()) == (3, 3, [[3]])


@pytest.mark.parametrize(("factor", "blended"), [(1 + 1e-6, True), (1 - 1e-6, False)])
def test_a_pixel_skips_splats_below_one_in_255(factor: float, blended: bool) -> None:
    # One pixel from the mean of a splat of variance 2 px^2, alpha is opacity * exp(-1/4).
    gaussians, camera = pixel_row(factor * np.exp(0.25) / 255, variance=2.0, width=2)
    frame = BACKEND.render(gaussians, camera)
    assert frame.image[0, 1, 0] == pytest.approx(1 / 255 if blended else 0.0, rel=1e-5)
    assert np.isnan(frame.depth[0, 1]) == (not blended)
    assert frame.image[0, 0, 0] == pytest.approx(np.exp(0.25) / 255, rel=1e-5)


@pytest.mark.parametrize(("factor", "visible"), [(1 + 1e-6, 1), (1 - 1e-6, 0)])
def test_a_splat_of_less_opacity_than_one_in_255_is_not_visible(factor: float, visible: int) -> None:
    gaussians, camera = pixel_stack([factor / 255], [RED])
    frame = BACKEND.render(gaussians, camera)
    assert (frame.visible, frame.instances, frame.skipped) == (visible, visible, 0)


def test_a_pixel_stops_before_the_splat_that_would_bring_it_under_one_in_ten_thousand() -> None:
    # 0.02 * 0.02 = 4e-4 is left; a third of 0.8 would leave 0.8e-4: neither it nor any later one is blended.
    gaussians, camera = pixel_stack([0.98, 0.98, 0.8, 0.3], [RED, GREEN, BLUE, BLUE])
    frame = BACKEND.render(gaussians, camera)
    np.testing.assert_allclose(frame.image[0, 0], [0.98, 0.02 * 0.98, 0.0], atol=1e-6)
    np.testing.assert_allclose(frame.transmittance, [[4e-4]], rtol=1e-4)
    # 0.74 would leave 1.04e-4, so it is blended.
    gaussians, camera = pixel_stack([0.98, 0.98, 0.74], [RED, GREEN, BLUE])
    frame = BACKEND.render(gaussians, camera)
    np.testing.assert_allclose(frame.image[0, 0], [0.98, 0.02 * 0.98, 4e-4 * 0.74], atol=1e-6)


def test_two_capped_splats_leave_less_than_one_in_ten_thousand() -> None:
    # In any precision: the cap is a float32 number above 0.99, so the second is not blended, as on a GPU.
    gaussians, camera = pixel_stack([0.995, 1.0, 0.5], [RED, GREEN, BLUE])
    np.testing.assert_allclose(BACKEND.render(gaussians, camera).image[0, 0], [0.99, 0.0, 0.0], atol=1e-6)


def test_alpha_is_capped_and_its_gradient_is_not() -> None:
    opacity = 0.995
    gaussians, camera = pixel_stack([opacity, 0.5], [(0.9, 0.9, 0.9), (0.2, 0.2, 0.2)])
    frame, saved = BACKEND.forward(gaussians, camera)
    np.testing.assert_allclose(frame.image, 0.99 * 0.9 + 0.01 * 0.5 * 0.2, rtol=1e-6)
    gradients = BACKEND.backward(saved, np.array([[[1.0, 0.0, 0.0]]], np.float32))
    by_alpha = 0.9 - 0.5 * 0.2  # own colour less what lies behind it
    assert gradients.logit_opacities[0] == pytest.approx(by_alpha * opacity * (1 - opacity), rel=1e-4)
    assert gradients.sh[0, 0].tolist() == pytest.approx([0.99 * SH_C0, 0.0, 0.0])


def test_near_plane_is_exclusive() -> None:
    gaussians, camera = pixel_stack([0.5, 0.5], [RED, GREEN])
    assert BACKEND.render(gaussians, replace(camera, near=1.0)).visible == 1
    assert BACKEND.render(gaussians, replace(camera, near=np.nextafter(1.0, 0.0))).visible == 2


def test_equal_depths_are_blended_in_the_order_of_the_scene() -> None:
    gaussians, camera = pixel_stack([0.5, 0.5, 0.5], [RED, GREEN, BLUE])
    gaussians.means[:] = gaussians.means[0]
    np.testing.assert_allclose(BACKEND.render(gaussians, camera).image[0, 0], [0.5, 0.25, 0.125], atol=1e-6)


# ---------------------------------------------------------------------------------------- invariants


def test_hidden_splats_do_not_change_the_image() -> None:
    scene = hand_made()
    frame = BACKEND.render(scene.gaussians, scene.camera)
    seen = [i for i, name in enumerate(scene.names) if i in stages_of(scene.gaussians, scene.camera).projected.index]
    only_seen = BACKEND.render(select(scene.gaussians, seen), scene.camera)
    np.testing.assert_array_equal(only_seen.image, frame.image)

    stack, camera = pixel_stack([0.99, 0.98, 0.9, 0.5], [RED, GREEN, BLUE, RED])
    front = BACKEND.render(select(stack, [0, 1, 2]), camera)
    np.testing.assert_allclose(BACKEND.render(stack, camera).image, front.image, atol=1e-7)


def test_the_order_of_storage_changes_nothing() -> None:
    camera = random_camera(40, 24)
    gaussians = random_scene(camera, 60, seed=3)
    order = np.random.default_rng(0).permutation(60)
    upstream = np.random.default_rng(1).standard_normal((24, 40, 3)).astype(np.float32)
    frame, saved = BACKEND.forward(gaussians, camera)
    shuffled, shuffled_saved = BACKEND.forward(select(gaussians, order), camera)
    np.testing.assert_array_equal(shuffled.image, frame.image)
    np.testing.assert_array_equal(shuffled.tile_counts, frame.tile_counts)
    expected = rearranged(BACKEND.backward(saved, upstream), order)
    assert_gradients_close(BACKEND.backward(shuffled_saved, upstream), expected, relative=1e-6, row_relative=1e-6)


def test_the_background_shows_in_proportion_to_the_transmittance() -> None:
    scene, background = hand_made(), (0.25, 0.5, 2.0)
    black = BACKEND.render(scene.gaussians, scene.camera)
    other = BACKEND.render(scene.gaussians, scene.camera, RenderSettings(background))
    np.testing.assert_allclose(
        other.image - black.image, black.transmittance[..., None] * np.array(background), atol=1e-6
    )


def test_the_tighter_bound_of_an_ellipse_changes_no_pixel() -> None:
    camera = random_camera(70, 50)
    gaussians = random_scene(camera, 150, seed=4)
    rows, box = (BACKEND.render(gaussians, camera, policy=policy(b)) for b in ("row_span", "aabb_o"))
    np.testing.assert_allclose(rows.image, box.image, atol=1e-7)
    assert (rows.tile_counts <= box.tile_counts).all()
    assert rows.instances < box.instances


def test_moving_camera_and_scene_together_changes_nothing_without_harmonics() -> None:
    scene = hand_made()
    rotation = scene.camera.matrix[:3, :3]
    moved = replace(
        scene.gaussians, means=(scene.gaussians.means @ rotation.T + scene.camera.matrix[:3, 3]).astype(np.float32)
    )
    # The rotation of the pose as a quaternion product, applied on the left of each splat's.
    w, v = _quaternion(rotation)
    own_w, own_v = scene.gaussians.quats[:, :1], scene.gaussians.quats[:, 1:]
    quats = np.concatenate((w * own_w - own_v @ v[:, None], w * own_v + own_w * v + np.cross(v, own_v)), 1)
    moved = replace(moved, quats=quats.astype(np.float32))
    origin = replace(scene.camera, view_from_world=tuple(map(tuple, np.eye(4).tolist())))
    settings = RenderSettings(sh_degree=0)
    np.testing.assert_allclose(
        BACKEND.render(moved, origin, settings).image,
        BACKEND.render(scene.gaussians, scene.camera, settings).image,
        atol=2e-5,
    )


def _quaternion(rotation: np.ndarray) -> tuple[float, np.ndarray]:
    w = 0.5 * np.sqrt(1 + np.trace(rotation))
    v = np.array([rotation[2, 1] - rotation[1, 2], rotation[0, 2] - rotation[2, 0], rotation[1, 0] - rotation[0, 1]])
    return w, v / (4 * w)


def test_any_length_of_quaternion_means_the_same_rotation() -> None:
    scene = hand_made()
    longer = replace(scene.gaussians, quats=scene.gaussians.quats * np.float32(8))
    frame, other = (BACKEND.render(g, scene.camera) for g in (scene.gaussians, longer))
    np.testing.assert_allclose(other.image, frame.image, atol=1e-6)


def test_a_degree_beyond_that_of_the_scene_uses_what_it_has() -> None:
    camera = random_camera(24, 16)
    gaussians = random_scene(camera, 30, seed=5, degree=1)
    lower = replace(gaussians, sh=np.ascontiguousarray(gaussians.sh[:, :1]))
    high, exact = (BACKEND.render(gaussians, camera, RenderSettings(sh_degree=d)).image for d in (3, 1))
    np.testing.assert_array_equal(high, exact)
    constant = BACKEND.render(gaussians, camera, RenderSettings(sh_degree=0)).image
    np.testing.assert_array_equal(constant, BACKEND.render(lower, camera).image)
    assert np.abs(constant - exact).max() > 0.01


# ----------------------------------------------------------------------------------------- tile lists


def test_tile_lists_hold_the_ellipse_row_by_row() -> None:
    rng = np.random.default_rng(6)
    camera, count = random_camera(200, 150), 150
    gaussians = random_scene(camera, count, seed=7)
    gaussians.log_scales[:] += rng.uniform(-1, 2, (count, 3))
    stages = stages_of(gaussians, camera)
    projected = stages.projected
    tile = np.repeat(np.arange(stages.lists.counts.size), stages.lists.counts.ravel())
    listed = np.zeros((len(projected.index), stages.lists.counts.size), bool)
    listed[stages.lists.splat, tile] = True
    assert listed.sum() == len(tile)

    columns = camera.tiles[1]
    heights = np.sqrt(2 * np.log(255 * projected.opacity.numpy()) * projected.covariance[:, 2].numpy())
    for i, (center, conic, opacity) in enumerate(
        zip(projected.mean_px.numpy(), projected.conic.numpy(), projected.opacity.numpy(), strict=True)
    ):
        r2 = 2 * np.log(255 * opacity)
        for row in range(camera.tiles[0]):
            y = np.linspace(16 * row + 0.5, 16 * row + 15.5, 3001) - center[1]
            # Roots in x of A x^2 + 2 B x y + C y^2 = r^2 at each height.
            root = np.sqrt(np.maximum(0, (conic[1] * y) ** 2 - conic[0] * (conic[2] * y * y - r2)))
            inside = conic[0] * conic[2] * y * y - (conic[1] * y) ** 2 <= conic[0] * r2
            left = ((-conic[1] * y - root) / conic[0])[inside].min(initial=np.inf) + center[0]
            right = ((-conic[1] * y + root) / conic[0])[inside].max(initial=-np.inf) + center[0]
            first = 16 * np.arange(columns) + 0.5
            slack = 0.05  # px; sampled heights miss the extreme point by a little
            surely = (right - slack >= first) & (left + slack <= first + 15)
            maybe = (right + slack >= first) & (left - slack <= first + 15)
            here = listed[i, row * columns : (row + 1) * columns]
            assert (here >= surely).all()
            grazes = abs(np.abs(y).min() - heights[i]) < slack
            assert grazes or (here <= maybe).all()


def test_lists_are_in_depth_order_and_counted() -> None:
    camera = random_camera(64, 48)
    stages = stages_of(random_scene(camera, 200, seed=8), camera)
    assert (np.diff(stages.projected.depth.numpy()) >= 0).all()
    ends = np.cumsum(stages.lists.counts)
    for splats in np.split(stages.lists.splat, ends[:-1]):
        assert (np.diff(splats) > 0).all()


def test_a_point_between_pixel_centres_of_two_tiles_is_listed_nowhere() -> None:
    # Opacity barely above 1/255: the ellipse is a dot at x = 16, between the centres 15.5 and 16.5.
    mean, covariance = np.array([[16.0, 8.0]]), np.array([[1.0, 0.0, 1.0]])
    for bounds, listed in (("row_span", 0), ("aabb_o", 0), ("circle3s", 2)):
        lists = list_tiles(mean, covariance, np.array([1.0]), np.array([1.0001 / 255]), (1, 2), bounds)
        assert lists.counts.sum() == listed


@pytest.mark.parametrize(("x", "columns"), [(28.4, [1, 1, 1, 0]), (28.6, [0, 1, 1, 0]), (35.6, [0, 1, 1, 1])])
def test_the_square_reaches_three_standard_deviations_rounded_up(x: float, columns: list[int]) -> None:
    # The larger eigenvalue is 16.1 px^2: three standard deviations are 12.04 px, so the square reaches 13 px.
    covariance = np.array([[10.0, 6.1, 10.0]])
    for opacity in (0.9, 1.01 / 255):
        lists = list_tiles(np.array([[x, 8.0]]), covariance, np.array([62.79]), np.array([opacity]), (1, 4), "circle3s")
        assert lists.counts.tolist() == [columns]


# --------------------------------------------------------------------------- what cannot be used, sizes


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["means", "log_scales", "quats", "logit_opacities", "sh"])
def test_splats_with_values_no_splat_can_have_are_dropped_and_counted(name: str, value: float) -> None:
    scene, row = hand_made(), 1
    poisoned = replace(scene.gaussians, **{name: getattr(scene.gaussians, name).copy()})
    getattr(poisoned, name)[row : row + 1].flat[-1] = value
    upstream = np.ones((32, 48, 3), np.float32)
    frame, saved = BACKEND.forward(poisoned, scene.camera)
    gradients = BACKEND.backward(saved, upstream)
    assert all(np.isfinite(getattr(gradients, n)).all() for n in PARAMETERS)
    if name == "logit_opacities" and np.isinf(value):
        usable = select(scene.gaussians, list(range(scene.gaussians.count)))
        usable.logit_opacities[row] = 200.0 * np.sign(value)
        assert frame.skipped == 0
        np.testing.assert_array_equal(frame.image, BACKEND.render(usable, scene.camera).image)
        return
    rest = [i for i in range(scene.gaussians.count) if i != row]
    expected = BACKEND.render(select(scene.gaussians, rest), scene.camera)
    assert (frame.skipped, frame.visible) == (1, expected.visible)
    np.testing.assert_array_equal(frame.image, expected.image)
    assert not any(getattr(gradients, n)[row].any() for n in PARAMETERS)


def test_a_zero_quaternion_and_an_overflowing_scale_are_dropped_and_counted() -> None:
    scene = hand_made()
    scene.gaussians.quats[0] = 0
    scene.gaussians.log_scales[1, 2] = 89.0
    frame = BACKEND.render(scene.gaussians, scene.camera)
    rest = BACKEND.render(select(scene.gaussians, list(range(2, scene.gaussians.count))), scene.camera)
    assert frame.skipped == 2
    np.testing.assert_array_equal(frame.image, rest.image)


@pytest.mark.parametrize("size", [(1, 1), (1, 33), (17, 1), (16, 16), (31, 18)])
def test_any_image_size_works(size: tuple[int, int]) -> None:
    width, height = size
    camera = random_camera(width, height)
    gaussians = random_scene(camera, 20, seed=9)
    frame, saved = BACKEND.forward(gaussians, camera)
    assert frame.image.shape == (height, width, 3)
    assert frame.depth.shape == frame.transmittance.shape == (height, width)
    assert frame.tile_counts.shape == camera.tiles
    assert frame.instances == frame.tile_counts.sum() > 0
    image, _, _ = brute_force.picture(gaussians, camera)
    np.testing.assert_allclose(frame.image, image, atol=1e-6)
    assert np.isfinite(BACKEND.backward(saved, np.ones_like(frame.image)).means).all()


@pytest.mark.parametrize("count", [0, 2])
def test_nothing_visible_is_a_picture_of_the_background(count: int) -> None:
    scene = hand_made()
    rows = [scene.row("behind the camera"), scene.row("out of sight")][:count]
    frame, saved = BACKEND.forward(select(scene.gaussians, rows), scene.camera, RenderSettings((0.5, 0.25, 0.0)))
    assert (frame.image == np.array([0.5, 0.25, 0.0], np.float32)).all()
    assert np.isnan(frame.depth).all()
    assert (frame.transmittance == 1).all()
    assert (frame.visible, frame.instances, frame.skipped) == (0, 0, 0)
    gradients = BACKEND.backward(saved, np.ones_like(frame.image))
    assert gradients.sh.shape == (count, 16, 3)
    assert not any(getattr(gradients, n).any() for n in (*PARAMETERS, "visible"))


def test_memory_limits_do_not_change_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    camera = random_camera(40, 24)
    gaussians = joined(*(random_scene(camera, 40, seed=s) for s in (10, 11)))
    whole = BACKEND.render(gaussians, camera).image
    monkeypatch.setattr("splatscope.kernels.reference.picture.PAIRS_AT_ONCE", 100)
    np.testing.assert_allclose(BACKEND.render(gaussians, camera).image, whole, atol=1e-7)


def test_the_pose_is_a_rotation_and_logits_invert_the_sigmoid() -> None:
    np.testing.assert_allclose(POSE[:3, :3] @ POSE[:3, :3].T, np.eye(3), atol=1e-12)
    assert float(1 / (1 + np.exp(-logit(0.3)))) == pytest.approx(0.3)
    assert logit(1.0) == np.inf
