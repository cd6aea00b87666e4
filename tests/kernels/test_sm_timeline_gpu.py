"""Tests recorded timelines on a real GPU: every unit once, clocks that agree, figures compared with the simulator."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from splatscope.kernels.backends import gpu_is_present
from splatscope.kernels.cuda.backend import CudaBackend
from splatscope.kernels.ladder import changed, step
from splatscope.kernels.policy import Policy
from splatscope.kernels.schedule.timeline import Recording, checks
from splatscope.kernels.types import Frame
from tests.kernels.test_sm_timeline import RECORD, SCHEDULES
from tests.support.small_scenes import random_camera, random_scene

pytestmark = pytest.mark.skipif(
    not gpu_is_present() or importlib.util.find_spec("cupy") is None, reason="needs an NVIDIA GPU and CuPy"
)


@pytest.fixture(scope="module")
def backend() -> CudaBackend:
    return CudaBackend()


def render(backend: CudaBackend, policy: Policy) -> Frame:
    """Returns the third frame: launched from a graph, in buffers that hold older records."""
    camera = random_camera(1280, 720)
    gaussians = random_scene(camera, 60_000, seed=3, degree=1)
    return [backend.render(gaussians, camera, policy=policy) for _ in range(3)][-1]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_unit_is_recorded_once_and_the_picture_stays(backend: CudaBackend, name: str) -> None:
    policy = changed(step("best"), SCHEDULES[name])
    plain, frame = render(backend, policy), render(backend, changed(policy, RECORD))
    recording = frame.recording
    assert plain.recording is None
    assert recording is not None
    np.testing.assert_array_equal(frame.image, plain.image)
    np.testing.assert_array_equal(recording.per_tile("listed"), frame.tile_counts)
    units = np.bincount(recording.tile, minlength=frame.tile_counts.size)
    np.testing.assert_array_equal(units[recording.tile], recording.parts)
    assert (recording.walked <= recording.listed).all()
    check_clocks(backend, recording, frame)


def check_clocks(backend: CudaBackend, recording: Recording, frame: Frame) -> None:
    """Checks that no multiprocessor has more blocks than fit, durations are positive, all of it is about as long as the
    stage.
    """
    machine = backend.blend_machine()[0]
    assert recording.machine == machine
    assert (recording.cycles > 0).all()
    assert len(np.unique(recording.multiprocessor)) == machine.multiprocessors
    slack = 200.0  # ns by which the fitted clocks may be off
    edges = np.concatenate([recording.start + slack, recording.end - slack])
    steps = np.repeat([1, -1], len(recording))
    for place in range(machine.multiprocessors):
        own = np.tile(recording.multiprocessor == place, 2)
        at_once = steps[own][np.argsort(edges[own], kind="stable")].cumsum()
        assert at_once.max() <= machine.blocks_each
    assert 0.05 < recording.timeline.sm_activity <= 1.0
    assert recording.timeline.makespan / 1e6 < 1.1 * frame.stage_ms["blend"] + 0.05


def test_handing_out_as_the_simulator_does_it_is_what_happened(backend: CudaBackend) -> None:
    for name in ("grid", "lpt"):
        recording = render(backend, changed(step("best"), SCHEDULES[name] | RECORD)).recording
        assert recording is not None
        durations, walked, _ = checks(recording)
        assert abs(durations.makespan_error) < 0.3  # starting a block takes time, too
        assert abs(walked.activity_error) < 0.25
