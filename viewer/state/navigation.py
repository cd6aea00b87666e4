"""Computes the camera of the viewport: orbit, pan, dolly, fly, look, frame, up axis. Pure: no GUI, no state.

A `Navigator` is a value; every movement returns a new one. The orientation is three angles in a base frame
(x right, y down, z forward, as OpenCV has them), so that it cannot drift, and turning the base turns the
scene as it is seen while the file keeps its coordinates. `camera_view.py` holds the value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.constants import NEAR
from splatscope.kernels.types import Camera

Vector = tuple[float, float, float]
Matrix3 = tuple[Vector, Vector, Vector]
Float64 = NDArray[np.float64]

PITCH_LIMIT = math.radians(89.0)  # short of the pole, where yaw would lose its meaning
ROLL_FADE = 3.0  # a roll taken from a photograph falls to 1/e over 1/3 rad of orbit
NEAREST = 1e-3  # closest approach to the pivot, in scene extents; beyond it the pivot is pushed ahead
DEFAULT_UP: Vector = (0.0, -1.0, 0.0)  # up axis of the first camera of structure from motion
DEFAULT_FOV_Y = 60.0  # degrees
FILL = 0.95  # share of the viewport's sides that a framed box takes
HOME_PITCH = math.radians(-15.0)  # the home view looks slightly down


@dataclass(frozen=True)
class Lens:
    """Holds intrinsics that do not depend on a number of pixels."""

    fov_y: float = math.radians(DEFAULT_FOV_Y)  # angle of the whole image height
    pixel_aspect: float = 1.0  # fx / fy
    shift_x: float = 0.0  # (cx - W/2) / fx
    shift_y: float = 0.0  # (cy - H/2) / fy
    aspect: float | None = None  # W / H of a photograph that must stay whole; None: fov_y spans the viewport

    @staticmethod
    def of(camera: Camera) -> Lens:
        """Returns the lens of a camera, with its image's aspect."""
        return Lens(
            fov_y=2.0 * math.atan(0.5 * camera.height / camera.fy),
            pixel_aspect=camera.fx / camera.fy,
            shift_x=(camera.cx - 0.5 * camera.width) / camera.fx,
            shift_y=(camera.cy - 0.5 * camera.height) / camera.fy,
            aspect=camera.width / camera.height,
        )

    def inner_size(self, width: float, height: float) -> tuple[float, float]:
        """Returns (width, height) px of the part of a viewport that fov_y spans: all, or the photograph's frame."""
        if self.aspect is None:
            return width, height
        inner = min(width, height * self.aspect)
        return inner, inner / self.aspect

    def focal(self, width: float, height: float) -> tuple[float, float]:
        """Returns (fx, fy) in pixels of a viewport."""
        fy = 0.5 * self.inner_size(width, height)[1] / math.tan(0.5 * self.fov_y)
        return fy * self.pixel_aspect, fy


