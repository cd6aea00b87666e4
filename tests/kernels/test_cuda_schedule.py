"""Tests the schedule kernel on the CPU in many orders, against the same decisions in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from splatscope.kernels.cuda.launch.arguments import struct_layout
from splatscope.kernels.cuda.launch.compiler import ARCHITECTURES, Kernel, compile_report, nvrtc_path, read_source
from splatscope.kernels.schedule import rules
from splatscope.kernels.schedule.rules import (
    CostModel,
    Machine,
    Split,
    chunk_length,
    length_policy,
    seed_policy,
    work_bin,
)
from tests.kernels.test_schedule import random_counts, skewed_counts
from tests.support.cuda_on_cpu.run import Device, build, is_supported

needs_emulation = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")

RULES = {
    "off": "Chunked::off",
    "all": "Chunked::all",
    "fixed": "Chunked::fixed",
    "catgs": "Chunked::catgs",
    "seed": "Chunked::modelled, .cost_model = CostModel::seed",
    "length": "Chunked::modelled, .cost_model = CostModel::length",
}
ORDERS = ("grid", "lpt", "lpt_binned", "lpt_reverse", "exact_work")
NAMES = [f"plan<PlanPolicy{{.sched = Sched::lpt_binned, .chunk = {rule}}}>" for rule in RULES.values()]
NAMES += [
    f"plan<PlanPolicy{{.sched = Sched::{order}, .chunk = {rule}}}>"
    for order in ORDERS
    for rule in (RULES["off"], RULES["length"])
]
NAMES = list(dict.fromkeys(NAMES))
NO_UNIT, CHUNK_FLAG = np.uint32(0xFFFFFFFF), np.uint32(0x80000000)
CHUNK_FIELDS = ("tile", "begin", "end", "number", "first", "parts")


@cache
def kernels() -> dict[str, Kernel]:
    return build(read_source("schedule.cuh"), NAMES)


@dataclass(frozen=True, eq=False)
class Planned:
    """Holds the kernel's results."""

    schedule: Any
    tile_order: NDArray[np.uint32]  # [whole tiles]; for lpt the keys of all
    tile_parts: NDArray[np.int64]  # [T] chunks of each tile, 1 for a whole one
    chunk_order: NDArray[np.uint32]  # [chunks]
    chunks: NDArray[np.uint32]  # [capacity, 6]
    arrived: NDArray[np.uint32]
    ready: NDArray[np.uint32]
    saturated: NDArray[np.uint32]


def plan(
    counts: NDArray[np.int64],
    rule: str,
    order_name: str = "lpt_binned",
    machine: Machine | None = None,
    model: CostModel | None = None,
    seed: int = 0,
    capacity: int = 4096,
    work: NDArray[np.int64] | None = None,
    h: int = 3,
    k: int = 4,
) -> Planned:
    machine, model = machine or Machine(132, 8), model or CostModel()
    device, source = Device(seed), read_source("schedule.cuh")
    kernel = kernels()[f"plan<PlanPolicy{{.sched = Sched::{order_name}, .chunk = {RULES[rule]}}}>"]
    frame = np.zeros(1, struct_layout(source.text, "Frame").dtype)
    frame["tile_columns"], frame["tile_rows"] = counts.size, 1
    layout = struct_layout(source.text, "Schedule").dtype
    out = device.empty("schedule", (layout.itemsize,), np.uint8)
    tiles = {n: device.empty(n, (counts.size,), np.uint32) for n in ("tile_keys", "tile_parts", "tile_ranks")}
    units = device.empty("units", (counts.size + capacity,), np.uint32)
    chunks = {n: device.empty(n, (capacity,), np.uint32) for n in ("arrived", "ready", "saturated")}
    records = device.empty("chunks", (capacity, 6), np.uint32)
    start = np.concatenate([[0], counts.cumsum()]).astype(np.uint32)
    arguments = kernel.arguments.pack(
        frame=device.upload("frame", frame.view(np.uint8)),
        tile_start=device.upload("tile_start", start),
        tiles=counts.size,
        work=None if work is None else device.upload("work", work.astype(np.uint32)),
        schedule=out,
        units=units,
        split=device.empty("split", (counts.size, 4), np.uint32),
        chunks=records,
        chunk_capacity=capacity,
        heaviest_tiles=h,
        parts=k,
        workers=machine.workers,
        pace=machine.pace,
        chunk_cost=model.chunk,
        tail_cost=model.tail,
        least_gain=model.least_gain,
        second_pass=model.second_pass,
        least_cut=model.least_cut,
        **tiles,
        **chunks,
    )
    device.launch(kernel, (1,), (1024,), arguments)
    decided = out.view(layout)[0]
    whole, split = int(decided["tile_units"]), int(decided["chunk_units"])
    if decided["in_grid_order"]:
        assert (rule, order_name, split) == ("length", "lpt_binned", 0)
        assert (units == NO_UNIT).all(), "nothing is written"
        units[: counts.size] = np.arange(counts.size)
    if rule != "off":
        assert (units[whole + split :] == NO_UNIT).all()
    if rule == "catgs":
        order, chunk_order = units[:whole], units[whole : whole + split]
    else:
        order, chunk_order = units[split : whole + split], units[:split]
    assert (chunk_order >= CHUNK_FLAG).all()
    if order_name == "lpt":
        order = tiles["tile_keys"]
    parts = np.ones(counts.size, np.int64)
    parts[records[:split, CHUNK_FIELDS.index("tile")]] = records[:split, CHUNK_FIELDS.index("parts")]
    return Planned(decided, order, parts, chunk_order - CHUNK_FLAG, records, **chunks)


