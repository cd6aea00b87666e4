"""Tests the radix sort of the CUDA stages on the CPU in many orders of blocks: against NumPy's stable argsort."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from splatscope.kernels.cuda.launch.compiler import Source, read_source
from splatscope.kernels.cuda.plan import sort
from splatscope.kernels.cuda.plan.passes import KEY_BINS, SORT_ITEMS, SORT_THREADS
from splatscope.kernels.cuda.plan.sort import BIN_ROWS, SCAN_GROUP, bits_of_passes, look_back_rows
from splatscope.kernels.types import RenderSettings
from tests.support import small_scenes
from tests.support.cuda_on_cpu.run import Device, build, is_supported
from tests.support.cuda_stages import BINS, SORT_ROLES, Stages, frame_record, inside

pytestmark = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")

PART = SORT_THREADS * SORT_ITEMS
NEAR = 0.2  # of the frame


def new_stages(seed: int = 0, blocks_in_flight: int = 4) -> Stages:
    camera = replace(small_scenes.random_camera(), near=NEAR)
    stages = Stages(frame_record(camera, small_scenes.random_scene(camera, 1), RenderSettings()), seed)
    stages.device.blocks_in_flight = blocks_in_flight
    return stages


def begin(stages: Stages, count: int) -> int:
    """Begins another frame, which sorts `count` pairs; returns the address of that number."""
    record = stages.frame.copy()
    record["visible"], record["tickets"], record["epoch"] = count, 0, record["epoch"] + 1
    stages.begin_frame(record)
    stages.sort_bins[...] = 0
    return inside(stages.frame, "visible")


def order_of(stages: Stages, keys: NDArray[np.uint32], room: int, near: bool = True) -> NDArray[np.uint32]:
    """Returns the order of the keys, of depths or of any, found in one frame with buffers of `room`."""
    count = begin(stages, len(keys))
    buffer = stages.device.empty("keys", (room,), np.uint32)
    buffer[: len(keys)] = keys
    if near:
        order = stages.order(buffer, count, bits=27, base=inside(stages.frame, "near_z"), has_rare=True)
    else:
        order = stages.order(buffer, count, digit_bits=8)
    return order[: len(keys)]


def assert_sorts_pairs(stages: Stages, keys: NDArray[Any], bits: int, room: int) -> None:
    """Checks that one frame sorts (key, payload) pairs with digits counted before, in buffers of `room`."""
    size, (passes, digit_bits) = len(keys), bits_of_passes(bits, 8)
    assert passes * digit_bits >= bits
    count = begin(stages, size)
    counts = stages.sort_bins.reshape(-1, BINS)[KEY_BINS * BIN_ROWS["tile"] // BINS :]
    for number in range(passes):
        digits = keys.astype(np.uint64) >> np.uint64(digit_bits * number) & np.uint64((1 << digit_bits) - 1)
        counts[number] = np.bincount(digits.astype(np.int64), minlength=BINS)
    buffer = stages.device.empty("keys", (room,), keys.dtype)
    buffer[:size] = keys
    payloads = stages.device.upload("payloads", np.arange(room, dtype=np.uint32)[::-1].copy())
    found = stages.sort(buffer, payloads, count, bits)
    order = np.argsort(keys, kind="stable")
    np.testing.assert_array_equal(found[0][:size], keys[order])
    np.testing.assert_array_equal(found[1][:size], room - 1 - order)


def depth_keys(random: np.random.Generator, count: int, far: float) -> NDArray[np.uint32]:
    """Returns bits of depths from the near plane to `far`, in octaves."""
    depths = np.float32(NEAR) * np.exp2(random.uniform(1e-6, far, count)).astype(np.float32)
    return depths.view(np.uint32)


@pytest.mark.parametrize("kind", ["near", "with far ones", "far", "few values", "equal"])
def test_the_order_by_depth_is_a_stable_argsort_at_every_edge(kind: str) -> None:
    random = np.random.default_rng(len(kind))
    room = 4 * PART + 3
    stages = new_stages(seed=len(kind))
    for count in (0, 1, 31, PART // 2 - 1, PART // 2 + 1, PART, 2 * PART + 1, 2 * PART + PART // 2 + 5, room):
        keys = depth_keys(random, count, 100.0 if "far" in kind else 15.99)
        if kind == "with far ones":
            keys[1:] = depth_keys(random, max(count - 1, 0), 15.99)
        if kind in ("few values", "equal"):
            keys = keys[:1].repeat(count) if kind == "equal" else random.choice(keys[:5] if count else keys, count)
        np.testing.assert_array_equal(order_of(stages, keys, room), np.argsort(keys, kind="stable"))


def test_the_order_of_any_32_bits_is_a_stable_argsort() -> None:
    random, stages = np.random.default_rng(5), new_stages(seed=5)
    for count in (0, 700, 2 * PART + 77):
        keys = random.integers(0, 1 << 32, count, dtype=np.uint32)
        np.testing.assert_array_equal(order_of(stages, keys, 3 * PART, near=False), np.argsort(keys, kind="stable"))


@pytest.mark.parametrize(("key_bytes", "bits"), [(2, 13), (2, 16), (4, 17), (8, 45), (2, 1)])
def test_the_sort_of_pairs_is_stable_at_every_edge(key_bytes: int, bits: int) -> None:
    random, room = np.random.default_rng(bits), 4 * PART + 3
    stages = new_stages(seed=bits)
    for size in (0, 1, 257, PART // 2 + 1, 2 * PART, 2 * PART + 1, room):
        keys = random.integers(0, 1 << bits, size, dtype=np.uint64).astype(f"u{key_bytes}")
        if size == 2 * PART:
            keys[:] = (1 << bits) - 1
        assert_sorts_pairs(stages, keys, bits, room)


def test_the_sort_is_right_in_every_order_of_blocks() -> None:
    keys = depth_keys(np.random.default_rng(3), 3 * PART, 5.0) & np.uint32(0xFFFFF000)
    for seed in range(8):
        stages = new_stages(seed, blocks_in_flight=1 + seed % 5)
        np.testing.assert_array_equal(order_of(stages, keys, 3 * PART), np.argsort(keys, kind="stable"))


def test_the_sort_is_right_over_many_groups_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses parts so small that a look-back passes through more groups than it asks for at a time."""
    for name, value in {"SORT_THREADS": 256, "SORT_ITEMS": 2, "WIDE_SORT_ITEMS": 2}.items():
        monkeypatch.setattr(sort, name, value)
    monkeypatch.setitem(SORT_ROLES, "sort tiles 2", SORT_ROLES["sort tiles 2, small parts"])
    parts = 10 * sort.SORT_GROUP + 5
    for seed in range(3):
        keys = np.random.default_rng(seed).integers(0, 1 << 9, 512 * parts - 3, dtype=np.uint16)
        assert_sorts_pairs(new_stages(seed, blocks_in_flight=2 + 3 * seed), keys, 9, len(keys))


