"""Tests what only the CPU kernels have: their vector type, their sort and lists, their threads, their cache.

The picture and its gradients are compared with the definition in `test_cpu_backend.py`.
"""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core import config

from splatscope.kernels.cpu import CpuBackend, functions
from splatscope.kernels.cpu import bin as binning
from splatscope.kernels.cpu import pipeline as pipeline_module
from splatscope.kernels.cpu.compile import kernel, remove_unused, source_hash
from splatscope.kernels.cpu.lane_io import (
    blocks_to_rows,
    load,
    load_columns,
    rows_to_blocks,
    store,
    store_columns,
    transpose,
)
from splatscope.kernels.cpu.lanes import LANES, totals
from splatscope.kernels.cpu.pipeline import Pipeline, Projected
from splatscope.kernels.cpu.project import project
from splatscope.kernels.cpu.thread_pool import ThreadPool, draw_turn, report_turns
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, Gaussians
from tests.support.small_scenes import random_camera, random_scene

# ------------------------------------------------------------------------------------------- lanes


@kernel
def apply_exp2(x, y):
    for i in range(0, x.size, LANES):
        store(y, i, functions.exp2(load(x, i)))


@kernel
def apply_log2(x, y):
    for i in range(0, x.size, LANES):
        store(y, i, functions.log2(load(x, i)))


@kernel
def add_nine(x, y):
    store(
        y,
        0,
        totals(
            load(x, 0), load(x, 16), load(x, 32), load(x, 48), load(x, 64), load(x, 80), load(x, 96), load(x, 112),
            load(x, 128),
        ),
    )  # fmt: skip


@kernel
def rearrange(x, transposed, columns, back, rows, blocks):
    transpose(x, 0, 16, transposed, 0, 16)
    load_columns(x, 1, 3, columns, 0)
    store_columns(columns, 0, 3, back, 0)
    blocks_to_rows(x, 0, rows, 0, 20)
    rows_to_blocks(rows, 0, 20, blocks, 0)


