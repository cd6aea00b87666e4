"""Marches rays through the still life and shades their hits; returns pixels and depths, writes nothing.

A coarse grid makes it fast. Every cell knows how far a ray may safely jump from it, and which few shapes can be nearest
inside it. A distance then costs one to three shapes, not nineteen. Read `generate.py` next.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.demo import materials, shapes
from splatscope.assets.demo.primitives import clamp, device, entry, mix
from splatscope.assets.demo.shapes import HIGH, LOW, SHAPE_COUNT, distance_to

CELL = 0.03  # world units
HALF_DIAGONAL = CELL * math.sqrt(3.0) / 2.0
NX, NY, NZ = (math.ceil((high - low) / CELL) for low, high in zip(LOW, HIGH, strict=True))

HIT = 5e-4  # world units: about a fourteenth of a pixel
MAX_STEPS = 400
LIFT = 0.002  # world units above the surface, where rays to the light begin
SUN = (0.480, -0.446, 0.755)  # unit vector towards it
SUN_COLOR = (1.75, 1.60, 1.38)
SUN_SHARPNESS = 14.0  # one over the sun's apparent radius
SKY_COLOR = (0.40, 0.48, 0.60)
GROUND_COLOR = (0.27, 0.23, 0.20)
GLOW_COLOR = (0.42, 0.20, 0.055)
GLOW_SHARPNESS, GLOW_REACH = 9.0, 1.4  # lantern: one over its apparent radius; reach in world units
EXPOSURE = 0.62
EDGE = 0.08  # a pixel this different from a neighbour (in display values) is sampled again
# Offsets of a pixel's other samples, in px: a square turned so that no two share a row or column.
SAMPLES = ((0.125, -0.375), (0.375, 0.125), (-0.125, 0.375), (-0.375, -0.125))


class Grid(NamedTuple):
    """Holds the data of the cells, x fastest last: arrays [NX, NY, NZ]."""

    free: NDArray[np.float32]  # a ray anywhere in the cell may advance by this
    near: NDArray[np.int32]  # bit k set: shape k can be the nearest somewhere in the cell


@entry
def build_grid():
    """Builds the grid. Distances at a cell's centre bound those in its rest by half its diagonal."""
    free = np.empty((NX, NY, NZ), np.float32)
    near = np.zeros((NX, NY, NZ), np.int32)
    distances = np.empty(SHAPE_COUNT)
    for i in range(NX):
        for j in range(NY):
            for k in range(NZ):
                x, y, z = LOW[0] + (i + 0.5) * CELL, LOW[1] + (j + 0.5) * CELL, LOW[2] + (k + 0.5) * CELL
                least = 10.0
                for shape in range(SHAPE_COUNT):
                    distances[shape] = distance_to(shape, x, y, z)
                    least = min(least, distances[shape])
                free[i, j, k] = least - HALF_DIAGONAL
                for shape in range(SHAPE_COUNT):
                    if distances[shape] <= least + 2.0 * HALF_DIAGONAL:
                        near[i, j, k] |= 1 << shape
    return free, near


@device
def _cell(x, y, z):
    i, j, k = int((x - LOW[0]) / CELL), int((y - LOW[1]) / CELL), int((z - LOW[2]) / CELL)
    return min(max(i, 0), NX - 1), min(max(j, 0), NY - 1), min(max(k, 0), NZ - 1)


@device
def _nearest(near, x, y, z):
    """Returns (distance, shape) among the shapes that the cell lists, at a point inside the box."""
    mask = near[_cell(x, y, z)]
    least, found, shape = 10.0, 0, 0
    while mask:
        if mask & 1:
            distance = distance_to(shape, x, y, z)
            if distance < least:
                least, found = distance, shape
        mask >>= 1
        shape += 1
    return least, found


@device
def _box_span(ox, oy, oz, dx, dy, dz):
    """Returns where a ray enters and leaves the box; it misses the box if the first is larger."""
    enter, leave = 0.0, 1e9
    for o, d, low, high in ((ox, dx, LOW[0], HIGH[0]), (oy, dy, LOW[1], HIGH[1]), (oz, dz, LOW[2], HIGH[2])):
        if abs(d) < 1e-12:
            if o < low or o > high:
                return 1.0, 0.0
        else:
            a, b = (low - o) / d, (high - o) / d
            enter, leave = max(enter, min(a, b)), min(leave, max(a, b))
    return enter, leave


