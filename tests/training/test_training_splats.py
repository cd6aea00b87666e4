"""Tests first splats, row operations, density control and the optimiser, on scenes small enough to check by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from splatscope.assets.capture import Capture, PointCloud
from splatscope.kernels.constants import SH_C0
from splatscope.kernels.cpu.adam import adam_step
from splatscope.kernels.types import Camera, Gaussians, Gradients
from splatscope.training.config import DensifyConfig, InitialConfig, RateConfig
from splatscope.training.data.initial import initial_points, splats_from_points
from splatscope.training.splats import rows as ops
from splatscope.training.splats.optimizer import Optimizer, mean_rate
from splatscope.training.strategies.adaptive import AdaptiveDensity

CAMERA = Camera.from_matrix(np.eye(4), 200, 100, 100, 100, 100, 50)
PARAMETERS = ("means", "log_scales", "quats", "logit_opacities", "sh")


def state_of(count: int, seed: int = 0, sh_rows: int = 4) -> ops.SplatState:
    """Returns random splats whose moments are recognisable: 100 and 200 plus the parameter."""
    rng = np.random.default_rng(seed)
    gaussians = Gaussians(
        means=rng.standard_normal((count, 3), dtype=np.float32),
        log_scales=np.full((count, 3), math.log(0.001), np.float32),
        quats=rng.standard_normal((count, 4), dtype=np.float32),
        logit_opacities=np.zeros(count, np.float32),
        sh=rng.standard_normal((count, sh_rows, 3), dtype=np.float32),
    )
    raw = ops.from_gaussians(gaussians).raw
    return ops.SplatState(raw, raw.map(lambda t: t + 100), raw.map(lambda t: t + 200))


def pull(count: int, lengths: dict[int, float]) -> Gradients:
    """Returns gradients in which splat i is seen and pulled along y by `lengths[i]` in NDC units."""
    means2d = np.zeros((count, 2), np.float32)
    visible = np.zeros(count, bool)
    for row, length in lengths.items():
        means2d[row, 1] = length / (0.5 * CAMERA.height)
        visible[row] = True
    zeros = np.zeros((count, 1), np.float32)
    return Gradients(zeros, zeros, zeros, zeros, zeros, means2d, visible)


def set_scale(state: ops.SplatState, row: int, scales: tuple[float, float, float]) -> None:
    state.raw.log_scales[row] = torch.log(torch.tensor(scales))


def refine(
    state: ops.SplatState, steps: list[dict[int, float]], iteration: int = 600, **changes: object
) -> tuple[ops.SplatState, object]:
    """Runs density control of an extent of 1 over black, after the given steps."""
    strategy = AdaptiveDensity(replace(DensifyConfig(), **changes), state.count, 1.0, False)  # pyright: ignore
    for lengths in steps:
        strategy.observe(pull(state.count, lengths), CAMERA)
    return strategy.after_step(state, iteration, torch.Generator().manual_seed(0))


# ------------------------------------------------------------------------------------- first splats


def test_scale_is_the_distance_to_the_three_nearest_points() -> None:
    positions = np.array([[0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 3], [50, 50, 50]], np.float64)
    splats = splats_from_points(PointCloud(positions, np.full((5, 3), 255, np.uint8)), 1, InitialConfig())
    assert math.exp(splats.log_scales[0, 0]) == pytest.approx(math.sqrt((1 + 4 + 9) / 3))
    assert splats.log_scales[1].tolist() == [splats.log_scales[1, 0]] * 3
    assert 1 / (1 + math.exp(-splats.logit_opacities[0])) == pytest.approx(0.1)
    assert splats.quats.tolist() == [[1, 0, 0, 0]] * 5
    np.testing.assert_allclose(0.5 + SH_C0 * splats.sh[:, 0], 1, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_handful_of_points_still_makes_finite_splats(count: int) -> None:
    positions = np.zeros((count, 3))  # all in one place: the floor of the scale is used
    splats = splats_from_points(PointCloud(positions, np.zeros((count, 3), np.uint8)), 2, InitialConfig())
    assert np.isfinite(splats.log_scales).all()


def test_without_points_splats_fill_the_cube_or_what_the_cameras_see() -> None:
    config, rng = InitialConfig(random_count=500), np.random.default_rng(0)
    blender = Capture(Path(), "blender", (), (), None, True)
    cube = initial_points(blender, [CAMERA], 1, config, True, rng).positions
    assert np.abs(cube).max() <= 1.3
    assert np.abs(cube).max() > 1.25
    seen = initial_points(replace(blender, kind="colmap"), [CAMERA], 1, config, True, rng).positions
    u, v = 100 * seen[:, 0] / seen[:, 2] + 100, 100 * seen[:, 1] / seen[:, 2] + 50
    assert (seen[:, 2] > 0).all()
    assert ((u >= 0) & (u <= 200) & (v >= 0) & (v <= 100)).all()
    assert len(seen) == 500


def test_the_cpu_starts_with_fewer_random_splats() -> None:
    blender = Capture(Path(), "blender", (), (), None, True)
    counts = [
        len(initial_points(blender, [], 1, InitialConfig(), cpu, np.random.default_rng(0)).positions)
        for cpu in (True, False)
    ]
    assert counts == [20_000, 100_000]


# ------------------------------------------------------------------------------------ row operations


def test_keeping_rows_keeps_their_moments() -> None:
    state = state_of(5)
    none = ops.select(state.raw, torch.zeros(5, dtype=torch.bool))
    kept = ops.replace_rows(state, torch.tensor([True, False, True, False, True]), none)
    for name in PARAMETERS:
        assert torch.equal(getattr(kept.raw, name), getattr(state.raw, name)[::2])
        assert torch.equal(getattr(kept.first, name), getattr(state.first, name)[::2])
        assert torch.equal(getattr(kept.second, name), getattr(state.second, name)[::2])


def test_appended_rows_have_no_momentum() -> None:
    state = state_of(3)
    born = ops.select(state.raw, torch.tensor([False, True, False]))
    grown = ops.replace_rows(state, torch.ones(3, dtype=torch.bool), born)
    for name in PARAMETERS:
        assert torch.equal(getattr(grown.raw, name)[3], getattr(state.raw, name)[1])
        assert torch.equal(getattr(grown.first, name)[:3], getattr(state.first, name))
        assert not getattr(grown.first, name)[3:].any()
        assert not getattr(grown.second, name)[3:].any()


def test_children_of_a_split_follow_the_shape_of_their_parent() -> None:
    state = state_of(2)
    set_scale(state, 1, (2.0, 1e-6, 1e-6))
    state.raw.quats[1] = torch.tensor([3.0, 0, 0, 3.0])  # a quarter turn about z, twice as long as it need be
    noise = torch.full((2, 1, 3), 1.5)
    noise[1] = -1.5
    children = ops.split_children(state.raw, torch.tensor([False, True]), noise, 1.6)
    offsets = children.means - state.raw.means[1]
    np.testing.assert_allclose(offsets.numpy(), [[0, 3, 0], [0, -3, 0]], atol=1e-5)
    np.testing.assert_allclose(children.log_scales[:, 0].exp().numpy(), 2 / 1.6, rtol=1e-6)
    assert torch.equal(children.sh, state.raw.sh[[1, 1]])


def test_sh_rows_are_added_once_and_start_at_zero() -> None:
    state = state_of(3, sh_rows=1)
    raised = ops.raise_sh_degree(state, 2)
    assert raised.raw.sh.shape == (3, 9, 3)
    assert torch.equal(raised.raw.sh[:, :1], state.raw.sh)
    assert not raised.raw.sh[:, 1:].any()
    assert not raised.first.sh[:, 1:].any()
    assert ops.raise_sh_degree(raised, 2) is raised


def test_arrays_are_views_of_the_tensors() -> None:
    state = state_of(2)
    ops.as_gaussians(state.raw, "3dgs").means[1, 2] = 42
    assert state.raw.means[1, 2] == 42


# ----------------------------------------------------------------------------------- density control


def test_small_splats_are_cloned_and_large_ones_split() -> None:
    state = state_of(4)
    set_scale(state, 0, (0.009, 0.001, 0.001))  # small, pulled
    set_scale(state, 1, (0.001, 0.011, 0.001))  # large, pulled
    set_scale(state, 2, (0.011, 0.001, 0.001))  # large, not pulled
    after, report = refine(state, [{0: 2.1e-4, 1: 2.1e-4, 2: 1.9e-4}])
    assert (report.cloned, report.split, report.pruned, report.count) == (1, 1, 0, 6)  # pyright: ignore
    means = after.raw.means
    assert torch.equal(means[:3], state.raw.means[[0, 2, 3]])  # the split parent is gone
    assert torch.equal(means[3], state.raw.means[0])
    np.testing.assert_allclose(after.raw.log_scales[4:, 1].exp().numpy(), 0.011 / 1.6, rtol=1e-6)
    assert not after.first.means[3:].any()
    assert torch.equal(after.first.means[:3], state.first.means[[0, 2, 3]])


def test_the_pull_is_averaged_over_the_steps_that_saw_the_splat() -> None:
    steps = [{0: 3e-4, 1: 3e-4}, {0: 0.5e-4}, {}]
    _, report = refine(state_of(3), steps)  # means: 1.75e-4 and 3e-4
    assert (report.cloned, report.split) == (1, 0)  # pyright: ignore


def test_faint_splats_are_pruned_and_huge_ones_only_after_the_first_reset() -> None:
    state = state_of(4)
    state.raw.logit_opacities[1] = math.log(0.004 / 0.996)
    state.raw.log_scales[2] = float("nan")
    set_scale(state, 3, (0.11, 0.01, 0.01))
    early, _ = refine(state, [])
    assert torch.equal(early.raw.means, state.raw.means[[0, 3]])
    late, report = refine(state, [], iteration=3100)
    assert torch.equal(late.raw.means, state.raw.means[:1])
    assert (report.pruned, report.count) == (3, 1)  # pyright: ignore


@pytest.mark.parametrize(
    ("iteration", "refines"), [(0, False), (500, False), (600, True), (650, False), (14_900, True), (15_000, False)]
)
def test_refines_every_hundred_steps_between_start_and_stop(iteration: int, refines: bool) -> None:
    _, report = refine(state_of(2), [], iteration)
    assert (report is not None) == refines


@pytest.mark.parametrize(
    ("iteration", "white", "lowered"),
    [(3000, False, True), (500, False, False), (500, True, True), (6000, True, True), (15_000, False, False)],
)
def test_opacities_are_lowered_on_schedule(iteration: int, white: bool, lowered: bool) -> None:
    state = state_of(2)
    state.raw.logit_opacities[1] = math.log(0.008 / 0.992)
    strategy = AdaptiveDensity(DensifyConfig(), 2, 1.0, white)
    after, _ = strategy.after_step(state, iteration, torch.Generator().manual_seed(0))
    expected = [0.01, 0.008] if lowered else [0.5, 0.008]
    np.testing.assert_allclose(torch.sigmoid(after.raw.logit_opacities).numpy(), expected, rtol=1e-5)
    assert bool(after.first.logit_opacities.any()) != lowered
    assert after.first.means.all()


def test_growth_stops_at_the_limit_with_the_strongest_first() -> None:
    state = state_of(4)
    pulls = {0: 3e-4, 1: 9e-4, 2: 5e-4, 3: 4e-4}
    after, report = refine(state, [pulls], max_splats=6)
    assert (report.cloned, report.count) == (2, 6)  # pyright: ignore
    assert torch.equal(after.raw.means[4:], state.raw.means[[1, 2]])
    assert refine(state, [pulls], max_splats=3)[0].count == 4


# ----------------------------------------------------------------------------------------- optimiser


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1000, 3), (333, 48), (2000, 4)])
def test_adam_is_that_of_torch(rows: int, columns: int) -> None:
    rng = np.random.default_rng(0)
    parameter = rng.standard_normal((rows, columns)).astype(np.float32)
    rates = (10.0 ** rng.uniform(-4, -2, columns)).astype(np.float32)
    theirs = [torch.tensor(parameter[:, i], requires_grad=True) for i in range(columns)]
    adam = torch.optim.Adam(
        [{"params": [p], "lr": float(r)} for p, r in zip(theirs, rates, strict=True)], betas=(0.9, 0.999), eps=1e-15
    )
    first, second = np.zeros_like(parameter), np.zeros_like(parameter)
    start = parameter.copy()
    for step in range(1, 31):
        gradient = (rng.standard_normal((rows, columns)) * 10.0 ** rng.uniform(-9, 1)).astype(np.float32)
        gradient[rng.random(rows) < 0.3] = 0
        adam_step(parameter, gradient, first, second, rates, step, 0.9, 0.999, 1e-15)
        for i, p in enumerate(theirs):
            p.grad = torch.from_numpy(gradient[:, i].copy())
        adam.step()
    moved = np.abs(parameter - start).max(axis=0)
    expected = np.stack([p.detach().numpy() for p in theirs], axis=1)
    assert (np.abs(parameter - expected).max(axis=0) <= 1e-5 * moved + 3e-7 * np.abs(start).max()).all()


def test_adam_refuses_arrays_it_would_not_change_in_place() -> None:
    good = np.zeros((4, 3), np.float32)
    with pytest.raises(ValueError, match="contiguous"):
        adam_step(np.zeros((4, 6), np.float32)[:, ::2], good, good, good, np.ones(3, np.float32), 1, 0.9, 0.999, 1e-15)
    with pytest.raises(ValueError, match="rate"):
        adam_step(good, good, good, good, np.ones(4, np.float32), 1, 0.9, 0.999, 1e-15)


def test_the_rate_of_positions_falls_log_linearly_and_then_stays() -> None:
    rates = RateConfig()
    expected = {0: 1.6e-4, 15_000: 1.6e-5, 30_000: 1.6e-6, 40_000: 1.6e-6}
    assert {i: pytest.approx(v) for i, v in expected.items()} == {i: mean_rate(rates, i) for i in expected}


def test_each_column_has_the_rate_of_the_recipe() -> None:
    rates = Optimizer(RateConfig(), extent=3.0).column_rates(30_000, sh_rows=4)
    assert rates["means"].tolist() == pytest.approx([4.8e-6] * 3)
    assert rates["sh"].tolist() == pytest.approx([2.5e-3] * 3 + [1.25e-4] * 9)
    assert rates["logit_opacities"].tolist() == pytest.approx([0.025])
    assert rates["log_scales"].tolist() == pytest.approx([5e-3] * 3)
    assert rates["quats"].tolist() == pytest.approx([1e-3] * 4)
