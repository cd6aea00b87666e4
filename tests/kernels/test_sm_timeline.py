"""Tests recorded timelines: made-up clocks, hand-made schedules, threads of the CPU backend, the kernels on the CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from splatscope.kernels.cpu import CpuBackend
from splatscope.kernels.cuda.backend import CudaBackend
from splatscope.kernels.cuda.launch.buffers import Capacity
from splatscope.kernels.cuda.launch.compiler import ARCHITECTURES, compile_report, nvrtc_path
from splatscope.kernels.cuda.plan.passes import source
from splatscope.kernels.cuda.plan.schedule import chunk_dtype, read_recording, unit_dtype
from splatscope.kernels.ladder import changed, step
from splatscope.kernels.policy import Policy
from splatscope.kernels.schedule.rules import Machine
from splatscope.kernels.schedule.simulator import simulate
from splatscope.kernels.schedule.timeline import Recording, checks, common_time, lanes, recording_of_gpu
from splatscope.kernels.types import RenderSettings
from tests.support.cuda_on_cpu.run import is_supported
from tests.support.cuda_pipeline import Emulated, Kernels, Result, emulated_renderer, pass_for
from tests.support.small_scenes import random_camera, random_scene

ROOM = Capacity(2048, 32768)
RECORD = {"schedule.record": "on"}
SCHEDULES = {
    "grid": {"schedule.sched": "grid", "schedule.chunk": "off"},
    "lpt": {"schedule.sched": "lpt_binned", "schedule.chunk": "off", "schedule.take": "ticket"},
    "split": {"schedule.sched": "lpt_binned", "schedule.chunk": "all", "schedule.chunk_k": "4"},
    "inexact": {
        "schedule.sched": "lpt_binned",
        "schedule.chunk": "all",
        "schedule.chunk_k": "4",
        "schedule.exact_stop": "off",
    },
}


TRAINED = ("grid", "split")


def recorded(
    rng: np.random.Generator, machine: Machine, units: int = 400, step_ns: int = 32, ghz: float = 1.755
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns (clocks, stamps, true times) [2, U] of a simulated frame; each multiprocessor has its own clock."""
    timeline = simulate(rng.exponential(4000.0, units) + 200, machine)
    true = np.stack([timeline.start, timeline.end])
    offsets = rng.integers(0, 1 << 45, machine.multiprocessors)
    clocks = (true * ghz).astype(np.int64) + offsets[timeline.multiprocessor]
    stamps = (1_700_000_000_000_000_000 + true.astype(np.int64)) // step_ns * step_ns
    return clocks, stamps, true


@pytest.mark.parametrize(("step_ns", "within"), [(32, 20.0), (1024, 400.0)])
def test_clocks_of_their_own_come_to_one_time(step_ns: int, within: float) -> None:
    machine = Machine(13, 3)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        clocks, stamps, true = recorded(rng, machine, step_ns=step_ns)
        places = simulate(np.diff(true, axis=0)[0], machine).multiprocessor
        start, end = common_time(clocks, stamps, places)
        assert start.min() == 0.0
        shift = np.median(start - true[0])
        assert np.abs(np.stack([start, end]) - true - shift).max() < within
        np.testing.assert_allclose(end - start, true[1] - true[0], rtol=5e-3 if step_ns > 32 else 5e-4, atol=2)
    assert common_time(np.zeros((2, 0), np.int64), np.zeros((2, 0), np.int64), np.zeros(0, np.int64))[0].size == 0


def by_hand() -> Recording:
    """Returns two multiprocessors of two blocks; tile 1 is two chunks, multiprocessor 1 is done at 40 of 100."""
    records, chunks = np.zeros(5 + 3, unit_dtype()), np.zeros(3, chunk_dtype())
    chunks["tile"], chunks["number"], chunks["parts"] = 1, np.arange(3), 2
    rows = {  # place: (multiprocessor, start, end, listed, walked, again)
        0: (0, 0, 100, 50, 50, 0),
        2: (0, 10, 60, 30, 15, 0),
        3: (1, 20, 40, 8, 8, 0),
        5: (1, 0, 10, 20, 20, 0),
        6: (1, 5, 30, 20, 10, 6),
    }
    for place, (sm, start, end, listed, walked, again) in rows.items():
        stamps = (1000 + start, 1000 + end)
        clocks = [2 * stamp + 10**12 * (sm + 1) for stamp in stamps]
        records[place] = (*clocks, *stamps, sm, place, listed, walked, again, 7)
    records[7] = (0, 1, 0, 1, 1, 0, 999, 999, 0, 6)  # of the frame before
    return recording_of_gpu(records, chunks, 7, (1, 5), Machine(2, 2))


