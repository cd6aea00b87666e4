"""Tests that the numba backend draws the reference's picture and gradients, on any scene and any number of threads."""

from __future__ import annotations

from dataclasses import replace
from threading import Lock, Thread

import numba
import numpy as np
import pytest
import torch

from splatscope.kernels.backend import Backend
from splatscope.kernels.backends import host_math, make_backend
from splatscope.kernels.cpu import training
from splatscope.kernels.policy import Policy
from splatscope.kernels.reference import training as definition
from splatscope.kernels.reference.backend import ReferenceBackend
from splatscope.kernels.reference.picture import Parameters, Stages, render, splat_alpha
from splatscope.kernels.types import Camera, Frame, Gaussians, RenderSettings
from tests.support.comparison import PARAMETERS, assert_close_with_boundary_band, assert_gradients_close, settled_pixels
from tests.support.small_scenes import hand_made, joined, logit, pixel_stack, random_camera, random_scene, select

REFERENCE = ReferenceBackend()
BOUNDS = ("row_span", "aabb_o", "circle3s")
BACKGROUND = RenderSettings(background=(0.2, 0.4, 0.7))


@pytest.fixture(scope="module")
def cpu() -> Backend:
    return make_backend("cpu")


def policy(bounds: str) -> Policy:
    return Policy().with_value("bin", "bounds", bounds)


def assert_same_as_reference(
    cpu: Backend,
    gaussians: Gaussians,
    camera: Camera,
    settings: RenderSettings = BACKGROUND,
    chosen: Policy = Policy(),  # noqa: B008
    *,
    relative: float = 1e-4,
    settled_share: float = 0.97,
) -> None:
    """Compares picture, depth, transmittance, lists, counts and every gradient of one view."""
    expected, saved_reference = REFERENCE.forward(gaussians, camera, settings, chosen)
    frame, saved = cpu.forward(gaussians, camera, settings, chosen)
    settled = settled_pixels(saved_reference.stages, camera)
    assert settled.mean() > settled_share  # the band is thin, or the comparison says nothing
    brightest = max(1.0, float(saved_reference.stages.colors.detach().max()) if expected.visible else 0.0)

    for name, scale in (("image", brightest), ("transmittance", 1.0)):
        pair = (getattr(frame, name), getattr(expected, name))
        limits = {"tight": 1e-5 * scale, "flip_size": 0.01 * scale, "flip_fraction": 2e-3}
        assert_close_with_boundary_band(*pair, **limits, band=~settled, what=name)
    nearer = np.where(np.isnan(expected.depth), 1.0, expected.depth)
    assert_close_with_boundary_band(
        frame.depth / nearer, expected.depth / nearer, tight=3e-5, flip_size=10.0, band=~settled, what="depth"
    )
    assert_same_lists(frame, expected)

    upstream = np.random.default_rng(0).standard_normal(frame.image.shape).astype(np.float32)
    upstream[~settled] = 0
    gradients = cpu.backward(saved, upstream)
    wanted = REFERENCE.backward(saved_reference, upstream)
    np.testing.assert_array_equal(gradients.visible, wanted.visible)
    assert_gradients_close(gradients, wanted, relative=relative, row_relative=100 * relative)


def assert_same_lists(frame: Frame, expected: Frame, share: float = 1e-3) -> None:
    """Checks that tile counts agree but for the few pairs where rounding moves a bound across a tile edge."""
    assert (frame.tile_counts >= 0).all()
    assert frame.instances == frame.tile_counts.sum()
    assert np.abs(frame.tile_counts - expected.tile_counts).sum() <= np.ceil(share * expected.instances)
    assert frame.visible == pytest.approx(expected.visible, abs=np.ceil(share * expected.visible))
    assert frame.skipped == expected.skipped


# ------------------------------------------------------------------------------- against the reference


@pytest.mark.parametrize("bounds", BOUNDS)
def test_the_hand_made_scene_is_that_of_the_reference(cpu: Backend, bounds: str) -> None:
    scene = hand_made()
    assert_same_as_reference(cpu, scene.gaussians, scene.camera, chosen=policy(bounds))


