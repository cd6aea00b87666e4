"""Checks the CUDA backend, whatever runs its kernels: a GPU, or this processor under the harness.

`check` and its like compare with the definition, or with `best`. Tests: kernels/test_cuda_pipeline.py, and on a GPU
kernels/test_cuda_backend_gpu.py.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from splatscope.kernels.backend import Backend
from splatscope.kernels.constants import SH_C0
from splatscope.kernels.cuda.backend import CudaBackend
from splatscope.kernels.ladder import changed, step
from splatscope.kernels.policy import Policy, toggle_table
from splatscope.kernels.primitive import PRIMITIVES
from splatscope.kernels.reference import picture
from splatscope.kernels.reference.backend import ReferenceBackend
from splatscope.kernels.toggles import ANOTHER_PICTURE, Toggle
from splatscope.kernels.types import Camera, Float32, Frame, Gaussians, RenderSettings
from tests.support.comparison import PARAMETERS, assert_close_with_boundary_band, assert_gradients_close, settled_pixels
from tests.support.random_policies import random_policy, with_each_toggle
from tests.support.small_scenes import as_primitive, awkward, face_on, hand_made, random_camera, random_scene

SETTINGS = RenderSettings(background=(0.2, 0.4, 0.7))
BEST = step("best")
FIELDS = ("means", "log_scales", "quats", "logit_opacities", "sh")
IN_ORDER = changed(BEST, {"blend_backward.reduce": "deterministic"})
RANDOM = [random_policy(np.random.default_rng(seed)) for seed in range(8)]
ALTERNATIVES = {f"{row.key} = {value}": policy for row, value, policy in with_each_toggle(BEST)}


def bf16_scene(gaussians: Gaussians) -> Gaussians:
    """Rounds a scene's harmonics to bfloat16, so that all policies make one picture."""
    gaussians.sh.view(np.uint32)[...] &= 0xFFFF0000
    return gaussians


@cache
def scene(name: str) -> tuple[Gaussians, Camera]:
    """Returns a scene by name; "2dgs many" is "many" as disks, "3dgut awkward" what may divide by zero as rays.

    Disks seen from the very edge are left out: their place along the line of sight decides all, and single precision
    does not know it. "2dgs awkward" has them.
    """
    first, _, rest = name.partition(" ")
    if first in PRIMITIVES and rest == "awkward":
        camera = random_camera(64, 48)
        return bf16_scene(awkward(camera, first)), camera
    if first in PRIMITIVES:
        gaussians, camera = scene(rest)
        return face_on(as_primitive(gaussians, first), camera), camera
    if name == "hand-made":
        made = hand_made()
        return bf16_scene(made.gaussians), made.camera
    if name == "many":  # lists of several batches, uneven edges
        camera = random_camera(203, 117)
        return bf16_scene(random_scene(camera, 3000, seed=5)), camera
    camera = random_camera(64, 48)
    return bf16_scene(random_scene(camera, 200, seed=3, degree=2)), camera


def meaning(policy: Policy) -> Policy:
    """Returns the policy with only the toggles that the definition knows: all others leave the picture."""
    known = Policy()
    for row in toggle_table("cpu"):
        known = known.with_value(row.stage, row.name, policy.value(row.stage, row.name))
    return known


@cache
def expected(name: str, policy: Policy) -> tuple[Frame, Any, NDArray[np.bool_]]:
    """Returns (frame, what backward needs, settled pixels) by the definition; `policy` is the meaning of a policy."""
    gaussians, camera = scene(name)
    frame, saved = ReferenceBackend().forward(gaussians, camera, SETTINGS, policy)
    # A needle's conic, kept in single precision, moves its alpha by a few 1e-5.
    # Thin disks near their edge are known to about 1e-5 of alpha in single precision, 1/255 being the threshold.
    margin = 5e-3 if gaussians.primitive != "3dgs" else 1e-3 if name == "hand-made" else 1e-4
    cap = picture.BlendRule.of(policy.blend, gaussians.primitive).alpha_cap
    return frame, saved, settled_pixels(saved.stages, camera, alpha_margin=margin, cap=cap)