def test_a_frame_made_by_hand_gives_the_figures_one_reads_off_it() -> None:
    recording = by_hand()
    assert len(recording) == 5  # the sixth is of another frame, and tile 4 did not run
    assert recording.timeline.makespan == pytest.approx(100)
    assert recording.timeline.sm_activity == pytest.approx((100 + 40) / 200)
    np.testing.assert_allclose(recording.timeline.activity(10), [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5], atol=1e-9)
    assert recording.tail_begins == pytest.approx(40)
    assert recording.idle_tail == pytest.approx(60 / 200)
    np.testing.assert_array_equal(recording.per_tile("listed"), [[50, 40, 30, 8, 0]])
    np.testing.assert_array_equal(recording.per_tile("walked"), [[50, 30, 15, 8, 0]])
    np.testing.assert_array_equal(recording.per_tile("depth"), [[100, 75, 50, 100, 0]])
    np.testing.assert_array_equal(recording.per_tile("chunks"), [[1, 2, 1, 1, 0]])
    np.testing.assert_array_equal(recording.per_tile("time"), [[200, 70, 100, 40, 0]])
    rows = lanes(recording)
    assert rows.max() == 1
    for sm in range(2):
        for row in range(2):
            own = (recording.multiprocessor == sm) & (rows == row)
            assert (recording.start[own][1:] >= recording.end[own][:-1]).all()


def test_the_simulator_agrees_with_a_frame_that_ran_as_it_says() -> None:
    machine, rng = Machine(7, 3), np.random.default_rng(2)
    work = np.rint(rng.exponential(300.0, 200)) + 10
    timeline = simulate(work, machine)
    whole = np.arange(len(work))
    recording = replace(
        by_hand(),
        machine=machine,
        tiles=(10, 20),
        **dict.fromkeys(("tile", "block"), whole),
        **{name: np.zeros_like(whole) for name in ("chunk", "again")},
        parts=np.ones_like(whole),
        multiprocessor=timeline.multiprocessor,
        start=timeline.start,
        end=timeline.end,
        cycles=work,
        listed=work.astype(np.int64),
        walked=work.astype(np.int64),
    )
    for check in checks(recording):
        assert check.makespan_error == pytest.approx(0, abs=1e-9)
        assert check.activity_error == pytest.approx(0, abs=1e-9)
    spaced = simulate(work + 40.0, machine)  # places stand empty for 40 ns after each unit
    rested = replace(recording, multiprocessor=spaced.multiprocessor, start=spaced.start, end=spaced.end - 40.0)
    assert rested.hand_over == pytest.approx(40.0)
    for check in checks(rested):
        assert check.makespan_error == pytest.approx(0, abs=0.01)
    late = replace(recording, listed=np.where(whole < 190, 100, 2000))
    assert abs(checks(late)[2].makespan_error) > 0.05


def test_threads_of_the_cpu_backend_record_each_tile_once_and_draw_the_same_picture() -> None:
    camera = random_camera(150, 100)
    gaussians = random_scene(camera, 3000, seed=1, degree=1)
    backend, policy = CpuBackend(), Policy()
    plain, frame = (backend.render(gaussians, camera, policy=p) for p in (policy, changed(policy, RECORD)))
    assert plain.recording is None
    np.testing.assert_array_equal(frame.image, plain.image)
    recording = frame.recording
    assert recording is not None
    np.testing.assert_array_equal(recording.per_tile("listed"), frame.tile_counts)
    assert (np.sort(recording.tile) == np.arange(frame.tile_counts.size)).all()
    assert (recording.walked <= recording.listed).all()
    # A tile ends early only where all its pixels are dark.
    left = np.array(
        [frame.transmittance[16 * r : 16 * r + 16, 16 * c : 16 * c + 16].max() for r in range(7) for c in range(10)]
    )
    early = recording.per_tile("walked").ravel() < frame.tile_counts.ravel()
    assert (left[early] < 1e-2).all()
    assert 0 < recording.timeline.sm_activity <= 1
    assert (recording.end >= recording.start).all()


# ---- The kernels, on the CPU -----------------------------------------------------------------------------------------

needs_emulation = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")


@cache
def kernels() -> Kernels:
    camera = random_camera(61, 45)
    policies = [changed(step("best"), SCHEDULES[name] | record) for name in SCHEDULES for record in ({}, RECORD)]
    training = [pass_for(changed(step("best"), SCHEDULES[name] | RECORD), camera, True, False) for name in TRAINED]
    return Kernels([pass_for(policy, camera, False, True) for policy in policies] + training)


