"""Defines the bodies of the still life, each a signed distance. World z is up; the table top is at z = 0.

A round inlaid table on a fluted column. On it a lantern, a trefoil knot, a die, a brass armillary sphere, a cactus,
three marbles and a wire ball. `materials.py` has the colours, `tracer.py` light and rays.
"""

from __future__ import annotations

import math

from splatscope.assets.demo.primitives import ball, blend, cube, device, disc, length, mirror, ring, rod, rounded, turn

TABLE, RIM, COLUMN, BASE = 0, 1, 2, 3
LANTERN_WIRES, LANTERN_ROOF, LANTERN_HANDLE, GLOW = 4, 5, 6, 7
KNOT, DIE, ARMILLARY_RINGS, ARMILLARY_STAND, PLANET = 8, 9, 10, 11, 12
POT, CACTUS, FLOWER, MARBLES, WIRE_BALL, WIRE_BALL_CORE = 13, 14, 15, 16, 17, 18
SHAPE_COUNT = 19

COS_30, SIN_45 = math.cos(math.pi / 6), math.sin(math.pi / 4)
COS_15, SIN_15 = math.cos(math.pi / 12), math.sin(math.pi / 12)

LOW = (-1.08, -1.08, -0.74)  # box around everything, world units
HIGH = (1.08, 1.08, 1.10)

GLOW_CENTER_Z, GLOW_RADIUS = 0.31, 0.115
KNOT_CENTER = (-0.50, 0.42, 0.275)
KNOT_RADIUS, KNOT_OFFSET, KNOT_TUBE = 0.16, 0.075, 0.042
DIE_CENTER = (0.55, 0.40, 0.151)
DIE_HALF, DIE_TURN = 0.15, 0.42  # world units, radians
ARMILLARY_CENTER = (0.52, -0.44, 0.41)
PLANET_RADIUS = 0.095
POT_CENTER = (-0.52, -0.44)
MARBLE_CENTERS = ((0.02, -0.76, 0.085), (0.185, -0.70, 0.058), (-0.10, -0.67, 0.046))
WIRE_BALL_CENTER = (0.03, 0.74, 0.165)
WIRE_BALL_RADIUS = 0.155


@device
def _column(x, y, z):
    """Defines twenty flutes and a slight waist; its slope is up to 1.25, hence the factor."""
    angle = math.atan2(y, x)
    waist = 0.33 + 0.45 * (z + 0.36) * (z + 0.36)
    across = length(x, y) - waist - 0.010 * math.cos(20.0 * angle)
    return 0.78 * rounded(across, abs(z + 0.36) - 0.26, 0.01)


@device
def _hexagon(x, y):
    """Folds a point into the third of a quadrant next to +x; a hexagon repeats there, mirrored."""
    u, v = mirror(abs(x), abs(y), 0.5, COS_30)
    return mirror(u, v, COS_30, 0.5)


@device
def _lantern_wires(x, y, z):
    """Defines six posts, three hexagons and a cross of thin wires on each face."""
    u, v = _hexagon(x, y)  # from a post at (0.25, 0) to the middle of the face
    post = rod(u, v, z, 0.25, 0.0, 0.03, 0.25, 0.0, 0.60, 0.013)
    level = min(abs(z - 0.045), abs(z - 0.325), abs(z - 0.595))
    edge = rod(u, v, level, 0.25, 0.0, 0.0, 0.1875, 0.10825, 0.0, 0.010)
    half = abs(z - 0.325)
    cross = rod(u, v, half, 0.25, 0.0, 0.28, 0.1875, 0.10825, 0.0, 0.0065)
    return min(post, edge, cross)


@device
def _lantern_roof(x, y, z):
    """Defines a hexagonal pyramid over an eave, and a base plate."""
    u, v = _hexagon(x, y)
    across = COS_30 * u + 0.5 * v  # distance from the axis to the face
    plate = rounded(across - 0.255, abs(z - 0.016) - 0.016, 0.008)
    eave = rounded(across - 0.275, abs(z - 0.615) - 0.012, 0.008)
    slope = max((across - 0.25) * 0.6690 + (z - 0.62) * 0.7433, 0.62 - z)  # 42 degrees
    return min(plate, eave, slope)


