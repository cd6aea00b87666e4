"""Tests training steps on a real GPU: against the CPU backend, and what the harness cannot show."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from splatscope.kernels.backends import gpu_is_present
from splatscope.kernels.cpu import CpuBackend
from splatscope.kernels.cuda.launch.buffers import Capacity
from splatscope.kernels.cuda.queue_depth import FIRST
from splatscope.kernels.cuda.training_step import StepRequest, TrainingStep
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Camera, RenderSettings
from tests.support.cuda_training import IN_ORDER, LAZY, PARAMETERS, RATES, SEPARATE, SPARSE, Plain, kept_as
from tests.support.small_scenes import random_camera, random_scene

pytestmark = pytest.mark.skipif(
    not gpu_is_present() or importlib.util.find_spec("cupy") is None, reason="needs an NVIDIA GPU and CuPy"
)

CAMERA = random_camera(403, 277)
SCENE = random_scene(CAMERA, 3000, seed=11, degree=3)
SCENE.logit_opacities.clip(-8, 8, out=SCENE.logit_opacities)
SETTINGS = RenderSettings(background=(0.2, 0.4, 0.7))


@cache
def kernels() -> Any:
    from splatscope.kernels.cuda.kernel_store import KernelStore

    return KernelStore()


@cache
def photograph(seed: int) -> Any:
    image = CpuBackend().render(random_scene(CAMERA, 2500, seed=100 + seed), CAMERA, SETTINGS).image
    return np.round(255 * image.clip(0, 1)).astype(np.uint8)


def training_of(policy: Policy = IN_ORDER, **options: Any) -> TrainingStep:
    return TrainingStep(SCENE, policy, kernels=kernels(), **options)


def run(training: TrainingStep, count: int) -> list[Any]:
    targets = [training.targets.add(photograph(seed)) for seed in range(2)]
    for number in range(count):
        training.run(StepRequest(CAMERA, SETTINGS, targets[number % 2], RATES))
    return training.outcomes(wait=True)


def test_steps_follow_those_of_the_cpu_backend() -> None:
    training, plain = training_of(), Plain(SCENE, CpuBackend())
    losses = [plain.run(CAMERA, SETTINGS, photograph(number % 2), RATES, 0.2) for number in range(8)]
    outcomes = run(training, 8)
    assert [outcome.loss for outcome in outcomes] == pytest.approx(losses, rel=2e-4)
    ours = training.splats.gaussians()
    for name in PARAMETERS:
        got, wanted, start = (getattr(g, name) for g in (ours, plain.gaussians, SCENE))
        assert np.linalg.norm(got - wanted) < 0.03 * np.linalg.norm(wanted - start), name
    assert (training.splats.seen.cpu().numpy() != plain.seen).mean() < 1e-3


def test_lazy_and_separate_adam_end_where_the_fused_one_does() -> None:
    shifts = (0, 300, -300, 150, 0, -150, 300, 0)
    cameras = [
        Camera.from_matrix(CAMERA.matrix, 403, 277, CAMERA.fx, CAMERA.fy, CAMERA.cx + x, CAMERA.cy) for x in shifts
    ]
    found = []
    for policy in (IN_ORDER, LAZY, SEPARATE):
        training = training_of(policy)
        target = training.targets.add(photograph(0))
        for number in range(16):
            rates = replace(RATES, sh_rest=RATES.sh_rest * (1 + number), sh_constant=RATES.sh_constant / (1 + number))
            training.run(StepRequest(cameras[number % 8], SETTINGS, target, rates))
        outcomes = training.outcomes(wait=True)
        assert min(outcome.visible for outcome in outcomes) < 0.9 * SCENE.count
        training.flush()
        found.append(
            {(k, n): t.cpu().numpy() for k in ("raw", "first", "second") for n, t in training.splats.view(k).items()}
        )
    for key, wanted in found[0].items():
        moved = wanted - getattr(SCENE, key[1]) if key[0] == "raw" else wanted
        for got in found[1:]:
            assert np.linalg.norm(got[key] - wanted) < 2e-3 * np.linalg.norm(moved), key


def test_a_run_repeats_to_the_bit_whatever_the_room_and_wherever_photographs_lie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = 3 * FIRST
    roomy = training_of()
    wanted = run(roomy, steps)
    monkeypatch.setattr(Capacity, "of", lambda count: Capacity(64, 4096))
    narrow = training_of(target_budget=0)
    got = run(narrow, steps)
    assert [o.loss for o in got] == [o.loss for o in wanted]
    assert [o.steps for o in got] == list(range(1, steps + 1))
    for kind in ("raw", "first", "second"):
        for name, tensor in narrow.splats.view(kind).items():
            assert bool((tensor == roomy.splats.view(kind)[name]).all()), (kind, name)


def test_a_loss_that_is_not_finite_leaves_the_splats_of_the_step_before() -> None:
    training = training_of()
    run(training, 3)
    before = training.splats.gaussians()
    target = training.targets.add(photograph(0))
    bad = replace(SETTINGS, background=(float("nan"), 0.0, 0.0))
    for settings in (bad, SETTINGS, SETTINGS):
        training.run(StepRequest(CAMERA, settings, target, RATES))
    outcomes = training.outcomes(wait=True)
    assert [outcome.is_finite for outcome in outcomes] == [False]
    np.testing.assert_array_equal(training.splats.gaussians().sh, before.sh)
    training.resume()
    assert run(training, 2)[-1].steps == 5


@pytest.mark.parametrize("sh_dtype", ["split", "bf16"])
@pytest.mark.parametrize("policy", [IN_ORDER, SEPARATE, SPARSE], ids=["fused", "separate", "sparse"])
def test_steps_on_harmonics_in_words_repeat_to_the_bit_and_follow_single_precision(
    policy: Policy, sh_dtype: str
) -> None:
    found = [training_of(kept_as(policy, kind)) for kind in ("f32", sh_dtype, sh_dtype)]
    losses = [[outcome.loss for outcome in run(training, 18)] for training in found]
    assert losses[2] == losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=5e-3)
    for kind in ("raw", "first", "second"):
        wanted, got, again = (training.splats.view(kind) for training in found)
        for name, tensor in got.items():
            assert bool((tensor == again[name]).all()), (kind, name)
            start = getattr(SCENE, name) if kind == "raw" else 0
            exact, moved = wanted[name].cpu().numpy(), tensor.cpu().numpy()
            # Random rounding makes bf16 wander by its spacing, which is larger than what a few steps move.
            limit = np.linalg.norm(exact - start) * (0.05 if sh_dtype == "split" else 0.15)
            if (kind, name, sh_dtype) == ("raw", "sh", "bf16"):
                limit = 0.03 * np.linalg.norm(exact)
            assert np.linalg.norm(moved - exact) < limit, (kind, name)


def test_how_harmonics_are_kept_changes_under_captured_graphs_without_a_number_lost() -> None:
    policies = (IN_ORDER, kept_as(IN_ORDER, "split"), IN_ORDER, kept_as(IN_ORDER, "split"))
    for policy in policies[:2]:
        run(training_of(policy), 1)  # compiles what is changed to below
    steady, changing = training_of(), training_of()
    target = steady.targets.add(photograph(0))
    for policy in policies:
        changing.want(policy)
        for _ in range(5):  # none is waited for
            for training in (steady, changing):
                training.run(StepRequest(CAMERA, SETTINGS, target, RATES))
        assert changing.splats.sh_dtype == policy.project.sh_dtype
    outcomes = [training.outcomes(wait=True) for training in (steady, changing)]
    assert [o.loss for o in outcomes[1]] == pytest.approx([o.loss for o in outcomes[0]], rel=2e-3)
    before = changing.splats.view("raw")["sh"].clone()
    for sh_dtype in ("f32", "split"):
        changing.splats.keep_harmonics_as(sh_dtype)
        assert bool((changing.splats.view("raw")["sh"] == before).all())