def run(name: str, record: bool) -> tuple[Result, Recording | None]:
    """Returns the second frame of a dense scene: in its buffers are the records of the first."""
    camera = random_camera(61, 45)
    gaussians = random_scene(camera, 2000, seed=4, degree=1)
    gaussians.logit_opacities[:] = -2.5
    gaussians.log_scales[:] += 0.7
    emulated = Emulated(kernels(), gaussians)
    made_for = pass_for(changed(step("best"), SCHEDULES[name] | (RECORD if record else {})), camera, False, True)
    plan = emulated.plan(camera, made_for, ROOM)
    result = [emulated.run(plan, camera, RenderSettings()) for _ in range(2)][-1]
    pipeline = emulated.pipeline
    if not record:
        assert pipeline.buffers.find("blend records") is None
        return result, None
    return result, read_recording(pipeline.memory, pipeline.buffers.find, result.frame, Machine(4, 1))


@needs_emulation
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_unit_of_a_frame_leaves_one_record_and_the_picture_stays(name: str) -> None:
    (plain, _), (result, recording) = run(name, record=False), run(name, record=True)
    assert recording is not None
    np.testing.assert_array_equal(result.image, plain.image)
    np.testing.assert_array_equal(recording.per_tile("listed").ravel(), result.tile_counts)
    assert (np.bincount(recording.tile, minlength=result.tile_counts.size) == recording.parts[
        np.unique(recording.tile, return_index=True)[1]]).all()  # fmt: skip
    assert (recording.parts > 1).any() == (name in ("split", "inexact"))
    assert (recording.walked <= recording.listed).all()
    if name in ("grid", "lpt"):
        assert (recording.walked < recording.listed).any()  # some end early
    assert (recording.again > 0).any() == (name == "split")
    assert recording.multiprocessor.max() < 4
    assert (recording.end >= recording.start).all()


@needs_emulation
@pytest.mark.parametrize("name", TRAINED)
def test_the_backward_pass_records_the_entries_that_forward_left_it(name: str) -> None:
    camera = random_camera(61, 45)
    gaussians = random_scene(camera, 900, seed=4, degree=1)
    emulated = Emulated(kernels(), gaussians)
    made_for = pass_for(changed(step("best"), SCHEDULES[name] | RECORD), camera, True, False)
    plan = emulated.plan(camera, made_for, ROOM)
    upstream = np.ones((camera.height, camera.width, 3), np.float32)
    result = [emulated.run(plan, camera, RenderSettings(), upstream) for _ in range(2)][-1]
    pipeline = emulated.pipeline
    forward, backward = (
        read_recording(pipeline.memory, pipeline.buffers.find, result.frame, Machine(4, 1), stage)
        for stage in ("blend", "blend_backward")
    )
    np.testing.assert_array_equal(forward.per_tile("listed").ravel(), result.tile_counts)
    # Where a pixel ended before or in a chunk, all of them went through it again.
    kept = np.where(forward.again > 0, forward.again, forward.walked)
    blended = {(t, c): k for t, c, k in zip(forward.tile, forward.chunk, kept, strict=True) if k}
    walked = {(t, c): k for t, c, k in zip(backward.tile, backward.chunk, backward.walked, strict=True)}
    assert walked == blended


@needs_emulation
def test_pictures_for_a_screen_come_with_their_recording_only_if_it_is_asked_for() -> None:
    camera = random_camera(61, 45)
    gaussians = random_scene(camera, 300, seed=4, degree=1)
    backend = CudaBackend(emulated_renderer(kernels()))
    policy = changed(step("best"), SCHEDULES["split"])
    plain, recorded = (backend.show(gaussians, camera, policy=p)[1] for p in (policy, changed(policy, RECORD)))
    assert plain.recording is None
    assert recorded.recording is not None
    np.testing.assert_array_equal(recorded.recording.per_tile("listed"), recorded.tile_counts)
    machine, costs = backend.blend_machine()
    assert machine.multiprocessors == 2
    assert costs.second_pass > 0  # by which an exact stop lengthens chunks
    assert backend.render(gaussians, camera, policy=changed(policy, RECORD)).recording is not None


@pytest.mark.skipif(nvrtc_path() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc")
@pytest.mark.parametrize("architecture", [ARCHITECTURES[0], 90])
def test_recording_costs_no_block_its_place(architecture: int) -> None:
    camera, blocks = random_camera(61, 45), []
    for record in ({}, RECORD):
        policy = changed(step("best"), SCHEDULES["split"] | record)
        file, name = pass_for(policy, camera, False, True).kernels()["blend"]
        report = compile_report(source(file), [name], architecture)[name]
        blocks.append(report.blocks_per_multiprocessor(256, architecture))
    assert blocks[0] == blocks[1]