@cache
def upstream_of(name: str, policy: Policy) -> Float32:
    """Returns dL/d(image): random, zero where rounding decides."""
    frame, _, settled = expected(name, policy)
    upstream = np.random.default_rng(0).standard_normal(frame.image.shape).astype(np.float32)
    upstream[~settled] = 0
    return upstream


@cache
def wanted_gradients(name: str, policy: Policy) -> Any:
    return ReferenceBackend().backward(expected(name, policy)[1], upstream_of(name, policy))


def check(backend: Backend, policy: Policy, name: str) -> None:
    """Checks that a policy has the picture and gradients of the definition."""
    gaussians, camera = scene(name)
    meant = meaning(policy)
    frame, _, settled = expected(name, meant)
    got, saved = backend.forward(gaussians, camera, SETTINGS, policy)
    assert abs(got.visible - frame.visible) <= 1
    assert abs(got.instances - frame.instances) <= 1e-3 * frame.instances
    assert got.tile_counts.sum() == got.instances
    band = {"flip_size": 0.01, "flip_fraction": 5e-3, "band": ~settled}
    tight = 2e-4 if gaussians.primitive == "2dgs" else 5e-5  # near their edge, disks are known less precisely
    assert_close_with_boundary_band(got.image, frame.image, tight=tight, **band)
    assert_close_with_boundary_band(got.transmittance, frame.transmittance, tight=tight, what="transmittance", **band)
    gradients = backend.backward(saved, upstream_of(name, meant))
    relative = 3e-4 if policy.project.sh_dtype == "f32" else 4e-3
    wanted = wanted_gradients(name, meant)
    assert_gradients_close(gradients, wanted, relative=relative, row_relative=3e-2, cosine=1 - 1e-5)


def check_finite(backend: Backend, policy: Policy, name: str) -> None:
    """Checks that picture and gradients are finite, and the picture is that of the definition."""
    gaussians, camera = scene(name)
    frame, _, settled = expected(name, meaning(policy))
    got, saved = backend.forward(gaussians, camera, SETTINGS, policy)
    assert settled.mean() > 0.5
    assert frame.skipped == got.skipped
    assert_close_with_boundary_band(
        got.image, frame.image, tight=2e-3, flip_size=0.05, flip_fraction=2e-2, band=np.ones_like(settled)
    )
    upstream = np.random.default_rng(0).standard_normal(frame.image.shape).astype(np.float32)
    gradients = backend.backward(saved, upstream)
    for part in ("means", "log_scales", "quats", "logit_opacities", "sh", "means2d"):
        assert np.isfinite(getattr(gradients, part)).all(), part


def check_class(backend: CudaBackend, policy: Policy, name: str) -> None:
    """Checks that a policy changes picture and gradients of `best` no more than its toggles' classes allow.

    Of bounds only the circle changes anything: in a bounding box the same pixels blend the same splats.
    """
    rows = [row for row in differing(BEST, policy) if (row.key, policy.bin.bounds) != ("bin.bounds", "aabb_o")]
    if stated := [row for row in rows if row.identity == "Q"]:
        check_tolerance(backend, policy, name, stated)
        return
    images, gradients = zip(*(picture_and_gradients(backend, one, name) for one in (BEST, policy)), strict=True)
    difference, keys = np.abs(images[0] - images[1]).max(2), [row.key for row in rows]
    if any(row.identity == "R" for row in rows):
        assert (difference > 1e-5).mean() <= 1e-4, f"{keys}: by {difference.max():.2g}"
        assert difference.max() <= 1e-2
    else:
        assert not difference.any(), f"{keys} change {np.count_nonzero(difference)} pixels"
    for parameter, wanted in gradients[0].items():
        error = np.linalg.norm(wanted - gradients[1][parameter])
        assert error <= 1e-4 * np.linalg.norm(wanted), f"{keys}: {parameter}"


