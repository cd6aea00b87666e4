"""Tests that each stage of the numba backend passes on what the same stage of the reference does, up to rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from splatscope.app.bench.scenes.generated import make_scene
from splatscope.kernels.cpu import CpuBackend, records
from splatscope.kernels.cpu.bin import CHUNK
from splatscope.kernels.cpu.pipeline import Lists, Projected
from splatscope.kernels.policy import Policy
from splatscope.kernels.reference.backend import ReferenceBackend
from splatscope.kernels.reference.picture import Parameters, Stages, project, render
from splatscope.kernels.reference.tiles import list_tiles
from splatscope.kernels.types import Camera, Gaussians, RenderSettings
from tests.support.comparison import assert_close_with_boundary_band
from tests.support.small_scenes import hand_made, random_camera, random_scene

BOUNDS = ("row_span", "aabb_o", "circle3s")
SCENES = ("hand made", "random", "several chunks")


@dataclass(frozen=True, eq=False)
class Pass:
    """Holds the same view by both backends."""

    projected: Projected
    lists: Lists
    stages: Stages  # of the reference
    record: NDArray[np.float32]  # [V, RECORD] in scene order
    splat: NDArray[np.int32]  # [V] splat of each record
    in_scene_order: NDArray[np.int64]  # [V] the reference's splats in that order


def run(name: str, bounds: str) -> Pass:
    gaussians, camera = scene_of(name)
    policy = Policy().with_value("bin", "bounds", bounds)
    _, saved = CpuBackend().forward(gaussians, camera, policy=policy)
    with torch.no_grad():
        stages = render(Parameters.of(gaussians), camera, RenderSettings(), policy)
    projected = saved.projected
    slots = np.concatenate([np.arange(used) + i * CHUNK for i, used in enumerate(projected.chunk_visible)])
    record, splat = projected.records.reshape(-1, records.RECORD)[slots], projected.slot_splats[slots]
    return Pass(projected, saved.lists, stages, record, splat, np.argsort(stages.projected.index.numpy()))


def scene_of(name: str) -> tuple[Gaussians, Camera]:
    if name == "hand made":
        scene = hand_made()
        return scene.gaussians, scene.camera
    camera = random_camera(100, 70)
    return random_scene(camera, 200 if name == "random" else 5000, seed=31), camera


@pytest.mark.parametrize("name", SCENES)
def test_projection_is_that_of_the_reference(name: str) -> None:
    both = run(name, "row_span")
    projected, record = both.stages.projected.rows(torch.from_numpy(both.in_scene_order)), both.record
    np.testing.assert_array_equal(both.splat, projected.index.numpy())
    np.testing.assert_allclose(
        record[:, [records.MEAN_X, records.MEAN_Y]], projected.mean_px.numpy(), rtol=1e-6, atol=3e-5
    )
    np.testing.assert_allclose(record[:, records.DEPTH], projected.depth.numpy(), rtol=1e-6)
    np.testing.assert_allclose(np.exp2(record[:, records.POWER]), projected.opacity.numpy(), rtol=3e-6)
    colors = both.stages.colors.numpy()[both.in_scene_order]
    np.testing.assert_allclose(record[:, [records.RED, records.GREEN, records.BLUE]], colors, atol=3e-6)

    # The whitening [[a, b], [0, c]] squared is half the conic times log2(e).
    a, b, c = (record[:, k].astype(np.float64) for k in (records.A, records.B, records.C))
    conic = np.stack((a * a, a * b, b * b + c * c), 1) * 2 / np.log2(np.e)
    size = np.linalg.norm(projected.conic.numpy(), axis=1, keepdims=True)
    np.testing.assert_allclose(conic / size, projected.conic.numpy() / size, atol=2e-5)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("name", SCENES)
def test_tile_lists_hold_the_same_splats_in_the_same_order(name: str, bounds: str) -> None:
    both = run(name, bounds)
    lists = both.stages.lists
    got = np.split(both.projected.slot_splats[both.lists.tile_slots], both.lists.tile_start[1:-1])
    expected = np.split(both.stages.projected.index.numpy()[lists.splat], np.cumsum(lists.counts)[:-1])
    place = np.empty(int(both.stages.projected.index.max()) + 1, np.int64)
    place[both.stages.projected.index.numpy()] = np.arange(len(both.stages.projected.index))
    differing = 0
    for mine, theirs in zip(got, expected, strict=True):
        assert (np.diff(place[mine]) > 0).all()  # nearest first, nothing twice
        differing += len(np.setxor1d(mine, theirs))
    assert differing <= 1e-3 * lists.counts.sum()  # pairs that rounding moved across a tile edge


def test_the_benchmark_scene_has_the_published_numbers_of_splats_and_pairs() -> None:
    scene, visible, pairs = make_scene("S4"), 98_442, 215_681
    with torch.no_grad():
        projected, skipped = project(Parameters.of(scene.gaussians), scene.camera)
    lists = list_tiles(*projected.footprint(), scene.camera.tiles, "row_span")
    assert (len(np.unique(lists.splat)), len(lists.splat), skipped) == (visible, pairs, 0)

    frame = CpuBackend().render(scene.gaussians, scene.camera)
    assert frame.visible == pytest.approx(visible, abs=3)
    assert frame.instances == pytest.approx(pairs, abs=20)
    assert np.abs(frame.tile_counts - lists.counts).sum() <= 20
    assert frame.skipped == 0


def test_the_small_benchmark_picture_is_that_of_the_reference() -> None:
    scene = make_scene("small")
    frame, expected = (b.render(scene.gaussians, scene.camera) for b in (CpuBackend(), ReferenceBackend()))
    assert_close_with_boundary_band(frame.image, expected.image, tight=2e-5, flip_size=0.02, flip_fraction=1e-3)
    error = float(np.mean((frame.image.astype(np.float64) - expected.image) ** 2))
    assert -10 * np.log10(error) > 80
