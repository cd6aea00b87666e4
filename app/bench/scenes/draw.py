"""Draws surfaces with normals, and puts splats on them by a law, for the benchmark scenes.

Every function draws from the generator in a fixed order and in float32; that order is part of the scenes'
definition. `generated.py` puts the pieces together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from splatscope.kernels.types import Float32

F = np.float32
TURN = F(2 * np.pi)  # radians


class Surface(NamedTuple):
    """Holds points to put splats on."""

    points: Float32  # [N, 3] world units
    normals: Float32  # [N, 3] unit length


class Splats(NamedTuple):
    """Holds raw parameters without colour."""

    means: Float32  # [N, 3]
    log_scales: Float32  # [N, 3]
    quats: Float32  # [N, 4]
    logit_opacities: Float32  # [N]


@dataclass(frozen=True)
class SplatLaw:
    """Sets how large, flat and opaque the splats of a scene are; lengths in world units."""

    median: float  # median of the largest scale, before the scene's own distance factor
    spread: float  # standard deviation of its logarithm
    slender: float  # second scale = first * exp(-slender |z|)
    flat: float  # scale along the normal = first * exp(-flat - 0.8 |z|)
    faint_share: float  # share of splats whose opacity is log-uniform in `faint`
    faint: tuple[float, float]
    solid: float  # the others are uniform in (solid, 1)
    jitter: float  # standard deviation of the offset along the normal


def uniform(rng: Generator, *shape: int) -> Float32:
    return rng.random(shape, dtype=F)


def normal(rng: Generator, *shape: int) -> Float32:
    return rng.standard_normal(shape, dtype=F)


def quats_from_normals(normals: Float32, spins: Float32) -> Float32:
    """Returns unit quaternions (w, x, y, z) that take +z to each normal after a spin about z."""
    w = np.sqrt((1 + np.clip(normals[:, 2], -0.999999, 1)) / 2)
    x = -normals[:, 1] / (2 * w)
    y = normals[:, 0] / (2 * w)
    c, s = np.cos(spins / 2), np.sin(spins / 2)
    quats = np.stack([w * c, x * c + y * s, y * c - x * s, w * s], 1)
    return (quats / np.linalg.norm(quats, axis=1, keepdims=True)).astype(F)


def random_normals(rng: Generator, count: int) -> Float32:
    vectors = normal(rng, count, 3)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def box(rng: Generator, count: int, low: ArrayLike, high: ArrayLike, inward: bool = False) -> Surface:
    """Returns points on the faces of a box, uniform by area."""
    low, high = np.asarray(low, F), np.asarray(high, F)
    size = high - low
    pair = np.array([size[1] * size[2], size[0] * size[2], size[0] * size[1]])
    area = np.repeat(pair, 2).astype(np.float64)  # -x +x -y +y -z +z
    face = np.searchsorted(np.cumsum(area / area.sum()), uniform(rng, count)).clip(0, 5)
    points = (low + uniform(rng, count, 3) * size).astype(F, copy=False)
    axis, is_high = face // 2, face % 2 == 1
    every = np.arange(count)
    points[every, axis] = np.where(is_high, high[axis], low[axis])
    normals = np.zeros((count, 3), F)
    normals[every, axis] = np.where(is_high, 1, -1) * (-1 if inward else 1)
    return Surface(points, normals)


def ellipsoid(rng: Generator, count: int, center: ArrayLike, radii: ArrayLike) -> Surface:
    """Returns points on an ellipsoid, uniform in direction."""
    center, radii = np.asarray(center, F), np.asarray(radii, F)
    directions = random_normals(rng, count)
    normals = directions / radii
    points = (center + directions * radii).astype(F, copy=False)
    return Surface(points, normals / np.linalg.norm(normals, axis=1, keepdims=True))


def cylindrical(radius: Float32, angle: Float32, z: Float32) -> Float32:
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), z], 1)


def constant_normals(count: int, normal: tuple[float, float, float]) -> Float32:
    return np.tile(np.array(normal, F), (count, 1))


def join(surfaces: list[Surface]) -> Surface:
    return Surface(np.concatenate([s.points for s in surfaces]), np.concatenate([s.normals for s in surfaces]))


def splats_on(rng: Generator, surface: Surface, law: SplatLaw, factor: Any, largest: Any) -> Splats:
    """Returns a splat at every point; its size is `factor` [N] times the law's median, capped."""
    points, normals = surface
    count = len(points)
    z = normal(rng, count, 3)
    first = np.asarray(law.median * factor, F) * np.exp(F(law.spread) * z[:, 0])
    first = np.minimum(first, np.asarray(largest, F))
    second = first * np.exp(-F(law.slender) * np.abs(z[:, 1]))
    third = first * np.exp(-F(law.flat) - F(0.8) * np.abs(z[:, 2]))
    log_scales = np.log(np.maximum(np.stack([first, second, third], 1), 1e-7)).astype(F)
    quats = quats_from_normals(normals, uniform(rng, count) * TURN)
    means = (points + normals * (normal(rng, count, 1) * F(law.jitter))).astype(F, copy=False)
    u = uniform(rng, count, 2)
    solid = 1 - (1 - law.solid) * u[:, 1]
    opacities = np.where(u[:, 0] < law.faint_share, log_uniform(u[:, 1], *law.faint), solid)
    return Splats(means, log_scales, quats, logit(np.clip(opacities, 0.0006, 0.9995)))


def log_uniform(u: Float32, low: float, high: float) -> NDArray[np.float64]:
    return np.exp(np.log(low) + u * np.log(high / low))


def logit(opacities: NDArray[np.float64]) -> Float32:
    return np.log(opacities / (1 - opacities)).astype(F)