@pytest.mark.parametrize(("seed", "bounds"), [(0, "row_span"), (1, "row_span"), (2, "aabb_o"), (3, "circle3s")])
def test_random_scenes_are_those_of_the_reference(cpu: Backend, seed: int, bounds: str) -> None:
    camera = random_camera(64, 48)
    assert_same_as_reference(cpu, random_scene(camera, 200, seed), camera, chosen=policy(bounds))


@pytest.mark.parametrize("in_settings", range(4))
@pytest.mark.parametrize("in_scene", range(4))
def test_every_degree_of_harmonics_is_that_of_the_reference(cpu: Backend, in_scene: int, in_settings: int) -> None:
    camera = random_camera(40, 24)
    gaussians = random_scene(camera, 60, seed=5, degree=in_scene)
    assert_same_as_reference(cpu, gaussians, camera, replace(BACKGROUND, sh_degree=in_settings))


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (37, 1), (16, 16), (17, 31), (100, 15)])
def test_any_image_size_is_that_of_the_reference(cpu: Backend, size: tuple[int, int]) -> None:
    camera = random_camera(*size)
    assert_same_as_reference(cpu, random_scene(camera, 40, seed=6), camera)


def test_long_lists_and_several_chunks_of_splats_are_those_of_the_reference(cpu: Backend) -> None:
    camera = random_camera(48, 32)
    faint = random_scene(camera, 3000, seed=7)
    faint.logit_opacities[:] = np.clip(faint.logit_opacities, -6.0, -2.0)
    assert_same_as_reference(cpu, faint, camera, settled_share=0.6)


def test_the_first_picture_of_splats_over_many_tiles_is_that_of_the_reference() -> None:
    camera = random_camera(200, 150)
    gaussians = random_scene(camera, 200, seed=29)
    gaussians.log_scales[:] += np.float32(np.log(30.0))  # every tile lists nearly all of them
    gaussians.logit_opacities[:] = np.clip(gaussians.logit_opacities, -4.0, -2.0)
    fresh = make_backend("cpu")
    assert_same_as_reference(fresh, gaussians, camera, settled_share=0.9)
    assert fresh.render(gaussians, camera).instances > 15_000


def test_a_scene_far_from_the_origin_is_as_sharp(cpu: Backend) -> None:
    camera = random_camera(64, 48)
    gaussians = random_scene(camera, 100, seed=8)
    shift = np.array([4096.0, -2048.0, 1024.0])
    far = replace(gaussians, means=(gaussians.means + shift).astype(np.float32))
    matrix = camera.matrix.copy()
    matrix[:3, 3] -= matrix[:3, :3] @ shift
    moved = replace(camera, view_from_world=tuple(map(tuple, matrix.tolist())))
    assert_same_as_reference(cpu, far, moved)


@pytest.mark.parametrize("opacity", [1.0, 0.9999, (1 + 1e-5) / 255, (1 - 1e-5) / 255, 1e-9])
def test_extreme_opacities_are_those_of_the_reference(cpu: Backend, opacity: float) -> None:
    camera = random_camera(40, 24)
    gaussians = random_scene(camera, 40, seed=9)
    gaussians.logit_opacities[::2] = logit(opacity)
    assert_same_as_reference(cpu, gaussians, camera)


def test_a_stack_of_opaque_splats_stops_where_the_reference_does(cpu: Backend) -> None:
    colors = [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 1.0, 1.0)]
    for opacities in ([0.98, 0.98, 0.8, 0.3], [0.98, 0.98, 0.74, 0.1], [1.0, 0.995, 0.9, 0.9], [0.5] * 4):
        gaussians, camera = pixel_stack(opacities, colors)
        frame, expected = (b.render(gaussians, camera, BACKGROUND) for b in (cpu, REFERENCE))
        np.testing.assert_allclose(frame.image, expected.image, atol=1e-6)
        np.testing.assert_allclose(frame.transmittance, expected.transmittance, rtol=1e-3)


