"""Colours the still life: colour, shine and texture at a point of a shape. Linear light, not sRGB.

`tracer.py` computes light and asks for a material where a ray meets a shape.
"""

from __future__ import annotations

import math

from splatscope.assets.demo import shapes as s
from splatscope.assets.demo.primitives import clouds, device, length, mix, noise, smoothstep, turn

CREAM = (0.83, 0.74, 0.58)
NAVY = (0.020, 0.045, 0.13)
BRASS = (0.76, 0.43, 0.11)
VERDIGRIS = (0.035, 0.20, 0.19)
CORAL = (0.78, 0.13, 0.08)
TEAL = (0.02, 0.28, 0.30)
PIPS = (0b000010000, 0b100000001, 0b100010001, 0b101000101, 0b101010101, 0b101101101)  # 3x3 places, faces 1-6


@device
def _blended(a, b, share):
    return mix(a[0], b[0], share), mix(a[1], b[1], share), mix(a[2], b[2], share)


@device
def _scaled(color, factor):
    return color[0] * factor, color[1] * factor, color[2] * factor


@device
def _wood(along, across, height):
    """Returns grain: noise drawn out along one direction, with fine dark lines."""
    grain = clouds(2.5 * along, 26.0 * across, 9.0 * height)
    line = 0.5 + 0.5 * math.sin(60.0 * across + 9.0 * grain)
    return _scaled(_blended((0.21, 0.085, 0.032), (0.42, 0.20, 0.075), grain), 0.82 + 0.18 * line)


@device
def _checker(i, j):
    return CREAM if (math.floor(i) + math.floor(j)) % 2 == 0 else NAVY


@device
def _table(x, y, z):
    """Returns inlay in rings: a star, brass lines, planks like slices of a cake, a checkered border."""
    radius, angle = length(x, y), math.atan2(y, x)
    slices = 12.0 * angle / (2.0 * math.pi)
    if radius > 0.94 or z < -0.02:
        return _wood(angle, 0.4 * z + 0.2 * radius, radius)
    if abs(radius - 0.36) < 0.012 or abs(radius - 0.745) < 0.010 or abs(radius - 0.935) < 0.006:
        return BRASS
    if radius > 0.745:
        return _checker(48.0 * angle / (2.0 * math.pi), (radius - 0.75) / 0.0925)
    if radius > 0.36:
        number = math.floor(slices)
        u, v = turn(x, y, (number + 0.5) * math.pi / 6.0)
        shade = 0.75 + 0.5 * noise(7.3 * number, 0.5, 0.5)
        return _scaled(_wood(u, v + 3.1 * number, 0.0), shade)
    reach = abs(slices - math.floor(slices) - 0.5) * 2.0  # 0 in the middle of a ray of the star, 1 between two
    return CREAM if radius < 0.34 - 0.2 * reach else (0.30, 0.025, 0.022)


@device
def _marble_stone(x, y, z):
    """Returns dark green stone with pale veins."""
    vein = abs(math.sin(5.0 * z + 3.0 * x + 7.0 * clouds(3.0 * x, 3.0 * y, 3.0 * z)))
    return _blended((0.42, 0.50, 0.38), (0.012, 0.055, 0.045), smoothstep(0.0, 0.18, vein))


@device
def _die(x, y, z):
    """Returns cream pips on teal; opposite faces add up to seven."""
    x, y, z = s.die_axes(x, y, z)
    ax, ay, az = abs(x), abs(y), abs(z)
    if az >= ax and az >= ay:
        u, v, face = x, y, 5 if z > 0 else 0
    elif ax >= ay:
        u, v, face = y, z, 3 if x > 0 else 2
    else:
        u, v, face = x, z, 1 if y > 0 else 4
    pitch = 0.075
    i, j = math.floor(u / pitch + 0.5), math.floor(v / pitch + 0.5)
    if abs(i) > 1 or abs(j) > 1 or not (PIPS[face] >> int(3 * (i + 1) + j + 1)) & 1:
        return TEAL
    return CREAM if length(u - i * pitch, v - j * pitch) < 0.024 else TEAL


@device
def _knot(x, y, z):
    """Returns cream bands around a coral strand."""
    x, y = turn(x - s.KNOT_CENTER[0], y - s.KNOT_CENTER[1], 2.45)
    angle = math.atan2(z - s.KNOT_CENTER[2], y)
    band = math.sin(18.0 * angle)
    return _blended(CORAL, CREAM, smoothstep(0.35, 0.5, band))


