"""Tests scheduling in plain NumPy: figures of a frame, orders, policies, and the simulator that runs them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from splatscope.app.bench.scenes.generated import make_scene
from splatscope.kernels.cpu import CpuBackend
from splatscope.kernels.errors import InputError
from splatscope.kernels.schedule.rules import (
    LEAST_CUT,
    MACHINES,
    ORDERS,
    VARIANTS,
    CostModel,
    Machine,
    chunk_length,
    imbalance,
    keeps_grid,
    length_policy,
    seed_policy,
    tile_order,
    units_of,
    unsplit,
    variant,
    work_bin,
)
from splatscope.kernels.schedule.simulator import simulate

H200 = Machine(132, 8)


def random_counts(rng: np.random.Generator, tiles: int = 400) -> NDArray[np.int64]:
    """Returns counts from even to very skewed, some of them 0."""
    counts = np.exp(rng.uniform(0.0, 1.5) * rng.standard_normal(tiles) + 4).astype(np.int64)
    counts[rng.random(tiles) < 0.2] = 0
    counts[rng.integers(tiles)] *= int(rng.choice([1, 1, 2, 100]))
    return counts


def skewed_counts() -> NDArray[np.int64]:
    """Returns counts with as many tiles and splats as S3 has, and its six heaviest tiles."""
    heavy = [130_391, 90_000, 60_000, 45_000, 30_000, 26_000]
    tiles, total = 5600, 2_310_978
    rest = np.random.default_rng(0).exponential(1.0, tiles - len(heavy))
    rest = (rest * (total - sum(heavy)) / rest.sum()).astype(np.int64)
    counts = np.concatenate([heavy, rest])
    counts[-1] += total - counts.sum()
    return counts


def optimum(work: list[float], machines: int) -> float:
    """Returns the shortest makespan, by trying every assignment."""
    best = float("inf")
    for rest in itertools.product(range(machines), repeat=len(work) - 1):
        loads = [0.0] * machines
        for amount, machine in zip(work, (0, *rest), strict=True):
            loads[machine] += amount
        best = min(best, max(loads))
    return best


# ---- Figures ---------------------------------------------------------------------------------------------------------


def test_the_figures_of_a_frame_are_those_of_their_definitions() -> None:
    counts = np.array([[3, 0, 1], [8, 0, 0]])
    figures = imbalance(counts, Machine(2, 2))
    assert (figures.total, figures.heaviest, figures.share) == (12, 8, 3.0)
    assert figures.ratio == pytest.approx(8 / 3)
    assert figures.max_over_mean == 4.0
    pairs = np.abs(counts.ravel()[:, None] - counts.ravel()).sum()
    assert figures.gini == pytest.approx(pairs / (2 * 6 * 12))
    assert figures.idle_area == pytest.approx(1 - 12 / (4 * 8))
    assert imbalance(np.zeros(5, int), H200).ratio == 0.0
    with pytest.raises(InputError, match="whole numbers"):
        imbalance(np.array([1.5]), H200)
    with pytest.raises(InputError, match="multiprocessor"):
        Machine(0)


def test_a_benchmark_frame_drawn_on_the_processor_has_its_published_ratio() -> None:
    scene = make_scene("S4")
    counts = CpuBackend().render(scene.gaussians, scene.camera).tile_counts
    assert imbalance(counts, Machine(132, 8)).ratio == pytest.approx(5.2, abs=0.05)
    assert imbalance(counts, Machine(132, 16)).ratio == pytest.approx(10.4, abs=0.1)


def test_the_skewed_frame_has_the_ratio_and_the_costs_worked_out_by_hand() -> None:
    counts = skewed_counts()
    assert imbalance(counts, Machine(132, 8)).ratio == pytest.approx(59.6, abs=0.05)
    assert imbalance(counts, Machine(132, 16)).ratio == pytest.approx(119, abs=0.5)
    seed = seed_policy(counts, Machine(132, 16), CostModel())
    assert seed.chunks[0] == 16
    assert seed.cost == pytest.approx(1.1 * 130_391 / 16)  # the longest chunk alone decides
    longer = seed_policy(counts, Machine(132, 16), CostModel(), tuple(2**i for i in range(1, 9)))
    length = length_policy(counts, Machine(132, 16), CostModel())
    assert length.cost < longer.cost < 0.25 * seed.cost


# ---- Orders ----------------------------------------------------------------------------------------------------------


def test_bins_are_an_eighth_of_an_octave_and_grow_with_the_count() -> None:
    counts = np.unique(np.geomspace(1, 2**31, 4000).astype(np.int64))
    bins = work_bin(counts)
    assert work_bin(0) == 0
    assert (np.diff(bins) >= 0).all()
    assert bins.min() == 1
    assert bins.max() < 256
    for number in np.unique(bins):
        same = counts[bins == number]
        assert same.max() <= same.min() * 1.126


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_hands_out_every_tile_once(order: str) -> None:
    rng = np.random.default_rng(1)
    counts = random_counts(rng)
    places = tile_order(counts, order)
    np.testing.assert_array_equal(np.sort(places), np.arange(counts.size))
    if order == "lpt":
        assert (np.diff(counts[places]) <= 0).all()
    if order == "lpt_binned":
        assert (np.diff(work_bin(counts[places])) <= 0).all()
    with pytest.raises(InputError, match="lpt_binned"):
        tile_order(counts, "random")


# ---- Policies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [seed_policy, length_policy])
def test_a_policy_splits_only_where_its_model_gains_enough(policy: object) -> None:
    rng, split_frames = np.random.default_rng(2), 0
    for _ in range(60):
        counts = random_counts(rng)
        machine = Machine(int(rng.integers(1, 40)), int(rng.integers(1, 6)))
        model = CostModel(float(rng.uniform(0, 200)), float(rng.uniform(0, 0.5)), 0.1, float(rng.uniform(0, 1)))
        split = policy(counts, machine, model)  # pyright: ignore[reportCallIssue]
        if split.tiles:
            assert split.cost <= 0.9 * split.cost_whole
            assert counts[split.chunks > 1].min() >= counts[split.chunks == 1].max()
        else:
            assert split.cost == split.cost_whole
        split_frames += split.tiles > 0
    assert 5 < split_frames < 55


def test_the_published_policy_is_the_best_of_all_its_choices() -> None:
    rng = np.random.default_rng(3)
    for _ in range(10):
        counts, machine, model = random_counts(rng, 60), Machine(8, 4), CostModel()
        ranked, best = np.sort(counts)[::-1], unsplit(counts, machine, model).cost
        for k, h in itertools.product((2, 4, 8, 16), range(1, 61)):
            longest = max(ranked[0] / k, ranked[h] if h < 60 else 0)
            best = min(best, max((counts.sum() + 32 * h * k) / 32, longest) + 0.1 * longest)
        split = seed_policy(counts, machine, model)
        whole = split.cost_whole
        assert split.cost == pytest.approx(best if best <= 0.9 * whole else whole)


def test_an_even_frame_stays_whole_on_every_machine() -> None:
    counts = np.random.default_rng(4).integers(180, 220, 6370)
    for machine in MACHINES.values():
        for policy in (seed_policy, length_policy):
            assert policy(counts, machine, CostModel()).tiles == 0


def test_a_frame_that_no_order_shortens_by_a_tenth_stays_as_it_lies() -> None:
    machine, even = Machine(132, 5, 1.3), np.random.default_rng(4).integers(180, 220, 6370)
    heavy_first, heavy_last = even.copy(), even.copy()
    heavy_first[0] = heavy_last[-1] = LEAST_CUT - 1  # too light to be split
    for counts, stays in ((even, True), (heavy_first, True), (heavy_last, False)):
        units = variant("length", counts, machine)
        assert keeps_grid(counts, machine, CostModel()) == stays
        assert (units.tile == np.arange(counts.size)).all() == stays
        longest_first = simulate(variant("lpt_binned", counts, machine).work, machine).makespan
        as_it_lies = simulate(variant("grid", counts, machine).work, machine).makespan
        assert (as_it_lies < 1.05 * longest_first) == stays
    assert not keeps_grid(skewed_counts(), machine, CostModel()), "what may be split is not left as it lies"


# ---- Units -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIANTS)
def test_units_cover_every_splat_once_and_first_chunks_start_first(name: str) -> None:
    counts, model = skewed_counts(), CostModel(chunk=0.0)
    units = variant(name, counts, H200, model)
    np.testing.assert_allclose(np.bincount(units.tile, units.work, counts.size), counts)
    pairs = units.tile * 100_000 + units.chunk
    assert np.unique(pairs).size == len(units)
    split = np.bincount(units.tile) > 1
    numbers = units.chunk[split[units.tile]]
    assert (np.diff(numbers) >= 0).all()


def test_chunks_are_as_many_as_asked_for_where_steps_allow() -> None:
    for count in (1, 31, 33, 1000, 130_391):
        for chunks in (1, 2, 16, 100):
            length = chunk_length(count, chunks)
            assert length % 32 == 0
            assert -(-count // length) <= chunks
            assert (length - 32) * chunks < count


# ---- Simulator -------------------------------------------------------------------------------------------------------


def test_longest_first_is_within_grahams_bound_of_the_optimum() -> None:
    rng = np.random.default_rng(5)
    for _ in range(40):
        machines = int(rng.integers(2, 4))
        work = np.sort(rng.integers(1, 40, int(rng.integers(2, 9))))[::-1].astype(float)
        timeline = simulate(work, Machine(machines, 1))
        best = optimum(work.tolist(), machines)
        assert timeline.lower_bound <= best + 1e-9
        assert best - 1e-9 <= timeline.makespan <= (4 / 3 - 1 / (3 * machines)) * best + 1e-9


@pytest.mark.parametrize("saturated_by", [None, 1.0, 2.5])
def test_no_block_waits_while_there_is_room_and_no_place_is_taken_twice(saturated_by: float | None) -> None:
    rng = np.random.default_rng(6)
    machine = Machine(3, 4, saturated_by)
    timeline = simulate(rng.exponential(10.0, 200), machine)
    assert (timeline.end > timeline.start).all()
    for now in rng.uniform(0, timeline.makespan, 100):
        running = (timeline.start <= now) & (now < timeline.end)
        residents = np.bincount(timeline.multiprocessor[running], minlength=3)
        assert residents.max() <= 4
        assert running.sum() == 12 or not (timeline.start > now).any()
    assert timeline.makespan >= timeline.lower_bound - 1e-6
    assert (timeline.end - timeline.start >= timeline.work - 1e-6).all()


def test_blocks_that_share_a_multiprocessor_slow_each_other_down() -> None:
    alone = simulate([10.0], Machine(1, 4, 2.0))
    two = simulate([10.0, 10.0], Machine(1, 4, 2.0))
    four = simulate([10.0, 10.0, 10.0, 30.0], Machine(1, 4, 2.0))
    assert alone.makespan == two.makespan == pytest.approx(10.0)
    np.testing.assert_allclose(four.end, [20.0, 20.0, 20.0, 40.0])  # at half speed, then alone at full speed


def test_activity_is_the_share_of_time_with_a_block() -> None:
    timeline = simulate([4.0, 1.0, 1.0], Machine(2, 1))  # the second has 1 + 1 of 4
    assert timeline.sm_activity == pytest.approx(0.75)
    np.testing.assert_allclose(timeline.activity(4), [1.0, 1.0, 0.5, 0.5])
    assert timeline.idle_area == pytest.approx(0.25)
    overlapping = simulate([4.0, 2.0, 2.0, 2.0], Machine(1, 2))  # two places of one multiprocessor
    assert overlapping.sm_activity == 1.0
    assert simulate([], H200).sm_activity == 0.0
    rng = np.random.default_rng(7)
    for _ in range(20):
        timeline = simulate(rng.exponential(5.0, 90), Machine(4, 3, 2.0))
        assert timeline.activity(37).mean() == pytest.approx(timeline.sm_activity)


def test_on_a_skewed_frame_only_chunks_help_and_more_multiprocessors_help_more() -> None:
    counts = skewed_counts()
    gains = []
    for name in ("GB10", "RTX A6000", "H200"):
        machine = MACHINES[name]
        spans = {v: simulate(variant(v, counts, machine).work, machine).makespan for v in ("lpt_binned", "length")}
        assert spans["lpt_binned"] == pytest.approx(130_391)
        gains.append(spans["lpt_binned"] / spans["length"])
    assert 10 < gains[0] < gains[1] < gains[2]


def test_a_split_that_walks_twice_costs_that_much_more() -> None:
    counts = np.array([6400, 100])
    split = seed_policy(counts, Machine(16, 1), CostModel(tail=0.1, second_pass=1.0))
    assert split.chunks[0] == 16
    units = units_of(counts, split, "lpt", CostModel(second_pass=1.0))
    assert units.work[:16].sum() == pytest.approx(2 * 6400 + 16 * 32)
