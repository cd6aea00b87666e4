"""Tests pictures for the screen on a real GPU: their bytes, the times of their stages, and presets compiled meanwhile.

The same without a GPU: test_cuda_show.py.
"""

from __future__ import annotations

import importlib.util
import itertools
import time
from dataclasses import replace

import numpy as np
import pytest

from splatscope.kernels.backends import gpu_is_present
from splatscope.kernels.cuda.backend import CudaBackend
from splatscope.kernels.ladder import STEPS
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import RenderSettings
from splatscope.viewer.figures.overlays import picture_rgba
from tests.support.small_scenes import random_camera, random_scene

BEST = Policy()
CAMERA = random_camera(64, 48)
SCENE = random_scene(CAMERA, 100, seed=11, degree=2)
SETTINGS = RenderSettings(background=(0.1, 0.2, 0.3))
STAGES = ["project", "depth_sort", "emit", "tile_sort", "ranges", "blend"]
on_gpu = pytest.mark.skipif(
    not gpu_is_present() or importlib.util.find_spec("cupy") is None, reason="needs an NVIDIA GPU and CuPy"
)


@on_gpu
@pytest.mark.parametrize("launch", ["direct", "graph"])
def test_a_gpus_picture_comes_as_bytes_with_the_times_of_its_own_stages(launch: str) -> None:
    gpu, policy = CudaBackend(), BEST.with_value("launch", "mode", launch)
    camera = CAMERA.resized(640, 480)
    rendered, kept = gpu.render(SCENE, camera, SETTINGS, policy), gpu.show(SCENE, camera, SETTINGS, policy)[1]
    gpu.start_clock()
    for _ in range(4):  # launched, captured, replayed
        start = time.perf_counter()
        rgba, frame = gpu.show(SCENE, camera, SETTINGS, policy)
        end = time.perf_counter()
        np.testing.assert_array_equal(rgba, picture_rgba(rendered.image))
        assert list(frame.stage_ms) == STAGES
        spans = gpu.newest_spans()
        assert [name for name, _, _ in spans] == STAGES
        clock_error = 1e-3  # of the GPU's clock against the host's
        assert start - clock_error < spans[0][1] < spans[-1][2] < end + clock_error
        assert all(a[1] <= a[2] <= b[1] + 1e-6 for a, b in itertools.pairwise(spans))
    gpu.show(SCENE, replace(camera, fx=200.0), SETTINGS, policy)
    np.testing.assert_array_equal(kept.depth, rendered.depth)


@on_gpu
def test_a_gpu_compiles_beside_its_pictures_and_every_preset_can_be_shown() -> None:
    gpu, waiting = CudaBackend(), list(STEPS.values())
    gpu.show(SCENE, CAMERA, SETTINGS)
    deadline = time.monotonic() + 60
    while waiting := [rung for rung in waiting if gpu.waiting_for(CAMERA, rung.policy)]:
        assert time.monotonic() < deadline
        gpu.show(SCENE, CAMERA, SETTINGS)
    for rung in STEPS.values():
        rendered = gpu.render(SCENE, CAMERA, SETTINGS, rung.policy)
        np.testing.assert_array_equal(gpu.show(SCENE, CAMERA, SETTINGS, rung.policy)[0], picture_rgba(rendered.image))