@device
def _lantern_handle(x, y, z):
    finial = ball(x, y, z - 0.855, 0.034)
    return min(finial, ring(x, z - 0.945, y, 0.072, 0.0115))


@device
def _knot(x, y, z):
    """Defines a trefoil standing upright: a strand that turns one and a half times around its circle, twice."""
    x, y = turn(x - KNOT_CENTER[0], y - KNOT_CENTER[1], 2.45)
    z -= KNOT_CENTER[2]
    x, y, z = y, z, x  # the circle lies in the plane of y and z
    outside = ring(x, y, z, KNOT_RADIUS, KNOT_OFFSET + KNOT_TUBE)
    if outside > 0.02:
        return outside
    radius = length(x, y)
    u, v = turn(radius - KNOT_RADIUS, z, 1.5 * math.atan2(y, x))
    steepness = 1.5 * length(radius - KNOT_RADIUS, z) / max(radius, 0.02)  # the axes turn faster further in
    return (length(abs(u) - KNOT_OFFSET, v) - KNOT_TUBE) / math.sqrt(1.0 + steepness * steepness)


@device
def die_axes(x, y, z):
    """Turns world axes into the die's own axes."""
    x, y = turn(x - DIE_CENTER[0], y - DIE_CENTER[1], DIE_TURN)
    return x, y, z - DIE_CENTER[2]


@device
def _armillary_rings(x, y, z):
    """Defines three rings, each in its own plane, and the planet's axis."""
    x, y, z = x - ARMILLARY_CENTER[0], y - ARMILLARY_CENTER[1], z - ARMILLARY_CENTER[2]
    horizon = ring(x, y, z, 0.235, 0.011)
    u, v = turn(x, y, 0.5)
    meridian = ring(u, z, v, 0.265, 0.011)
    a, b = turn(u, z, 0.41)
    ecliptic = ring(a, v, b, 0.205, 0.010)
    axis = rod(a, v, b, 0.0, 0.0, -0.2, 0.0, 0.0, 0.2, 0.007)
    return min(horizon, meridian, ecliptic, axis)


@device
def _armillary_stand(x, y, z):
    x, y = x - ARMILLARY_CENTER[0], y - ARMILLARY_CENTER[1]
    foot = disc(x, y, z, 0.12, 0.0, 0.03, 0.012)
    return min(foot, rod(x, y, z, 0.0, 0.0, 0.02, 0.0, 0.0, 0.145, 0.017), ball(x, y, z - 0.085, 0.03))


@device
def _pot(x, y, z):
    """Defines a cone with a lip; wider at the top by one in five."""
    radius = length(x - POT_CENTER[0], y - POT_CENTER[1])
    cone = 0.97 * rounded(radius - 0.115 - 0.2 * z, abs(z - 0.09) - 0.09, 0.01)
    lip = rounded(radius - 0.168, abs(z - 0.18) - 0.025, 0.01)
    return min(cone, lip)


@device
def _cactus(x, y, z):
    """Defines a ribbed stem with two arms."""
    x, y = turn(x - POT_CENTER[0], y - POT_CENTER[1], 0.7)
    ribs = 0.008 * math.cos(11.0 * math.atan2(y, x))
    stem = rod(x, y, z, 0.0, 0.0, 0.18, 0.0, 0.0, 0.47, 0.092 + ribs)
    right = min(
        rod(x, y, z, 0.0, 0.0, 0.34, 0.155, 0.0, 0.36, 0.036), rod(x, y, z, 0.155, 0.0, 0.36, 0.165, 0.0, 0.50, 0.042)
    )
    left = min(
        rod(x, y, z, 0.0, 0.0, 0.28, -0.14, 0.02, 0.30, 0.032),
        rod(x, y, z, -0.14, 0.02, 0.30, -0.15, 0.02, 0.39, 0.038),
    )
    return 0.7 * blend(stem, min(right, left), 0.05)


