"""Tests strategies and what they share: budgets are kept, copies blend like their original, nothing else changes."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal, getcontext
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from splatscope.kernels.types import Camera, Gaussians, Gradients
from splatscope.training.config import (
    BudgetConfig,
    DataConfig,
    DensifyConfig,
    McmcConfig,
    RateConfig,
    StrategyName,
    TrainConfig,
)
from splatscope.training.data.dataset import Dataset
from splatscope.training.setting import setting_table, strategy_groups
from splatscope.training.splats import rows
from splatscope.training.strategies.base import Strategy
from splatscope.training.strategies.budget import BudgetedGrowth
from splatscope.training.strategies.factory import STRATEGIES, make_strategy
from splatscope.training.strategies.mcmc import Mcmc
from splatscope.training.strategies.pixel_budget import covered_pixels
from tests.support.small_capture import make_capture

CAMERA = Camera.from_matrix(np.eye(4), 200, 100, 100, 100, 100, 50)


def state_of(count: int, opacity: float | None = 0.5) -> rows.SplatState:
    """Returns random splats whose moments are recognisable: 100 and 200 plus the parameter."""
    rng = np.random.default_rng(1)
    opacities = rng.uniform(0.01, 0.99, count) if opacity is None else np.full(count, opacity)
    gaussians = Gaussians(
        means=rng.standard_normal((count, 3), dtype=np.float32),
        log_scales=rng.uniform(-5, -3, (count, 3)).astype(np.float32),
        quats=rng.standard_normal((count, 4), dtype=np.float32),
        logit_opacities=np.log(opacities / (1 - opacities)).astype(np.float32),
        sh=rng.standard_normal((count, 4, 3), dtype=np.float32),
    )
    raw = rows.from_gaussians(gaussians).raw
    return rows.SplatState(raw, raw.map(lambda t: t + 100), raw.map(lambda t: t + 200))


def pulls(lengths: np.ndarray) -> Gradients:
    """Returns gradients in which every splat is seen and pulled along y by `lengths` [N] in NDC units."""
    means2d = np.zeros((len(lengths), 2), np.float32)
    means2d[:, 1] = lengths / (0.5 * CAMERA.height)
    zeros = np.zeros((len(lengths), 1), np.float32)
    return Gradients(zeros, zeros, zeros, zeros, zeros, means2d, np.ones(len(lengths), bool))


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------------------------------ sharing a place


@pytest.mark.parametrize("copies", [2, 3, 10, 51])
@pytest.mark.parametrize("opacity", [0.02, 0.6, 0.97])
def test_copies_that_share_a_place_blend_like_the_one_splat_along_a_line(copies: int, opacity: float) -> None:
    state = state_of(2, opacity)
    shared = rows.shared_opacity(state.raw, torch.tensor([copies, 1]), 1e-6)
    share = float(torch.sigmoid(shared.logit_opacities[0].double()))
    assert 1 - (1 - share) ** copies == pytest.approx(opacity, rel=1e-4)
    x = np.linspace(-20, 20, 200_001)
    wider = float((shared.log_scales[0] - state.raw.log_scales[0]).exp()[0])
    together = 1 - (1 - share * np.exp(-0.5 * (x / wider) ** 2)) ** copies
    assert np.trapezoid(together, x) == pytest.approx(opacity * math.sqrt(2 * math.pi), rel=1e-4)
    for name in ("means", "quats", "sh"):
        assert torch.equal(getattr(shared, name), getattr(state.raw, name))
    assert torch.equal(shared.log_scales[1], state.raw.log_scales[1])


def test_the_scale_is_that_of_the_published_double_sum() -> None:
    getcontext().prec = 60
    for copies, opacity in ((2, 0.3), (7, 0.9), (51, 0.995)):
        share = 1 - (1 - Decimal(opacity)) ** (1 / Decimal(copies))
        double_sum = sum(
            math.comb(i - 1, k) * (-1) ** k * share ** (k + 1) / Decimal(k + 1).sqrt()
            for i in range(1, copies + 1)
            for k in range(i)
        )
        state = state_of(1, opacity)
        shared = rows.shared_opacity(state.raw, torch.tensor([copies]), 1e-6)
        factor = float((shared.log_scales - state.raw.log_scales).exp()[0, 0])
        assert factor == pytest.approx(float(Decimal(opacity) / double_sum), rel=1e-5)


def test_draws_follow_the_weights() -> None:
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0, 6.0])
    drawn = torch.bincount(rows.draw_with_replacement(weights, 100_000, random()), minlength=5)
    np.testing.assert_allclose(drawn.numpy() / 1e5, weights.numpy() / 10, atol=0.01)
    first = torch.zeros(5)
    for seed in range(2000):
        chosen = rows.draw_without_replacement(weights, 1, random(seed))
        assert int(chosen.sum()) == 1
        first += chosen
    np.testing.assert_allclose(first.numpy() / 2000, weights.numpy() / 10, atol=0.05)
    assert rows.draw_without_replacement(weights, 9, random()).tolist() == [False, True, True, False, True]
    assert not rows.draw_without_replacement(weights, 0, random()).any()


# ------------------------------------------------------------------------------------------ purity


BUSY: dict[str, dict[str, object]] = {  # settings with which a refine does more; a strategy may have none here
    "adaptive": {"densify": DensifyConfig(reset_interval=600)},
    "mcmc": {"mcmc": McmcConfig(dead_opacity=0.3)},
    "budget": {"budget": BudgetConfig(halving_interval=600, max_splats=900)},
}


def busy_config(name: str) -> TrainConfig:
    return replace(TrainConfig(), strategy=name, **BUSY.get(name, {}))  # pyright: ignore[reportArgumentType]


def busy_strategy(name: str, count: int) -> Strategy:
    return make_strategy(busy_config(name), count, 1.0, False)


def test_every_strategy_has_a_name_a_group_of_settings_and_a_row_in_the_table() -> None:
    assert set(get_args(StrategyName)) == set(STRATEGIES), "STRATEGIES of factory.py needs a row for each StrategyName"
    groups = set(strategy_groups(TrainConfig))
    assert groups == set(STRATEGIES), "TrainConfig needs one group(..., strategy=NAME) for each strategy"
    names = {row.name for row in setting_table(TrainConfig)}
    for kind in STRATEGIES.values():
        if rules := kind.removals:
            assert {rules.smallest_opacity, *rules.fading, *rules.swelling} <= names
            assert {rules.large_share, rules.large_after} - {""} <= names


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_changes_splats_at_the_iterations_its_settings_say(name: str) -> None:
    strategy = busy_strategy(name, 10)
    refines = busy_config(name).strategy_settings.refines()
    assert set(refines) <= {iteration for iteration in range(1, refines.stop + 1_000) if strategy.due(iteration)}


def test_the_last_refine_comes_before_the_iteration_that_ends_growth_or_at_it() -> None:
    lasts = {name: busy_config(name).strategy_settings.refines()[-1] for name in BUSY}
    assert lasts == {"adaptive": 14_900, "mcmc": 24_900, "budget": 15_000}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_refine_leaves_the_state_it_was_given_untouched(name: str) -> None:
    state, strategy = state_of(200, None), busy_strategy(name, 200)
    strategy.observe(pulls(np.linspace(0, 4e-4, 200)), CAMERA)
    before = [t.clone() for part in (state.raw, state.first, state.second) for t in vars(part).values()]
    after, report = strategy.after_step(state, 600, random())
    assert report is not None
    assert report.count == after.count
    assert after.count == state.count + report.cloned + report.split - report.pruned
    now = [t for part in (state.raw, state.first, state.second) for t in vars(part).values()]
    assert all(torch.equal(a, b) for a, b in zip(before, now, strict=True))
    assert all(torch.isfinite(t).all() for t in vars(after.raw).values())


def test_with_density_control_off_no_strategy_touches_anything() -> None:
    for name in STRATEGIES:
        config = TrainConfig(strategy=name, densify=DensifyConfig(enabled=False))
        state = state_of(10)
        assert make_strategy(config, 10, 1.0, True).after_step(state, 600, random()) == (state, None)


# ------------------------------------------------------------------------------------------ MCMC


def mcmc(**changes: object) -> Mcmc:
    return Mcmc(replace(McmcConfig(noise=0), **changes), RateConfig(), 1.0)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("keeps", [True, False])
def test_dead_splats_move_onto_living_ones_which_keep_their_momentum_if_asked_for(keeps: bool) -> None:
    state = state_of(40, 0.6)
    state.raw.logit_opacities[:10] = -7.0
    state.raw.means[3] = float("nan")
    after, report = mcmc(max_splats=40, keeps_momentum=keeps).after_step(state, 600, random())
    assert report is not None
    assert (report.moved, report.cloned, report.count) == (10, 0, 40)
    assert torch.isfinite(after.raw.means).all()
    taken = torch.zeros(40, dtype=torch.bool)
    for row in range(10):
        onto = (after.raw.means[10:] == after.raw.means[row]).all(dim=1).nonzero()[:, 0] + 10
        assert len(onto) == 1
        taken[onto] = True
        assert torch.equal(after.raw.logit_opacities[row], after.raw.logit_opacities[int(onto)])
    torch.testing.assert_close(after.raw.logit_opacities[~taken][10:], state.raw.logit_opacities[~taken][10:])
    begins_anew = torch.arange(40) == 3
    if not keeps:
        begins_anew |= taken
    for name in ("means", "sh", "logit_opacities"):
        for part in ("first", "second"):
            now, before = (getattr(getattr(each, part), name) for each in (after, state))
            assert not now[begins_anew].any()
            assert torch.equal(now[~begins_anew], before[~begins_anew])


def test_the_count_grows_by_a_twentieth_until_the_cap() -> None:
    state, strategy, counts = state_of(100, 0.8), mcmc(max_splats=120), []
    for iteration in range(100, 1200, 100):
        state, _ = strategy.after_step(state, iteration, random(iteration))
        counts.append(state.count)
    assert counts[:8] == [100, 100, 100, 100, 100, 105, 110, 115]
    assert counts[-2:] == [120, 120]


def test_noise_moves_faint_splats_along_their_covariance_and_spares_opaque_ones() -> None:
    count = 20_000
    state = state_of(2, 0.005)
    raw = state.raw.map(lambda t: t[:1].repeat(count, *(1,) * (t.ndim - 1)))
    noise = torch.randn(count, 3, generator=random())
    step = (rows.shaken_means(raw, noise, 1.0, 0.005, 100.0) - raw.means).double().numpy()
    rotation = rows.rotation_matrices(raw.quats[:1])[0].double()
    covariance = (rotation @ torch.diag((2 * raw.log_scales[0].double()).exp()) @ rotation.T).numpy()
    expected = 0.25 * covariance @ covariance.T  # the sigmoid is a half at its centre
    np.testing.assert_allclose(np.cov(step.T), expected, atol=0.05 * expected.max())
    opaque = replace(raw, logit_opacities=torch.full((count,), 2.0))
    assert torch.equal(rows.shaken_means(opaque, noise, 1.0, 0.005, 100.0), opaque.means)


def test_penalties_have_the_gradients_of_the_means_they_penalise() -> None:
    raw = state_of(30, None).raw
    by_logit, by_scale = rows.penalty_gradients(raw, 0.01, 0.02)
    logits = raw.logit_opacities.double().requires_grad_()
    scales = raw.log_scales.double().requires_grad_()
    (0.01 * torch.sigmoid(logits).mean() + 0.02 * scales.exp().mean()).backward()
    assert logits.grad is not None
    assert scales.grad is not None
    np.testing.assert_allclose(by_logit.numpy(), logits.grad.numpy(), rtol=1e-5)
    np.testing.assert_allclose(by_scale.numpy(), scales.grad.numpy(), rtol=1e-5)


# ------------------------------------------------------------------------------------------ budget


def test_the_budget_is_reached_on_a_straight_line_and_kept() -> None:
    config = BudgetConfig(start=100, stop=1000, interval=100, max_splats=1000, halving_interval=0)
    state = state_of(100, 0.8)
    strategy, counts = BudgetedGrowth(config, state.count, 1.0), []
    for iteration in range(100, 1300, 100):
        strategy.observe(pulls(np.random.default_rng(iteration).random(state.count)), CAMERA)
        state, _ = strategy.after_step(state, iteration, random(iteration))
        counts.append(state.count)
    assert counts == [100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1000, 1000]


def test_a_budget_that_nobody_set_comes_from_what_the_photographs_show(tmp_path: Path) -> None:
    dataset = Dataset(make_capture(tmp_path, cut_out=True), DataConfig())
    assert len(list(dataset.load())) == 24
    shown = covered_pixels(dataset.training, dataset.background)
    assert 0 < shown < 0.9 * 72 * 56
    assert covered_pixels(dataset.training, (0.1, 0.2, 0.3)) == 72 * 56
    moving = mcmc(max_splats=None, growth=10, start=0, splats_per_pixel=0.005)
    moving.aim(dataset.training, dataset.background)
    assert moving.after_step(state_of(10, 0.8), 100, random())[0].count == round(0.005 * shown) < 110
    config = BudgetConfig(start=0, stop=100, interval=100, splats_per_pixel=2.0)
    strategy = BudgetedGrowth(config, 10, 1.0)
    strategy.aim(dataset.training, dataset.background)
    assert strategy.allowed(100) == round(2 * shown)
    resumed = BudgetedGrowth(config, 10, 1.0)
    resumed.restore(strategy.statistics())
    resumed.aim([], (0, 0, 0))
    assert resumed.allowed(100) == strategy.allowed(100)
    given = BudgetedGrowth(replace(config, max_splats=60), 10, 1.0)
    given.aim(dataset.training, dataset.background)
    assert given.allowed(100) == 60


def test_a_split_parent_goes() -> None:
    state = state_of(50, 0.8)
    config = BudgetConfig(start=0, stop=100, interval=100, max_splats=60, split=True, dense_share=0)
    strategy, lengths = BudgetedGrowth(config, 50, 1.0), np.zeros(50)
    lengths[7] = 1
    strategy.observe(pulls(lengths), CAMERA)
    after, report = strategy.after_step(state, 100, random())
    assert report is not None
    assert (report.cloned, report.split, after.count) == (0, 1, 51)
    np.testing.assert_allclose(after.raw.log_scales[49:], state.raw.log_scales[[7, 7]] - math.log(1.6), rtol=1e-6)


def test_parents_stay_and_only_the_pulled_have_children() -> None:
    state = state_of(50, 0.8)
    state.raw.log_scales[:, 0] = math.log(0.02)  # large for an extent of one
    strategy = BudgetedGrowth(BudgetConfig(start=0, stop=100, interval=100, max_splats=60), 50, 1.0)
    lengths = np.zeros(50)
    lengths[7], lengths[8] = 1, 2
    strategy.observe(pulls(lengths), CAMERA)
    after, report = strategy.after_step(state, 100, random())
    assert report is not None
    assert (report.cloned, report.split, after.count) == (0, 2, 52)
    assert torch.equal(after.raw.means[:50], state.raw.means)
    np.testing.assert_allclose(after.raw.log_scales[50:], state.raw.log_scales[[7, 8]] - math.log(1.6), rtol=1e-6)


def test_halving_spares_the_faintest_and_stops_after_the_given_number() -> None:
    state = state_of(3, 0.8)
    state.raw.logit_opacities[1] = math.log(0.01 / 0.99)
    state.raw.logit_opacities[2] = math.log(0.003 / 0.997)
    strategy = BudgetedGrowth(
        BudgetConfig(start=0, stop=10_000, interval=10_000, halving_interval=100, halvings=2), 3, 1.0
    )
    for iteration in range(1, 1000):
        state, _ = strategy.after_step(state, iteration, random())
    np.testing.assert_allclose(torch.sigmoid(state.raw.logit_opacities).numpy(), [0.2, 1 / 128, 0.003], rtol=1e-4)
    assert not state.first.logit_opacities.any()