def test_exp2_and_log2_are_right_to_a_few_roundings() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate((rng.uniform(-125.9, 126.9, 16_000), rng.uniform(-1, 1, 1600), np.arange(-125, 127))).astype(
        "f4"
    )
    x = x[: x.size // LANES * LANES]
    y = np.empty_like(x)
    apply_exp2(x, y)
    assert np.abs(y / np.exp2(x.astype(float)) - 1).max() < 3e-7
    apply_log2(y, x)
    # Near 1 the logarithm is small: what matters there is its absolute error.
    assert np.abs(x - np.log2(y.astype(float))).max() < 1e-5
    assert np.abs(x - np.log2(y.astype(float)))[np.abs(x) < 8].max() < 6e-7


def test_nine_sums_land_in_nine_lanes() -> None:
    x = np.random.default_rng(1).integers(-99, 99, 144).astype("f4")
    y = np.zeros(16, "f4")
    add_nine(x, y)
    np.testing.assert_array_equal(y[:9], x.reshape(9, 16).sum(1))


def test_rearrangements_are_what_they_say() -> None:
    x = np.arange(256, dtype="f4")
    transposed, columns, back, rows, blocks = (np.zeros(n, "f4") for n in (256, 48, 48, 80, 64))
    rearrange(x, transposed, columns, back, rows, blocks)
    np.testing.assert_array_equal(transposed.reshape(16, 16), x.reshape(16, 16).T)
    np.testing.assert_array_equal(columns.reshape(3, 16), x[1:49].reshape(16, 3).T)
    np.testing.assert_array_equal(back, x[1:49])
    in_rows = x[:64].reshape(4, 4, 4).transpose(1, 0, 2).reshape(4, 16)  # block, row, column -> row, (block, column)
    np.testing.assert_array_equal(rows.reshape(4, 20)[:, :16], in_rows)
    np.testing.assert_array_equal(blocks, x[:64])


# ------------------------------------------------------------------------------------- sort and lists


def projected_depths(depths: np.ndarray, per_chunk: int) -> Projected:
    """Returns visible splats of the given depths, `per_chunk` in each chunk of the scene, and nothing else."""
    chunks = -(-depths.size // per_chunk)
    visible = np.full(chunks, per_chunk, np.int64)
    visible[-1] = depths.size - per_chunk * (chunks - 1)
    slots = np.concatenate([chunk * binning.CHUNK + np.arange(n) for chunk, n in enumerate(visible)])
    bits, spans = np.zeros(chunks * binning.CHUNK, np.uint32), np.zeros(chunks * binning.CHUNK, np.int64)
    bits[slots], spans[slots] = depths.astype("f4").view(np.uint32), slots * 7
    nothing = np.zeros(0, np.int32)
    return Projected(np.zeros(0, "f4"), 1, depths.size, 0, 0, np.zeros(0, "f4"), bits, spans, nothing, nothing, visible)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["spread", "narrow", "equal", "few values", "one"])
def test_the_depth_sort_is_right_and_stable(kind: str, threads: int) -> None:
    rng = np.random.default_rng(2)
    depths = {
        "spread": np.exp(rng.uniform(-20, 20, 40_000)),
        "narrow": rng.uniform(3, 3.001, 40_000),
        "equal": np.full(5000, 2.5),
        "few values": rng.integers(1, 6, 40_000) / 4,
        "one": np.ones(1),
    }[kind]
    projected = projected_depths(depths, per_chunk=1500)
    slots = np.concatenate([c * binning.CHUNK + np.arange(n) for c, n in enumerate(projected.chunk_visible)])
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(min(threads, before))
        ordered = Pipeline().sort(projected)
    finally:
        numba.set_num_threads(before)
    np.testing.assert_array_equal(ordered.slots, slots[np.argsort(depths.astype("f4"), kind="stable")])
    np.testing.assert_array_equal(ordered.spans, projected.spans[ordered.slots])


def scene_of_all_sizes(camera: Camera, count: int, seed: int) -> Gaussians:
    """Returns splats from far below a pixel to far beyond the image."""
    splats = random_scene(camera, count, seed)
    rng = np.random.default_rng(seed)
    return replace(splats, log_scales=rng.uniform(-9, 3, splats.log_scales.shape).astype("f4"))


@pytest.mark.parametrize("bounds", ["row_span", "aabb_o", "circle3s"])
@pytest.mark.parametrize(("size", "count"), [((333, 250), 5000), ((16, 16), 40), ((17, 1), 40), ((2000, 40), 300)])
def test_each_listed_tile_is_in_the_lists_once_and_in_depth_order(
    size: tuple[int, int], count: int, bounds: str
) -> None:
    camera = random_camera(*size)
    pipeline = Pipeline()
    projected = pipeline.project(scene_of_all_sizes(camera, count, seed=3), camera, 3, bounds)
    ordered = pipeline.sort(projected)
    lists = pipeline.bin(projected, ordered, camera, keep_places=True)

    start, length = projected.spans >> binning.COUNT_BITS, projected.spans & binning.COUNT_MASK
    rank = np.full(projected.spans.size, -1)
    rank[ordered.slots] = np.arange(projected.visible)
    entries = np.concatenate([np.arange(int(start[s]), int(start[s] + length[s])) for s in ordered.slots])
    slot_of_entry = np.repeat(ordered.slots, length[ordered.slots])
    assert len(set(entries.tolist())) == entries.size == projected.instances == lists.tile_slots.size

    places = lists.places[entries]
    assert sorted(places.tolist()) == list(range(projected.instances))
    np.testing.assert_array_equal(lists.tile_slots[places], slot_of_entry)
    tile_of_place = np.repeat(np.arange(lists.tile_start.size - 1), np.diff(lists.tile_start))
    np.testing.assert_array_equal(tile_of_place[places], projected.tiles[entries])
    assert len({*zip(slot_of_entry.tolist(), projected.tiles[entries].tolist(), strict=True)}) == projected.instances
    same_tile = tile_of_place[1:] == tile_of_place[:-1]
    assert (np.diff(rank[lists.tile_slots])[same_tile] > 0).all()


def test_lists_that_outgrow_their_room_are_made_again() -> None:
    camera = random_camera(400, 300)
    few = replace(scene_of_all_sizes(camera, 60, seed=4), log_scales=np.full((60, 3), 2.0, "f4"))
    small, large = Pipeline(), Pipeline()
    small._room, large._room = 0, 1_000_000
    expected = large.project(few, camera, 3, "row_span")
    got = small.project(few, camera, 3, "row_span")
    assert expected.instances > 2 * 60 + 4096 * numba.get_num_threads()  # more than is set aside at first
    assert (got.visible, got.instances) == (expected.visible, expected.instances)
    for slot in range(got.visible):
        a, b = (
            p.tiles[p.spans[slot] >> binning.COUNT_BITS :][: p.spans[slot] & binning.COUNT_MASK]
            for p in (got, expected)
        )
        np.testing.assert_array_equal(a, b)


# ----------------------------------------------------------------------------------- threads and memory


def test_a_helper_that_does_not_start_holds_nobody_up() -> None:
    released, done = threading.Event(), []

    def work(board: np.ndarray, turns: int, worker: int) -> None:
        if worker != 0:
            released.wait(120)
        count = 0
        while (turn := draw_turn(board)) < turns:
            done.append((turn, worker))
            count += 1
        report_turns(board, count)

    if numba.get_num_threads() < 2:
        pytest.skip("numba has one thread here")
    try:
        ThreadPool().run(work, 5)
        assert done == [(turn, 0) for turn in range(5)]
    finally:
        released.set()


def test_the_caller_waits_for_turns_that_others_have_drawn() -> None:
    drawn, done = threading.Event(), []

    def work(board: np.ndarray, turns: int, worker: int) -> None:
        if worker == 0:
            assert drawn.wait(120)
        count = 0
        while (turn := draw_turn(board)) < turns:
            if worker != 0 and not drawn.is_set():
                drawn.set()
                threading.Event().wait(0.1)
            done.append(turn)
            count += 1
        report_turns(board, count)

    if numba.get_num_threads() < 2:
        pytest.skip("numba has one thread here")
    ThreadPool().run(work, 5)
    assert sorted(done) == [0, 1, 2, 3, 4]


def test_a_failure_on_a_helper_reaches_the_caller() -> None:
    drawn = threading.Event()

    def work(board: np.ndarray, turns: int, worker: int) -> None:
        if worker != 0:
            draw_turn(board)
            drawn.set()
            raise ZeroDivisionError
        assert drawn.wait(120)
        report_turns(board, turns - draw_turn(board))

    if numba.get_num_threads() < 2:
        pytest.skip("numba has one thread here")
    with pytest.raises(RuntimeError, match="helper") as raised:
        ThreadPool().run(work, 5)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_picture_in_use_is_not_painted_over() -> None:
    camera, other = random_camera(40, 30), random_camera(40, 30)
    scenes = random_scene(camera, 50, seed=5), random_scene(other, 50, seed=6)
    pipeline = Pipeline()

    def image(splats: Gaussians) -> np.ndarray:
        projected = pipeline.project(splats, camera, 3, "row_span")
        lists = pipeline.bin(projected, pipeline.sort(projected), camera, keep_places=False)
        return pipeline.blend(projected, lists, camera, (0.0, 0.0, 0.0)).image

    kept = image(scenes[0])
    part = image(scenes[0])[3:5]
    copies = kept.copy(), part.copy()
    for _ in range(4):
        image(scenes[1])
    np.testing.assert_array_equal(kept, copies[0])
    np.testing.assert_array_equal(part, copies[1])


def test_lists_beyond_the_memory_set_aside_are_refused_and_the_next_picture_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    camera = random_camera(160, 120)
    splats = random_scene(camera, 200, seed=8)
    backend = CpuBackend()
    expected = backend.render(splats, camera)
    monkeypatch.setattr(pipeline_module, "_BUDGET_BYTES", 12 * (expected.instances - 1))
    with pytest.raises(InputError, match=rf"160x120 .* {expected.instances:,} .* at most {expected.instances - 1:,}\."):
        backend.render(splats, camera)
    monkeypatch.undo()
    np.testing.assert_array_equal(backend.render(splats, camera).image, expected.image)


def test_mapped_and_unaligned_arrays_compile_nothing_new() -> None:
    camera = random_camera(40, 30)
    splats = random_scene(camera, 50, seed=7)
    backend = CpuBackend()
    expected = backend.render(splats, camera).image
    signatures = len(project.signatures)
    shifted = np.empty(splats.means.nbytes + 1, np.uint8)[1:].view("f4").reshape(splats.means.shape)
    shifted[:] = splats.means
    shifted.flags.writeable = False
    sh = splats.sh.copy()
    sh.flags.writeable = False
    got = backend.render(replace(splats, means=shifted, sh=sh), camera).image
    np.testing.assert_array_equal(got, expected)
    assert len(project.signatures) == signatures


def test_compiled_kernels_are_found_only_by_the_sources_they_came_from(tmp_path: Path) -> None:
    from splatscope.kernels import cpu

    folder = Path(cpu.__file__).parent
    copy = tmp_path / "kernels" / "cpu"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(folder.parent / "constants.py", tmp_path / "kernels")
    assert source_hash(copy) == source_hash()
    assert str(config.CACHE_DIR).endswith(source_hash())  # pyright: ignore[reportAttributeAccessIssue]
    for name in ("functions.py", "../constants.py"):
        with (copy / name).open("a") as file:
            file.write("# edited\n")
        assert source_hash(copy) != source_hash()
        shutil.copy(folder / name, copy / name)
        assert source_hash(copy) == source_hash()


def test_compiled_kernels_of_versions_long_unused_are_removed(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("kernels-old", "kernels-recent", "kernels-now", "cameras")}
    for folder in folders.values():
        folder.mkdir()
    for name in ("kernels-old", "kernels-now", "cameras"):
        os.utime(folders[name], (0, 0))
    remove_unused(tmp_path, keep="kernels-now")
    assert {path.name for path in tmp_path.iterdir()} == {"kernels-recent", "kernels-now", "cameras"}