@device
def _planet(x, y, z):
    x, y, z = x - s.ARMILLARY_CENTER[0], y - s.ARMILLARY_CENTER[1], z - s.ARMILLARY_CENTER[2]
    height = clouds(16.0 * x + 5.0, 16.0 * y, 16.0 * z)
    if abs(z) > 0.078 + 0.02 * height:
        return (0.85, 0.88, 0.90)
    land = _blended((0.10, 0.32, 0.07), (0.50, 0.36, 0.14), smoothstep(0.54, 0.70, height))
    return _blended((0.015, 0.09, 0.36), land, smoothstep(0.50, 0.52, height))


@device
def _pot(x, y, z):
    """Returns terracotta with a painted zigzag."""
    angle = math.atan2(y - s.POT_CENTER[1], x - s.POT_CENTER[0]) / (2.0 * math.pi)
    if length(x - s.POT_CENTER[0], y - s.POT_CENTER[1]) < 0.15 and z > 0.18:
        return (0.06, 0.035, 0.02)  # soil
    tooth = abs(14.0 * angle - math.floor(14.0 * angle) - 0.5)
    if abs(z - 0.085 - 0.06 * (tooth - 0.25)) < 0.011:
        return CREAM
    return _scaled((0.50, 0.16, 0.065), 0.8 + 0.4 * clouds(20.0 * x, 20.0 * y, 6.0 * z))


@device
def _cactus(x, y, z):
    """Returns light ribs with pale thorn dots."""
    x, y = turn(x - s.POT_CENTER[0], y - s.POT_CENTER[1], 0.7)
    turns = 11.0 * math.atan2(y, x) / (2.0 * math.pi)
    off_rib = abs(turns - math.floor(turns + 0.5))
    green = _blended((0.16, 0.36, 0.06), (0.025, 0.13, 0.035), smoothstep(0.05, 0.5, off_rib))
    level = z / 0.045
    thorn = off_rib < 0.11 and abs(level - math.floor(level + 0.5)) < 0.16 and length(x, y) < 0.12
    return (0.80, 0.76, 0.55) if thorn else green


@device
def _marbles(x, y, z):
    """Returns three glass marbles: blue, amber and green swirls in milk."""
    swirl = math.sin(20.0 * z + 9.0 * clouds(9.0 * x, 9.0 * y, 9.0 * z) + 30.0 * x)
    milk = smoothstep(-0.2, 0.7, swirl)
    if x > 0.115:
        return _blended((0.85, 0.30, 0.02), (0.85, 0.75, 0.55), milk)
    if x < -0.06:
        return _blended((0.03, 0.35, 0.10), (0.75, 0.82, 0.65), milk)
    return _blended((0.02, 0.08, 0.50), (0.72, 0.80, 0.88), milk)


@device
def color_of(shape, x, y, z):
    """Returns the albedo (r, g, b) at a point of the surface of `shape`."""
    if shape == s.TABLE:
        return _table(x, y, z)
    if shape == s.COLUMN or shape == s.BASE:
        return _marble_stone(x, y, z)
    if shape == s.LANTERN_ROOF:
        return _scaled(VERDIGRIS, 0.6 + 0.9 * clouds(14.0 * x, 14.0 * y, 14.0 * z))
    if shape == s.GLOW:
        return (1.0, 0.40, 0.07)
    if shape == s.KNOT:
        return _knot(x, y, z)
    if shape == s.DIE:
        return _die(x, y, z)
    if shape == s.PLANET:
        return _planet(x, y, z)
    if shape == s.POT:
        return _pot(x, y, z)
    if shape == s.CACTUS:
        return _cactus(x, y, z)
    if shape == s.FLOWER:
        core = length(x - s.POT_CENTER[0], y - s.POT_CENTER[1]) < 0.021
        return (0.85, 0.60, 0.08) if core else (0.80, 0.10, 0.30)
    if shape == s.MARBLES:
        return _marbles(x, y, z)
    if shape == s.WIRE_BALL:
        return (0.72, 0.24, 0.13)  # copper
    if shape == s.WIRE_BALL_CORE:
        return _blended(
            (0.80, 0.34, 0.02), (0.90, 0.62, 0.10), smoothstep(0.4, 0.6, noise(30.0 * x, 30.0 * y, 30.0 * z))
        )
    return BRASS


@device
def shine_of(shape):
    """Returns (mirror share, highlight strength). Metals mirror the sky in their own colour."""
    if shape in (s.RIM, s.LANTERN_WIRES, s.LANTERN_HANDLE, s.ARMILLARY_RINGS, s.ARMILLARY_STAND, s.WIRE_BALL):
        return 0.55, 0.9
    if shape == s.MARBLES or shape == s.DIE:
        return 0.0, 0.55
    if shape in (s.LANTERN_ROOF, s.PLANET, s.KNOT):
        return 0.0, 0.25
    return 0.0, 0.10
