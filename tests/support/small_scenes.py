"""Makes scenes of a few splats: by hand with every awkward case, at random, in stacks on one pixel.

Shared by the tests of all backends. Splats are placed by what the camera sees (pixel, depth, size in
pixels) and turned into world space here, so that a test can say where things are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from splatscope.kernels.constants import SH_C0
from splatscope.kernels.primitive import FLAT_LOG_SCALE, Primitive
from splatscope.kernels.types import Camera, Gaussians

# A pose that mixes all axes: nothing may depend on the camera looking along a world axis.
POSE = np.eye(4)
POSE[:3, :3] = Rotation.from_euler("xyz", [25.0, 32.0, -18.0], degrees=True).as_matrix()
POSE[:3, 3] = (0.3, -0.2, 0.5)


@dataclass(frozen=True, eq=False)
class NamedScene:
    """Holds a scene whose splats can be asked for by name."""

    gaussians: Gaussians
    camera: Camera
    names: tuple[str, ...]

    def row(self, name: str) -> int:
        return self.names.index(name)


def select(gaussians: Gaussians, rows: NDArray[np.intp] | NDArray[np.bool_] | list[int]) -> Gaussians:
    """Returns the splats that `rows` names or marks, in that order."""
    arrays = {name: np.ascontiguousarray(array[rows]) for name, array in gaussians.arrays.items()}
    return gaussians.with_arrays(arrays)


def joined(*scenes: Gaussians) -> Gaussians:
    """Puts scenes of one degree together, one after the other."""
    names = ("means", "log_scales", "quats", "logit_opacities", "sh")
    return Gaussians(*(np.concatenate([getattr(s, n) for s in scenes]) for n in names))


def as_primitive(gaussians: Gaussians, primitive: Primitive) -> Gaussians:
    """Returns the same rows as another primitive; a disk is what is left of a Gaussian without its third axis."""
    log_scales = gaussians.log_scales.copy()
    if primitive == "2dgs":
        log_scales[:, 2] = FLAT_LOG_SCALE
    return replace(gaussians, log_scales=log_scales, primitive=primitive)


def face_on(gaussians: Gaussians, camera: Camera, least: float = 5e-3) -> Gaussians:
    """Returns the splats whose third axis has at least that cosine with the line of sight."""
    toward = gaussians.means - camera.position
    toward /= np.linalg.norm(toward, axis=1, keepdims=True)
    third = Rotation.from_quat(gaussians.quats, scalar_first=True).as_matrix()[:, :, 2]
    return select(gaussians, np.abs((third * toward).sum(1)) >= least)


def awkward(camera: Camera, primitive: Primitive, seed: int = 4) -> Gaussians:
    """Returns splats that tempt a renderer to divide by zero, 20 of each kind, among ordinary ones.

    Kinds: seen from the edge, exactly and nearly; through the camera plane; around the camera; scales of 0, all or one
    of them; opacity 0 and 1.
    """
    made = random_scene(camera, 260, seed=seed, degree=1)
    rng = np.random.default_rng(seed)
    toward = made.means - camera.position.astype(np.float32)
    toward /= np.linalg.norm(toward, axis=1, keepdims=True)
    kinds = np.arange(260) // 20
    for kind, tip in ((0, 0.0), (1, 1e-5), (2, 1e-2)):  # the third axis is across the line of sight
        rows = kinds == kind
        across = np.cross(toward[rows], rng.standard_normal(toward[rows].shape))
        across /= np.linalg.norm(across, axis=1, keepdims=True)
        made.quats[rows] = _turn_z_to(across + tip * toward[rows])
    made.log_scales[kinds == 3] = np.log(30.0)
    rows = kinds == 4
    made.means[rows] = camera.position + 0.02 * rng.standard_normal((20, 3)) + 0.05 * camera.matrix[2, :3]
    made.log_scales[kinds == 5] = -88.0
    made.log_scales[kinds == 6, 0] = -88.0
    made.log_scales[kinds == 7, 1] = -60.0
    made.logit_opacities[kinds == 8], made.logit_opacities[kinds == 9] = -np.inf, np.inf
    return as_primitive(made, primitive)


def _turn_z_to(axes: NDArray[np.float64]) -> NDArray[np.float32]:
    """Returns quaternions [n, 4] whose rotations take z to the given directions [n, 3]."""
    z = axes / np.linalg.norm(axes, axis=1, keepdims=True)
    quats = np.stack([1 + z[:, 2], -z[:, 1], z[:, 0], 0 * z[:, 0]], 1)
    return (quats / np.linalg.norm(quats, axis=1, keepdims=True)).astype(np.float32)


def logit(opacity: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the raw value of an opacity; 1 gives +inf."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(opacity, dtype=np.float64)) - np.log1p(-np.asarray(opacity, dtype=np.float64))


def world_from_pixel(camera: Camera, pixel: NDArray[np.float64], depth: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns world points [N, 3] seen at `pixel` [N, 2] with camera z `depth` [N]."""
    x = (pixel[:, 0] - camera.cx) / camera.fx * depth
    y = (pixel[:, 1] - camera.cy) / camera.fy * depth
    rotation, translation = camera.matrix[:3, :3], camera.matrix[:3, 3]
    return (np.stack([x, y, depth], 1) - translation) @ np.linalg.inv(rotation).T


