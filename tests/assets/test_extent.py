"""Tests the extent of a scene, and that a run does not depend on the unit of its capture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splatscope.assets.capture import Capture, PointCloud, View
from splatscope.assets.geometry.extent import near_plane, scene_extent
from splatscope.assets.geometry.recentre import recentred
from splatscope.assets.trained.cameras import read_cameras_json, write_cameras_json
from splatscope.kernels.backend import Backend
from splatscope.kernels.constants import NEAR
from splatscope.kernels.types import Camera
from splatscope.training.config import InitialConfig
from splatscope.training.data.initial import initial_points
from splatscope.training.events import Evaluated, Prepared
from splatscope.training.trainer import Trainer
from tests.support.small_capture import SHORT


def camera_at(*centre: float) -> Camera:
    matrix = np.eye(4)
    matrix[:3, 3] = np.negative(centre)
    return Camera.from_matrix(matrix, 64, 48, 60.0, 60.0, 32.0, 24.0)


def ring(radius: float, middle: tuple[float, float] = (0, 0)) -> list[Camera]:
    angles = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    return [camera_at(middle[0] + radius * np.cos(a), middle[1] + radius * np.sin(a), 0) for a in angles]


def shell(radius: float) -> PointCloud:
    rng = np.random.default_rng(3)
    directions = rng.standard_normal((200, 3))
    positions = radius * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    return PointCloud(positions, np.full((200, 3), 128, np.uint8))


def test_extent_is_the_largest_distance_without_stray_cameras() -> None:
    assert scene_extent(ring(1)) == pytest.approx(1.1)
    assert scene_extent([*ring(1), camera_at(0, 0, 300)]) < 15
    assert scene_extent([camera_at(0, 0, 300)]) == 1


def test_cameras_in_one_place_leave_the_extent_to_the_points() -> None:
    for radius in (0.0, 1e-5, 0.01):
        assert scene_extent(ring(radius), shell(7)) == pytest.approx(7, rel=2e-3), radius
        stray = [*ring(radius), camera_at(1, 0, 0)]
        assert scene_extent(stray, shell(7)) == pytest.approx(7, rel=2e-3), "one stray camera does not tell depths"
    assert scene_extent(ring(0.1), shell(7)) == pytest.approx(0.11), "depths can be told"
    assert scene_extent([camera_at(0, 0, 0)], shell(7)) == pytest.approx(7)


def test_a_sky_of_far_points_does_not_make_an_ordinary_scene_one_place() -> None:
    near, sky = shell(4).positions, np.concatenate([shell(1000).positions] * 4)
    points = PointCloud(np.concatenate((near, sky)), np.full((len(near) + len(sky), 3), 128, np.uint8))
    assert scene_extent(ring(3), points) == pytest.approx(3.3)
    assert scene_extent(ring(1e-4), points) == pytest.approx(4, rel=1e-3)


def test_positions_that_differ_by_rounding_alone_are_one_place() -> None:
    rng = np.random.default_rng(4)
    turned = []
    for _ in range(24):
        matrix = np.eye(4)
        matrix[:3, :3] = np.linalg.qr(rng.standard_normal((3, 3)))[0]
        matrix[:3, :3] *= np.sign(np.linalg.det(matrix[:3, :3]))
        matrix[:3, 3] = -matrix[:3, :3] @ (12.3, -4.5, 0.7)
        turned.append(Camera.from_matrix(matrix, 64, 48, 60.0, 60.0, 32.0, 24.0))
    assert 0 < np.ptp([camera.position for camera in turned], axis=0).max() < 1e-12
    assert scene_extent(turned) == 1
    assert scene_extent([camera_at(0, 0, x) for x in (0, 1e-17, -2e-17)]) == 1


def test_only_very_small_scenes_are_seen_from_closer(tmp_path: Path) -> None:
    assert [near_plane(extent) for extent in (300, 1, 0.1, 1e-3)] == pytest.approx([NEAR, NEAR, NEAR, NEAR / 100])
    capture, a_view = Capture(Path("ring"), "colmap", (), (), None, False), View("", Path(), camera_at(0, 0, 0))
    for radius, near in ((3.0, NEAR), (1e-3, 1.1e-4)):
        views = tuple(replace(a_view, name=str(i), camera=camera) for i, camera in enumerate(ring(radius)))
        for camera in (view.camera for view in recentred(replace(capture, views=views)).views):
            assert camera.near == pytest.approx(near)
        write_cameras_json(tmp_path / "cameras.json", recentred(replace(capture, views=views)).views)
        assert read_cameras_json(tmp_path / "cameras.json")[0][1].near == pytest.approx(near)
    write_cameras_json(tmp_path / "cameras.json", views)  # as others write it
    assert read_cameras_json(tmp_path / "cameras.json")[0][1].near == NEAR


def in_units_of(capture: Capture, size: float) -> Capture:
    """Returns the capture as a reader gives it if its unit is `size` usual ones."""
    views = []
    for view in capture.views:
        matrix = view.camera.matrix.copy()
        matrix[:3, 3] /= size
        views.append(replace(view, camera=replace(view.camera, view_from_world=tuple(map(tuple, matrix.tolist())))))
    assert capture.points is not None
    points = PointCloud(capture.points.positions / size, capture.points.colors)
    return recentred(replace(capture, views=tuple(views), points=points))


def test_a_capture_in_kilometres_trains_as_in_metres(capture: Capture, backend: Backend, tmp_path: Path) -> None:
    scores = {}
    config = replace(SHORT, iterations=120, test_interval=60, densify=replace(SHORT.densify, reset_interval=500))
    for size in (1.0, 1e4):
        events = list(Trainer(in_units_of(capture, size), config, backend, tmp_path / f"{size:g}").run())
        assert not [w for e in events if isinstance(e, Prepared) for w in e.warnings if "in sight" in w]
        scores[size] = [event.psnr for event in events if isinstance(event, Evaluated)]
    assert scores[1e4] == pytest.approx(scores[1.0], abs=0.3)
    assert scores[1.0][-1] > 16


def test_photographs_from_one_place_are_trained_on_and_it_is_said_that_depths_cannot_be_told(
    capture: Capture, backend: Backend, tmp_path: Path
) -> None:
    """Uses a panorama cut into pictures, taken within a hundred thousandth of the distance to what they show."""
    place = capture.views[0].camera.position
    views = []
    for i, view in enumerate(capture.views):
        matrix = capture.views[0].camera.matrix.copy()
        matrix[:3, 3] += 1e-5 * np.random.default_rng(i).standard_normal(3)
        views.append(replace(view, camera=replace(view.camera, view_from_world=tuple(map(tuple, matrix.tolist())))))
    events = list(Trainer(replace(capture, views=tuple(views)), SHORT, backend, tmp_path).run())
    prepared = next(event for event in events if isinstance(event, Prepared))
    assert prepared.extent == pytest.approx(np.linalg.norm(place), rel=0.2)
    assert any("taken from nearly one place" in warning for warning in prepared.warnings)
    usual = next(e for e in Trainer(capture, SHORT, backend, tmp_path / "usual").run() if isinstance(e, Prepared))
    assert not any("taken from nearly one place" in warning for warning in usual.warnings)


def test_points_that_a_depth_camera_did_not_see_do_not_hold_up_the_start(capture: Capture) -> None:
    """Puts these points at the origin, where a search among equal points took the square of their number."""
    assert capture.points is not None
    unseen = np.zeros((60_000, 3))
    positions = np.concatenate((capture.points.positions, unseen, capture.points.positions[:5]))
    points = PointCloud(positions, np.full(positions.shape, 128, np.uint8))
    rng = np.random.default_rng(0)
    first = initial_points(replace(capture, points=points), [], 1.0, InitialConfig(), True, rng)
    kept = np.concatenate((positions[: len(capture.points.positions) + 3], capture.points.positions[:5]))
    np.testing.assert_array_equal(first.positions, kept)