def assert_is_split(planned: Planned, counts: NDArray[np.int64], split: Split) -> None:
    """Checks that only the tiles of `split` are split, each into its chunks, first chunks first."""
    wanted = split.chunks.copy()
    for tile in np.flatnonzero(wanted > 1):
        wanted[tile] = -(-counts[tile] // chunk_length(int(counts[tile]), int(wanted[tile])))
    np.testing.assert_array_equal(planned.tile_parts, wanted)
    assert planned.schedule["split_tiles"] == (wanted > 1).sum()
    units = int(planned.schedule["chunk_units"])
    assert units == wanted[wanted > 1].sum()
    order = planned.chunk_order[:units]
    np.testing.assert_array_equal(np.sort(order), np.arange(units))
    chunks = {name: planned.chunks[:units, i].astype(np.int64) for i, name in enumerate(CHUNK_FIELDS)}
    assert (np.diff(chunks["number"][order]) >= 0).all()
    np.testing.assert_array_equal(chunks["first"] + chunks["number"], np.arange(units))
    np.testing.assert_array_equal(chunks["parts"], wanted[chunks["tile"]])
    np.testing.assert_array_equal(np.bincount(chunks["tile"], chunks["end"] - chunks["begin"], counts.size),
                                  np.where(wanted > 1, counts, 0))  # fmt: skip
    is_first = chunks["number"] == 0
    np.testing.assert_array_equal(chunks["begin"][1:], np.where(is_first, 0, np.roll(chunks["end"], 1))[1:])
    assert (chunks["end"] > chunks["begin"]).all()
    assert not planned.arrived[:units].any()
    assert not planned.ready[:units].any()
    np.testing.assert_array_equal(planned.saturated[:units], chunks["parts"])


@needs_emulation
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rule", ["off", "length"])
def test_every_whole_tile_is_handed_out_once_in_its_order(order: str, rule: str) -> None:
    rng = np.random.default_rng(1)
    for tiles in (1, 77, 2500, 9000):  # the last in more than one round
        counts = random_counts(rng, tiles)
        counts[0] = 50_000
        work = counts // 3
        for seed in range(2 if tiles < 9000 else 1):
            planned = plan(counts, rule, order, seed=seed, work=work)
            whole = np.ones(tiles, bool) if rule == "off" else planned.tile_parts == 1
            assert planned.schedule["tile_units"] == whole.sum()
            handed = planned.tile_order[: whole.sum()].astype(np.int64)
            if order == "lpt":
                keys = np.where(whole, ~counts.astype(np.uint32), NO_UNIT)
                np.testing.assert_array_equal(planned.tile_order, keys)
                continue
            np.testing.assert_array_equal(np.sort(handed), np.flatnonzero(whole))
            assert not planned.schedule["in_grid_order"]
            steps = np.diff(work_bin(work if order == "exact_work" else counts)[handed])
            if order == "grid":
                assert (np.diff(handed) > 0).all()
            else:
                assert ((steps >= 0) if order == "lpt_reverse" else (steps <= 0)).all()


@needs_emulation
@pytest.mark.parametrize("policy", ["seed", "length"])
def test_a_policy_decides_on_the_gpu_as_in_numpy(policy: str) -> None:
    rng, decide, split_frames = np.random.default_rng(2), {"seed": seed_policy, "length": length_policy}[policy], 0
    for seed in range(12):
        counts = random_counts(rng, int(rng.integers(1, 900)))
        machine = Machine(int(rng.integers(1, 40)), int(rng.integers(2, 9)), float(rng.choice([1.5, 2.5, 9])))
        costs = float(rng.uniform(0, 100)), float(rng.uniform(0, 0.4)), 0.1, float(rng.choice([0, 0.5, 1]))
        model = CostModel(*costs, least_cut=int(rng.choice([256, 512, 1024])))
        counts *= int(rng.choice([1, 7]))
        split = decide(counts, machine, model)
        assert_is_split(plan(counts, policy, machine=machine, model=model, seed=seed), counts, split)
        split_frames += split.tiles > 0
    assert 2 < split_frames < 12
    counts = skewed_counts()
    for machine in (Machine(132, 16), Machine(132, 10, 2.5)):
        assert_is_split(plan(counts, policy, machine=machine), counts, decide(counts, machine, CostModel()))


@needs_emulation
def test_the_policy_leaves_a_frame_as_it_lies_on_the_gpu_as_in_numpy() -> None:
    rng, seen = np.random.default_rng(12), []
    for seed in range(10):
        tiles = int(rng.integers(1, 900)) if seed else 9000  # the first in more than one round
        counts = rng.integers(100, int(rng.integers(110, 400)), tiles)
        counts[rng.integers(tiles)] *= int(rng.integers(1, 4))
        machine = Machine(int(rng.integers(1, 20)), int(rng.integers(2, 9)), float(rng.choice([1.5, 2.5, 9])))
        planned = plan(counts, "length", machine=machine, seed=seed)
        seen.append(bool(planned.schedule["in_grid_order"]))
        assert seen[-1] == rules.keeps_grid(counts, machine, CostModel())
        assert planned.schedule["tile_units"] == tiles
        assert planned.schedule["heaviest"] == counts.max()
    assert 2 < sum(seen) < 9


@needs_emulation
def test_fixed_choices_split_the_tiles_they_name() -> None:
    rng = np.random.default_rng(3)
    for _ in range(4):
        counts = random_counts(rng, 300)
        counts[counts > 0] += 40
        counts[rng.integers(0, 300, 5)] = counts.max()  # ties
        everything = Split(np.where(counts > 0, 4, 1), 0, 0)
        assert_is_split(plan(counts, "all"), counts, everything)
        heaviest = np.ones_like(counts)
        heaviest[np.argsort(-counts, kind="stable")[:3]] = 4
        assert_is_split(plan(counts, "fixed"), counts, Split(heaviest, 0, 0))
        units = rules.variant("catgs", counts, Machine(1))
        pieces = np.bincount(units.tile, minlength=300)
        assert_is_split(plan(counts, "catgs", "lpt_binned"), counts, Split(pieces, 0, 0))


@needs_emulation
def test_tiles_whose_chunks_find_no_room_stay_whole() -> None:
    counts = np.array([40_000, 10, 30_000, 20_000, 500])
    for rule, wanted in (("all", [4, 1, 4, 4, 4]), ("catgs", [3, 1, 1, 1, 1])):
        for capacity in (0, 1, 4, 9, sum(wanted)):
            planned = plan(counts, rule, capacity=capacity)
            split = planned.tile_parts > 1
            assert planned.schedule["chunks_wanted"] == sum(k for k in wanted if k > 1)
            assert planned.schedule["chunk_units"] == planned.tile_parts[split].sum() <= capacity
            np.testing.assert_array_equal(np.sort(planned.tile_order), np.flatnonzero(~split))


@needs_emulation
def test_the_policy_chooses_longer_chunks_where_there_is_little_room() -> None:
    counts, machine = skewed_counts(), Machine(132, 6, 1.5)
    for room in (0, 20, 100, 4096):
        split = length_policy(counts, machine, CostModel(), room)
        assert split.chunks[split.chunks > 1].sum() <= room
        assert_is_split(plan(counts, "length", machine=machine, capacity=room), counts, split)


@needs_emulation
@pytest.mark.parametrize("rule", RULES)
def test_a_frame_without_splats_has_its_tiles_and_no_chunks(rule: str) -> None:
    planned = plan(np.zeros(70, np.int64), rule)
    assert planned.schedule["chunk_units"] == 0
    np.testing.assert_array_equal(np.sort(planned.tile_order), np.arange(70))


@pytest.mark.skipif(nvrtc_path() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_compiles_for_every_architecture_without_spills(architecture: int) -> None:
    for name, report in compile_report(read_source("schedule.cuh"), NAMES, architecture).items():
        assert report.registers <= 64, name
        assert report.spill_bytes == 0, name