def hand_made() -> NamedScene:
    """Returns a scene of 48x32 px with an off-centre principal point; each splat is one case and its name says which.

    No alpha reaches the 0.99 cap (the opaque splat sits on a pixel corner), so finite differences agree
    with the gradient that ignores the cap.
    """
    camera = Camera.from_matrix(POSE, width=48, height=32, fx=40.0, fy=44.0, cx=20.3, cy=18.1, near=0.2)
    opaque, faint, under = 1.0, 1.05 / 255, 0.999 / 255
    cases = (  # name, pixel, depth, sigmas in px at that depth, opacity
        ("plain", (17.2, 13.4), 3.0, (3.5, 2.0, 1.2), 0.6),
        ("overlapping plain", (19.9, 15.1), 3.7, (4.0, 2.5, 1.5), 0.7),
        ("opaque", (31.0, 17.0), 2.5, (2.5, 1.7, 2.1), opaque),
        ("just above 1/255", (8.5, 25.5), 2.9, (7.0, 6.0, 6.5), faint),
        ("just below 1/255", (12.5, 22.5), 2.8, (7.0, 6.0, 6.5), under),
        ("needle", (24.0, 9.0), 3.3, (30.0, 0.004, 0.004), 0.8),
        ("covers many tiles", (26.0, 20.0), 6.0, (16.0, 22.0, 12.0), 0.35),
        ("tail from the left", (-16.0, 14.0), 3.1, (13.0, 9.0, 10.0), 0.9),
        ("tail from below", (30.0, 46.0), 4.1, (8.0, 12.0, 9.0), 0.85),
        ("tail from a corner", (64.0, -13.0), 3.6, (16.0, 14.0, 11.0), 0.95),
        ("clamped green", (38.0, 25.0), 2.2, (3.0, 3.4, 2.2), 0.5),
        ("behind the camera", (20.0, 16.0), -1.0, (3.0, 3.0, 3.0), 0.9),
        ("before the near plane", (20.0, 16.0), 0.19, (3.0, 3.0, 3.0), 0.9),
        ("past the near plane", (41.0, 8.2), 0.21, (1.5, 1.0, 1.2), 0.75),
        ("out of sight", (400.0, 16.0), 3.0, (5.0, 5.0, 5.0), 0.9),
    )
    rng = np.random.default_rng(5)
    pixel = np.array([c[1] for c in cases])
    depth = np.array([c[2] for c in cases])
    sigmas = np.array([c[3] for c in cases])
    sh = 0.06 * rng.standard_normal((len(cases), 16, 3))
    sh[:, 0] = rng.uniform(-0.5, 1.2, (len(cases), 3))
    names = tuple(c[0] for c in cases)
    sh[names.index("clamped green"), 0, 1] = -4.0
    gaussians = _gaussians(
        world_from_pixel(camera, pixel, depth),
        np.log(sigmas * np.abs(depth)[:, None] / camera.fx),
        rng.standard_normal((len(cases), 4)) * rng.uniform(0.3, 3.0, (len(cases), 1)),
        logit(np.array([c[4] for c in cases])),
        sh,
    )
    return NamedScene(gaussians, camera, names)


