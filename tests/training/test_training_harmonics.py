"""Tests training on harmonics in 16-bit words, on the CPU harness: what both passes read, what the optimiser keeps, and
changes of their form during a run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from splatscope.kernels.cuda.launch.compiler import ARCHITECTURES, Source, compile_report, nvrtc_path, read_source
from splatscope.kernels.cuda.plan.passes import Pass, fused_name, source
from splatscope.kernels.cuda.step.adam import adam_name
from splatscope.kernels.cuda.step.harmonics import KEYS, bf16_words, joined_words, split_words
from splatscope.kernels.cuda.step.records import step_dtype
from splatscope.kernels.cuda.training_step import StepOutcome, TrainingStep
from splatscope.kernels.errors import InputError, NoRoomError
from splatscope.kernels.ladder import step
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Float32
from tests.kernels.test_training_step import CAMERA, KINDS, SCENE, request, snapshot
from tests.support.cuda_on_cpu.run import Device, build, is_supported
from tests.support.cuda_training import IN_ORDER, LAZY, PARAMETERS, RATES, SEPARATE, SPARSE, emulated_step, kept_as

needs_harness = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")
needs_nvrtc = pytest.mark.skipif(nvrtc_path() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc")

STEPS = 4
SPLIT, BF16 = (kept_as(IN_ORDER, sh_dtype) for sh_dtype in ("split", "bf16"))


def rounded(numbers: Float32) -> Float32:
    """Returns whole numbers as both passes read them with split."""
    return joined_words(split_words(torch.from_numpy(numbers))[0]).numpy()


def run(training: TrainingStep, count: int = STEPS, **changes: object) -> list[StepOutcome]:
    for number in range(count):
        training.run(request(training, number % 2, **changes))
    return training.outcomes(wait=True)


@cache
def after_steps(policy: Policy) -> tuple[list[StepOutcome], dict[str, Float32]]:
    """Returns the outcomes of steps, and all numbers after them."""
    training = emulated_step(SCENE, policy)
    return run(training), snapshot(training)


def moved_by_adam(whole: Float32, training: TrainingStep) -> Float32:
    """Returns harmonics after the newest step, from those before it and the moments after it, in single precision."""
    state = training._state.numpy().view(step_dtype("StepState"))[0]
    first, second = (training.splats.view(kind)["sh"].numpy() for kind in ("first", "second"))
    rates = np.full((first.shape[1], 1), RATES.sh_rest, np.float32)
    rates[0] = RATES.sh_constant
    root = np.sqrt(second).astype(np.float64) * state["second_scale"] + np.float32(RATES.epsilon)
    return whole - rates * state["first_scale"] * first * (np.float32(1) / root.astype(np.float32))


# ---- Steps -----------------------------------------------------------------------------------------------------------


@needs_harness
def test_split_is_to_the_bit_a_float32_run_both_of_whose_passes_see_rounded_harmonics() -> None:
    split, plain, whole = emulated_step(SCENE, SPLIT), emulated_step(SCENE, IN_ORDER), SCENE.sh.copy()
    for number in range(STEPS):
        plain.splats.view("raw")["sh"].copy_(torch.from_numpy(rounded(whole)))
        losses = []
        for training in (split, plain):
            training.run(request(training, number % 2))
            losses.append([outcome.loss for outcome in training.outcomes(wait=True)])
        assert losses[0] == losses[1]
        whole = moved_by_adam(whole, plain)
    wanted = snapshot(plain) | {"raw sh": whole}
    for name, array in snapshot(split).items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)
    upper = split.splats.array("raw", "sh")[: SCENE.count, : SCENE.sh.shape[1]]
    np.testing.assert_array_equal(joined_words(upper).numpy(), rounded(whole))
    assert not np.array_equal(rounded(whole), whole)


@needs_harness
def test_split_loses_no_small_step_and_ends_next_to_single_precision() -> None:
    wanted, got = (after_steps(policy)[1] for policy in (IN_ORDER, SPLIT))
    for name, array in wanted.items():
        start = getattr(SCENE, name.removeprefix("raw ")) if name.startswith("raw") else 0
        assert np.linalg.norm(got[name] - array) < 0.05 * np.linalg.norm(array - start), name


@needs_harness
@pytest.mark.parametrize("sh_dtype", ["split", "bf16"])
def test_separate_adam_differs_from_the_fused_one_by_its_gradients_in_bfloat16_alone(sh_dtype: str) -> None:
    found = []
    for policy in (IN_ORDER, SEPARATE):
        training = emulated_step(SCENE, kept_as(policy, sh_dtype))
        outcome = run(training, 1)[0]
        found.append(snapshot(training) | {"loss": np.float32(outcome.loss), "pull": training.splats.pull.numpy()})
    for name, array in found[0].items():
        rough = 2**-7 if name.endswith(" sh") else 1e-6
        if name != "raw sh":  # a first step goes by signs, and bf16 rounds to one side or the other
            np.testing.assert_allclose(found[1][name], array, rtol=rough, atol=1e-6 * np.abs(array).max(), err_msg=name)
    assert (np.abs(found[0]["raw sh"] - found[1]["raw sh"]) > 0.01 * RATES.sh_rest).mean() < 0.01


@needs_harness
@pytest.mark.parametrize("sh_dtype", ["split", "bf16"])
def test_sparse_adam_moves_seen_harmonics_like_the_dense_one_and_no_others(sh_dtype: str) -> None:
    aside = replace(CAMERA, cx=-20)
    found = []
    for policy in (IN_ORDER, SPARSE):
        training = emulated_step(SCENE, kept_as(policy, sh_dtype))
        start = snapshot(training)["raw sh"]
        run(training, 1, camera=aside)
        found.append(snapshot(training))
    seen = np.abs(found[1]["first quats"]).max(axis=1) > 0
    assert 10 < seen.sum() < 90
    for kind in KINDS:
        np.testing.assert_allclose(found[1][f"{kind} sh"][seen], found[0][f"{kind} sh"][seen], rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(found[1]["raw sh"][~seen], start[~seen])


@needs_harness
def test_bf16_keeps_the_sum_of_steps_too_small_for_it() -> None:
    rates = replace(RATES, sh_constant=2e-5, sh_rest=2e-5)  # numbers next to 0.1 are 5e-4 apart
    scene = replace(SCENE, sh=np.where(SCENE.sh < 0, -0.1, 0.1).astype(np.float32))
    moved = {}
    for policy in (SPLIT, BF16):
        training = emulated_step(scene, policy)
        start = snapshot(training)["raw sh"]
        run(training, 6, rates=rates)
        now = snapshot(training)
        moved[policy.project.sh_dtype] = now["raw sh"] - start
    seen = now["second sh"] > 0
    assert seen.sum() > 1500
    direction = np.sign(moved["split"][seen])
    wanted, got = (float((moved[name][seen] * direction).mean()) for name in ("split", "bf16"))
    assert wanted > 3e-5
    assert got == pytest.approx(wanted, rel=0.15)
    assert (moved["bf16"][seen] == 0).mean() > 0.7, "most stay, and some go all the way to the next"


@needs_harness
def test_bf16_repeats_to_the_bit_and_stays_as_near_as_its_spacing_allows() -> None:
    outcomes, found = after_steps(BF16)
    again = emulated_step(SCENE, BF16, seed=9)
    assert [outcome.loss for outcome in run(again)] == [outcome.loss for outcome in outcomes]
    for name, array in snapshot(again).items():
        np.testing.assert_array_equal(array, found[name], err_msg=name)
    numbers = torch.from_numpy(found["raw sh"])
    assert torch.equal(joined_words(bf16_words(numbers)), numbers)
    spacing = 2.0 ** (np.floor(np.log2(np.abs(SCENE.sh) + 1e-3)) - 7)
    assert (np.abs(found["raw sh"] - after_steps(IN_ORDER)[1]["raw sh"]) <= (STEPS + 1) * spacing).mean() > 0.99
    assert [o.loss for o in outcomes] == pytest.approx([o.loss for o in after_steps(IN_ORDER)[0]], rel=2e-3)


@needs_harness
@pytest.mark.parametrize("sh_dtype", ["split", "bf16"])
def test_a_gradient_that_is_not_finite_leaves_its_number_in_words_alone_and_is_counted(sh_dtype: str) -> None:
    training = emulated_step(SCENE, kept_as(SEPARATE, sh_dtype))
    run(training, 1)
    plan = next(iter(training.plans.values()))
    gradient = plan.plan.outputs.gradients["sh"]
    row = int((gradient[:100, 0, 0] != 0).nonzero()[0, 0])
    gradient[row, 0, 1] = 0x7FC0
    before = snapshot(training)
    plan.replay.operations[-1].run(training.launcher)
    after = snapshot(training)
    for kind in KINDS:
        assert before[f"{kind} sh"][row, 0, 1] == after[f"{kind} sh"][row, 0, 1]
        assert not np.array_equal(before[f"{kind} sh"], after[f"{kind} sh"])
    assert run(training, 1)[0].skipped == dict.fromkeys(PARAMETERS, 0) | {"sh": 1}


# ---- Changes while a run goes on -------------------------------------------------------------------------------------


@needs_harness
def test_how_harmonics_are_kept_changes_between_steps_without_a_number_lost() -> None:
    steady, changing = emulated_step(SCENE, IN_ORDER), emulated_step(SCENE, LAZY)
    aside = replace(CAMERA, cx=-20)
    losses: list[list[float]] = [[], []]
    for number, policy in enumerate((LAZY, kept_as(IN_ORDER, "split"), IN_ORDER, kept_as(SEPARATE, "split"), LAZY)):
        changing.want(policy)
        for training, found in zip((steady, changing), losses, strict=True):
            training.run(request(training, number % 2, camera=aside if number % 2 else CAMERA))
            found += [outcome.loss for outcome in training.outcomes(wait=True)]
        assert changing.policy == policy
        assert changing.splats.sh_dtype == policy.project.sh_dtype
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    changing.flush()
    for name, array in snapshot(steady).items():
        start = getattr(SCENE, name.removeprefix("raw ")) if name.startswith("raw") else 0
        assert np.linalg.norm(snapshot(changing)[name] - array) < 0.1 * np.linalg.norm(array - start), name


@needs_harness
@pytest.mark.parametrize("sh_dtype", ["f32", "split"])
def test_numbers_are_the_same_before_and_after_they_are_kept_otherwise_steps_in_flight_included(sh_dtype: str) -> None:
    other = {"f32": "split", "split": "f32"}[sh_dtype]
    training, wanted = (emulated_step(SCENE, kept_as(IN_ORDER, sh_dtype)) for _ in range(2))
    for number in range(3):
        training.run(request(training, number % 2))
    training.splats.keep_harmonics_as(other)
    assert [o.steps for o in training.outcomes(wait=True)] == [1, 2, 3]
    run(wanted, 3)
    for name, array in snapshot(wanted).items():
        np.testing.assert_array_equal(snapshot(training)[name], array, err_msg=name)
    training.splats.keep_harmonics_as("bf16")
    nearest = joined_words(bf16_words(torch.from_numpy(snapshot(wanted)["raw sh"]))).numpy()
    np.testing.assert_array_equal(snapshot(training)["raw sh"], nearest)


@needs_harness
def test_without_room_harmonics_stay_as_they_are_kept_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    training, wanted = emulated_step(SCENE, IN_ORDER), emulated_step(SCENE, IN_ORDER)
    run(training, 1)
    empty = training.memory.empty

    def short(name: str, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        if name == "raw sh lower":
            raise NoRoomError("The GPU has no room for raw sh lower.")
        return empty(name, shape, dtype)

    monkeypatch.setattr(training.memory, "empty", short)
    training.want(kept_as(SEPARATE, "split"))
    training.run(request(training, 1))
    assert training.refusal == "Training continues with project.sh_dtype = f32. The GPU has no room for raw sh lower."
    assert training.policy == SEPARATE
    assert training.outcomes(wait=True)[-1].steps == 2
    run(wanted, 2)
    for name, array in snapshot(wanted).items():
        np.testing.assert_allclose(snapshot(training)[name], array, rtol=1e-5, atol=1e-6 * np.abs(array).max())


@needs_harness
@pytest.mark.parametrize("sh_dtype", ["split", "bf16"])
def test_lazy_adam_and_halved_harmonics_are_refused_before_the_first_step(sh_dtype: str) -> None:
    policy = kept_as(LAZY, sh_dtype)
    assert any("sh_dtype = f32" in problem for problem in policy.problems("cuda"))
    with pytest.raises(InputError, match=r"lazy_sh needs project\.sh_dtype = f32"):
        emulated_step(SCENE, policy)
    training = emulated_step(SCENE, LAZY)
    training.want(policy)
    run(training, 1)
    assert training.policy == LAZY


# ---- Words -----------------------------------------------------------------------------------------------------------

WORDS = """#include "sh_words.cuh"
struct WordsArgs {
    const float4* numbers; void* upper; void* lower; float4* joined; uint4* nearest; unsigned step;
};
template <ShDtype D>
__global__ void words(WordsArgs args) {
    const unsigned i = blockIdx.x * 128 + threadIdx.x;
    const float4 v = args.numbers[i];
    store_whole_quad<D>(args.upper, args.lower, i, v, args.step);
    args.joined[i] = whole_quad<D>(static_cast<uint2*>(args.upper)[i], static_cast<uint2*>(args.lower)[i]);
    args.nearest[i] = make_uint4(bf16_bits(v.x), bf16_bits(v.y), bf16_bits(v.z), bf16_bits(v.w));
}
"""


def words_on_device(numbers: Float32, sh_dtype: str, step: int = 1) -> tuple[Float32, Float32, Float32]:
    """Returns (joined, nearest, upper) of numbers [128 n] that a kernel stored, as float32."""
    unit = Source("words.cuh", (("words.cuh", WORDS), *source("sh_words.cuh").files))
    names = [f"words<ShDtype::{dtype}>" for dtype in ("bf16", "split")]
    kernel, device = build(unit, names)[f"words<ShDtype::{sh_dtype}>"], Device()
    count = len(numbers)
    upper, lower = (device.empty(what, (count,), "u2") for what in ("upper", "lower"))
    joined, nearest = device.empty("joined", (count,), "f4"), device.empty("nearest", (count,), "u4")
    arguments = kernel.arguments.pack(
        numbers=device.upload("numbers", numbers), upper=upper, lower=lower, joined=joined, nearest=nearest, step=step
    )
    device.launch(kernel, (count // 512,), (128,), arguments)
    nearest, upper = ((words.astype(np.uint32) << 16).view(np.float32) for words in (nearest, upper))
    return joined.copy(), nearest, upper


@needs_harness
def test_kernels_take_numbers_apart_as_python_does_and_join_them_to_the_bit() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, np.uint32)
    bits[:6] = 0, 0x80000000, 0x7F7FFFFF, 0x7F800000, 0x3F808000, 0x3F818000
    numbers = bits.view(np.float32)
    is_number = ~np.isnan(numbers)
    joined, nearest, upper = words_on_device(numbers, "split")
    np.testing.assert_array_equal(joined[is_number].view(np.uint32), bits[is_number])
    assert np.isnan(joined[~is_number]).all()
    assert np.isnan(upper[~is_number]).all(), "or a broken splat would be drawn"
    python = split_words(torch.from_numpy(numbers))[0].numpy().view(np.uint16)
    np.testing.assert_array_equal(upper[is_number].view(np.uint32) >> 16, python[is_number])
    words = bf16_words(torch.from_numpy(numbers)).numpy().view(np.uint16)
    np.testing.assert_array_equal(nearest[is_number].view(np.uint32) >> 16, words[is_number])
    assert np.isnan(nearest[~is_number]).all()


@needs_harness
def test_random_rounding_goes_to_a_neighbour_and_is_right_in_the_mean() -> None:
    numbers = np.tile(np.array([0.1, -0.3, 7.77, 1e-20], np.float32), 1 << 12)
    joined = words_on_device(numbers, "bf16", step=5)[0].reshape(-1, 4).astype(np.float64)
    for column, number in zip(joined.T, numbers[:4], strict=True):
        found = np.unique(column)
        assert len(found) == 2
        assert found[0] < number < found[1]
        spacing = found[1] - found[0]
        assert abs(column.mean() - number) < 4 * spacing * 0.5 / np.sqrt(len(column))
    exact = np.tile(np.array([0.5, -0.0, 1.0078125, -3.0], np.float32), 128)
    np.testing.assert_array_equal(words_on_device(exact, "bf16")[0].view(np.uint32), exact.view(np.uint32))
    assert not np.array_equal(words_on_device(numbers, "bf16", step=6)[0].reshape(-1, 4), joined)


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_for_halved_harmonics_compile_without_spills(architecture: int) -> None:
    names: dict[str, list[str]] = {"adam.cuh": [adam_name(sh_dtype) for sh_dtype in KEYS]}
    for sh_dtype in ("bf16", "split"):
        policy = kept_as(step("best"), sh_dtype)
        kernels = Pass(policy, True, False, 12).kernels()
        names.setdefault("project.cuh", []).append(kernels["project"][1])
        for adam in ("fused", "sparse"):
            name = fused_name(kernels["project_backward"][1], policy.with_value("optimizer", "adam", adam))
            names.setdefault("project_backward_adam.cuh", []).append(name)
    for file, instantiations in names.items():
        for name, report in compile_report(read_source(file), instantiations, architecture).items():
            assert report.spill_bytes == report.stack_bytes == 0, name