@dataclass(frozen=True)
class Navigator:
    """Holds the eye and its direction; angles in radians, lengths in world units.

    The eye lies `distance` behind `pivot` along the viewing direction. At yaw = pitch = roll = 0 the view's
    axes are the base's. Positive yaw turns right, positive pitch up, positive roll tips the head to the right.
    """

    pivot: Vector
    distance: float
    yaw: float = 0.0
    pitch: float = 0.0
    roll: float = 0.0
    base: Matrix3 = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))  # rows right, down, forward in world
    lens: Lens = Lens()
    extent: float = 1.0  # scene size that speeds and limits scale with

    # What the value describes ------------------------------------------------------------------------

    @property
    def rotation(self) -> Float64:
        """Returns world_from_view [3, 3]: columns are the view's right, down and forward in world coordinates."""
        return np.array(self.base).T @ rotation_from_angles(self.yaw, self.pitch, self.roll)

    @property
    def eye(self) -> Float64:
        """Returns the camera centre in world units, [3]."""
        return np.array(self.pivot) - self.distance * self.rotation[:, 2]

    @property
    def up(self) -> Vector:
        """Returns the axis that is up on the screen, in world coordinates."""
        down = self.base[1]
        return (0.0 - down[0], 0.0 - down[1], 0.0 - down[2])

    def camera(self, width: int, height: int) -> Camera:
        """Returns the camera of an image of that size; at a photograph's camera, it shows the whole photograph."""
        rotation = self.rotation
        matrix = np.eye(4)
        matrix[:3, :3] = rotation.T
        matrix[:3, 3] = -rotation.T @ self.eye
        fx, fy = self.lens.focal(width, height)
        cx, cy = 0.5 * width + self.lens.shift_x * fx, 0.5 * height + self.lens.shift_y * fy
        near = min(NEAR, NEAR * self.extent)  # a scene smaller than a unit is viewed from closer
        return Camera.from_matrix(matrix, width, height, fx, fy, cx, cy, near)

    # Moving elsewhere --------------------------------------------------------------------------------

    def at_camera(self, camera: Camera, center: Sequence[float] | None = None) -> Navigator:
        """Moves to `camera` and takes its lens; the pivot lies as deep as `center` if that is in front."""
        rotation, eye = camera.matrix[:3, :3].T, camera.position
        depth = self.distance if center is None else float((np.array(center) - eye) @ rotation[:, 2])
        if depth < 0.05 * self.extent:
            depth = 0.5 * self.extent
        yaw, pitch, roll = angles_from_rotation(np.array(self.base) @ rotation)
        pivot = _vector(eye + depth * rotation[:, 2])
        return replace(self, pivot=pivot, distance=depth, yaw=yaw, pitch=pitch, roll=roll, lens=Lens.of(camera))

    def unframe(self, width: int, height: int) -> Navigator:
        """Leaves a photograph's frame: fov_y spans the viewport, and nothing moves on the screen."""
        if self.lens.aspect is None:
            return self
        _, inner = self.lens.inner_size(width, height)
        fov_y = 2.0 * math.atan(math.tan(0.5 * self.lens.fov_y) * height / inner)
        return replace(self, lens=replace(self.lens, fov_y=fov_y, aspect=None))

    def frame(self, low: Sequence[float], high: Sequence[float], width: int, height: int) -> Navigator:
        """Moves the eye, in the same direction, to where the box low..high just fits into the viewport. Centres the
        lens."""
        nav = self.unframe(width, height)
        nav = replace(nav, lens=replace(nav.lens, shift_x=0.0, shift_y=0.0))
        center, radius = _ball(low, high)
        signs = np.array(list(product((-0.5, 0.5), repeat=3)))
        right, down, forward = (signs * np.subtract(high, low) @ nav.rotation).T  # corners relative to the centre
        half_y = math.tan(0.5 * nav.lens.fov_y)
        half_x = half_y * width / (height * nav.lens.pixel_aspect)
        distance = 1.1 * radius  # outside the box, also if the box is a line along the direction
        for across, half in ((right, half_x), (down, half_y)):
            distance = max(distance, float((np.abs(across) / (FILL * half) - forward).max()))
        return replace(nav, pivot=_vector(center), distance=distance)

    def with_fov(self, fov_y: float) -> Navigator:
        """Sets the vertical field of view (radians); pixels become square and the lens centred."""
        return replace(self, lens=Lens(fov_y=min(max(fov_y, math.radians(1.0)), math.radians(170.0))))

    def look_at(self, point: Sequence[float]) -> Navigator:
        """Turns the eye on the spot until `point` is the pivot."""
        offset = np.array(point, dtype=np.float64) - self.eye
        distance = float(np.linalg.norm(offset))
        if distance < NEAREST * self.extent:
            return self
        x, y, z = np.array(self.base) @ (offset / distance)
        pitch = min(max(math.asin(-y), -PITCH_LIMIT), PITCH_LIMIT)
        nav = replace(self, yaw=math.atan2(x, z), pitch=pitch, roll=0.0, distance=distance)
        return replace(nav, pivot=_vector(self.eye + distance * nav.rotation[:, 2]))

    # Moving ------------------------------------------------------------------------------------------

    def orbit(self, yaw: float, pitch: float) -> Navigator:
        """Circles the pivot. A roll taken from a photograph fades; nothing else tips the horizon."""
        fade = math.exp(-ROLL_FADE * math.hypot(yaw, pitch))
        return replace(
            self,
            yaw=math.remainder(self.yaw + yaw, 2.0 * math.pi),
            pitch=_toward_limit(self.pitch, pitch),
            roll=0.0 if abs(self.roll * fade) < 1e-4 else self.roll * fade,
        )

    def look(self, yaw: float, pitch: float) -> Navigator:
        """Turns the eye on the spot; the pivot moves along."""
        turned = self.orbit(yaw, pitch)
        return replace(turned, pivot=_vector(self.eye + self.distance * turned.rotation[:, 2]))

    def pan(self, dx: float, dy: float, width: float, height: float) -> Navigator:
        """Moves sideways for a drag of (dx, dy) px in a viewport: points at the pivot's depth follow the cursor."""
        fx, fy = self.lens.focal(width, height)
        shift = self.rotation @ np.array([-dx / fx, -dy / fy, 0.0])
        return replace(self, pivot=_vector(np.array(self.pivot) + self.distance * shift))

    def dolly(self, factor: float, x: float, y: float, width: float, height: float) -> Navigator:
        """Scales the distance; the point under the pixel (x, y) at the pivot's depth stays in place."""
        fx, fy = self.lens.focal(width, height)
        u = (x - 0.5 * width) / fx - self.lens.shift_x
        v = (y - 0.5 * height) / fy - self.lens.shift_y
        rotation, eye = self.rotation, self.eye
        under_cursor = eye + self.distance * (rotation @ np.array([u, v, 1.0]))
        eye = under_cursor + factor * (eye - under_cursor)
        distance = max(factor * self.distance, NEAREST * self.extent)
        return replace(self, pivot=_vector(eye + distance * rotation[:, 2]), distance=distance)

    def fly(self, right: float, up: float, forward: float) -> Navigator:
        """Moves eye and pivot by world units along the view's right and forward and along the up axis."""
        rotation = self.rotation
        step = right * rotation[:, 0] + up * np.array(self.up) + forward * rotation[:, 2]
        return replace(self, pivot=_vector(np.array(self.pivot) + step))

    # The up axis -------------------------------------------------------------------------------------

    def with_up(self, up: Sequence[float]) -> Navigator:
        """Sets another up axis; eye and direction stay, and the horizon becomes level."""
        rotation = self.rotation
        nav = replace(self, base=base_frame(up))
        yaw, pitch, _ = angles_from_rotation(np.array(nav.base) @ rotation)
        nav = replace(nav, yaw=yaw, pitch=min(max(pitch, -PITCH_LIMIT), PITCH_LIMIT), roll=0.0)
        return replace(nav, pivot=_vector(self.eye + self.distance * nav.rotation[:, 2]))

    def flip(self) -> Navigator:
        """Turns the scene as seen upside down, about the base axis nearest to the heading."""
        return self.tip(roll=math.pi)

    def tip(self, roll: float = 0.0, pitch: float = 0.0) -> Navigator:
        """Turns the scene as seen, about the pivot: clockwise on the screen (roll), top towards you (pitch).

        The turn is about the base axis nearest to the heading, so quarter turns keep axes on axes.
        """
        quarter = round(self.yaw / (0.5 * math.pi)) * 0.5 * math.pi
        heading = rotation_from_angles(quarter, 0.0, 0.0)
        turn = heading @ rotation_from_angles(0.0, -pitch, -roll) @ heading.T
        rows = turn.T @ np.array(self.base)
        return replace(self, base=_rows(rows), roll=0.0)