@device
def _march(free, near, ox, oy, oz, dx, dy, dz):
    """Returns (t, shape) of the first hit along a unit ray, or (-1, 0)."""
    t, leave = _box_span(ox, oy, oz, dx, dy, dz)
    for _ in range(MAX_STEPS):
        if t > leave:
            break
        x, y, z = ox + t * dx, oy + t * dy, oz + t * dz
        jump = free[_cell(x, y, z)]
        if jump < HALF_DIAGONAL:
            jump, shape = _nearest(near, x, y, z)
            if jump < HIT:
                return t, shape
        t += jump
    return -1.0, 0


@device
def _light_reaching(free, near, x, y, z, dx, dy, dz, reach, sharpness):
    """Returns the share of a light visible from a point, by the narrowest pass over its distance (soft edges)."""
    share, t = 1.0, 0.006
    _, leave = _box_span(x, y, z, dx, dy, dz)
    for _ in range(MAX_STEPS):
        if t > min(reach, leave):
            break
        px, py, pz = x + t * dx, y + t * dy, z + t * dz
        jump = free[_cell(px, py, pz)]
        if jump < HALF_DIAGONAL or sharpness * jump < t:
            jump, _ = _nearest(near, px, py, pz)
            share = min(share, 0.5 + 0.5 * sharpness * jump / t)
            if share < 0.01:
                return 0.0
            jump = max(jump, 0.004)
        t += jump
    return share * share * (3.0 - 2.0 * share)


@device
def _normal(shape, x, y, z):
    """Returns the unit gradient of a shape's distance, from the corners of a tetrahedron."""
    e = 4e-4
    a = distance_to(shape, x + e, y - e, z - e)
    b = distance_to(shape, x - e, y - e, z + e)
    c = distance_to(shape, x - e, y + e, z - e)
    d = distance_to(shape, x + e, y + e, z + e)
    nx, ny, nz = a - b - c + d, -a - b + c + d, -a + b - c + d
    length = math.sqrt(nx * nx + ny * ny + nz * nz) + 1e-20
    return nx / length, ny / length, nz / length


@device
def _openness(near, x, y, z, nx, ny, nz):
    """Returns 1 in the open, towards 0 in corners: how fast distance grows along the normal."""
    closed, weight = 0.0, 1.0
    for step in range(5):
        height = 0.012 + 0.055 * step
        px, py, pz = x + height * nx, y + height * ny, z + height * nz
        if px < LOW[0] or px > HIGH[0] or py < LOW[1] or py > HIGH[1] or pz < LOW[2] or pz > HIGH[2]:
            break
        distance, _ = _nearest(near, px, py, pz)
        closed += max(height - distance, 0.0) * weight
        weight *= 0.72
    return clamp(1.0 - 2.6 * closed, 0.0, 1.0)


@device
def _display(value):
    """Converts linear light to an sRGB value in [0, 1], through a filmic curve."""
    value *= EXPOSURE
    value = min(value * (2.51 * value + 0.03) / (value * (2.43 * value + 0.59) + 0.14), 1.0)  # Narkowicz 2015
    return 12.92 * value if value < 0.0031308 else 1.055 * value ** (1.0 / 2.4) - 0.055


@device
def _shade(free, near, shape, x, y, z, dx, dy, dz):
    """Returns the display colour of a point seen along (dx, dy, dz)."""
    nx, ny, nz = _normal(shape, x, y, z)
    albedo = materials.color_of(shape, x, y, z)
    if shape == shapes.GLOW:
        facing = -(nx * dx + ny * dy + nz * dz)
        bright = 0.8 + 1.6 * facing + 0.2 * math.cos(90.0 * z)
        return _display(albedo[0] * bright), _display(albedo[1] * bright), _display(albedo[2] * bright)
    openness = _openness(near, x, y, z, nx, ny, nz)
    sx, sy, sz = x + LIFT * nx, y + LIFT * ny, z + LIFT * nz
    sun = max(nx * SUN[0] + ny * SUN[1] + nz * SUN[2], 0.0)
    if sun > 0.0:
        sun *= _light_reaching(free, near, sx, sy, sz, SUN[0], SUN[1], SUN[2], 9.0, SUN_SHARPNESS)
    glow = _glow(free, near, sx, sy, sz, nx, ny, nz)
    along = dx * nx + dy * ny + dz * nz
    rx, ry, rz = dx - 2.0 * along * nx, dy - 2.0 * along * ny, dz - 2.0 * along * nz  # mirrored ray
    mirror, highlight = materials.shine_of(shape)
    spark = highlight * sun * max(rx * SUN[0] + ry * SUN[1] + rz * SUN[2], 0.0) ** 24
    light = (sun, glow, openness, 0.5 + 0.5 * nz, clamp(0.5 + 0.8 * rz, 0.0, 1.0), mirror, spark)
    return _reflected(0, albedo[0], light), _reflected(1, albedo[1], light), _reflected(2, albedo[2], light)