def check_tolerance(backend: CudaBackend, policy: Policy, name: str, stated: list[Toggle]) -> None:
    """Checks the tolerances of a policy's toggles of class Q, and that it draws and differentiates what it means.

    Harmonics of these scenes are what bfloat16 holds, so `sh_dtype` has no say; `check_decibels` is about it.
    """
    check(backend, policy, name)
    if ANOTHER_PICTURE in (row.tolerance for row in stated):
        return
    gaussians, camera = scene(name)
    allowed = sum(row.tolerance.difference or 0.0 for row in stated if row.tolerance)
    brightest = float(expected(name, meaning(BEST))[1].stages.colors.detach().max())
    images = [backend.forward(gaussians, camera, SETTINGS, one)[0].image.copy() for one in (BEST, policy)]
    difference = np.abs(images[0] - images[1]).max()
    assert difference <= allowed * brightest, f"{[row.key for row in stated]}: by {difference / brightest:.2%}"


def check_decibels(backend: CudaBackend, policy: Policy, gaussians: Gaussians, camera: Camera) -> None:
    """Checks that splats which fit a photograph to 45 dB fit it under a policy, except for its stated tolerance."""
    allowed = sum(row.tolerance.decibels or 0.0 for row in differing(BEST, policy) if row.tolerance)
    images = [backend.render(gaussians, camera, SETTINGS, one).image.astype(np.float64) for one in (BEST, policy)]
    photograph = images[0] + 10 ** (-45 / 20) * np.random.default_rng(1).standard_normal(images[0].shape)
    before, after = (-10 * np.log10(np.square(image - photograph).mean()) for image in images)
    assert before == pytest.approx(45, abs=0.5)
    assert (images[0] != images[1]).any()
    assert abs(after - before) <= allowed, f"{after - before:+.4f} dB"


def check_bits(backend: CudaBackend, policy: Policy, name: str) -> None:
    """Checks that a policy has the very picture and gradients of `IN_ORDER`, whose sums are of integers."""
    (image, gradients), (own, changed_gradients) = (
        picture_and_gradients(backend, one, name) for one in (IN_ORDER, policy)
    )
    np.testing.assert_array_equal(own, image)
    for parameter, wanted in gradients.items():
        np.testing.assert_array_equal(changed_gradients[parameter], wanted, parameter)


def picture_and_gradients(
    backend: CudaBackend, policy: Policy, name: str
) -> tuple[Float32, dict[str, NDArray[np.float64]]]:
    """Returns copies of a scene's image and gradients: the next frame may overwrite the backend's arrays."""
    gaussians, camera = scene(name)
    frame, saved = backend.forward(gaussians, camera, SETTINGS, policy)
    gradients = backend.backward(saved, upstream_of(name, meaning(BEST)))
    return frame.image.copy(), {one: getattr(gradients, one).astype(np.float64) for one in PARAMETERS}


def differing(a: Policy, b: Policy) -> list[Toggle]:
    """Returns the toggles in which two policies differ."""
    return [row for row in toggle_table("cuda") if a.value(row.stage, row.name) != b.value(row.stage, row.name)]


