"""Tests where tiles begin among sorted pairs, and the plan by the last block: on the CPU in many orders."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from splatscope.kernels.cuda.launch.arguments import struct_layout
from splatscope.kernels.cuda.launch.compiler import ARCHITECTURES, Kernel, compile_report, nvrtc_path, read_source
from splatscope.kernels.schedule.rules import CostModel, Machine, keeps_grid, length_policy, work_bin
from tests.kernels.test_schedule import random_counts
from tests.support.cuda_on_cpu.run import Device, build, is_supported

needs_emulation = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")

ALONE = {key_bytes: f"ranges<RangesPolicy{{{key_bytes}}}>" for key_bytes in (2, 4, 8)}
PLANNED = {key_bytes: f"ranges_plan<RangesPlanPolicy{{{key_bytes}}}>" for key_bytes in (2, 4, 8)}
MACHINE, MODEL, ROOM, TICKET = Machine(7, 3, 1.5), CostModel(least_cut=512), 512, 5
CHUNK_FLAG, NO_UNIT = 0x80000000, 0xFFFFFFFF


@cache
def kernels() -> dict[str, Kernel]:
    return build(read_source("ranges.cuh"), [*ALONE.values(), *PLANNED.values()])


def run(counts: NDArray[np.int64], key_bytes: int, blocks: int, seed: int, planned: bool) -> dict[str, Any]:
    """Returns the starts of the tiles; with a plan also its record, the units and the frame."""
    device, source = Device(seed, blocks_in_flight=8), read_source("ranges.cuh")
    kernel = kernels()[(PLANNED if planned else ALONE)[key_bytes]]
    tiles, frame = counts.size, np.zeros(1, struct_layout(source.text, "Frame").dtype)
    frame["tile_columns"], frame["tile_rows"], frame["instances"] = tiles, 1, counts.sum()
    keys = np.repeat(np.arange(tiles), counts).astype(f"u{key_bytes}")
    if key_bytes == 8:  # below the tile stands a depth
        keys = keys << np.uint64(32) | np.arange(keys.size, dtype=np.uint64)
    out = {
        "frame": device.upload("frame", frame.view(np.uint8)),
        "starts": device.empty("tile_starts", (tiles + 1,), np.uint32),
    }
    arguments = {"frame": out["frame"], "keys": device.upload("keys", keys), "tile_starts": out["starts"]}
    if planned:
        layout = struct_layout(source.text, "Schedule").dtype
        record = device.empty("schedule", (layout.itemsize,), np.uint8)
        out |= {"record": record.view(layout), "units": device.empty("units", (tiles + ROOM,), np.uint32)}
        plan = {name: device.empty(name, (tiles,), np.uint32) for name in ("tile_keys", "tile_parts", "tile_ranks")}
        plan |= {name: device.empty(name, (ROOM,), np.uint32) for name in ("arrived", "ready", "saturated")}
        arguments |= {
            "ticket": TICKET,
            "plan": plan
            | {
                "frame": out["frame"],
                "tile_start": out["starts"],
                "tiles": tiles,
                "work": None,
                "schedule": record,
                "units": out["units"],
                "split": device.empty("split", (tiles, 4), np.uint32),
                "chunks": device.empty("chunks", (ROOM, 6), np.uint32),
                "chunk_capacity": ROOM,
                "heaviest_tiles": 0,
                "parts": 0,
                "workers": MACHINE.workers,
                "pace": MACHINE.pace,
                "chunk_cost": MODEL.chunk,
                "tail_cost": MODEL.tail,
                "least_gain": MODEL.least_gain,
                "second_pass": MODEL.second_pass,
                "least_cut": MODEL.least_cut,
            },
        }
    device.launch(kernel, (blocks,), (1024 if planned else 256,), kernel.arguments.pack(**arguments))
    out["frame"] = frame_of(out["frame"])
    return out


def frame_of(words: NDArray[np.uint8]) -> Any:
    return words.view(struct_layout(read_source("ranges.cuh").text, "Frame").dtype)[0]


def some_counts(rng: np.random.Generator, tiles: int, kind: str) -> NDArray[np.int64]:
    if kind == "empty":
        return np.zeros(tiles, np.int64)
    if kind == "sparse":  # long runs without pairs, at both ends too
        return np.where(rng.random(tiles) < 0.03, rng.integers(1, 40, tiles), 0)
    if kind == "even":
        return rng.integers(20, 24, tiles)
    if kind == "ones":  # a tile begins with every key
        return np.ones(tiles, np.int64)
    counts = random_counts(rng, tiles) // 4
    counts[rng.integers(tiles)] += 9000 if kind == "heavy" else 0
    return counts


KINDS = ("empty", "sparse", "even", "ones", "uneven", "heavy")


@needs_emulation
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("planned", [False, True])
def test_each_tile_begins_at_its_first_pair(kind: str, planned: bool) -> None:
    rng = np.random.default_rng(KINDS.index(kind))
    for seed, (tiles, key_bytes, blocks) in enumerate(((1, 2, 1), (300, 2, 5), (700, 4, 3), (500, 8, 9))):
        counts = some_counts(rng, tiles, kind)
        got = run(counts, key_bytes, blocks, seed, planned)
        np.testing.assert_array_equal(got["starts"], np.concatenate([[0], counts.cumsum()]))


@needs_emulation
def test_the_block_that_comes_last_plans_what_all_have_found() -> None:
    rng, seen = np.random.default_rng(9), set()
    for seed in range(10):
        counts = some_counts(rng, int(rng.integers(200, 600)), KINDS[1:][seed % 5])
        blocks = int(rng.integers(2, 9))
        got = run(counts, 2, blocks, seed, planned=True)
        record, tiles = got["record"][0], counts.size
        split = length_policy(counts, MACHINE, MODEL, ROOM)
        assert got["frame"]["tickets"][TICKET] == blocks
        assert record["tiles"] == tiles
        assert record["total"] == counts.sum()
        assert record["heaviest"] == got["frame"]["heaviest"] == counts.max()
        assert record["split_tiles"] == split.tiles
        assert record["in_grid_order"] == keeps_grid(counts, MACHINE, MODEL)
        seen.add((bool(record["in_grid_order"]), split.tiles > 0))
        if record["in_grid_order"]:
            continue
        chunks, whole = int(record["chunk_units"]), int(record["tile_units"])
        assert (got["units"][:chunks] >= CHUNK_FLAG).all()
        handed = got["units"][chunks : chunks + whole].astype(np.int64)
        np.testing.assert_array_equal(np.sort(handed), np.flatnonzero(split.chunks == 1))
        assert (np.diff(work_bin(counts)[handed]) <= 0).all()
        assert (got["units"][chunks + whole :] == NO_UNIT).all()
    assert seen == {(True, False), (False, True), (False, False)}


@pytest.mark.skipif(nvrtc_path() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_they_compile_for_every_architecture_without_spills(architecture: int) -> None:
    names = [*ALONE.values(), *PLANNED.values()]
    names += [
        f"ranges_plan<RangesPlanPolicy{{2, Sched::{order}, Chunked::{rule}}}>"
        for order, rule in (("grid", "catgs"), ("lpt", "all"), ("exact_work", "fixed"), ("lpt_binned", "off"))
    ]
    names.append("ranges_plan<RangesPlanPolicy{2, Sched::lpt_binned, Chunked::modelled, CostModel::seed}>")
    for name, report in compile_report(read_source("ranges.cuh"), names, architecture).items():
        assert report.registers <= 64, name
        assert report.spill_bytes == 0, name
