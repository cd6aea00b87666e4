"""Checks the definition of disks (2dgs) and Gaussians along rays (3dgut) against second sources.

Those are a scalar renderer, finite differences, complex steps, brute force over all pixels, the short form that the
kernels use, and limits in which one primitive becomes another.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from splatscope.kernels.constants import TILE
from splatscope.kernels.policy import Policy
from splatscope.kernels.primitive import FLAT_LOG_SCALE, Primitive
from splatscope.kernels.reference import tilted
from splatscope.kernels.reference.backend import ReferenceBackend
from splatscope.kernels.reference.picture import (
    Parameters,
    Stages,
    records_of,
    render,
    rotation_matrices,
    splat_alpha,
)
from splatscope.kernels.types import Camera, Gaussians, RenderSettings
from tests.support import brute_force
from tests.support.comparison import settled_pixels
from tests.support.small_scenes import as_primitive, awkward, face_on, random_camera, random_scene, select

TILTED: tuple[Primitive, ...] = ("2dgs", "3dgut")
SETTINGS = RenderSettings(background=(0.3, 0.1, 0.6))
BACKEND = ReferenceBackend()
SMALL = random_camera(32, 24)


def stages_of(gaussians: Gaussians, camera: Camera) -> Stages:
    with torch.no_grad():
        return render(Parameters.of(gaussians), camera, SETTINGS, Policy())


def pixel_centers(camera: Camera) -> torch.Tensor:
    y, x = torch.meshgrid(torch.arange(camera.height), torch.arange(camera.width), indexing="ij")
    return torch.stack((x, y), 2).reshape(-1, 2).double() + 0.5


@cache
def few(primitive: Primitive) -> Gaussians:
    return as_primitive(random_scene(SMALL, 12, seed=3, degree=1), primitive)


def value(parameters: Parameters, upstream: torch.Tensor) -> torch.Tensor:
    return (render(parameters, SMALL, SETTINGS, Policy()).blended.image * upstream).sum()


def assert_picture_is_the_scalar_renderers(splats: Gaussians, camera: Camera, bounds: str = "row_span") -> None:
    frame = BACKEND.render(splats, camera, SETTINGS, Policy().with_value("bin", "bounds", bounds))
    image, depth, transmittance = brute_force.picture(
        splats, camera, SETTINGS.background, splats.sh_degree, square=bounds == "circle3s"
    )
    np.testing.assert_allclose(frame.image, image, atol=1e-6)
    np.testing.assert_allclose(frame.depth, depth, rtol=1e-6)
    np.testing.assert_allclose(frame.transmittance, transmittance, atol=1e-6)


@pytest.mark.parametrize("primitive", TILTED)
@pytest.mark.parametrize("bounds", ["row_span", "aabb_o", "circle3s"])
def test_the_picture_is_that_of_a_scalar_renderer(bounds: str, primitive: Primitive) -> None:
    camera = random_camera(24, 16)
    assert_picture_is_the_scalar_renderers(as_primitive(random_scene(camera, 30, seed=1), primitive), camera, bounds)


@pytest.mark.parametrize("primitive", TILTED)
def test_awkward_splats_are_drawn_as_by_a_scalar_renderer(primitive: Primitive) -> None:
    # Each kind by itself, so that none hides another. Without scales of 0, which the definition leaves out.
    camera = random_camera(24, 16)
    splats = awkward(camera, primitive)
    for kind in (0, 1, 2, 3, 4, 8, 9):
        assert_picture_is_the_scalar_renderers(select(splats, list(range(20 * kind, 20 * kind + 20))), camera)


def turn(quat: np.ndarray) -> np.ndarray:
    """Returns the rotation matrix of a quaternion of any length, real or complex."""
    w, x, y, z = quat / np.sqrt((quat * quat).sum())
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


@pytest.mark.parametrize("primitive", TILTED)
def test_slopes_of_distance_and_depth_are_those_of_complex_steps(primitive: Primitive) -> None:
    rng = np.random.default_rng(12)
    camera, checked, step = random_camera(64, 48), {"circle": 0, "surface": 0}, 1e-30
    for _ in range(300):
        z = rng.uniform(1, 4)
        place = rng.uniform(0.2, 0.8, 2) * (camera.width, camera.height)
        mean = np.append((place - (camera.cx, camera.cy)) / (camera.fx, camera.fy) * z, z)
        given = np.concatenate((mean, rng.uniform(-5, -2, 3), rng.standard_normal(4)))  # mean, log scales, quaternion
        pixel = place + rng.normal(size=2) * rng.choice([0.5, 3.0])

        def meeting(numbers: np.ndarray, pixel: np.ndarray = pixel) -> np.ndarray:
            rotation = turn(numbers[6:])
            return np.array(brute_force.meeting(primitive, numbers[:3], numbers[3:6], rotation, camera, pixel))

        value = np.real(meeting(given.astype(complex)))
        if not value[0] < 12:
            continue
        slopes = [np.imag(meeting(given + 1j * step * row)) / step for row in np.eye(10)]  # [10, 2]
        leaf = torch.tensor(given[None], requires_grad=True)
        rotation = rotation_matrices(leaf[:, 6:])
        shape = tilted.shape_of(primitive, leaf[:, :3], leaf[:, 3:6], rotation, camera)
        squared, depth, _ = tilted.RESPONSES[primitive](shape, torch.from_numpy(pixel[None]))
        np.testing.assert_allclose([squared.item(), depth.item()], value, rtol=1e-7, atol=1e-9)
        for column, response in enumerate((squared, depth)):
            (got,) = torch.autograd.grad(response.sum(), leaf, retain_graph=True)
            expected = np.array(slopes)[:, column]
            np.testing.assert_allclose(got[0], expected, rtol=0, atol=1e-6 * np.abs(expected).max() + 1e-9)
        if primitive == "2dgs":
            center = tilted.circle_center(*shape[:, :9].detach().reshape(1, 3, 3).unbind(1))[0].numpy()
            is_circle = np.isclose(value[0], 2 * ((center - pixel) ** 2).sum(), rtol=1e-9)
            checked["circle" if is_circle else "surface"] += 1
    assert primitive == "3dgut" or min(checked.values()) > 10, checked


@pytest.mark.parametrize("primitive", TILTED)
def test_means2d_is_the_gradient_of_the_mean_in_camera_axes_per_pixel(primitive: Primitive) -> None:
    splats = few(primitive).with_sh_degree(0)  # so that the mean does not change the colour
    if primitive == "2dgs":  # large ones from the front, whose circle decides nowhere: it has no part in means2d
        splats = face_on(replace(splats, log_scales=splats.log_scales + np.float32(1.5)), SMALL, least=0.4)
        assert splats.count > 3
    _, saved = BACKEND.forward(splats, SMALL, SETTINGS)
    upstream = np.random.default_rng(3).standard_normal((SMALL.height, SMALL.width, 3)).astype(np.float32)
    gradients = BACKEND.backward(saved, upstream)
    rotation, focal = SMALL.matrix[:3, :3], (SMALL.fx, SMALL.fy)
    depth = splats.means @ rotation[2] + SMALL.matrix[2, 3]
    expected = (gradients.means @ rotation.T)[:, :2] * depth[:, None] / focal
    assert np.abs(expected).max() > 0
    np.testing.assert_allclose(gradients.means2d, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("primitive", TILTED)
def test_absolute_values_of_each_pixel_are_refused(primitive: Primitive) -> None:
    _, saved = BACKEND.forward(few(primitive), SMALL, SETTINGS)
    with pytest.raises(ValueError, match=f"3dgs splats only, not for {primitive}"):
        BACKEND.backward(saved, np.ones((SMALL.height, SMALL.width, 3), np.float32), absolute=True)


@pytest.mark.parametrize("primitive", TILTED)
@pytest.mark.parametrize("name", ["means", "log_scales", "quats", "logit_opacities", "sh"])
def test_gradients_are_finite_differences(primitive: Primitive, name: str) -> None:
    splats = few(primitive)
    settled = settled_pixels(stages_of(splats, SMALL), SMALL, alpha_margin=1e-3)
    upstream = torch.from_numpy(np.random.default_rng(3).standard_normal((SMALL.height, SMALL.width, 3)))
    upstream[~torch.from_numpy(settled)] = 0
    parameters = Parameters.of(splats, differentiable=True)
    (expected,) = torch.autograd.grad(value(parameters, upstream), getattr(parameters, name))
    start, found, step = Parameters.of(splats), torch.zeros_like(expected), 1e-6
    base = getattr(start, name)
    elements = range(expected.numel()) if name != "sh" else range(0, expected.numel(), 7)
    with torch.no_grad():
        for element in elements:
            way = torch.zeros_like(expected)
            way.view(-1)[element] = step
            ahead, behind = (value(replace(start, **{name: base + side * way}), upstream) for side in (1, -1))
            found.view(-1)[element] = (ahead - behind) / (2 * step)
    checked = list(elements)
    scale = float(expected.abs().max())
    np.testing.assert_allclose(found.view(-1)[checked], expected.view(-1)[checked], rtol=1e-5, atol=1e-6 * scale)
    if primitive == "2dgs" and name == "log_scales":
        assert not expected[:, 2].any(), "the third scale of a disk has no effect"


def short_form(primitive: Primitive, splats: Gaussians, camera: Camera, centers: torch.Tensor) -> torch.Tensor:
    """Returns N / (Q^2 + closeness N) and camera z at pixels, [N, P] each, as the kernels compute them."""
    p = Parameters.of(splats)
    world = torch.from_numpy(camera.matrix)
    mean = p.means @ world[:3, :3].T + world[:3, 3]
    rotation = world[:3, :3] @ rotation_matrices(p.quats)
    scales = torch.exp(p.log_scales) * torch.tensor([1, 1, int(primitive != "2dgs")])
    focal, middle = torch.tensor([[camera.fx, camera.fy], [camera.cx, camera.cy]], dtype=torch.float64)
    ratio = mean[:, :2] / mean[:, 2:]
    jacobian = torch.cat((torch.diag_embed(focal / mean[:, 2:]), (-focal * ratio / mean[:, 2:])[:, :, None]), 2)
    axes = jacobian @ rotation * scales[:, None]
    tilt = tilted.tilt_of(primitive, mean, p.log_scales, rotation, camera)
    d = centers[None] - (ratio * focal + middle)[:, None]
    n = (d[:, :, None] @ torch.linalg.inv(axes @ axes.transpose(1, 2))[:, None] @ d[:, :, :, None])[:, :, 0, 0]
    q = 1 + (tilt[:, None, :2] * d).sum(2)
    under = q * q + tilt[:, 2:] * n
    return torch.stack((n / under, mean[:, 2:] * q / under))


@pytest.mark.parametrize("primitive", TILTED)
def test_the_short_form_of_the_kernels_is_the_textbook_form(primitive: Primitive) -> None:
    camera = random_camera(64, 48)
    splats = as_primitive(random_scene(camera, 40, seed=8, degree=0), primitive)
    stages = stages_of(splats, camera)
    splats = splats.with_arrays({n: a[stages.projected.index.numpy()] for n, a in splats.arrays.items()})
    centers = pixel_centers(camera)
    squared, depth, is_met = tilted.RESPONSES[primitive](stages.projected.shape, centers)
    short, short_depth = short_form(primitive, splats, camera, centers)
    if primitive == "2dgs":
        tu, tv, tw = stages.projected.shape[:, :9].reshape(-1, 3, 3).unbind(1)
        circle = 2 * (tilted.circle_center(tu, tv, tw)[:, None] - centers).square().sum(2)
        is_circle = squared < short * (1 - 1e-9)
        torch.testing.assert_close(squared[is_circle], circle[is_circle], rtol=1e-9, atol=1e-9)
        assert is_circle.any()
        near = is_met & ~is_circle & (squared < 50)
    else:
        near = is_met & (squared < 50)
    assert near.sum() > 1000
    torch.testing.assert_close(squared[near], short[near], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(depth[near], short_depth[near], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("primitive", TILTED)
@pytest.mark.parametrize("kind", ["random", "awkward"])
def test_no_pixel_that_a_splat_reaches_is_outside_its_tiles_and_few_tiles_are_listed_for_nothing(
    kind: str, primitive: Primitive
) -> None:
    camera = random_camera(160, 120)
    made = awkward(camera, primitive) if kind == "awkward" else random_scene(camera, 150, seed=5, degree=0)
    stages = stages_of(as_primitive(made, primitive), camera)
    alpha = splat_alpha(records_of(stages.projected, stages.colors), pixel_centers(camera), primitive=primitive)
    reached = (alpha >= 1 / 255).numpy().reshape(-1, camera.height, camera.width)
    rows, columns = camera.tiles
    listed = np.zeros((len(reached), rows * columns), bool)
    tile = np.repeat(np.arange(rows * columns), stages.lists.counts.ravel())
    listed[stages.lists.splat, tile] = True
    needed = np.zeros_like(listed)
    splat, y, x = np.nonzero(reached)
    needed[splat, y // TILE * columns + x // TILE] = True
    assert not (needed & ~listed).any()
    if kind == "random":
        assert listed.sum() < 1.25 * needed.sum()


def test_a_ray_of_a_vanishing_third_scale_is_a_disk_away_from_its_circle() -> None:
    camera = random_camera(64, 48)
    rays = as_primitive(random_scene(camera, 60, seed=2, degree=0), "3dgut")
    rays.log_scales[:, 2] = FLAT_LOG_SCALE
    disks, flat = stages_of(as_primitive(rays, "2dgs"), camera), stages_of(rays, camera)
    both = np.intersect1d(disks.projected.index, flat.projected.index)  # some disks are seen by their circle alone
    assert len(both) > 20
    centers = pixel_centers(camera)
    shapes = []
    for stages in (disks, flat):
        order = np.argsort(stages.projected.index.numpy())
        rows = order[np.isin(stages.projected.index.numpy()[order], both)]
        shapes.append(stages.projected.shape[torch.from_numpy(rows)])
    of_disk, z_disk, met_disk = tilted.disk_response(shapes[0], centers)
    of_ray, z_ray, met_ray = tilted.ray_response(shapes[1], centers)
    near = met_disk & met_ray & (of_ray < 30) & (of_disk >= of_ray * (1 - 1e-4))
    assert near.sum() > 500
    torch.testing.assert_close(of_disk[near], of_ray[near], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(z_disk[near], z_ray[near], rtol=1e-4, atol=1e-6)


def test_small_rays_far_away_are_flattened_gaussians_without_widening() -> None:
    camera = random_camera(64, 48)
    rays = as_primitive(random_scene(camera, 60, seed=6, degree=0), "3dgut")
    far = replace(camera, fx=camera.fx * 50, fy=camera.fy * 50)
    world = np.linalg.inv(camera.matrix)
    in_view = rays.means @ camera.matrix[:3, :3].T + camera.matrix[:3, 3]
    in_view[:, 2] *= 50
    means = (in_view @ world[:3, :3].T + world[:3, 3]).astype(np.float32)
    stages = stages_of(replace(rays, means=means), far)
    centers = pixel_centers(far)
    squared, _, is_met = tilted.ray_response(stages.projected.shape, centers)
    widened = stages.projected.covariance
    thin = widened - torch.tensor([0.3, 0.0, 0.3], dtype=torch.float64)
    matrix = torch.stack((thin[:, :2], thin[:, 1:]), 1)
    d = centers[None] - stages.projected.mean_px[:, None]
    flat = (d[:, :, None] @ torch.linalg.inv(matrix)[:, None] @ d[:, :, :, None])[:, :, 0, 0]
    near = is_met & (squared < 11)
    assert near.sum() > 500
    torch.testing.assert_close(squared[near], flat[near], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("primitive", TILTED)
def test_what_tempts_to_divide_by_zero_has_finite_gradients(primitive: Primitive) -> None:
    camera = random_camera(48, 32)
    frame, saved = BACKEND.forward(awkward(camera, primitive), camera, SETTINGS)
    assert np.isfinite(frame.image).all()
    gradients = BACKEND.backward(saved, np.ones_like(frame.image))
    for name in ("means", "log_scales", "quats", "logit_opacities", "sh", "means2d"):
        assert np.isfinite(getattr(gradients, name)).all(), name
