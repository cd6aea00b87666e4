"""Tests drawn cameras, which lie where the picture's camera sees them, and the up axis found for bare splats."""

from __future__ import annotations

import numpy as np
import pytest

from splatscope.assets.geometry.upright import DEFAULT_UP, guess_up_of_splats
from splatscope.assets.splats.ply import read_ply
from splatscope.kernels.types import Camera
from splatscope.viewer.figures.frustums import MOST, apexes, depth_for, frustums
from splatscope.viewer.messages.view import NamedCamera
from splatscope.viewer.state.navigation import framing_camera
from tests.support.fake_engine import SCENE, ring_of_cameras
from tests.support.places import STILL_LIFE


def test_every_drawn_camera_stands_where_the_picture_sees_it() -> None:
    seen_by = framing_camera((-6, -3, -6), (6, 3, 6), SCENE.up, 900, 600)
    depth = depth_for(SCENE.cameras, SCENE.extent)
    eyes = apexes(SCENE.cameras, seen_by, depth)
    assert len(eyes) > 50
    for index, (u, v) in eyes.items():
        x, y, z = seen_by.matrix[:3, :3] @ SCENE.cameras[index].camera.position + seen_by.matrix[:3, 3]
        assert (u, v) == pytest.approx((x / z * seen_by.fx + seen_by.cx, y / z * seen_by.fy + seen_by.cy))


def test_the_outline_is_that_of_the_photograph() -> None:
    """Looks at the camera from one step behind it: its image's corners lie on the edges of its frame."""
    camera = SCENE.cameras[0].camera
    back = camera.matrix.copy()
    back[2, 3] += 1.0
    behind = Camera.from_matrix(back, camera.width, camera.height, camera.fx, camera.fy, camera.cx, camera.cy)
    (_, points), *_ = frustums([SCENE.cameras[0]], behind, depth=0.5)
    shrunk = 0.5 / 1.5  # what lies half a unit before the camera, seen from a unit farther back
    for corner in ((0, 0), (640, 0), (640, 480), (0, 480)):
        expected = np.array([camera.cx, camera.cy]) + shrunk * (np.array(corner) - [camera.cx, camera.cy])
        assert np.abs(points - expected).max(axis=1).min() < 1e-6


def test_cameras_behind_the_eye_are_left_out_and_of_many_only_some_are_drawn() -> None:
    eye = SCENE.cameras[0].camera
    assert 0 not in apexes(SCENE.cameras, eye, 0.1), "the eye's own"
    many = ring_of_cameras(3 * MOST)
    seen_by = framing_camera((-6, -3, -6), (6, 3, 6), SCENE.up, 900, 600)
    assert 0.8 * MOST < len(apexes(many, seen_by, 0.1)) <= MOST
    same = [NamedCamera("a", eye), NamedCamera("b", eye)]
    assert depth_for(same, 4.0) > 0
    assert depth_for([], 4.0) > 0
    assert not list(frustums([], eye, 0.1))


def table(up: tuple[float, float, float], share: float = 0.5) -> np.ndarray:
    """Returns a disc with a heap on it, its foot below: [N, 3], float32."""
    rng = np.random.default_rng(4)
    flat, heap = rng.normal(size=(int(4000 * share), 3)), rng.normal(size=(int(4000 * (1 - share)), 3)) * 0.5
    axis = int(np.argmax(np.abs(up)))
    flat[:, axis] = 0.01 * rng.normal(size=len(flat))
    heap[:, axis] = up[axis] * np.abs(heap[:, axis]) * np.where(np.arange(len(heap)) % 8, 1.0, -1.0)
    return np.concatenate([flat, heap]).astype(np.float32)


@pytest.mark.parametrize("up", [(0, 0, 1), (0, 0, -1), (0, 1, 0), (0, -1, 0), (1, 0, 0)])
def test_bare_splats_stand_on_their_ground(up: tuple[float, float, float]) -> None:
    assert guess_up_of_splats(table(up)) == up


def test_without_a_ground_the_usual_axis_is_up() -> None:
    rng = np.random.default_rng(5)
    ball = rng.normal(size=(3000, 3)).astype(np.float32)
    assert guess_up_of_splats(ball) == DEFAULT_UP
    assert guess_up_of_splats(ball[:3]) == DEFAULT_UP
    assert guess_up_of_splats(np.full((50, 3), np.nan, np.float32)) == DEFAULT_UP
    assert guess_up_of_splats(np.ones((50, 3), np.float32)) == DEFAULT_UP
    sandwich = table((0, 0, 1))
    sandwich[::2, 2] *= -1  # as much above as below
    assert guess_up_of_splats(sandwich) == DEFAULT_UP


def test_the_bundled_scene_stands_upright() -> None:
    assert guess_up_of_splats(read_ply(STILL_LIFE).means) == (0.0, 0.0, 1.0)
