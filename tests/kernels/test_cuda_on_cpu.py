"""Tests the harness that runs CUDA kernels on the CPU: right kernels pass in every order, mistakes are reported."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from splatscope.kernels.cuda.launch.compiler import CUDA_FOLDER, CompileError, Kernel, Source, read_source
from tests.support.cuda_on_cpu.run import FOLDER, Device, KernelFailure, build, is_supported

pytestmark = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")

SEEDS = range(50)
FOLDERS = (FOLDER, CUDA_FOLDER)
SOUND = (
    "warp_sums",
    "scan_block",
    "look_back_scan<LookBackPolicy{}>",
    "look_back_scan<LookBackPolicy{.ticket = false}>",
    "look_back_scan<LookBackPolicy{.value_first = false}>",
    "last_arriver<LastArriverPolicy{}>",
    "last_arriver<LastArriverPolicy{.count_after = false}>",
    "drain_queue<QueuePolicy{}>",
    "drain_queue<QueuePolicy{.wait_for_readers = false}>",
    "blend_blobs",
)
# Mistake -> what the report must say. All but the last two are found in every order.
MISTAKES = {
    "barrier_skipped": r"has returned, but thread \d+ waits for it in __syncthreads|threads of the block have exited",
    "barrier_after_return": r"has returned, but thread \d+ waits|threads of the block have exited",
    "barriers_differ": r"__syncthreads, but thread \d+ stands in __syncthreads at broken.cuh:\d+",
    "shuffle_of_unnamed": r"with mask 0000ffff, which does not name lane (1[6-9]|2\d|3[01])",
    "shuffle_outside_mask": r"lane 0 reads lane 16, which the mask 0000ffff does not name",
    "shuffle_after_return": r"names lanes 80000000, which have exited|has returned, but thread \d+ waits",
    "collectives_differ": r"(any|ballot)_sync, but lane \d+ of|(any|ballot)_sync, but lane \d+ stands in",
    "shuffle_and_barrier": r"no thread of the block can go on; .* in __(shfl_xor_sync|syncthreads)",
    "write_past_end": r"thread \(63,0,0\): writes byte 256 of `out`, which has 256, at broken.cuh",
    "read_before_start": r"reads 2\d+ bytes before `out`, at broken.cuh",
    "write_nowhere": r"uses an address that no buffer could have|in no buffer",
    "shared_index": r"an index leaves its array",
    "dynamic_shared_end": r"thread \(63,0,0\): leaves the dynamic shared memory, which has 256 bytes",
    "stack": r"needs more than the 64 KB of its stack",
    "misaligned": r"not aligned for its type",
    "shift": r"a shift by",
    "cast": r"a cast of a number the integer cannot hold",
    "endless_poll": r"this spin never ends",
    "endless_lock": r"this spin never ends",
    "endless_loop": r"ran for a second without",
}


@pytest.fixture(scope="module")
def sound() -> dict[str, Kernel]:
    return build(read_source("sound.cuh", FOLDERS), SOUND)


@pytest.fixture(scope="module")
def broken() -> dict[str, Kernel]:
    names = [f"broken<Mistake::{name}>" for name in (*MISTAKES, "barrier_forgotten")]
    return build(read_source("broken.cuh", FOLDERS), names)


def wrong_seeds(attempt: Callable[[int], bool]) -> int:
    """Returns the number of seeds with which the kernel failed or gave a wrong result."""
    wrong = 0
    for seed in SEEDS:
        try:
            wrong += not attempt(seed)
        except KernelFailure:
            wrong += 1
    return wrong


def random_words(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 1000, count, dtype=np.uint32)


def scan(kernel: Kernel, seed: int, blocks: int, each_block_alone: bool = False) -> bool:
    device, words = Device(seed, patience=20_000), random_words(blocks * 256)
    scanned = device.empty("scanned", words.shape, np.uint32)
    arguments = kernel.arguments.pack(
        values=device.upload("values", words),
        scanned=scanned,
        ticket=device.upload("ticket", np.zeros(1, np.uint32)),
        flags=device.upload("flags", np.zeros(blocks, np.uint32)),
        totals=device.empty("totals", (blocks, 2), np.uint32),
    )
    device.launch(kernel, (blocks,), (256,), arguments)
    rows = words.reshape(blocks, 256) if each_block_alone else words[None]
    return np.array_equal(scanned, np.cumsum(rows, axis=1, dtype=np.uint32).ravel())


def sum_by_last(kernel: Kernel, seed: int) -> bool:
    device, blocks = Device(seed), 9
    total = device.empty("total", (1,), np.float32)
    arguments = kernel.arguments.pack(
        values=device.upload("values", np.arange(blocks * 32, dtype=np.float32)),
        parts=device.empty("parts", (blocks,), np.float32),
        arrived=device.upload("arrived", np.zeros(1, np.uint32)),
        total=total,
    )
    device.launch(kernel, (blocks,), (32,), arguments)
    return total[0] == sum(range(blocks * 32))


def drain(kernel: Kernel, seed: int) -> bool:
    device, items = Device(seed), 40
    done = device.upload("done", np.zeros((items, 64), np.uint32))
    next_item = device.upload("next", np.zeros(1, np.uint32))
    device.launch(kernel, (3,), (64,), kernel.arguments.pack(next=next_item, done=done, items=items))
    return bool((done == 1).all())


def run_broken(kernel: Kernel, seed: int) -> np.ndarray:
    device = Device(seed, patience=20_000)
    out = device.empty("out", (64,), np.float32)
    word = device.upload("word", np.zeros(1, np.uint32))
    arguments = kernel.arguments.pack(out=out, word=word, sixty_four=64)
    device.launch(kernel, (1,), (64,), arguments, shared=256)
    return out


def test_a_warp_reduction_adds_up_in_the_order_of_its_shuffles(sound: dict[str, Kernel]) -> None:
    kernel, values = sound["warp_sums"], np.random.default_rng(0).standard_normal((8, 32), dtype=np.float32)
    expected = values.copy()
    for bit in (16, 8, 4, 2, 1):
        expected = expected + expected[:, np.arange(32) ^ bit]
    for seed in SEEDS:
        device = Device(seed)
        sums = device.empty("sums", (8,), np.float32)
        device.launch(kernel, (2,), (128,), kernel.arguments.pack(values=device.upload("values", values), sums=sums))
        np.testing.assert_array_equal(sums, expected[:, 0])


def test_a_block_scan_is_right_in_every_order(sound: dict[str, Kernel]) -> None:
    assert wrong_seeds(lambda seed: scan(sound["scan_block"], seed, 3, each_block_alone=True)) == 0


def test_a_look_back_scan_over_many_blocks_is_right_in_every_order(sound: dict[str, Kernel]) -> None:
    assert wrong_seeds(lambda seed: scan(sound["look_back_scan<LookBackPolicy{}>"], seed, 11)) == 0


@pytest.mark.parametrize("mistake", ["ticket", "value_first"])
def test_a_broken_look_back_fails_in_some_order(sound: dict[str, Kernel], mistake: str) -> None:
    kernel = sound[f"look_back_scan<LookBackPolicy{{.{mistake} = false}}>"]
    assert wrong_seeds(lambda seed: scan(kernel, seed, 11)) > 0


def test_a_look_back_that_waits_for_unstarted_blocks_is_reported_at_its_loop(sound: dict[str, Kernel]) -> None:
    kernel = sound["look_back_scan<LookBackPolicy{.ticket = false}>"]
    with pytest.raises(KernelFailure, match=r"sound\.cuh:\d+: 20000 polls in a row.*never ends"):
        all(scan(kernel, seed, 11) for seed in SEEDS)


def test_the_last_block_to_arrive_sees_all_parts_unless_blocks_count_themselves_too_early(
    sound: dict[str, Kernel],
) -> None:
    assert wrong_seeds(lambda seed: sum_by_last(sound["last_arriver<LastArriverPolicy{}>"], seed)) == 0
    assert (
        wrong_seeds(lambda seed: sum_by_last(sound["last_arriver<LastArriverPolicy{.count_after = false}>"], seed)) > 0
    )


def test_a_shared_queue_hands_out_each_item_once_unless_its_ticket_is_overwritten(sound: dict[str, Kernel]) -> None:
    assert wrong_seeds(lambda seed: drain(sound["drain_queue<QueuePolicy{}>"], seed)) == 0
    assert wrong_seeds(lambda seed: drain(sound["drain_queue<QueuePolicy{.wait_for_readers = false}>"], seed)) > 0


def test_a_tiled_blend_gives_the_picture_numpy_gives(sound: dict[str, Kernel]) -> None:
    kernel, random, width, height, count = sound["blend_blobs"], np.random.default_rng(1), 61, 45, 300
    blobs = np.zeros((count, 8), np.float32)
    blobs[:, :2] = random.uniform(0, (width, height), (count, 2))
    blobs[:, 2], blobs[:, 3] = random.uniform(0.002, 0.05, count), random.uniform(-3, 0, count)
    blobs[:, 4:7] = random.uniform(0, 1, (count, 3))
    device = Device(seed=5)
    image = device.empty("image", (height, width, 4), np.float32)
    arguments = kernel.arguments.pack(
        blobs=device.upload("blobs", blobs), image=image, blob_count=count, width=width, height=height
    )
    device.launch(kernel, (4 * 3,), (256,), arguments, shared=256 * 32)
    np.testing.assert_allclose(image, blend_with_numpy(blobs, width, height), atol=1e-5)


def blend_with_numpy(blobs: np.ndarray, width: int, height: int) -> np.ndarray:
    y, x = np.mgrid[:height, :width] + 0.5
    colour, transmittance = np.zeros((height, width, 3)), np.ones((height, width))
    live = np.ones((height, width), bool)
    for bx, by, falloff, opacity, *rgb in blobs[:, :7].astype(float):
        alpha = np.minimum(0.99, np.exp2(opacity - falloff * ((bx - x) ** 2 + (by - y) ** 2)))
        hit = live & (alpha >= 1 / 255)
        rest = transmittance * (1 - alpha)
        live &= ~(hit & (rest < 1e-4))
        hit &= live
        colour += np.where(hit, transmittance * alpha, 0)[..., None] * np.array(rgb)
        transmittance = np.where(hit, rest, transmittance)
    return np.concatenate([colour, transmittance[..., None]], axis=-1)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_reported_with_its_line(broken: dict[str, Kernel], mistake: str) -> None:
    kernel = broken[f"broken<Mistake::{mistake}>"]
    lines = (FOLDER / "broken.cuh").read_text().splitlines()
    marked = [number for number, line in enumerate(lines, 1) if line.endswith(f"line: {mistake}")]
    for seed in range(1 if mistake == "endless_loop" else 10):
        with pytest.raises(KernelFailure, match=MISTAKES[mistake]) as failure:
            run_broken(kernel, seed)
        text = str(failure.value)
        assert re.match(rf"broken<Mistake::{mistake}>, block \(0,0,0\) thread \(\d+,0,0\)", text)
        assert not marked or f"broken.cuh:{marked[0]}" in text, text


def test_a_forgotten_barrier_gives_poison_in_some_order(broken: dict[str, Kernel]) -> None:
    kernel = broken["broken<Mistake::barrier_forgotten>"]
    assert any(np.isnan(run_broken(kernel, seed)).any() for seed in SEEDS)


def test_one_seed_is_one_order(sound: dict[str, Kernel]) -> None:
    def switches(seed: int) -> int:
        device, kernel = Device(seed), sound["drain_queue<QueuePolicy{}>"]
        done = device.upload("done", np.zeros((40, 64), np.uint32))
        next_item = device.upload("next", np.zeros(1, np.uint32))
        device.launch(kernel, (3,), (64,), kernel.arguments.pack(next=next_item, done=done, items=40))
        return device.switches

    assert switches(1) == switches(1)
    assert len({switches(seed) for seed in range(5)}) > 1


def test_a_write_into_the_alignment_gap_behind_a_buffer_is_found_afterwards(broken: dict[str, Kernel]) -> None:
    kernel, device = broken["broken<Mistake::barrier_forgotten>"], Device()
    out, word = device.empty("out", (63,), np.float32), device.empty("word", (1,), np.uint32)
    arguments = kernel.arguments.pack(out=out, word=word, sixty_four=64)
    with pytest.raises(KernelFailure, match=r"wrote byte 252 of `out`, which has 252"):
        device.launch(kernel, (1,), (64,), arguments)


def test_a_kernel_that_does_not_compile_shows_our_line() -> None:
    text = "struct Args { int n; };\n__global__ void typo(Args args) { atomicAd(args.n); }\n"
    with pytest.raises(CompileError, match=r"typo\.cuh:2:.*\n.*atomicAd"):
        build(Source("typo.cuh", (("typo.cuh", text),)), ["typo"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"next": None, "done": None}, r"missing \['items'\]"),
        ({"next": None, "done": None, "items": 1, "item": 2}, r"unknown \['item'\]"),
        ({"next": np.zeros(1), "done": None, "items": 1}, r"QueueArgs\.next is a unsigned\*, got an array of float64"),
        ({"next": np.zeros((2, 2), np.uint32).T, "done": None, "items": 1}, "contiguous"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(sound: dict[str, Kernel], values: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        sound["drain_queue<QueuePolicy{}>"].arguments.pack(**values)
