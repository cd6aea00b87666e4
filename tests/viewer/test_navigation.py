"""Tests the camera mathematics of the viewport, as promises that hold for any view."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from splatscope.app.opening.scene import middle_box
from splatscope.kernels.types import Camera
from splatscope.viewer.state.navigation import (
    FILL,
    Lens,
    Navigator,
    angles_from_rotation,
    base_frame,
    framing_camera,
    framing_navigator,
    rotation_from_angles,
)

WIDTH, HEIGHT = 800, 600


def some_navigator(rng: np.random.Generator, roll: bool = False) -> Navigator:
    return Navigator(
        pivot=tuple(rng.normal(0, 3, 3)),
        distance=float(rng.uniform(0.5, 9)),
        yaw=float(rng.uniform(-3, 3)),
        pitch=float(rng.uniform(-1.4, 1.4)),
        roll=float(rng.uniform(-3, 3)) if roll else 0.0,
        base=base_frame(rng.normal(0, 1, 3).tolist()),
        lens=Lens(fov_y=float(rng.uniform(0.3, 2)), shift_x=0.05, shift_y=-0.03, pixel_aspect=1.1),
        extent=4.0,
    )


def seen_at(camera: Camera, point: np.ndarray) -> np.ndarray:
    """Returns pixel (u, v) of a world point, and its depth."""
    x, y, z = camera.matrix[:3, :3] @ point + camera.matrix[:3, 3]
    return np.array([camera.fx * x / z + camera.cx, camera.fy * y / z + camera.cy, z])


def screen_up(nav: Navigator) -> np.ndarray:
    return -nav.rotation[:, 1]


@pytest.fixture(params=range(8))
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(request.param)


def test_orbit_keeps_the_pivot_in_place_on_the_screen_and_at_its_distance(rng: np.random.Generator) -> None:
    nav = some_navigator(rng)
    turned = nav.orbit(0.7, -0.4)
    before, after = (seen_at(n.camera(WIDTH, HEIGHT), np.array(nav.pivot)) for n in (nav, turned))
    assert np.allclose(before, after)
    assert after[2] == pytest.approx(nav.distance)
    assert not np.allclose(nav.eye, turned.eye)


def test_no_movement_tips_the_horizon(rng: np.random.Generator) -> None:
    nav = some_navigator(rng).orbit(0.3, 0.2).look(-0.5, 0.1).pan(30, -20, WIDTH, HEIGHT).fly(0.1, 0.2, 0.3)
    nav = nav.dolly(0.7, 100, 500, WIDTH, HEIGHT)
    assert np.array(nav.up) @ nav.rotation[:, 0] == pytest.approx(0, abs=1e-12)
    assert np.array(nav.up) @ screen_up(nav) > 0


def test_dragging_right_brings_the_left_side_to_the_front_and_dragging_down_the_top() -> None:
    nav = Navigator(pivot=(0, 0, 0), distance=5.0)
    assert nav.orbit(0.3, 0).eye[0] < 0
    assert nav.orbit(0, -0.3).eye[1] < 0  # -y is up


def test_the_pole_is_never_passed(rng: np.random.Generator) -> None:
    nav = some_navigator(rng)
    for _ in range(50):
        nav = nav.orbit(0.1, 0.2)
    assert np.array(nav.up) @ screen_up(nav) > 0


def test_look_turns_on_the_spot(rng: np.random.Generator) -> None:
    nav = some_navigator(rng)
    turned = nav.look(0.4, -0.2)
    assert np.allclose(nav.eye, turned.eye)
    assert not np.allclose(nav.rotation, turned.rotation)


def test_pan_moves_what_lies_at_the_pivots_depth_with_the_cursor(rng: np.random.Generator) -> None:
    nav = some_navigator(rng, roll=True)
    moved = nav.pan(37.0, -21.0, WIDTH, HEIGHT)
    before, after = (seen_at(n.camera(WIDTH, HEIGHT), np.array(nav.pivot)) for n in (nav, moved))
    assert np.allclose(after - before, [37, -21, 0], atol=1e-9)


def test_dolly_scales_the_distance_and_holds_the_point_under_the_cursor(rng: np.random.Generator) -> None:
    nav = some_navigator(rng, roll=True)
    camera = nav.camera(WIDTH, HEIGHT)
    x, y = 120.0, 440.0
    ray = np.array([(x - camera.cx) / camera.fx, (y - camera.cy) / camera.fy, 1.0])
    point = nav.eye + nav.distance * (nav.rotation @ ray)
    closer = nav.dolly(0.6, x, y, WIDTH, HEIGHT)
    assert closer.distance == pytest.approx(0.6 * nav.distance)
    assert np.allclose(seen_at(closer.camera(WIDTH, HEIGHT), point), [x, y, 0.6 * nav.distance])


def test_the_wheel_never_gets_stuck_in_front_of_the_pivot() -> None:
    nav = Navigator(pivot=(0, 0, 0), distance=5.0, extent=4.0)
    for _ in range(400):
        nav = nav.dolly(0.88, WIDTH / 2, HEIGHT / 2, WIDTH, HEIGHT)
    assert nav.eye[2] > 0


def test_flying_moves_eye_and_pivot_alike_and_up_is_the_worlds(rng: np.random.Generator) -> None:
    nav = some_navigator(rng)
    moved = nav.fly(0.0, 2.0, 0.0)
    assert np.allclose(moved.eye - nav.eye, 2 * np.array(nav.up))
    assert np.allclose(np.array(moved.pivot) - nav.pivot, 2 * np.array(nav.up))
    ahead = nav.fly(0.0, 0.0, 2.0)
    assert np.allclose(ahead.eye - nav.eye, 2 * nav.rotation[:, 2])


def test_ten_thousand_movements_leave_a_rotation_a_rotation() -> None:
    rng = np.random.default_rng(3)
    nav = some_navigator(rng)
    changes = (
        lambda n, a, b: n.orbit(a, b),
        lambda n, a, b: n.look(a, b),
        lambda n, a, b: n.pan(9 * a, 9 * b, WIDTH, HEIGHT),
        lambda n, a, b: n.dolly(1 + 0.2 * a / 3, 400, 300, WIDTH, HEIGHT),
        lambda n, a, b: n.fly(a, b, a),
        lambda n, a, b: n.tip(roll=math.pi / 2),
        lambda n, a, b: n.tip(pitch=-math.pi / 2),
        lambda n, a, b: n.flip(),
    )
    for kind, a, b in zip(rng.integers(0, len(changes), 10_000), *rng.normal(size=(2, 10_000)), strict=True):
        nav = changes[kind](nav, float(a), float(b))
    camera = nav.camera(WIDTH, HEIGHT)
    rotation = camera.matrix[:3, :3]
    assert np.allclose(rotation @ rotation.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(rotation) == pytest.approx(1.0)
    assert np.allclose(camera.position, nav.eye, atol=1e-9)


def test_a_camera_survives_the_way_through_a_navigator(rng: np.random.Generator) -> None:
    q, r = np.linalg.qr(rng.normal(size=(3, 3)))
    rotation = q * np.sign(np.diag(r)) * np.sign(np.linalg.det(q * np.sign(np.diag(r))))
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = rotation, rng.normal(0, 5, 3)
    camera = Camera.from_matrix(matrix, 640, 427, 500.0, 510.0, 331.5, 200.25)
    nav = some_navigator(rng).at_camera(camera, (0.1, 0.2, 0.3))
    again = nav.camera(640, 427)
    assert np.allclose(again.matrix, camera.matrix, atol=1e-9)
    assert np.allclose([again.fx, again.fy, again.cx, again.cy], [500, 510, 331.5, 200.25])


def test_a_camera_looking_straight_down_survives_too() -> None:
    for forward_y in (1.0, -1.0):
        rotation = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, forward_y, 0.0]])  # rows of view_from_world
        rotation[0] *= np.linalg.det(rotation)
        matrix = np.eye(4)
        matrix[:3, :3] = np.array([rotation[0], rotation[1], rotation[2]])
        camera = Camera.from_matrix(matrix, 640, 480, 500, 500, 320, 240)
        nav = framing_navigator((-1, -1, -1), (1, 1, 1)).at_camera(camera)
        assert np.allclose(nav.camera(640, 480).matrix, camera.matrix, atol=1e-9)


@pytest.mark.parametrize("size", [(800, 600), (1000, 300), (200, 900)])
def test_a_photographs_whole_frame_is_in_view_and_letting_it_go_moves_nothing(size: tuple[int, int]) -> None:
    camera = Camera.from_matrix(np.eye(4), 640, 427, 500.0, 500.0, 330.0, 200.0)
    nav = framing_navigator((-1, -1, 4), (1, 1, 6)).at_camera(camera)
    shown = nav.camera(*size)
    for corner in ((0, 0), (640, 427)):
        ray = np.array([(corner[0] - camera.cx) / camera.fx, (corner[1] - camera.cy) / camera.fy, 1.0])
        u, v, _ = seen_at(shown, ray)
        assert -1e-6 <= u <= size[0] + 1e-6
        assert -1e-6 <= v <= size[1] + 1e-6
    free = nav.unframe(*size).camera(*size)
    assert np.allclose([free.fx, free.fy, free.cx, free.cy], [shown.fx, shown.fy, shown.cx, shown.cy])
    assert free.view_from_world == shown.view_from_world


def test_a_roll_from_a_photograph_fades_while_orbiting_and_does_not_jump(rng: np.random.Generator) -> None:
    nav = replace(some_navigator(rng), roll=0.6)
    barely = nav.orbit(1e-6, 0.0)
    assert np.allclose(nav.rotation, barely.rotation, atol=1e-5)
    for _ in range(40):
        nav = nav.orbit(0.1, 0.0)
    assert nav.roll == 0.0


def test_looking_at_a_point_makes_it_the_pivot_from_where_one_stands(rng: np.random.Generator) -> None:
    nav = some_navigator(rng)
    point = nav.eye + nav.rotation @ np.array([0.3, -0.2, 2.0])
    turned = nav.look_at(point.tolist())
    assert np.allclose(turned.pivot, point)
    assert np.allclose(turned.eye, nav.eye)


@pytest.mark.parametrize("up", [(0, -1, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0), (0.3, -0.8, 0.1)])
def test_the_home_view_is_upright_and_holds_the_whole_box(up: tuple[float, float, float]) -> None:
    low, high = (-1.0, 2.0, 0.0), (3.0, 2.5, 7.0)
    camera = framing_camera(low, high, up, 320, 480)
    corners = np.array([[x, y, z] for x in (low[0], high[0]) for y in (low[1], high[1]) for z in (low[2], high[2])])
    for corner in corners:
        u, v, z = seen_at(camera, corner)
        assert z > 0
        assert 0 <= u <= 320
        assert 0 <= v <= 480
    center = corners.mean(axis=0)
    u, v, _ = seen_at(camera, center)
    assert (u, v) == pytest.approx((160, 240))
    assert seen_at(camera, center + 0.1 * np.array(up) / np.linalg.norm(up))[1] < v


@pytest.mark.parametrize("size", [(640, 480), (300, 900), (1600, 400)])
def test_a_framed_box_fills_the_viewport_and_none_of_it_is_cut_off(
    rng: np.random.Generator, size: tuple[int, int]
) -> None:
    for sides in ((1, 1, 1), (0.3, 3.2, 1.1), (9, 0.01, 4), (0, 0, 5), (5, 0, 0)):
        low = rng.normal(size=3)
        high = low + sides
        nav = some_navigator(rng).frame(low.tolist(), high.tolist(), *size)
        corners = [seen_at(nav.camera(*size), np.array(corner)) for corner in product(*zip(low, high, strict=True))]
        reach = np.array([(abs(2 * u / size[0] - 1), abs(2 * v / size[1] - 1)) for u, v, _ in corners])
        assert min(z for _, _, z in corners) > 0
        assert reach.max() < 1
        is_near = nav.distance == pytest.approx(0.55 * np.linalg.norm(sides))  # just outside of it
        assert reach.max() == pytest.approx(FILL) or is_near, "no farther away than it must be"


def test_the_box_of_a_scene_holds_a_head_and_leaves_stragglers_out(rng: np.random.Generator) -> None:
    body = rng.uniform((-0.5, -1.4, -0.5), (0.5, 1.4, 0.5), (9_600, 3))
    head = rng.uniform((-0.1, 1.5, -0.1), (0.1, 1.8, 0.1), (400, 3))
    floaters = 500 * rng.normal(size=(40, 3))
    low, high = middle_box(np.concatenate([body, head, floaters]).astype(np.float32))
    assert 1.79 < high[1] < 3.0
    assert -2.5 < low[1] < -1.38
    assert middle_box(np.full((3, 3), np.nan, np.float32)) == ((-1, -1, -1), (1, 1, 1))


def test_the_default_home_view_looks_along_z_with_minus_y_up() -> None:
    forward = framing_camera((-1, -1, -1), (1, 1, 1)).matrix[2, :3]
    assert forward[0] == pytest.approx(0)
    assert forward[2] > 0.9
    assert forward[1] > 0  # slightly down


def test_a_scene_that_is_one_point_can_be_framed() -> None:
    camera = framing_camera((2.0, 2.0, 2.0), (2.0, 2.0, 2.0))
    assert np.isfinite(camera.matrix).all()


def test_four_quarter_turns_and_two_flips_bring_the_scene_back(rng: np.random.Generator) -> None:
    nav = some_navigator(rng)
    turned = nav
    for _ in range(4):
        turned = turned.tip(roll=math.pi / 2)
    assert np.allclose(turned.rotation, nav.rotation)
    assert np.allclose(nav.flip().flip().rotation, nav.rotation)
    assert np.allclose(nav.flip().up, -np.array(nav.up), atol=1e-12)


def test_quarter_turns_keep_axes_on_axes_and_the_pivot_in_place() -> None:
    nav = framing_navigator((-1, -1, -1), (1, 1, 1)).orbit(0.4, 0.1)
    for turn in (nav.tip(pitch=math.pi / 2), nav.tip(roll=-math.pi / 2)):
        assert sorted(abs(v) for v in turn.up) == [0.0, 0.0, 1.0]
        assert turn.up != nav.up
        assert turn.pivot == nav.pivot


@pytest.mark.parametrize("yaw", [0.0, 0.6, 1.5, 3.0, -2.0])
def test_turns_go_the_way_they_say_from_any_side(yaw: float) -> None:
    nav = framing_navigator((-1, -1, -1), (1, 1, 1)).orbit(yaw, 0.0)
    above = np.array(nav.pivot) + 0.1 * np.array(nav.up)
    u, v, z = seen_at(nav.camera(WIDTH, HEIGHT), np.array(nav.pivot))
    right = seen_at(nav.tip(roll=math.pi / 2).camera(WIDTH, HEIGHT), above)
    assert right[0] > u + 5  # what was above lies to the right
    towards = seen_at(nav.tip(pitch=math.pi / 2).camera(WIDTH, HEIGHT), above)
    assert towards[2] < z - 0.03  # what was above is nearer
    head = seen_at(nav.flip().camera(WIDTH, HEIGHT), above)
    assert head[1] > v + 5  # what was above lies below


def test_another_up_axis_levels_the_horizon_and_keeps_eye_and_heading(rng: np.random.Generator) -> None:
    nav = some_navigator(rng, roll=True)
    leveled = nav.with_up((0.0, 0.0, 1.0))
    assert leveled.up == (0.0, 0.0, 1.0)
    assert np.allclose(leveled.eye, nav.eye)
    if abs(nav.rotation[2, 2]) < 0.99:
        assert np.allclose(leveled.rotation[:, 2], nav.rotation[:, 2])
        assert leveled.rotation[2, 0] == pytest.approx(0, abs=1e-12)


def test_angles_and_rotations_are_inverse(rng: np.random.Generator) -> None:
    angles = rng.uniform([-3, -1.5, -3], [3, 1.5, 3])
    assert np.allclose(angles_from_rotation(rotation_from_angles(*angles)), angles)


@pytest.mark.parametrize("size", [1e-4, 1e-2, 1.0, 1e4])
def test_a_scene_of_any_size_lies_beyond_the_near_plane_of_its_home_view(size: float) -> None:
    camera = framing_camera((-size, -size, -size), (size, size, size), (0.0, -1.0, 0.0), 320, 240)
    nearest = min(
        (camera.matrix @ np.array([x, y, z, 1.0]))[2]
        for x in (-size, size)
        for y in (-size, size)
        for z in (-size, size)
    )
    assert 0.0 < camera.near < nearest
