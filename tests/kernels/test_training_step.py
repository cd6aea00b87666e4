"""Tests whole training steps as on the GPU, on the CPU harness, against the same steps by the CPU backend."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from splatscope.kernels.cpu import CpuBackend
from splatscope.kernels.cuda.launch.buffers import Capacity
from splatscope.kernels.cuda.plan.passes import frame_record
from splatscope.kernels.cuda.queue_depth import FIRST
from splatscope.kernels.cuda.step.records import StepRecords, step_dtype
from splatscope.kernels.cuda.training_step import StepRequest, TrainingStep
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Camera, RenderSettings
from tests.support.cuda_on_cpu.run import is_supported
from tests.support.cuda_training import IN_ORDER, LAZY, PARAMETERS, RATES, SEPARATE, SPARSE, Plain, emulated_step
from tests.support.small_scenes import random_camera, random_scene

pytestmark = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")

CAMERA = random_camera(64, 48)
SCENE = random_scene(CAMERA, 100, seed=11, degree=2)
SCENE.logit_opacities.clip(-8, 8, out=SCENE.logit_opacities)
SETTINGS = RenderSettings(background=(0.2, 0.4, 0.7), sh_degree=2)
KINDS = ("raw", "first", "second")


@cache
def photograph(seed: int = 0) -> NDArray[np.uint8]:
    """Returns a picture of another scene, in 8 bits."""
    image = CpuBackend().render(random_scene(CAMERA, 80, seed=100 + seed), CAMERA, SETTINGS).image
    return np.round(255 * image.clip(0, 1)).astype(np.uint8)


def request(training: TrainingStep, seed: int = 0, **changes: object) -> StepRequest:
    target = training.targets.add(photograph(seed))
    return replace(StepRequest(CAMERA, SETTINGS, target, RATES), **changes)  # pyright: ignore[reportArgumentType]


def snapshot(training: TrainingStep) -> dict[str, NDArray[np.float32]]:
    """Returns copies of every parameter and moment."""
    return {f"{k} {n}": t.numpy().copy() for k in KINDS for n, t in training.splats.view(k).items()}


def with_rows(training: TrainingStep, rows: list[int]) -> dict[str, dict[str, torch.Tensor]]:
    """Returns these rows of the splats and moments, for `assign`."""
    return {k: {n: t[rows].clone() for n, t in training.splats.view(k).items()} for k in KINDS}


@pytest.mark.parametrize("policy", [SEPARATE, IN_ORDER], ids=["separate", "fused"])
def test_steps_follow_those_of_the_cpu_backend(policy: Policy) -> None:
    training, plain = emulated_step(SCENE, policy), Plain(SCENE, CpuBackend())
    degrees = (0, 1, 2, 2)
    losses = []
    for number, degree in enumerate(degrees):
        settings = replace(SETTINGS, sh_degree=degree)
        training.run(request(training, number % 2, settings=settings))
        losses.append(plain.run(CAMERA, settings, photograph(number % 2), RATES, 0.2))
    assert training.launcher.told == ("training step",) * len(degrees), "profilers see whole steps, replayed or not"
    outcomes = training.outcomes(wait=True)
    assert [outcome.loss for outcome in outcomes] == pytest.approx(losses, rel=1e-5)
    assert [outcome.steps for outcome in outcomes] == [1, 2, 3, 4]
    assert not any(outcomes[-1].skipped.values())
    ours = training.splats.gaussians()
    assert not training.splats.array("raw", "sh")[:100, 9:].any()
    for name in PARAMETERS:
        got, wanted, start = (getattr(g, name) for g in (ours, plain.gaussians, SCENE))
        # Adam divides by the gradient's size: where that is rounding, so is the sign of the step.
        far = np.abs(got - wanted) > 1e-3 * np.abs(wanted - start).max()
        assert far.mean() < 0.01, f"{name}: {far.mean():.2%}"
        assert np.linalg.norm(got - wanted) < 0.02 * np.linalg.norm(wanted - start), name
    np.testing.assert_array_equal(training.splats.seen.numpy(), plain.seen)
    np.testing.assert_allclose(training.splats.pull.numpy(), plain.pull, rtol=2e-3, atol=1e-4 * plain.pull.max())


@pytest.mark.parametrize("policy", [SEPARATE, IN_ORDER], ids=["separate", "fused"])
def test_penalties_pull_at_opacities_and_scales_whether_splats_are_seen_or_not(policy: Policy) -> None:
    away = Camera.from_matrix(np.diag([1.0, -1.0, -1.0, 1.0]) @ CAMERA.matrix, 64, 48, 50, 50, 32, 24)
    training = emulated_step(SCENE, policy)
    training.run(request(training, camera=away, opacity_penalty=0.01, scale_penalty=0.02))
    assert training.outcomes(wait=True)[0].visible == 0
    first = training.splats.view("first")
    opacity = 1 / (1 + np.exp(-SCENE.logit_opacities.astype(np.float64)))
    wanted = 0.1 * 0.01 * opacity * (1 - opacity) / 100
    np.testing.assert_allclose(first["logit_opacities"].numpy(), wanted, rtol=1e-4, atol=1e-12)
    np.testing.assert_allclose(first["log_scales"].numpy(), 0.1 * 0.02 * np.exp(SCENE.log_scales) / 300, rtol=1e-4)
    assert not first["means"].any()


def test_a_step_that_does_not_fit_is_made_again_with_those_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    roomy = emulated_step(SCENE, IN_ORDER)
    monkeypatch.setattr(Capacity, "of", lambda count: Capacity(16, 64))
    narrow = emulated_step(SCENE, IN_ORDER, seed=4)
    for number in range(3):
        for training in (roomy, narrow):
            training.run(request(training, number))
    outcomes = [training.outcomes(wait=True) for training in (roomy, narrow)]
    assert [o.loss for o in outcomes[0]] == [o.loss for o in outcomes[1]]
    assert [o.steps for o in outcomes[1]] == [1, 2, 3]
    for name, array in snapshot(narrow).items():
        np.testing.assert_array_equal(array, snapshot(roomy)[name], err_msg=name)


class Held:
    """Stands for an event that has passed once somebody waits for it, as if the GPU were slow."""

    waits = 0

    def __init__(self) -> None:
        self.passed = False

    def record(self, stream: object) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        Held.waits += not self.passed
        self.passed = True


def test_no_more_steps_are_queued_than_keep_the_gpu_busy_for_the_set_time(monkeypatch: pytest.MonkeyPatch) -> None:
    training = emulated_step(SCENE, IN_ORDER)
    monkeypatch.setattr(training.memory, "event", Held)
    monkeypatch.setattr(Held, "waits", 0)
    for number in range(FIRST + 2):
        training.run(request(training, number))
    assert Held.waits == 2, "a picture that is queued now comes behind so many steps"
    assert len(training.outcomes()) == 2
    assert len(training.outcomes(wait=True)) == FIRST


def test_a_loss_that_is_not_finite_leaves_the_splats_of_the_step_before_until_told_to_go_on() -> None:
    training = emulated_step(SCENE, IN_ORDER)
    training.run(request(training))
    assert training.outcomes(wait=True)[0].is_finite
    before = snapshot(training)
    broken = request(training, settings=replace(SETTINGS, background=(np.nan, 0, 0)))
    training.run(broken)
    training.run(request(training))
    outcomes = training.outcomes(wait=True)
    assert [outcome.is_finite for outcome in outcomes] == [False]
    assert outcomes[0].request is broken
    for name, array in snapshot(training).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    training.resume()
    training.run(request(training))
    assert training.outcomes(wait=True)[0].steps == 2
    assert not np.array_equal(snapshot(training)["raw means"], before["raw means"])


def test_splats_come_and_go_without_a_new_address_while_the_room_lasts() -> None:
    training = emulated_step(SCENE, IN_ORDER, rows=200)
    training.run(request(training))
    training.outcomes(wait=True)
    place, scene = training.splats.array("raw", "sh").data_ptr(), training.splats.scene
    training.splats.assign(with_rows(training, [*range(100)] * 2))
    assert (training.splats.count, training.splats.scene.count) == (200, 200)
    assert training.splats.scene is not scene
    assert training.splats.array("raw", "sh").data_ptr() == place
    plans = [*training.plans.values()]
    training.run(request(training))
    assert training.outcomes(wait=True)[0].steps == 2
    assert {*map(id, plans)} <= {*map(id, training.plans.values())}
    halves = training.splats.view("raw")["means"].numpy()
    np.testing.assert_allclose(halves[:100], halves[100:], atol=2.5 * RATES.means)
    training.splats.assign(with_rows(training, [*range(50)]))
    training.run(request(training))
    assert training.outcomes(wait=True)[0].visible <= 50


def test_more_splats_than_rows_move_to_larger_arrays() -> None:
    training = emulated_step(SCENE, IN_ORDER)
    rows = training.splats.rows
    training.splats.assign(with_rows(training, [*range(100)] * 50))
    assert training.splats.rows > training.splats.count == 5000 > rows
    np.testing.assert_array_equal(training.splats.view("raw")["means"].numpy()[4900:], SCENE.means)
    assert not training.splats.view("second")["sh"].any()


def test_fused_and_separate_adam_agree_to_rounding_whether_splats_are_seen_or_not() -> None:
    aside = Camera.from_matrix(CAMERA.matrix, 64, 48, CAMERA.fx, CAMERA.fy, -20, CAMERA.cy)
    found = []
    for policy in (SEPARATE, IN_ORDER):
        training = emulated_step(SCENE, policy, seed=7)
        for number, camera in enumerate((CAMERA, aside, CAMERA)):
            training.run(request(training, number, camera=camera))
        assert training.outcomes(wait=True)[1].visible < SCENE.count
        found.append(snapshot(training) | {"pull": training.splats.pull.numpy().copy()})
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, rtol=1e-6, atol=1e-6 * np.abs(array).max(), err_msg=name)


def test_toggles_change_between_steps_but_not_those_that_change_the_picture() -> None:
    steady, changing = (emulated_step(SCENE, IN_ORDER) for _ in range(2))
    for number, policy in enumerate((IN_ORDER, LAZY, SEPARATE, LAZY, IN_ORDER)):
        changing.want(policy.with_value("bin", "bounds", "circle3s"))
        for training in (steady, changing):
            training.run(request(training, number % 2))
        assert changing.policy == policy
    changing.want(IN_ORDER.with_value("blend", "compaction", "off"))  # which others need
    changing.run(request(changing))
    assert changing.policy == IN_ORDER
    steady.run(request(steady))
    losses = [[outcome.loss for outcome in training.outcomes(wait=True)] for training in (steady, changing)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_toggles_from_before_the_first_step_hold_for_it_and_later_ones_wait_for_the_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training, wanted = emulated_step(SCENE, IN_ORDER), emulated_step(SCENE, SEPARATE)
    is_compiled = False
    monkeypatch.setattr(type(training._kernels), "start", lambda *_: is_compiled)
    training.want(SEPARATE)
    assert training.waiting == ()
    for _ in range(2):
        for each in (training, wanted):
            each.run(request(each))
        training.want(IN_ORDER)
        assert training.policy == SEPARATE
        assert training.waiting == ("optimizer",)
    training.want(SEPARATE)
    assert training.waiting == ()
    training.want(IN_ORDER)
    is_compiled = True
    for each in (training, wanted):
        each.run(request(each))
    assert (training.policy, training.waiting) == (IN_ORDER, ())
    losses = [[outcome.loss for outcome in each.outcomes(wait=True)] for each in (training, wanted)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_profilers_see_the_stages_of_each_step_as_nothing_is_replayed() -> None:
    training = emulated_step(SCENE, IN_ORDER)
    training.launcher.nvtx = True
    for _ in range(3):
        training.run(request(training))
    assert (training.launcher.captured, training.launcher.replayed) == (0, 0)
    assert training.launcher.told == ("training step",) * 3


def test_sparse_adam_moves_what_has_a_gradient_like_the_dense_one_and_nothing_else() -> None:
    aside = Camera.from_matrix(CAMERA.matrix, 64, 48, CAMERA.fx, CAMERA.fy, -20, CAMERA.cy)
    found = []
    for policy in (IN_ORDER, SPARSE):
        training = emulated_step(SCENE, policy)
        training.run(request(training, camera=aside, opacity_penalty=0.01, scale_penalty=0.01))
        training.outcomes(wait=True)
        found.append(snapshot(training))
    moved = np.abs(found[1]["first quats"]).max(axis=1) > 0
    assert 10 < moved.sum() < 90
    for name in PARAMETERS:
        for kind in KINDS:
            dense, sparse = (f[f"{kind} {name}"] for f in found)
            np.testing.assert_allclose(sparse[moved], dense[moved], rtol=1e-6, atol=1e-7, err_msg=name)
            assert kind == "raw" or not sparse[~moved].any(), name
        still = training.splats.gaussians()
        np.testing.assert_array_equal(getattr(still, name)[~moved], getattr(SCENE, name)[~moved], err_msg=name)


def test_harmonics_that_stand_still_are_those_of_every_step_once_they_are_seen_or_flushed() -> None:
    aside = Camera.from_matrix(CAMERA.matrix, 64, 48, CAMERA.fx, CAMERA.fy, -20, CAMERA.cy)
    away = Camera.from_matrix(np.diag([1.0, -1.0, -1.0, 1.0]) @ CAMERA.matrix, 64, 48, 50, 50, 32, 24)
    found, images, losses = [], [], []
    for policy in (IN_ORDER, LAZY):
        training = emulated_step(SCENE, policy, seed=3)
        for number, camera in enumerate((CAMERA, aside, CAMERA, away, away, CAMERA, aside, away)):
            rates = replace(RATES, sh_rest=RATES.sh_rest * (1 + number))
            training.run(request(training, number % 3, camera=camera, rates=rates))
        losses.append([outcome.loss for outcome in training.outcomes(wait=True)])
        images.append([*training.plans.values()][-1].plan.outputs.image.numpy().copy())
        training.flush()
        found.append(snapshot(training))
    assert bool((training.splats.stepped[:100] == 8).all())
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    np.testing.assert_allclose(images[1], images[0], atol=1e-6)
    moved = np.abs(found[0]["raw sh"] - SCENE.sh).max()
    for name, array in found[0].items():
        scale = moved if name == "raw sh" else np.abs(array).max()
        np.testing.assert_allclose(found[1][name], array, rtol=2e-6, atol=1e-5 * scale, err_msg=name)


def test_no_harmonics_stand_still_for_longer_than_the_table_reaches() -> None:
    away = Camera.from_matrix(np.diag([1.0, -1.0, -1.0, 1.0]) @ CAMERA.matrix, 16, 16, 20, 20, 8, 8)
    found = []
    for policy in (IN_ORDER, LAZY):
        training = emulated_step(SCENE, policy)
        training.run(request(training))
        small = training.targets.add(photograph()[:16, :16])
        for _ in range(140):
            training.run(request(training, camera=away, target=small))
        training.outcomes(wait=True)
        if policy is LAZY:
            assert set((141 - training.splats.stepped[:100]).tolist()) == {12, 13}  # caught up at 128 and 129
        training.flush()
        found.append(snapshot(training))
    moved = np.abs(found[0]["raw sh"] - SCENE.sh).max()
    np.testing.assert_allclose(found[1]["raw sh"], found[0]["raw sh"], rtol=1e-6, atol=1e-5 * moved)
    largest = np.abs(found[0]["second sh"]).max()
    np.testing.assert_allclose(found[1]["second sh"], found[0]["second sh"], rtol=1e-5, atol=1e-6 * largest)


def test_growth_without_room_leaves_all_splats_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    training = emulated_step(SCENE, IN_ORDER)
    training.run(request(training))
    training.outcomes(wait=True)
    before, many, empty = snapshot(training), with_rows(training, [*range(100)] * 50), training.memory.empty

    def short(name: str, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        if name == "second quats":
            raise InputError("The GPU has no room for second quats.")
        return empty(name, shape, dtype)

    monkeypatch.setattr(training.memory, "empty", short)
    with pytest.raises(InputError, match="no room"):
        training.assign(many)
    assert training.splats.count == 100
    for name, array in snapshot(training).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    training.run(request(training))
    assert training.outcomes(wait=True)[0].steps == 2


def test_a_gradient_that_is_not_finite_leaves_its_number_alone_and_is_counted() -> None:
    training = emulated_step(SCENE, SEPARATE)
    training.run(request(training))
    training.outcomes(wait=True)
    plan = next(iter(training.plans.values()))
    gradient = plan.plan.outputs.gradients["means"]
    row = int(gradient[:100].abs().sum(dim=1).argmax())
    training.splats.view("first")["means"][row, 1] = 5.0
    gradient[row, 1] = float("nan")
    before = snapshot(training)
    plan.replay.operations[-1].run(training.launcher)
    after = snapshot(training)
    assert before["raw means"][row, 1] == after["raw means"][row, 1]
    assert after["first means"][row, 1] == 5.0
    assert after["raw means"][row, 0] != before["raw means"][row, 0]
    training.run(request(training))
    assert training.outcomes(wait=True)[0].skipped == dict.fromkeys(PARAMETERS, 0) | {"means": 1}


def test_a_frame_written_from_what_is_known_of_its_camera_is_the_one_made_anew() -> None:
    training = emulated_step(SCENE, IN_ORDER)
    records, scene = StepRecords(training.memory, 3), training.splats.scene
    other = replace(CAMERA, fx=2 * CAMERA.fx)
    for sequence, camera in enumerate((CAMERA, other, CAMERA, other, CAMERA)):
        settings = RenderSettings(background=(0.1 * sequence, 0.5, 1), sh_degree=sequence % 4)
        room, epoch = Capacity(100 + sequence, 7), 20 + sequence
        inputs = records.write(sequence, scene, camera, settings, room, epoch)
        assert not any(inputs.tobytes())
        inputs["sequence"] = sequence
        records.send(sequence)
        wanted = frame_record(scene, camera, settings, room, epoch)
        assert records.frame.numpy().tobytes() == wanted.tobytes()
        assert records.inputs.numpy().view(step_dtype("StepInputs"))["sequence"] == sequence