def check_bad_values(backend: CudaBackend, name: str) -> None:
    """Checks that values no splat can have are skipped and counted, and harm nothing."""
    gaussians, camera = scene(name)
    random = np.random.default_rng(9)
    bad = replace(gaussians, **{field: getattr(gaussians, field).copy() for field in FIELDS})
    for field in FIELDS:
        values = getattr(bad, field).reshape(gaussians.count, -1)
        rows = random.choice(gaussians.count, gaussians.count // 50, replace=False)
        columns = random.integers(0, values.shape[1], len(rows))
        values[rows, columns] = random.choice([np.nan, np.inf, -np.inf], len(rows))
    bad.quats[7] = 0
    wanted = ReferenceBackend().render(bad, camera, SETTINGS)
    for rung in ("s00", "s01", "s06", "best"):
        frame, saved = backend.forward(bad, camera, SETTINGS, step(rung))
        assert np.isfinite(frame.image).all()
        if rung != "s00":  # its square bounds see other splats
            assert frame.skipped == wanted.skipped
            assert np.abs(frame.image - wanted.image).mean() < 1e-4
        gradients = backend.backward(saved, np.ones_like(frame.image))
        for parameter in PARAMETERS:
            assert np.isfinite(getattr(gradients, parameter)).all(), parameter


def check_nothing_to_see(backend: CudaBackend, rung: str) -> None:
    """Checks that without visible splats the picture is the background and every gradient is zero."""
    gaussians, camera = scene("random")
    away = Camera.from_matrix(np.diag([1.0, -1.0, -1.0, 1.0]) @ camera.matrix, 33, 17, 30, 30, 16, 8)
    nothing = replace(gaussians, **{name: getattr(gaussians, name)[:0] for name in FIELDS})
    faint = replace(gaussians, logit_opacities=np.full(gaussians.count, -20, np.float32))
    for splats, view in ((nothing, camera), (faint, away)):
        frame, saved = backend.forward(splats, view, SETTINGS, step(rung))
        assert (frame.visible, frame.instances) == (0, 0)
        np.testing.assert_allclose(
            frame.image, np.broadcast_to(np.array(SETTINGS.background, np.float32), frame.image.shape)
        )
        assert np.isnan(frame.depth).all()
        assert not backend.backward(saved, np.ones_like(frame.image)).means.any()


def check_last_in_front(backend: CudaBackend, policy: Policy, camera: Camera, others: int) -> None:
    """Returns splats in the middles of tiles, round and round; the last of a tile is in front of `others`."""
    rows, columns = camera.tiles
    tiles, opacity = rows * columns, 0.875
    tile = np.arange(others + tiles) % tiles
    is_last = np.arange(len(tile)) >= others
    depth = np.where(is_last, 1.0, 2.0)
    x, y = (16 * (tile % columns) + 8.5 - camera.cx) / camera.fx, (16 * (tile // columns) + 8.5 - camera.cy) / camera.fy
    colors = np.where(is_last[:, None], (0.25, 1.0, 0.25), (1.0, 0.25, 0.25))
    gaussians = Gaussians(
        np.stack([x * depth, y * depth, depth], 1).astype(np.float32),
        np.full((len(tile), 3), -9.0, np.float32),
        np.tile(np.array([1, 0, 0, 0], np.float32), (len(tile), 1)),
        np.full(len(tile), np.log(opacity / (1 - opacity)), np.float32),
        ((colors - 0.5) / SH_C0).astype(np.float32)[:, None],
    )
    frame, saved = backend.forward(gaussians, camera, RenderSettings(), policy)
    assert (frame.visible, frame.instances) == (len(tile), len(tile))
    middles = frame.image[8::16, 8::16]
    np.testing.assert_allclose(middles[..., 1], opacity + 0.25 * (1 - opacity), atol=5e-4)
    np.testing.assert_allclose(middles[..., 0], 0.25 * opacity + 1 - opacity, atol=5e-4)
    upstream = np.zeros_like(frame.image)
    upstream[8::16, 8::16, 1] = 1
    harmonics = backend.backward(saved, upstream).sh[:, 0, 1]
    # The one in front, then the first of the scene, then those that come `tiles` later, until the pixel stops.
    weights = SH_C0 * opacity * (1 - opacity) ** np.arange(4)
    np.testing.assert_allclose(harmonics[others:], weights[0], rtol=1e-4)
    for place in range(1, 4):
        np.testing.assert_allclose(harmonics[(place - 1) * tiles : place * tiles], weights[place], rtol=1e-4)
    assert not harmonics[3 * tiles : others].any()


def check_one_pixel(backend: CudaBackend) -> None:
    """Checks that an image of one pixel is drawn like any other."""
    gaussians, camera = scene("random")
    tiny = camera.resized(1, 1)
    wanted = ReferenceBackend().render(gaussians, tiny, SETTINGS)
    for rung in ("s00", "s01", "best"):
        np.testing.assert_allclose(backend.render(gaussians, tiny, SETTINGS, step(rung)).image, wanted.image, atol=0.02)