@device
def _reflected(channel, albedo, light):
    """Returns the display value of one channel under sun, lantern and sky; a share `mirror` reflects the sky as metal
    does.
    """
    sun, glow, openness, sky, sky_mirrored, mirror, spark = light
    around = mix(GROUND_COLOR[channel], SKY_COLOR[channel], sky) * openness
    diffuse = SUN_COLOR[channel] * sun + GLOW_COLOR[channel] * glow + around
    metal = mix(0.56 * GROUND_COLOR[channel], 2.08 * SKY_COLOR[channel], sky_mirrored) * openness + 0.5 * diffuse
    return _display(albedo * mix(diffuse, metal, mirror) + spark * SUN_COLOR[channel] * mix(1.0, albedo, mirror))


@device
def _glow(free, near, x, y, z, nx, ny, nz):
    """Returns the irradiance from the lantern, as from a small ball of light behind its wires."""
    lx, ly, lz = -x, -y, shapes.GLOW_CENTER_Z - z
    distance = math.sqrt(lx * lx + ly * ly + lz * lz)
    lx, ly, lz = lx / distance, ly / distance, lz / distance
    facing = nx * lx + ny * ly + nz * lz
    if facing <= 0.0 or distance > GLOW_REACH:
        return 0.0
    reach = distance - shapes.GLOW_RADIUS - 0.02
    seen = _light_reaching(free, near, x, y, z, lx, ly, lz, reach, GLOW_SHARPNESS)
    return seen * facing / (distance * distance + 0.02)


@device
def _sample(free, near, pose, x, y, focal):
    """Returns (r, g, b, t) along the ray through (x, y) px right and below the image centre; t is -1 if it hits
    nothing.
    """
    u, v = x / focal, y / focal
    dx = pose[0, 0] * u - pose[0, 1] * v - pose[0, 2]
    dy = pose[1, 0] * u - pose[1, 1] * v - pose[1, 2]
    dz = pose[2, 0] * u - pose[2, 1] * v - pose[2, 2]
    length = math.sqrt(dx * dx + dy * dy + dz * dz)
    dx, dy, dz = dx / length, dy / length, dz / length
    ox, oy, oz = pose[0, 3], pose[1, 3], pose[2, 3]
    t, shape = _march(free, near, ox, oy, oz, dx, dy, dz)
    if t < 0.0:
        return 0.0, 0.0, 0.0, -1.0
    r, g, b = _shade(free, near, shape, ox + t * dx, oy + t * dy, oz + t * dz, dx, dy, dz)
    return r, g, b, t


@device
def _is_edge(center, i, j):
    """Returns True if a pixel differs from one of its four neighbours in cover or colour."""
    height, width, _ = center.shape
    for ni, nj in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)):
        if ni < 0 or nj < 0 or ni >= height or nj >= width:
            continue
        if (center[i, j, 3] < 0.0) != (center[ni, nj, 3] < 0.0):
            return True
        for c in range(3):
            if abs(center[i, j, c] - center[ni, nj, c]) > EDGE:
                return True
    return False


@entry
def render(free, near, pose, width, height, focal):
    """Renders one view: (rgba [H, W, 4] in [0, 1], straight alpha; t [H, W] along the ray through each pixel centre).

    `pose` is world_from_camera [4, 4] with OpenGL axes (x right, y up, looking along -z). `focal` is in px, with the
    centre of projection in the middle of the image. t is in world units, -1 where nothing is hit.
    """
    center = np.empty((height, width, 4))
    left, top = 0.5 - 0.5 * width, 0.5 - 0.5 * height  # of the first pixel's centre
    for i in range(height):
        for j in range(width):
            r, g, b, t = _sample(free, near, pose, left + j, top + i, focal)
            center[i, j, 0], center[i, j, 1], center[i, j, 2], center[i, j, 3] = r, g, b, t
    rgba = np.zeros((height, width, 4))
    for i in range(height):
        for j in range(width):
            covered = 0.0
            if center[i, j, 3] >= 0.0:
                covered = 1.0
                rgba[i, j, :3] = center[i, j, :3]
            rgba[i, j, 3] = covered
            if not _is_edge(center, i, j):
                continue
            for du, dv in SAMPLES:
                r, g, b, t = _sample(free, near, pose, left + j + du, top + i + dv, focal)
                if t >= 0.0:
                    covered += 1.0
                    rgba[i, j, 0] += r
                    rgba[i, j, 1] += g
                    rgba[i, j, 2] += b
            if covered > 0.0:
                rgba[i, j, :3] /= covered
            rgba[i, j, 3] = covered / (len(SAMPLES) + 1)
    return rgba, center[:, :, 3].copy()