def random_camera(width: int = 64, height: int = 48) -> Camera:
    """Returns the camera of all scenes, with a principal point off centre, focal length about the width."""
    return Camera.from_matrix(
        POSE, width, height, fx=0.9 * width + 1, fy=0.95 * width + 1, cx=0.46 * width, cy=0.55 * height
    )


def random_scene(camera: Camera, count: int = 200, seed: int = 0, degree: int = 3) -> Gaussians:
    """Draws splats of 0.5 to 12 px in and around the image at depth 1 to 8, opacity from 0.002 to exactly 1."""
    rng = np.random.default_rng(seed)
    pixel = rng.uniform(-0.25, 1.25, (count, 2)) * (camera.width, camera.height)
    depth = rng.uniform(1.0, 8.0, count)
    sigmas = np.exp(rng.uniform(np.log(0.5), np.log(12.0), (count, 3)))
    logit_opacities = rng.uniform(-6.0, 6.0, count)
    logit_opacities[rng.random(count) < 0.03] = np.inf
    sh = 0.15 * rng.standard_normal((count, (degree + 1) ** 2, 3))
    sh[:, 0] = rng.uniform(-1.5, 1.5, (count, 3))
    return _gaussians(
        world_from_pixel(camera, pixel, depth),
        np.log(sigmas * depth[:, None] / camera.fx),
        rng.standard_normal((count, 4)),
        logit_opacities,
        sh,
    )


def pixel_stack(opacities: list[float], colors: list[tuple[float, float, float]]) -> tuple[Gaussians, Camera]:
    """Puts splats behind each other, each with its mean on the centre of the only pixel: alpha is the opacity."""
    camera = Camera.from_matrix(np.eye(4), width=1, height=1, fx=1.0, fy=1.0, cx=0.5, cy=0.5)
    return _on_axis(np.arange(1.0, len(opacities) + 1.0), np.asarray(opacities), colors, sigma_px=1.0), camera


def pixel_row(opacity: float, variance: float, width: int) -> tuple[Gaussians, Camera]:
    """Puts one white splat on the centre of the first of `width` pixels in a row, `variance` px^2 with dilation."""
    camera = Camera.from_matrix(np.eye(4), width=width, height=1, fx=1.0, fy=1.0, cx=0.5, cy=0.5)
    sigma = float(np.sqrt(variance - 0.3))
    return _on_axis(np.array([1.0]), np.array([opacity]), [(1.0, 1.0, 1.0)], sigma), camera


def centered(camera: Camera) -> Camera:
    """Returns the same camera with the principal point in the middle."""
    return replace(camera, cx=camera.width / 2, cy=camera.height / 2)


def _on_axis(
    depth: NDArray[np.float64], opacities: NDArray[np.float64], colors: list[tuple[float, ...]], sigma_px: float
) -> Gaussians:
    count = len(depth)
    return _gaussians(
        np.stack([np.zeros(count), np.zeros(count), depth], 1),
        np.log(sigma_px * depth)[:, None].repeat(3, 1),
        np.tile([1.0, 0.0, 0.0, 0.0], (count, 1)),
        logit(opacities),
        (np.asarray(colors, dtype=np.float64)[:, None] - 0.5) / SH_C0,
    )


def _gaussians(*arrays: NDArray[np.float64]) -> Gaussians:
    return Gaussians(*(np.ascontiguousarray(a, dtype=np.float32) for a in arrays))
