"""Tests what only some training steps do, on a real GPU: exposures, noise, absolute pulls, rows changed in place."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from splatscope.kernels.backends import gpu_is_present
from splatscope.kernels.cpu import CpuBackend
from splatscope.kernels.cpu import training as training_math
from splatscope.kernels.cuda.step.exposure import ExposureMaps
from splatscope.kernels.cuda.step.splats import KINDS
from splatscope.kernels.cuda.training_step import StepRequest, TrainingStep
from splatscope.kernels.errors import NoRoomError
from splatscope.kernels.noise import Noise, normal_numbers
from splatscope.kernels.policy import Policy
from splatscope.training.config import ExposureConfig, RateConfig
from splatscope.training.splats import rows as ops
from splatscope.training.steps.exposure import Exposures
from tests.kernels.test_training_step_gpu import CAMERA, SCENE, SETTINGS, photograph, training_of
from tests.support.cuda_training import IN_ORDER, RATES

pytestmark = pytest.mark.skipif(
    not gpu_is_present() or importlib.util.find_spec("cupy") is None, reason="needs an NVIDIA GPU and CuPy"
)

NOISE = Noise(40.0, 0.3, 4.0, seed=2**40 + 3, iteration=7)


def request(training: TrainingStep, seed: int = 0, **changes: Any) -> StepRequest:
    return replace(StepRequest(CAMERA, SETTINGS, training.targets.add(photograph(seed)), RATES), **changes)


def run(training: TrainingStep, count: int, **changes: Any) -> list[Any]:
    asked = [request(training, seed, **changes) for seed in range(2)]
    for number in range(count):
        training.run(asked[number % 2])
    return training.outcomes(wait=True)


@pytest.mark.parametrize("policy", [Policy(), IN_ORDER], ids=["best", "in order"])
def test_absolute_pulls_are_those_of_the_cpu(policy: Policy) -> None:
    backend, plain, absolute = CpuBackend(), training_of(policy), training_of(policy)
    frame, saved = backend.forward(SCENE, CAMERA, SETTINGS)
    _, upstream = training_math.loss(frame.image, (photograph(0) / 255).astype(np.float32), 0.2)
    wanted = backend.backward(saved, upstream, absolute=True).means2d
    pull = np.linalg.norm(wanted * np.array([0.5 * CAMERA.width, 0.5 * CAMERA.height]), axis=1)
    for training, flag in ((plain, False), (absolute, True)):
        training.run(request(training, absolute=flag))
        assert training.outcomes(wait=True)[0].steps == 1
    got = absolute.splats.pull.cpu().numpy()
    assert np.linalg.norm(got - pull) < 2e-3 * np.linalg.norm(pull)
    assert float(plain.splats.pull.sum()) < 0.8 * got.sum()
    first = [training.splats.view("first")["sh"].cpu().numpy() for training in (plain, absolute)]
    assert np.linalg.norm(first[1] - first[0]) < 1e-5 * np.linalg.norm(first[0])


def test_exposures_follow_those_of_the_host() -> None:
    views = 40
    host = Exposures(ExposureConfig(), RateConfig(), views, 100)
    host.state()["values"].add_(torch.randn(views, 4, 3, generator=torch.Generator().manual_seed(1)) * 0.1)
    backend, training = CpuBackend(), training_of()
    training.exposures = ExposureMaps(**{name: tensor.clone().cuda() for name, tensor in host.state().items()})
    for iteration, index in enumerate((3, 0, 3, 39), 1):
        frame, _ = backend.forward(training.splats.gaussians(), CAMERA, SETTINGS)
        loss, above = training_math.loss(
            host.apply(index, frame.image), (photograph(index % 2) / 255).astype(np.float32), 0.2
        )
        host.step(index, frame.image, above, iteration)
        training.run(request(training, index % 2, photograph=index, exposure_rate=host.rate(iteration)))
        assert training.outcomes(wait=True)[0].loss == pytest.approx(loss, rel=2e-4)
    for name, tensor in host.state().items():
        got = getattr(training.exposures, name).cpu().numpy()
        np.testing.assert_allclose(got, tensor.numpy(), rtol=1e-3, atol=1e-3 * float(tensor.abs().max()), err_msg=name)


def test_random_steps_are_those_of_the_host_and_repeat_to_the_bit() -> None:
    still, shaken, again = (training_of() for _ in range(3))
    run(still, 1)
    for training in (shaken, again):
        run(training, 1, noise=NOISE)
    raw = ops.SplatTensors(**{name: tensor.cpu() for name, tensor in still.splats.view("raw").items()})
    numbers = torch.from_numpy(normal_numbers(NOISE.seed, NOISE.iteration, SCENE.count))
    wanted = ops.shaken_means(raw, numbers, NOISE.amount, NOISE.centre, NOISE.steepness)
    got = shaken.splats.view("raw")["means"]
    scale = float((wanted - raw.means).abs().max())
    np.testing.assert_allclose(got.cpu().numpy(), wanted.numpy(), atol=2e-5 * scale)
    assert torch.equal(got, again.splats.view("raw")["means"])


def test_a_count_that_no_gpu_has_room_for_leaves_the_run_as_it_was() -> None:
    training = training_of()
    run(training, 3)
    before = {name: tensor.clone() for name, tensor in training.splats.view("raw").items()}
    with pytest.raises(NoRoomError, match="no room"):
        training.splats.make_room(2_000_000_000)
    for name, tensor in training.splats.view("raw").items():
        assert torch.equal(tensor, before[name]), name
    assert run(training, 3)[-1].steps == 6


@pytest.mark.parametrize("adam", ["fused", "lazy_sh"])
def test_rows_change_in_place_under_captured_graphs(adam: str) -> None:
    policy = IN_ORDER.with_value("optimizer", "adam", adam)
    training = training_of(policy, rows=3 * SCENE.count)
    run(training, 4)
    plans = [(id(plan), dict(plan.replay.graphs)) for plan in training.plans.values()]
    assert plans[0][1]
    for seed in range(5):
        training.flush()
        splats, random = training.splats, torch.Generator("cuda").manual_seed(seed)
        kept = torch.rand(splats.count, generator=random, device="cuda") > 0.2
        born = {name: tensor[:900].clone() for name, tensor in splats.view("raw").items()}
        wanted = {kind: {n: t.clone() for n, t in splats.view(kind).items()} for kind in KINDS}
        splats.replace_rows(kept, born)
        splats.reorder(torch.sort(ops.morton_codes(splats.view("raw")["means"])).indices)
        assert splats.count == int(kept.sum()) + 900
        for name, tensor in splats.view("raw").items():
            rows = torch.cat((wanted["raw"][name][kept], born[name])).double().sum(0)
            np.testing.assert_allclose(tensor.double().sum(0).cpu().numpy(), rows.cpu().numpy(), rtol=1e-6, atol=1e-4)
        outcomes = run(training, 3)
        assert all(outcome.is_finite for outcome in outcomes)
    assert [(id(plan), dict(plan.replay.graphs)) for plan in training.plans.values()] == plans
    losses = [outcome.loss for outcome in run(training, 40)]
    assert np.mean(losses[-4:]) < np.mean(losses[:4])


def test_the_order_of_splats_changes_a_run_by_rounding_only() -> None:
    plain, ordered = training_of(), training_of()
    order = torch.sort(ops.morton_codes(ordered.splats.view("raw")["means"])).indices
    ordered.splats.reorder(order)
    losses = [[outcome.loss for outcome in run(training, 6)] for training in (plain, ordered)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    means = [training.splats.view("raw")["means"] for training in (plain, ordered)]
    assert float((means[0][order] - means[1]).abs().mean()) < 0.05 * RATES.means * 6
