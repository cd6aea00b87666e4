"""Tests what only some training steps on the GPU do, on the CPU harness, against the same on the host.

Exposures, random steps of means, and statistics of absolute values.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from splatscope.kernels.cpu import CpuBackend
from splatscope.kernels.cpu import training as training_math
from splatscope.kernels.cuda.launch.buffers import Capacity
from splatscope.kernels.cuda.launch.compiler import ARCHITECTURES, compile_report, nvrtc_path, read_source
from splatscope.kernels.cuda.step.exposure import EXPOSURE_NAMES, ExposureMaps
from splatscope.kernels.cuda.training_step import StepRequest, TrainingStep
from splatscope.kernels.noise import Noise, normal_numbers
from splatscope.kernels.policy import Policy
from splatscope.training.config import ExposureConfig, RateConfig
from splatscope.training.splats import rows
from splatscope.training.steps.exposure import Exposures
from tests.kernels.test_training_step import CAMERA, SCENE, SETTINGS, photograph, request, snapshot
from tests.support.cuda_on_cpu.run import is_supported
from tests.support.cuda_training import IN_ORDER, SEPARATE, emulated_step

pytestmark = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")

VIEWS = 5
NOISE = Noise(40.0, 0.3, 4.0, seed=2**40 + 3, iteration=7)


def exposures_of(seed: int) -> Exposures:
    """Returns exposures that are not the identity, with moments."""
    exposures, rng = Exposures(ExposureConfig(), RateConfig(), VIEWS, 100), np.random.default_rng(seed)
    state = exposures.state()
    state["values"] += torch.from_numpy(rng.normal(0, 0.1, (VIEWS, 4, 3)).astype(np.float32))
    state["first"] += torch.from_numpy(rng.normal(0, 1e-3, (VIEWS, 4, 3)).astype(np.float32))
    state["second"] += torch.from_numpy(rng.uniform(0, 1e-5, (VIEWS, 4, 3)).astype(np.float32))
    state["steps"] += torch.arange(3, 3 + VIEWS)
    return exposures


def exposed_step(training: TrainingStep, exposures: Exposures) -> None:
    """Gives a training step copies of the exposures, where kernels can reach them."""
    copies: dict[str, Any] = {}
    for name, tensor in exposures.state().items():
        dtype = "f4" if tensor.dtype == torch.float32 else "i8"
        copies[name] = training.memory.empty(name, tuple(tensor.shape), dtype)
        copies[name].copy_(tensor)
    training.exposures = ExposureMaps(**copies)


def test_steps_with_exposures_are_those_of_the_host() -> None:
    exposures, training, backend = exposures_of(1), emulated_step(SCENE, SEPARATE), CpuBackend()
    exposed_step(training, exposures)
    seen = (2, 0, 2)
    for iteration, index in enumerate(seen, 1):
        frame, saved = backend.forward(training.splats.gaussians(), CAMERA, SETTINGS)
        target = (photograph(index) / 255).astype(np.float32)
        wanted_loss, above = training_math.loss(exposures.apply(index, frame.image), target, 0.2)
        wanted = backend.backward(saved, exposures.through(index, above))
        exposures.step(index, frame.image, above, iteration)
        first = training.splats.view("first")["means"].clone()
        rate = exposures.rate(iteration)
        training.run(request(training, index, photograph=index, exposure_rate=rate))
        assert training.outcomes(wait=True)[0].loss == pytest.approx(wanted_loss, rel=1e-5)
        gradient = ((training.splats.view("first")["means"] - 0.9 * first) / 0.1).numpy()
        assert np.linalg.norm(gradient - wanted.means) < 1e-3 * np.linalg.norm(wanted.means)
        assert training.exposures is not None
        for name, tensor in exposures.state().items():
            got = getattr(training.exposures, name).numpy()
            scale = float(tensor.abs().max())
            np.testing.assert_allclose(got, tensor.numpy(), rtol=1e-4, atol=1e-4 * scale, err_msg=name)
    mean = training.exposures.values.mean(0).numpy()  # pyright: ignore[reportOptionalMemberAccess]
    np.testing.assert_allclose(mean, np.eye(4, 3), atol=1e-6)


def test_a_step_that_is_refused_changes_no_exposure() -> None:
    training = emulated_step(SCENE, IN_ORDER)
    exposed_step(training, exposures_of(2))
    assert training.exposures is not None
    before = {name: getattr(training.exposures, name).clone() for name in ("values", "first", "second", "steps")}
    settings = replace(SETTINGS, background=(np.nan, 0, 0))
    training.run(request(training, photograph=1, exposure_rate=0.01, settings=settings))
    assert not training.outcomes(wait=True)[0].is_finite
    for name, tensor in before.items():
        assert torch.equal(getattr(training.exposures, name), tensor), name


@pytest.mark.parametrize("policy", [SEPARATE, IN_ORDER], ids=["separate", "fused"])
def test_random_steps_of_means_are_those_of_the_host(policy: Policy) -> None:
    still, shaken = emulated_step(SCENE, policy), emulated_step(SCENE, policy)
    still.run(request(still))
    shaken.run(request(shaken, noise=NOISE))
    for training in (still, shaken):
        assert training.outcomes(wait=True)[0].is_finite
    raw = rows.SplatTensors(**{name: tensor.clone() for name, tensor in still.splats.view("raw").items()})
    numbers = torch.from_numpy(normal_numbers(NOISE.seed, NOISE.iteration, SCENE.count))
    wanted = rows.shaken_means(raw, numbers, NOISE.amount, NOISE.centre, NOISE.steepness)
    moved = (wanted - raw.means).abs().max()
    got = shaken.splats.view("raw")["means"]
    assert moved > 0.1
    np.testing.assert_allclose(got.numpy(), wanted.numpy(), atol=1e-5 * float(moved))
    for name, array in snapshot(still).items():
        if name != "raw means":
            np.testing.assert_array_equal(snapshot(shaken)[name], array, err_msg=name)


def test_a_splat_as_large_as_numbers_go_is_not_shaken() -> None:
    scene = replace(SCENE, log_scales=SCENE.log_scales.copy())
    scene.log_scales[4] = 60.0
    found = []
    for noise in (None, NOISE):
        training = emulated_step(scene, IN_ORDER)
        training.run(request(training, noise=noise))
        training.outcomes(wait=True)
        found.append(training.splats.view("raw")["means"].numpy().copy())
    np.testing.assert_array_equal(found[0][4], found[1][4])
    assert (found[0] != found[1]).any(axis=1).sum() > 50


def test_a_step_that_is_made_again_is_shaken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    roomy = emulated_step(SCENE, IN_ORDER)
    monkeypatch.setattr(Capacity, "of", lambda count: Capacity(16, 64))
    narrow = emulated_step(SCENE, IN_ORDER, seed=4)
    for iteration in range(3):
        for training in (roomy, narrow):
            training.run(request(training, noise=replace(NOISE, iteration=iteration)))
    for training in (roomy, narrow):
        training.outcomes(wait=True)
    np.testing.assert_array_equal(snapshot(narrow)["raw means"], snapshot(roomy)["raw means"])


@pytest.mark.skipif(nvrtc_path() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_kernels_compile_without_spills(architecture: int) -> None:
    for file, names in (("exposure.cuh", EXPOSURE_NAMES), ("noise.cuh", ["shake"])):
        for name, report in compile_report(read_source(file), names, architecture).items():
            assert report.spill_bytes == 0, name


@pytest.mark.parametrize("policy", [SEPARATE, IN_ORDER], ids=["separate", "fused"])
def test_statistics_may_add_up_what_each_pixel_pulls(policy: Policy) -> None:
    backend, plain, absolute = CpuBackend(), emulated_step(SCENE, policy), emulated_step(SCENE, policy)
    frame, saved = backend.forward(SCENE, CAMERA, SETTINGS)
    _, upstream = training_math.loss(frame.image, (photograph(0) / 255).astype(np.float32), 0.2)
    wanted = backend.backward(saved, upstream, absolute=True)
    pull = np.linalg.norm(wanted.means2d * np.array([0.5 * CAMERA.width, 0.5 * CAMERA.height]), axis=1)
    requests: list[StepRequest] = [request(plain), request(absolute, absolute=True)]
    for training, asked in zip((plain, absolute), requests, strict=True):
        training.run(asked)
        assert training.outcomes(wait=True)[0].steps == 1
    np.testing.assert_allclose(absolute.splats.pull.numpy(), pull, rtol=2e-3, atol=1e-4 * pull.max())
    assert plain.splats.pull.sum() < 0.7 * absolute.splats.pull.sum()
    np.testing.assert_array_equal(absolute.splats.seen.numpy(), plain.splats.seen.numpy())
    for name, array in snapshot(plain).items():
        np.testing.assert_array_equal(snapshot(absolute)[name], array, err_msg=name)