SCAN_PROBE = """
#include "scan.cuh"
struct ProbeArgs { unsigned* ticket; unsigned long long* words; unsigned long long* before; unsigned epoch; };
__global__ void probe(ProbeArgs args) {
    __shared__ unsigned part;
    if (threadIdx.x == 0) part = atomicAdd(args.ticket, 1u);
    __syncthreads();
    const unsigned long long tag = look_back_tag(args.epoch, 0), total = 0x10000000ull * (part % 3) + part;
    publish_total(args.words, part, total, tag);
    const unsigned long long before = look_back(args.words, part, total, tag);
    if (threadIdx.x == 0) args.before[part] = before;
}
"""


def test_a_look_back_adds_up_all_parts_before_frame_after_frame() -> None:
    parts = 37 * SCAN_GROUP + 5
    probe = build(Source("probe.cuh", (("probe.cuh", SCAN_PROBE), *read_source("scan.cuh").files)), ["probe"])["probe"]
    totals = np.arange(parts, dtype=np.uint64)
    totals += np.uint64(1 << 28) * (totals % 3)
    for seed in range(3):
        device = Device(seed, blocks_in_flight=(1, 5, 16)[seed])
        words = device.upload("words", np.zeros(look_back_rows(parts, SCAN_GROUP), np.uint64))
        for epoch in (1, 2):
            ticket = device.upload("ticket", np.zeros(1, np.uint32))
            before = device.empty("before", (parts,), np.uint64)
            device.launch(
                probe, (parts,), (32,), probe.arguments.pack(ticket=ticket, words=words, before=before, epoch=epoch)
            )
            np.testing.assert_array_equal(before, np.cumsum(totals) - totals)
