"""Defines signed distances of simple bodies, and noise, with which `shapes.py` is written.

A signed distance is negative inside. Every function here grows by at most one per unit of distance (it is 1-Lipschitz),
so a ray may always advance by its value. Compiled by numba, double precision.
"""

from __future__ import annotations

import math
from typing import Any

import numba

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}  # no interpreter lock: threads run in parallel


def entry(function: Any) -> Any:
    """Compiles a function to be called from Python."""
    return numba.njit(**_OPTIONS)(function)


def device(function: Any) -> Any:
    """Compiles a function to be called from compiled code only, which saves a tenth of the compile time."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **_OPTIONS}
    return numba.njit(**options)(function)


@device
def clamp(value, low, high):
    return min(max(value, low), high)


@device
def mix(a, b, share):
    return a + (b - a) * share


@device
def smoothstep(low, high, value):
    """Returns 0 below `low`, 1 above `high`, a smooth cubic between."""
    t = clamp((value - low) / (high - low), 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


@device
def turn(a, b, angle):
    """Returns (a, b) in axes turned by `angle`."""
    c, s = math.cos(angle), math.sin(angle)
    return a * c + b * s, b * c - a * s


@device
def length(x, y):
    return math.sqrt(x * x + y * y)


@device
def mirror(x, y, cosine, sine):
    """Moves points left of the line through the origin along (cosine, sine) to its right."""
    beyond = max(cosine * y - sine * x, 0.0)
    return x + 2.0 * sine * beyond, y - 2.0 * cosine * beyond


@device
def ball(x, y, z, radius):
    return math.sqrt(x * x + y * y + z * z) - radius


@device
def ring(x, y, z, radius, thickness):
    """Defines a torus around z; `thickness` is the radius of its tube."""
    return length(length(x, y) - radius, z) - thickness


@device
def rounded(across, along, rounding):
    """Returns the distance to a rounded corner, from the distances to two faces at a right angle."""
    u, v = across + rounding, along + rounding
    return min(max(u, v), 0.0) + length(max(u, 0.0), max(v, 0.0)) - rounding


@device
def disc(x, y, z, radius, low, high, rounding):
    """Defines an upright cylinder from z = low to high with rounded edges."""
    return rounded(length(x, y) - radius, abs(z - 0.5 * (low + high)) - 0.5 * (high - low), rounding)


@device
def cube(x, y, z, half, rounding):
    """Defines a cube of half side `half`, rounding included."""
    u, v, w = abs(x) - half + rounding, abs(y) - half + rounding, abs(z) - half + rounding
    outside = math.sqrt(max(u, 0.0) ** 2 + max(v, 0.0) ** 2 + max(w, 0.0) ** 2)
    return min(max(u, v, w), 0.0) + outside - rounding


@device
def rod(x, y, z, ax, ay, az, bx, by, bz, radius):
    """Defines a capsule from a to b."""
    px, py, pz = x - ax, y - ay, z - az
    dx, dy, dz = bx - ax, by - ay, bz - az
    t = clamp((px * dx + py * dy + pz * dz) / (dx * dx + dy * dy + dz * dz), 0.0, 1.0)
    return ball(px - t * dx, py - t * dy, pz - t * dz, radius)


@device
def blend(a, b, width):
    """Returns the union of two bodies with a fillet of about `width`."""
    h = max(width - abs(a - b), 0.0) / width
    return min(a, b) - 0.25 * h * h * width


@device
def _hash(i, j, k):
    """Returns a repeatable number in [0, 1) for a lattice point, by three rounds of integer mixing."""
    h = (i * 374761393 + j * 668265263 + k * 2147483647) & 0xFFFFFFFF
    h = ((h ^ (h >> 13)) * 1274126177) & 0xFFFFFFFF
    h = ((h ^ (h >> 16)) * 2246822519) & 0xFFFFFFFF
    return (h ^ (h >> 15)) / 4294967296.0


@device
def noise(x, y, z):
    """Returns value noise in [0, 1): smooth, one feature a unit."""
    i, j, k = math.floor(x), math.floor(y), math.floor(z)
    u, v, w = x - i, y - j, z - k
    u, v, w = u * u * (3 - 2 * u), v * v * (3 - 2 * v), w * w * (3 - 2 * w)
    i, j, k = int(i), int(j), int(k)
    near = mix(mix(_hash(i, j, k), _hash(i + 1, j, k), u), mix(_hash(i, j + 1, k), _hash(i + 1, j + 1, k), u), v)
    k += 1
    far = mix(mix(_hash(i, j, k), _hash(i + 1, j, k), u), mix(_hash(i, j + 1, k), _hash(i + 1, j + 1, k), u), v)
    return mix(near, far, w)


@device
def clouds(x, y, z):
    """Returns three octaves of noise, about [0, 1)."""
    return 0.57 * noise(x, y, z) + 0.29 * noise(2.03 * x, 2.03 * y, 2.03 * z) + 0.14 * noise(4.1 * x, 4.1 * y, 4.1 * z)