def test_the_gradient_ignores_the_cap(cpu: Backend) -> None:
    gaussians, camera = pixel_stack([0.995, 0.5], [(0.9, 0.9, 0.9), (0.2, 0.2, 0.2)])
    upstream = np.ones((1, 1, 3), np.float32)
    got, expected = (b.backward(b.forward(gaussians, camera)[1], upstream) for b in (cpu, REFERENCE))
    assert expected.logit_opacities[0] > 0.01
    np.testing.assert_allclose(got.logit_opacities, expected.logit_opacities, rtol=1e-4)


def test_equal_depths_are_blended_in_the_order_of_the_scene(cpu: Backend) -> None:
    gaussians, camera = pixel_stack([0.5, 0.5, 0.5], [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)])
    gaussians.means[:] = gaussians.means[0]
    many = joined(*(random_scene(camera, 3000, seed=10, degree=0), gaussians))
    many.logit_opacities[:3000] = -20  # a crowd in front, so that the three lie in another chunk
    np.testing.assert_allclose(cpu.render(many, camera).image[0, 0], [0.5, 0.25, 0.125], atol=1e-6)


@pytest.mark.parametrize("count", [0, 2])
def test_nothing_visible_is_a_picture_of_the_background(cpu: Backend, count: int) -> None:
    scene = hand_made()
    rows = [scene.row("behind the camera"), scene.row("out of sight")][:count]
    gaussians = select(scene.gaussians, rows)
    frame, saved = cpu.forward(gaussians, scene.camera, BACKGROUND)
    assert (frame.image == np.array(BACKGROUND.background, np.float32)).all()
    assert np.isnan(frame.depth).all()
    assert (frame.transmittance == 1).all()
    assert (frame.visible, frame.instances, frame.skipped) == (0, 0, 0)
    gradients = cpu.backward(saved, np.ones_like(frame.image))
    assert gradients.sh.shape == (count, 16, 3)
    assert not any(getattr(gradients, n).any() for n in (*PARAMETERS, "visible"))


def test_gradients_do_not_remember_the_pass_before(cpu: Backend) -> None:
    camera = random_camera(64, 48)
    upstream = np.random.default_rng(1).standard_normal((48, 64, 3)).astype(np.float32)

    def gradients_of(seed: int, count: int, degree: int) -> dict[str, np.ndarray]:
        _, saved = cpu.forward(random_scene(camera, count, seed, degree), camera)
        found = cpu.backward(saved, upstream)
        return {n: getattr(found, n).copy() for n in (*PARAMETERS, "visible")}

    first = gradients_of(11, 150, 3)
    gradients_of(12, 300, 3)
    gradients_of(13, 40, 1)
    for name, again in gradients_of(11, 150, 3).items():
        np.testing.assert_array_equal(again, first[name], err_msg=name)


# ----------------------------------------------------------------------------------- bits and threads


def everything(cpu: Backend, gaussians: Gaussians, camera: Camera, bounds: str) -> dict[str, np.ndarray]:
    frame, saved = cpu.forward(gaussians, camera, BACKGROUND, policy(bounds))
    upstream = np.random.default_rng(2).standard_normal(frame.image.shape).astype(np.float32)
    loss, image_gradient = training.loss(frame.image, np.abs(upstream))
    gradients = cpu.backward(saved, upstream)
    arrays = {n: getattr(gradients, n).copy() for n in (*PARAMETERS, "visible")}
    arrays |= {n: getattr(frame, n).copy() for n in ("image", "depth", "transmittance", "tile_counts")}
    return arrays | {"loss": np.array(loss), "image_gradient": image_gradient.copy()}


@pytest.mark.parametrize("bounds", BOUNDS)
def test_results_are_the_same_bits_on_one_and_two_threads_and_every_time(cpu: Backend, bounds: str) -> None:
    before = numba.get_num_threads()
    if before < 2:
        pytest.skip("numba has one thread here")
    camera = random_camera(200, 150)
    gaussians = random_scene(camera, 6000, seed=14)
    try:
        numba.set_num_threads(1)
        alone = everything(cpu, gaussians, camera, bounds)
        numba.set_num_threads(2)
        for _ in range(3):
            for name, array in everything(cpu, gaussians, camera, bounds).items():
                np.testing.assert_array_equal(array, alone[name], err_msg=name)
    finally:
        numba.set_num_threads(before)


