"""Tests the demo capture: exact cameras, right alpha, points on the surface, and a cache that is whole or absent."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from splatscope.assets.demo import TRAINED_SCENE, generate
from splatscope.assets.demo.generate import DemoSize, demo_capture_folder, pixel_rays, spiral_poses, write_capture
from splatscope.assets.demo.primitives import entry
from splatscope.assets.demo.shapes import SHAPE_COUNT, distance_to
from splatscope.assets.demo.tracer import HIT, Grid, build_grid, render
from splatscope.assets.files.atomic import ABANDONED_SECONDS
from splatscope.assets.photographs.images import read_image
from splatscope.assets.splats.ply import read_ply
from splatscope.assets.transforms.captures import read_blender
from splatscope.kernels.backends import make_backend
from splatscope.kernels.caches import cache_folder
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import RenderSettings

SMALL = DemoSize(train_views=5, test_views=2, width=80, height=60, points=500)
TINY = DemoSize(train_views=2, test_views=1, width=16, height=12, points=20)


@entry
def nearest_surface(points):
    """Returns the distance from each point [P, 3] to the nearest of all shapes, without the grid."""
    result = np.empty(len(points))
    for n in range(len(points)):
        least = 10.0
        for shape in range(SHAPE_COUNT):
            least = min(least, distance_to(shape, points[n, 0], points[n, 1], points[n, 2]))
        result[n] = least
    return result


@pytest.fixture(scope="module")
def capture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("capture")
    write_capture(folder, SMALL)
    return folder


@pytest.fixture(scope="module")
def grid() -> Grid:
    return Grid(*build_grid())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache_folder()


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_same_bytes_come_out_on_one_thread(
    capture_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate.os, "cpu_count", lambda: 1)
    write_capture(tmp_path, SMALL)
    assert files_below(tmp_path) == files_below(capture_folder)


def test_the_reader_finds_every_view_over_white_with_its_points(capture_folder: Path) -> None:
    capture = read_blender(capture_folder)
    assert (len(capture.views), len(capture.test_views)) == (SMALL.train_views, SMALL.test_views)
    assert capture.white_background
    assert not capture.warnings
    assert capture.points is not None
    assert len(capture.points.positions) == SMALL.points
    assert {(view.camera.width, view.camera.height) for view in capture.views} == {(80, 60)}


def test_every_point_projects_onto_the_centre_of_the_pixel_that_saw_it(capture_folder: Path) -> None:
    capture = read_blender(capture_folder)
    assert capture.points is not None
    share = SMALL.points // SMALL.train_views
    for index, view in enumerate(capture.views):
        camera, block = view.camera, slice(index * share, (index + 1) * share)
        in_view = capture.points.positions[block] @ camera.matrix[:3, :3].T + camera.matrix[:3, 3]
        u = camera.fx * in_view[:, 0] / in_view[:, 2] + camera.cx
        v = camera.fy * in_view[:, 1] / in_view[:, 2] + camera.cy
        np.testing.assert_allclose(u % 1, 0.5, atol=1e-4)
        np.testing.assert_allclose(v % 1, 0.5, atol=1e-4)
        seen = read_image(view.image_path)[v.astype(int), u.astype(int)]
        assert (seen[:, 3] > 0).all()
        np.testing.assert_array_equal(seen[:, :3], capture.points.colors[block])


def test_the_point_cloud_lies_on_the_surface(capture_folder: Path) -> None:
    capture = read_blender(capture_folder)
    assert capture.points is not None
    distance = nearest_surface(capture.points.positions)
    assert np.abs(distance).max() < HIT + 1e-6
    assert np.ptp(capture.points.positions, axis=0).min() > 1.5  # from the foot to the handle, from rim to rim


def test_no_ray_jumps_over_a_surface(grid: Grid) -> None:
    size = DemoSize(width=64, height=48)
    for pose in spiral_poses(3, generate.FIRST_TRAIN):
        _, found = render(grid.free, grid.near, pose, size.width, size.height, size.focal)
        rays = pixel_rays(pose, size).reshape(-1, 3)
        distance = np.full(len(rays), generate.DISTANCE - 1.7)
        first = np.full(len(rays), -1.0)
        walking = np.arange(len(rays))
        while len(walking):  # small steps past everything, all shapes asked at each
            step = nearest_surface(pose[:3, 3] + distance[walking, None] * rays[walking])
            first[walking[step < HIT]] = distance[walking[step < HIT]]
            distance[walking] += np.maximum(0.3 * step, 5e-4)
            walking = walking[(step >= HIT) & (distance[walking] < generate.DISTANCE + 1.7)]
        wrong = np.abs(found.reshape(-1) - first) > 0.01
        assert wrong.mean() < 0.002  # rays that graze an edge may go either way


def test_alpha_is_the_share_of_a_pixel_that_is_covered(grid: Grid) -> None:
    pose, size, finer = spiral_poses(1, generate.FIRST_TRAIN)[0], SMALL, 8
    rgba, _ = render(grid.free, grid.near, pose, size.width, size.height, size.focal)
    _, distance = render(grid.free, grid.near, pose, finer * size.width, finer * size.height, finer * size.focal)
    hit = (distance >= 0).reshape(size.height, finer, size.width, finer)
    cover, alpha = hit.mean(axis=(1, 3)), rgba[..., 3]
    assert abs(cover.mean() - alpha.mean()) < 0.003
    assert np.abs(cover - alpha).max() < 0.6
    assert (alpha[cover == 0] == 0).mean() > 0.999
    assert (rgba[alpha == 0] == 0).all()
    corner = np.s_[:5, :5]
    assert (alpha[corner] == 0).all()


def test_the_trained_scene_is_small_and_looks_like_the_traced_one(tmp_path: Path) -> None:
    assert TRAINED_SCENE.stat().st_size <= 2_000_000
    write_capture(tmp_path, DemoSize(train_views=1, test_views=2, width=800, height=600))  # as it was trained
    gaussians = read_ply(TRAINED_SCENE)
    for view in read_blender(tmp_path).test_views:
        rgba = read_image(view.image_path) / 255
        over_white = rgba[..., :3] * rgba[..., 3:] + 1 - rgba[..., 3:]
        frame = make_backend("cpu").render(gaussians, view.camera, RenderSettings(background=(1.0, 1.0, 1.0)))
        error = np.mean((np.clip(frame.image, 0, 1) - over_white) ** 2)
        assert -10 * np.log10(error) > 30  # dB


def test_cameras_surround_the_scene_from_above() -> None:
    for count, first in ((50, generate.FIRST_TRAIN), (8, generate.FIRST_TEST)):
        poses = np.array(spiral_poses(count, first))
        rotations = poses[:, :3, :3]
        assert np.abs(rotations @ rotations.transpose(0, 2, 1) - np.eye(3)).max() < 1e-12
        assert np.linalg.det(rotations).min() > 0
        positions = poses[:, :3, 3] - generate.TARGET
        assert positions[:, 2].min() > 0
        turns = np.sort(np.arctan2(positions[:, 1], positions[:, 0]))
        gaps = np.diff(np.append(turns, turns[0] + 2 * np.pi))
        assert np.degrees(gaps.max()) < 3 * 360 / count


def test_a_finished_capture_is_not_rendered_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[int, int]] = []
    folder = demo_capture_folder(lambda done, total: steps.append((done, total)), TINY)
    assert steps[-1] == (3, 3)
    assert folder.parent == cache
    monkeypatch.setattr(generate, "write_capture", lambda *_: pytest.fail("rendered twice"))
    assert demo_capture_folder(size=TINY) == folder


def test_an_edit_of_any_source_makes_a_new_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in Path(generate.__file__).parent.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = generate._version(TINY)
    monkeypatch.setattr(generate, "__file__", str(tmp_path / "generate.py"))
    assert generate._version(TINY) == before
    (tmp_path / "shapes.py").write_text("# smaller marbles")
    assert generate._version(TINY) != before


def test_a_killed_rendering_is_taken_up_by_the_next(cache: Path) -> None:
    program = (
        "import time\n"
        "from splatscope.assets.demo import generate\n"
        "def stuck(folder, size, progress):\n"
        "    (folder / 'transforms_train.json').write_text('{')\n"
        "    time.sleep(600)\n"
        "generate.write_capture = stuck\n"
        "generate.demo_capture_folder()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        deadline = time.monotonic() + 60
        while not list(cache.glob("*/transforms_train.json")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    folder = demo_capture_folder(size=TINY)
    assert len(read_blender(folder).views) == TINY.train_views
    (left,) = cache.glob("demo-unfinished-*")
    old = time.time() - 2 * ABANDONED_SECONDS
    generate.os.utime(left, (old, old))
    demo_capture_folder(size=TINY)
    assert not left.exists()


def test_a_failing_rendering_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demo_capture_folder(fail, TINY)
    assert not list(cache.iterdir())


def test_two_at_once_agree_on_one_folder(cache: Path) -> None:
    folders: list[Path] = []
    start = threading.Barrier(2)

    def one() -> None:
        start.wait()
        folders.append(demo_capture_folder(size=TINY))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders[0] == folders[1]
    assert list(cache.iterdir()) == [folders[0]]
    assert len(read_blender(folders[0]).views) == TINY.train_views


def test_a_cache_that_cannot_be_written_is_one_sentence(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = cache / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.raises(InputError, match="cannot be written"):
        demo_capture_folder(size=TINY)