# Building blocks -------------------------------------------------------------------------------------


def rotation_from_angles(yaw: float, pitch: float, roll: float) -> Float64:
    """Returns base_from_view [3, 3] = R_y(yaw) R_x(pitch) R_z(roll), OpenCV axes."""
    cy, sy, cp, sp, cr, sr = (f(a) for a in (yaw, pitch, roll) for f in (math.cos, math.sin))
    about_y = np.array([[cy, 0.0, sy], [0.0, 1.0, 0.0], [-sy, 0.0, cy]])
    about_x = np.array([[1.0, 0.0, 0.0], [0.0, cp, -sp], [0.0, sp, cp]])
    about_z = np.array([[cr, -sr, 0.0], [sr, cr, 0.0], [0.0, 0.0, 1.0]])
    return about_y @ about_x @ about_z


def angles_from_rotation(rotation: Float64) -> Vector:
    """Returns (yaw, pitch, roll) of a base_from_view; at a pole, where yaw and roll mean the same, roll is 0."""
    forward = rotation[:, 2]
    if math.hypot(forward[0], forward[2]) < 1e-9:
        pitch = math.copysign(0.5 * math.pi, -forward[1])
        return math.atan2(-rotation[2, 0], rotation[0, 0]), pitch, 0.0
    yaw = math.atan2(forward[0], forward[2])
    pitch = math.asin(min(max(-forward[1], -1.0), 1.0))
    unrolled = rotation_from_angles(yaw, pitch, 0.0).T @ rotation
    return yaw, pitch, math.atan2(unrolled[1, 0], unrolled[0, 0])