@device
def _flower(x, y, z):
    """Defines five petals around a dome."""
    x, y, z = x - POT_CENTER[0], y - POT_CENTER[1], z - 0.575
    outside = ball(x, y, z, 0.09)
    if outside > 0.02:
        return outside
    angle = math.atan2(y, x)
    radius = length(x, y)
    petal = 0.055 + 0.022 * math.cos(5.0 * angle)
    cup = abs(z - 2.2 * radius * radius) - 0.007
    petals = 0.5 * rounded(radius - petal, cup, 0.006)
    return min(petals, ball(x, y, z - 0.008, 0.02))


@device
def _marbles(x, y, z):
    distance = 10.0
    for mx, my, radius in MARBLE_CENTERS:
        distance = min(distance, ball(x - mx, y - my, z - radius, radius))
    return distance


@device
def _wire_ball(x, y, z):
    """Defines a cage of six hoops through the poles and three around."""
    x, y, z = x - WIRE_BALL_CENTER[0], y - WIRE_BALL_CENTER[1], z - WIRE_BALL_CENTER[2]
    y, z = turn(y, z, 0.5)
    u, v = mirror(abs(x), abs(y), SIN_45, SIN_45)  # into the sixth of 90 degrees next to +x
    u, v = mirror(u, v, COS_30, 0.5)
    u, v = mirror(u, v, COS_15, SIN_15)
    hoop = length(length(u, z) - WIRE_BALL_RADIUS, v) - 0.0065
    half = abs(z)
    equator = ring(x, y, half, WIRE_BALL_RADIUS, 0.0065)
    return min(hoop, equator, ring(x, y, half - 0.1, 0.1184, 0.0065))


@device
def distance_to(shape, x, y, z):
    """Returns the signed distance from a world point to one shape, at most its true distance."""
    if shape == TABLE:
        return disc(x, y, z, 1.0, -0.10, 0.0, 0.015)
    if shape == RIM:
        return ring(x, y, z + 0.05, 1.005, 0.022)
    if shape == COLUMN:
        return _column(x, y, z)
    if shape == BASE:
        return min(disc(x, y, z, 0.52, -0.66, -0.58, 0.02), disc(x, y, z, 0.62, -0.72, -0.64, 0.02))
    if shape == LANTERN_WIRES:
        return _lantern_wires(x, y, z)
    if shape == LANTERN_ROOF:
        return _lantern_roof(x, y, z)
    if shape == LANTERN_HANDLE:
        return _lantern_handle(x, y, z)
    if shape == GLOW:
        return ball(x, y, z - GLOW_CENTER_Z, GLOW_RADIUS)
    if shape == KNOT:
        return _knot(x, y, z)
    if shape == DIE:
        x, y, z = die_axes(x, y, z)
        return cube(x, y, z, DIE_HALF, 0.035)
    if shape == ARMILLARY_RINGS:
        return _armillary_rings(x, y, z)
    if shape == ARMILLARY_STAND:
        return _armillary_stand(x, y, z)
    if shape == PLANET:
        return ball(x - ARMILLARY_CENTER[0], y - ARMILLARY_CENTER[1], z - ARMILLARY_CENTER[2], PLANET_RADIUS)
    if shape == POT:
        return _pot(x, y, z)
    if shape == CACTUS:
        return _cactus(x, y, z)
    if shape == FLOWER:
        return _flower(x, y, z)
    if shape == MARBLES:
        return _marbles(x, y, z)
    if shape == WIRE_BALL:
        return _wire_ball(x, y, z)
    return ball(x - WIRE_BALL_CENTER[0], y - WIRE_BALL_CENTER[1], z - WIRE_BALL_CENTER[2], 0.07)
