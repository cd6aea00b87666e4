"""Tests odd captures under training: damaged photographs are left out, far-away scenes train as near ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plyfile import PlyData

from splatscope.assets.capture import Capture, PointCloud, View
from splatscope.assets.formats import read_splat_file
from splatscope.assets.geometry.recentre import camera_less, recentred
from splatscope.kernels.backend import Backend
from splatscope.kernels.backends import make_backend
from splatscope.kernels.errors import InputError
from splatscope.training.config import DensifyConfig
from splatscope.training.data.carve import points_in_hull
from splatscope.training.data.dataset import Dataset
from splatscope.training.events import Prepared
from splatscope.training.trainer import Trainer
from tests.support.small_capture import SHORT, make_capture


@pytest.fixture(scope="module")
def backend() -> Backend:
    return make_backend("cpu")


def cut(view: View) -> None:
    """Leaves half of a photograph: its header can be read, its pixels cannot."""
    path = view.image_path
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_half_photographs_are_left_out_and_named_and_the_run_goes_on(tmp_path: Path, backend: Backend) -> None:
    capture = make_capture(tmp_path)
    held_out, training = capture.views[0], capture.views[1:6]
    for view in (held_out, *training):
        cut(view)
    config = replace(SHORT, iterations=10)
    trainer = Trainer(capture, config, backend, tmp_path / "out")
    prepared = next(event for event in trainer.run() if isinstance(event, Prepared))
    names = ", ".join(view.name for view in training[:3])
    assert prepared.warnings[-1] == (
        f"Left out: 6 photographs, {names} and 3 more. {training[0].image_path} is damaged or cut short and cannot be "
        "decoded. Copy it again."
    )
    assert prepared.training_views == len(capture.views) * 7 // 8 - 5
    assert len(trainer.dataset.tested) == 2


def test_too_few_whole_photographs_end_a_run_before_its_first_step(tmp_path: Path) -> None:
    capture = make_capture(tmp_path)
    for view in capture.views[:13]:
        cut(view)
    with pytest.raises(
        InputError, match=r"13 of 24 photographs cannot be read, .* too few\. .* is damaged or cut short"
    ):
        list(Dataset(capture, SHORT.data).load())


def test_first_splats_are_carved_from_the_photographs_that_are_whole(tmp_path: Path) -> None:
    capture = make_capture(tmp_path, cut_out=True)
    for view in capture.views[3:6]:
        cut(view)
    points = points_in_hull(capture, 1.3, 500, np.random.default_rng(0))
    assert points is not None
    assert len(points.positions) == 500
    for view in capture.views:
        cut(view)
    assert points_in_hull(capture, 1.3, 500, np.random.default_rng(0)) is None


def far_away(capture: Capture, at: tuple[float, float, float]) -> Capture:
    def moved(views: tuple[View, ...]) -> tuple[View, ...]:
        x, y, z = at
        return tuple(replace(view, camera=camera_less(view.camera, (-x, -y, -z))) for view in views)

    assert capture.points is not None
    points = PointCloud(capture.points.positions + at, capture.points.colors)
    return recentred(replace(capture, views=moved(capture.views), points=points))


def test_a_scene_far_away_trains_as_well_as_a_near_one_and_is_saved_where_it_was(
    tmp_path: Path, backend: Backend
) -> None:
    near = make_capture(tmp_path)
    at = (512_345.0, -5_400_321.0, 640.0)
    far = far_away(near, at)
    config = replace(SHORT, iterations=60, densify=DensifyConfig(enabled=False))
    plys = []
    for name, capture in (("near", near), ("far", far)):
        trainer = Trainer(capture, config, backend, tmp_path / name)
        assert list(trainer.run())
        plys.append(tmp_path / name / "point_cloud/iteration_60/point_cloud.ply")
    a, b = (PlyData.read(path)["vertex"] for path in plys)
    assert len(a) == len(b)
    for axis, value in zip("xyz", at, strict=True):
        assert b[axis].dtype == np.float64
        # The two see the same scene about other origins, so rounding differs and Adam carries that on.
        assert np.median(np.abs(b[axis] - value - a[axis])) < 1e-4
    cameras = [json.loads((tmp_path / name / "cameras.json").read_text())[3]["position"] for name in ("near", "far")]
    np.testing.assert_allclose(np.subtract(*cameras[::-1]), at, atol=1e-6)
    points = PlyData.read(tmp_path / "far/input.ply")["vertex"]
    assert near.points is not None
    np.testing.assert_allclose(points["y"], near.points.positions[:, 1] + at[1], atol=1e-8)
    opened = read_splat_file(plys[1])
    seen_from = opened.cameras[3][1].position + opened.offset
    np.testing.assert_allclose(seen_from, cameras[1], atol=1e-6)
    assert np.abs(opened.gaussians.means).max() < 1e3