def test_many_quick_passes_from_two_threads_always_give_the_same_bits(cpu: Backend) -> None:
    # Kernels of microseconds, scenes of different sizes in the same buffers: where a late helper would show.
    views = [(random_scene(c, n, seed=n), c) for c, n in ((random_camera(40, 24), 90), (random_camera(70, 50), 2500))]
    first = [everything(cpu, *view, "row_span") for view in views]
    wrong: list[str] = []

    def repeat() -> None:
        for i in range(40):
            with turn:
                again = everything(cpu, *views[i % 2], "row_span")
            wrong.extend(n for n, a in again.items() if not np.array_equal(a, first[i % 2][n], equal_nan=True))

    turn = Lock()
    threads = [Thread(target=repeat) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_render_and_forward_draw_the_same_bits(cpu: Backend) -> None:
    camera = random_camera(64, 48)
    gaussians = random_scene(camera, 200, seed=15)
    rendered, (forwarded, _) = cpu.render(gaussians, camera, BACKGROUND), cpu.forward(gaussians, camera, BACKGROUND)
    for name in ("image", "depth", "transmittance", "tile_counts"):
        np.testing.assert_array_equal(getattr(rendered, name), getattr(forwarded, name))


def test_the_tighter_bound_of_an_ellipse_changes_no_bit(cpu: Backend) -> None:
    camera = random_camera(150, 100)
    gaussians = random_scene(camera, 1000, seed=16)
    rows, box = (cpu.render(gaussians, camera, BACKGROUND, policy(b)) for b in ("row_span", "aabb_o"))
    np.testing.assert_array_equal(rows.image, box.image)
    assert rows.instances < box.instances


def test_scenes_mapped_read_only_from_a_file_draw_the_same_bits(cpu: Backend) -> None:
    camera = random_camera(64, 48)
    gaussians = random_scene(camera, 100, seed=28)
    expected = cpu.render(gaussians, camera).image
    for array in gaussians.arrays.values():
        array.flags.writeable = False
    frame, saved = cpu.forward(gaussians, camera)
    np.testing.assert_array_equal(frame.image, expected)
    image_gradient = np.ones_like(frame.image)
    image_gradient.flags.writeable = False
    assert cpu.backward(saved, image_gradient).means.any()


def test_arrays_of_a_frame_are_not_touched_by_the_next(cpu: Backend) -> None:
    camera = random_camera(64, 48)
    frame = cpu.render(random_scene(camera, 100, seed=17), camera)
    names = ("image", "depth", "transmittance", "tile_counts")
    kept = {n: getattr(frame, n).copy() for n in names}
    cpu.render(random_scene(camera, 100, seed=18), camera, BACKGROUND)
    for name in names:
        np.testing.assert_array_equal(getattr(frame, name), kept[name])


# -------------------------------------------------------------------------------- needles and the edges


def needles(
    camera: Camera, count: int, seed: int, long: tuple[float, float] = (400.0, 2000.0), thin: float = 1e-3
) -> Gaussians:
    """Returns splats of standard deviation `long` px along one axis and `thin` px across, at any angle."""
    rng = np.random.default_rng(seed)
    gaussians = random_scene(camera, count, seed, degree=0)
    depth = (gaussians.means @ camera.matrix[2, :3] + camera.matrix[2, 3])[:, None]
    sigmas = np.concatenate((rng.uniform(*long, (count, 1)), np.full((count, 2), thin)), 1)
    gaussians.log_scales[:] = np.log(sigmas * depth / camera.fx)
    gaussians.logit_opacities[:] = rng.uniform(-4.0, 6.0, count)
    return gaussians


def test_needles_are_listed_in_every_tile_they_touch(cpu: Backend) -> None:
    camera = random_camera(320, 240)
    gaussians = needles(camera, 100, seed=19)
    stages = stages_of(gaussians, camera)
    missed = 0
    for position, row in enumerate(stages.projected.index.tolist()):
        touched = touched_tiles(stages, position, camera)
        missed += int((touched & (cpu.render(select(gaussians, [row]), camera).tile_counts == 0)).sum())
    assert missed == 0


def stages_of(gaussians: Gaussians, camera: Camera) -> Stages:
    with torch.no_grad():
        return render(Parameters.of(gaussians), camera, RenderSettings(), Policy())


def touched_tiles(stages: Stages, position: int, camera: Camera) -> np.ndarray:
    """Returns [Ty, Tx] tiles in which a pixel centre has alpha of at least 1/255, whatever lies before the splat."""
    p = stages.projected
    record = torch.cat((p.mean_px, p.covariance, p.determinant[:, None], p.opacity[:, None]), 1)[
        position : position + 1
    ]
    pixels = torch.arange(camera.width * camera.height)
    centers = torch.stack((pixels % camera.width, pixels // camera.width), 1) + 0.5
    hit = (splat_alpha(record, centers)[0] >= 1 / 255).reshape(camera.height, camera.width).numpy()
    return np.asarray(hit.reshape(camera.tiles[0], 16, camera.tiles[1], 16).any((1, 3)))


def test_the_picture_of_needles_is_that_of_the_reference(cpu: Backend) -> None:
    camera = random_camera(96, 64)
    gaussians = needles(camera, 60, seed=20)
    frame, expected = (b.render(gaussians, camera, BACKGROUND) for b in (cpu, REFERENCE))
    assert_close_with_boundary_band(frame.image, expected.image, tight=3e-4, flip_size=0.02, flip_fraction=5e-3)
    assert_same_lists(frame, expected, share=5e-3)


@pytest.mark.parametrize("length", [30, 300, 1000])
def test_gradients_of_long_thin_splats_are_those_of_the_reference(cpu: Backend, length: int) -> None:
    camera = random_camera(96, 64)
    gaussians = needles(camera, 60, seed=20, long=(length, length), thin=1.0)
    frame, saved = cpu.forward(gaussians, camera)
    expected, saved_reference = REFERENCE.forward(gaussians, camera)
    upstream = np.random.default_rng(4).standard_normal(frame.image.shape).astype(np.float32)
    upstream[np.abs(frame.image - expected.image).max(2) > 1e-4] = 0
    got, wanted = cpu.backward(saved, upstream), REFERENCE.backward(saved_reference, upstream)
    for axis in range(3):  # the long axis hardly matters to the picture: its gradient is small, and must be right
        error = np.linalg.norm(got.log_scales[:, axis] - wanted.log_scales[:, axis])
        assert error <= 1e-4 * np.linalg.norm(wanted.log_scales[:, axis]), f"axis {axis}: {error:.3g}"
    for name in ("means", "quats", "logit_opacities", "sh", "means2d"):
        error = np.linalg.norm(getattr(got, name) - getattr(wanted, name))
        assert error <= 1e-4 * np.linalg.norm(getattr(wanted, name)), f"{name}: {error:.3g}"


def test_absolute_values_are_added_pixel_by_pixel_and_leave_all_else_alone(cpu: Backend) -> None:
    camera = random_camera(96, 64)
    gaussians = random_scene(camera, 150, seed=8)
    frame, saved = cpu.forward(gaussians, camera, BACKGROUND)
    expected, saved_reference = REFERENCE.forward(gaussians, camera, BACKGROUND)
    upstream = np.random.default_rng(4).standard_normal(frame.image.shape).astype(np.float32)
    upstream[np.abs(frame.image - expected.image).max(2) > 1e-4] = 0
    plain = cpu.backward(saved, upstream)
    others = {name: getattr(plain, name).copy() for name in ("means", "log_scales", "quats", "logit_opacities", "sh")}
    signed = plain.means2d.copy()
    got = cpu.backward(saved, upstream, absolute=True)
    wanted = REFERENCE.backward(saved_reference, upstream, absolute=True)
    assert np.linalg.norm(got.means2d - wanted.means2d) <= 1e-4 * np.linalg.norm(wanted.means2d)
    assert np.all(got.means2d >= np.abs(signed) * (1 - 1e-4) - 1e-6)
    assert got.means2d.sum() > 2 * np.abs(signed).sum()
    for name, array in others.items():
        np.testing.assert_array_equal(getattr(got, name), array, err_msg=name)


@pytest.mark.parametrize("size", [(1_049_600, 1), (1, 1_049_600)])
def test_more_than_65536_tiles_work(cpu: Backend, size: tuple[int, int]) -> None:
    camera = replace(random_camera(*size), fx=6e5, fy=6e5)
    gaussians = random_scene(camera, 12, seed=21)
    frame, expected = (b.render(gaussians, camera, BACKGROUND) for b in (cpu, REFERENCE))
    assert frame.tile_counts.size == 65_600
    assert np.isfinite(frame.image).all()
    assert expected.instances > 0
    assert frame.instances == pytest.approx(expected.instances, abs=4)
    # A float32 pixel coordinate of a million is good to 1/16 px, and these splats are a few pixels wide.
    assert_close_with_boundary_band(frame.image, expected.image, tight=1e-5, flip_size=0.5, flip_fraction=5e-4)


# --------------------------------------------------------------------------------- loss and optimiser


def test_the_definition_has_its_own_loss_and_every_other_backend_uses_the_cpus(cpu: Backend) -> None:
    assert host_math(REFERENCE) is definition
    assert host_math(cpu) is training


@pytest.mark.parametrize("size", [(1, 1), (3, 40), (33, 17), (48, 64)])
@pytest.mark.parametrize("weight", [0.0, 0.2, 1.0])
def test_the_loss_and_its_gradient_are_those_of_the_reference(size: tuple[int, int], weight: float) -> None:
    rng = np.random.default_rng(26)
    target = rng.uniform(0, 1, (*size, 3)).astype(np.float32)
    target[: size[0] // 2] = 0.5  # a flat part, where variances cancel
    image = (target + 0.1 * rng.standard_normal(target.shape)).astype(np.float32)
    (value, gradient), (wanted, wanted_gradient) = (host.loss(image, target, weight) for host in (training, definition))
    assert value == pytest.approx(wanted, rel=1e-5)
    error = np.linalg.norm(gradient - wanted_gradient) / np.linalg.norm(wanted_gradient)
    assert error < 1e-4
    assert training.ssim(image, target) == pytest.approx(definition.ssim(image, target), abs=1e-5)
    assert training.ssim(target, target) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (1000, 3), (4097, 48)])
def test_adam_takes_the_steps_of_the_reference(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(27)
    start = rng.standard_normal(shape).astype(np.float32)
    rates = (10.0 ** rng.uniform(-5, -1, shape[1])).astype(np.float32)
    runs = [(host, [start.copy(), np.zeros_like(start), np.zeros_like(start)]) for host in (training, definition)]
    for step in (1, 2, 3, 500, 30_000):
        gradient = (rng.standard_normal(shape) * 10.0 ** rng.uniform(-8, 2, shape)).astype(np.float32)
        gradient[rng.random(shape) < 0.2] = 0
        for host, (parameter, first, second) in runs:
            host.adam(parameter, gradient, first, second, rates, step)
    for got, expected in zip(runs[0][1], runs[1][1], strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-7 * np.abs(expected).max())


def test_a_cpu_frame_names_its_stages(cpu: Backend) -> None:
    scene = hand_made()
    frame, saved = cpu.forward(scene.gaussians, scene.camera)
    stages = {**frame.stage_ms, **cpu.backward(saved, np.ones_like(frame.image)).stage_ms}
    assert {"project", "sort", "bin", "blend"} <= set(frame.stage_ms)
    assert len(stages) > len(frame.stage_ms)
    assert all(ms >= 0 for ms in stages.values())