def base_frame(up: Sequence[float]) -> Matrix3:
    """Returns rows right, down, forward of OpenCV's frame after the shortest turn of -y onto `up`."""
    length = math.hypot(*up)
    target = np.array(up, dtype=np.float64) / length if length > 0.0 else np.array(DEFAULT_UP)
    start = np.array(DEFAULT_UP)
    cosine = float(start @ target)
    if cosine < -1.0 + 1e-12:
        return ((-1.0, 0.0, 0.0), (0.0, -1.0, 0.0), (0.0, 0.0, 1.0))
    axis = np.cross(start, target)
    skew = np.array([[0.0, -axis[2], axis[1]], [axis[2], 0.0, -axis[0]], [-axis[1], axis[0], 0.0]])
    turn = np.eye(3) + skew + skew @ skew / (1.0 + cosine)
    return _rows(turn.T)


def framing_navigator(
    low: Sequence[float],
    high: Sequence[float],
    up: Sequence[float] = DEFAULT_UP,
    width: int = 1280,
    height: int = 720,
    fov_y: float = DEFAULT_FOV_Y,
    extent: float | None = None,
) -> Navigator:
    """Returns a view slightly down at the box low..high with `up` upright; fov_y in degrees."""
    _, radius = _ball(low, high)
    start = Navigator(
        pivot=(0.0, 0.0, 0.0),
        distance=1.0,
        pitch=HOME_PITCH,
        base=base_frame(up),
        lens=Lens(fov_y=math.radians(fov_y)),
        extent=extent if extent is not None and math.isfinite(extent) and extent > 0.0 else radius,
    )
    return start.frame(low, high, width, height)


def framing_camera(
    low: Sequence[float],
    high: Sequence[float],
    up: Sequence[float] = DEFAULT_UP,
    width: int = 1280,
    height: int = 720,
    fov_y: float = DEFAULT_FOV_Y,
) -> Camera:
    """Returns the home camera of a scene without cameras: the box low..high (world units) fills the image."""
    return framing_navigator(low, high, up, width, height, fov_y).camera(width, height)


def _ball(low: Sequence[float], high: Sequence[float]) -> tuple[Float64, float]:
    """Returns centre [3] and radius (> 0, world units) of the ball around a box."""
    corner_low, corner_high = np.array(low, dtype=np.float64), np.array(high, dtype=np.float64)
    radius = 0.5 * float(np.linalg.norm(corner_high - corner_low))
    return 0.5 * (corner_low + corner_high), radius if math.isfinite(radius) and radius > 0.0 else 1.0


def _toward_limit(pitch: float, change: float) -> float:
    """Adds `change` up to the limit. A view that starts beyond it (a photograph taken straight down) may return."""
    low, high = min(pitch, -PITCH_LIMIT), max(pitch, PITCH_LIMIT)
    return min(max(pitch + change, low), high)


def _vector(values: Float64) -> Vector:
    return float(values[0]), float(values[1]), float(values[2])


def _rows(matrix: Float64) -> Matrix3:
    """Returns a rotation as tuples, orthonormal and without rounding errors, so that quarter turns stay exact."""
    u, _, vt = np.linalg.svd(matrix)
    clean = u @ vt
    rounded = np.round(clean)
    clean = np.where(np.abs(clean - rounded) < 1e-12, rounded, clean) + 0.0
    return _vector(clean[0]), _vector(clean[1]), _vector(clean[2])
