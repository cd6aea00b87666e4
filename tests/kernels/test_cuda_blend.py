"""Tests blending and its derivative as CUDA kernels on the CPU: every rung of the ladder against the definition.

Splats, lists and slots come from the float64 reference (support/cuda_blend.py), so that nothing but the kernels under
test can be wrong. Where rounding decides (an alpha at 1/255, a transmittance at 1e-4) pixels are set aside, see
support/comparison.py.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from splatscope.kernels.constants import TILE
from splatscope.kernels.cuda.launch.compiler import (
    ARCHITECTURES,
    CompileError,
    compile_kernels,
    compile_report,
    nvrtc_path,
)
from splatscope.kernels.reference import picture
from splatscope.kernels.reference.backend import ReferenceBackend
from splatscope.kernels.types import Camera, Gaussians, Gradients
from tests.support.comparison import assert_close_with_boundary_band, assert_gradients_close, settled_pixels
from tests.support.cuda_blend import (
    ABLATIONS,
    ABSOLUTE,
    BACKGROUND,
    POLICIES,
    S06,
    STEPS,
    VARIANTS,
    Case,
    as_bf16,
    backward_name,
    backward_source,
    blend_name,
    blend_source,
    case_named,
    make_case,
    project_name,
    project_source,
    run,
    step,
    upstream_and_gradients,
    upstream_of,
)
from tests.support.cuda_on_cpu.run import is_supported
from tests.support.cuda_on_cpu.sass import disassemble, nvdisasm_path
from tests.support.small_scenes import random_camera, random_scene

needs_emulation = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")
needs_nvrtc = pytest.mark.skipif(nvrtc_path() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc")

# ---- Lists by the definition ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TileWeights:
    """Tells which splats blend at which pixels of one tile."""

    weights: NDArray[np.float64]  # [n, rows, columns]
    y: int
    x: int
    is_settled: bool


def tile_weights(case: Case) -> list[TileWeights]:
    stages, camera = case.stages, case.camera
    # Tighter than for pictures: a tile counts only if all its pixels are settled.
    settled = settled_pixels(stages, camera, alpha_margin=1e-5, stop_margin=2e-4)
    p = stages.projected
    columns = (p.mean_px, p.covariance, p.determinant[:, None], p.opacity[:, None])
    records = torch.cat(columns, 1).detach()
    found = []
    for tile in range(case.tiles):
        y, x = (v * TILE for v in divmod(tile, camera.tiles[1]))
        height, width = min(TILE, camera.height - y), min(TILE, camera.width - x)
        rows = records[torch.from_numpy(stages.lists.splat[case.tile_start[tile] : case.tile_start[tile + 1]])]
        grid = np.mgrid[y : y + height, x : x + width].reshape(2, -1)[::-1].T + 0.5
        weights = picture.blend_weights(rows, torch.from_numpy(grid))[0].numpy() if len(rows) else np.zeros((0, 0))
        is_settled = bool(settled[y : y + height, x : x + width].all())
        found.append(TileWeights(weights.reshape(len(rows), height, width), y, x, is_settled))
    return found


def warp_of(policy: dict[str, Any], y: NDArray[np.int64], x: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the warp of the backward pass that owns pixel (y, x) of a tile."""
    return y // (4 if policy["map"] == "columns_8x4" else 8) * 2 + x // 8


# ---- Tests ----------------------------------------------------------------------------------------------------------


@needs_emulation
@pytest.mark.parametrize("scene", ["hand-made", "random"])
@pytest.mark.parametrize("name", STEPS)
def test_pictures_are_those_of_the_reference(name: str, scene: str) -> None:
    case = case_named(scene)
    settled = case.settled
    assert settled.mean() > 0.8
    result = run(case, STEPS[name], training=False, wants_depth=True)
    for array in ("image", "transmittance"):
        assert_close_with_boundary_band(
            getattr(result, array), getattr(case.expected, array), tight=1e-5, flip_size=0.01, flip_fraction=5e-3,
            band=~settled, what=array,
        )  # fmt: skip
    nearer = np.where(np.isnan(case.expected.depth), 1.0, case.expected.depth)
    assert_close_with_boundary_band(
        result.depth / nearer, case.expected.depth / nearer, tight=1e-4, flip_size=10.0, flip_fraction=5e-3,
        band=~settled, what="depth",
    )  # fmt: skip


@needs_emulation
@pytest.mark.parametrize("scene", ["random", "dense", "needles"])
def test_one_row_a_thread_and_two_give_the_same_bits(scene: str) -> None:
    one, two = (run(case_named(scene), POLICIES[name]) for name in ("best", "running from lists"))
    for array in ("image", "transmittance", "entry_counts", "last"):
        np.testing.assert_array_equal(getattr(one, array), getattr(two, array), array)


@needs_emulation
@pytest.mark.parametrize("name", ["s01", "s06"])
def test_splats_a_thousand_times_longer_than_wide_stay_close(name: str) -> None:
    """Allows the error of a conic in single precision, which grows with length over width."""
    case = case_named("needles")
    image = run(case, STEPS[name], training=False, wants_depth=True).image
    assert_close_with_boundary_band(image, case.expected.image, tight=2e-4, flip_size=0.02, flip_fraction=5e-3)


@needs_emulation
@pytest.mark.parametrize(
    ("name", "scene"),
    [(name, scene) for name in STEPS for scene in ("hand-made", "random")] + [(name, "dense") for name in POLICIES],
)
def test_gradients_of_raw_parameters_are_those_of_the_reference(name: str, scene: str) -> None:
    upstream, wanted = upstream_and_gradients(scene)
    result = run(case_named(scene), POLICIES[name], upstream)
    assert result.gradients is not None
    assert_gradients_close(result.gradients, wanted, relative=2e-4, row_relative=2e-2)
    assert not result.left_over.any()  # clean for the next backward pass


@needs_emulation
@pytest.mark.parametrize("name", ABSOLUTE)
def test_absolute_values_are_added_pixel_by_pixel(name: str) -> None:
    """Checks also that the other sums are the same as without absolute values."""
    case, (upstream, _) = case_named("dense"), upstream_and_gradients("dense")
    wanted = ReferenceBackend().backward(case.saved, upstream, absolute=True).means2d
    result, plain = run(case, ABSOLUTE[name], upstream), run(case, POLICIES[name], upstream)
    assert result.gradients is not None
    assert plain.gradients is not None
    assert np.abs(plain.gradients.means2d).sum() < 0.8 * wanted.sum()
    np.testing.assert_allclose(result.gradients.means2d, wanted, rtol=2e-3, atol=2e-4 * wanted.max())
    np.testing.assert_allclose(result.sums, plain.sums, rtol=1e-5, atol=1e-6 * np.abs(plain.sums).max())
    assert not result.left_over.any()


@needs_emulation
@pytest.mark.parametrize("name", [n for n, p in POLICIES.items() if p["compaction"]])
def test_compaction_keeps_exactly_the_contributors_in_order(name: str) -> None:
    case, policy = case_named("dense"), POLICIES[name]
    result = run(case, policy)
    bits = (24 if policy["map"] == "columns_8x4" else 28) if policy["cmask"] else 32
    checked = dropped = 0
    for tile, of_tile in enumerate(tile_weights(case)):
        start, end = case.tile_start[tile : tile + 2]
        kept = result.lists[start : start + result.entry_counts[tile]]
        if not of_tile.is_settled:
            continue
        blends = of_tile.weights > 0
        keeps = np.asarray(blends.any((1, 2)))
        checked, dropped = checked + len(keeps), dropped + int((~keeps).sum())
        np.testing.assert_array_equal(kept & ((1 << bits) - 1), case.lists[start:end][keeps])
        if policy["cmask"]:
            y, x = np.mgrid[: blends.shape[1], : blends.shape[2]]
            warp = warp_of(policy, y, x)
            masks = [int(np.bitwise_or.reduce(1 << warp[pixels])) for pixels in blends[keeps]]
            np.testing.assert_array_equal(kept >> bits, masks)
        assert_last_blended(result.last, of_tile, blends[keeps])
    assert checked > 100
    assert dropped > 100


@needs_emulation
@pytest.mark.parametrize("name", ["s01", "s06 without lists"])
def test_the_last_index_is_that_of_the_last_splat_blended(name: str) -> None:
    case = case_named("dense")
    result = run(case, POLICIES[name])
    np.testing.assert_array_equal(result.entry_counts, np.diff(case.tile_start))
    np.testing.assert_array_equal(result.lists, case.lists)
    settled = [of_tile for of_tile in tile_weights(case) if of_tile.is_settled]
    assert settled
    for of_tile in settled:
        assert_last_blended(result.last, of_tile, of_tile.weights > 0)


def assert_last_blended(last: NDArray[np.uint32], tile: TileWeights, blends: NDArray[np.bool_]) -> None:
    numbers = np.arange(1, len(blends) + 1)[:, None, None]
    wanted = (blends * numbers).max(0, initial=0)
    height, width = wanted.shape
    np.testing.assert_array_equal(last[tile.y : tile.y + height, tile.x : tile.x + width], wanted)


@needs_emulation
@pytest.mark.parametrize("name", POLICIES)
def test_forward_and_backward_agree_on_every_hit(name: str) -> None:
    """Uses hundreds of alphas within rounding of 1/255: a hit that only one pass counts would show as 0.004."""
    case = borderline_case()
    upstream = np.zeros(case.expected.image.shape, np.float32)
    upstream[..., 0] = 1  # so that the red sum of a splat is its total weight
    result = run(case, POLICIES[name], upstream)
    blended = float((1 - result.transmittance.astype(np.float64)).sum())
    assert blended > 1.0
    assert result.sums[:, 6].sum() == pytest.approx(blended, abs=1e-3)


@cache
def borderline_case() -> Case:
    """Returns round splats whose alpha is 1/255 at a ring of pixels, as exactly as single precision has it."""
    camera = Camera.from_matrix(np.eye(4), width=32, height=32, fx=32.0, fy=32.0, cx=16.0, cy=16.0)
    rng, count = np.random.default_rng(8), 120
    pixel = rng.integers(4, 28, (count, 2)) + 0.5
    sigma = rng.uniform(2.0, 6.0, count)
    ring = rng.integers(0, 5, (count, 2))
    alpha = np.exp(0.5 * (ring**2).sum(1) / (sigma**2 + 0.3)) / 255
    depth = np.linspace(2, 3, count)
    means = np.stack([(pixel[:, 0] - 16) / 32 * depth, (pixel[:, 1] - 16) / 32 * depth, depth], 1)
    gaussians = Gaussians(
        means.astype(np.float32),
        np.log(sigma * depth / 32)[:, None].repeat(3, 1).astype(np.float32),
        np.tile([1.0, 0.0, 0.0, 0.0], (count, 1)).astype(np.float32),
        np.log(alpha / (1 - alpha)).astype(np.float32),
        np.zeros((count, 1, 3), np.float32),
    )
    return make_case(gaussians, camera)


@needs_emulation
@pytest.mark.parametrize("name", ["s04", "s06", "best"])
def test_any_order_of_blocks_and_warps_gives_the_same_picture_and_lists(name: str) -> None:
    case, policy = case_named("dense"), STEPS[name]
    upstream = upstream_of(case)
    first = run(case, policy, upstream)
    for seed in range(1, 6):
        other = run(case, policy, upstream, seed=seed)
        for field in ("image", "transmittance", "last", "entry_counts", "lists"):
            np.testing.assert_array_equal(getattr(other, field), getattr(first, field), err_msg=field)
        np.testing.assert_allclose(other.sums, first.sums, rtol=1e-4, atol=1e-5 * np.abs(first.sums).max())


@needs_emulation
def test_deterministic_sums_are_the_same_bits_in_any_order() -> None:
    case, policy = case_named("dense"), VARIANTS["s06 in order"]
    upstream = upstream_of(case)
    first = run(case, policy, upstream)
    assert np.abs(first.sums).max() > 0.1
    for seed in range(1, 4):
        other = run(case, policy, upstream, seed=seed)
        np.testing.assert_array_equal(other.sums, first.sums)
        assert first.gradients is not None
        assert other.gradients is not None
        for field in ("means", "quats", "sh"):
            np.testing.assert_array_equal(getattr(other.gradients, field), getattr(first.gradients, field))


REGROUPED = {
    "s01": [
        "s01 without masks",
        "s01 with boxes",
        "s01 handed out",
        "s02",
        "s04",
        "s04 from lists",
        "s05",
        "s05 by warp",
    ],
    "s06": [
        "quad",
        "s06 by block",
        "s06 rows apart",
        "s06 without lists",
        "s06 in numbers apart",
        "s06 mixed",
        "s06 handed out, from lists",
    ],
    "best": [
        "running",
        "running from lists",
        "best handed out",
        "mixed by block",
    ],
}


@needs_emulation
@pytest.mark.parametrize("scene", ["dense", "needles"])
@pytest.mark.parametrize("name", REGROUPED)
def test_steps_that_only_regroup_work_leave_the_picture_as_it_was(name: str, scene: str) -> None:
    case = case_named(scene)
    picture = run(case, STEPS[name]).image
    for other in REGROUPED[name]:
        np.testing.assert_array_equal(run(case, POLICIES[other]).image, picture, err_msg=other)
    viewed = run(case, STEPS[name], training=False, wants_depth=True).image
    np.testing.assert_array_equal(viewed, picture)


@needs_emulation
def test_half_precision_harmonics_round_their_gradient_to_nearest_even() -> None:
    scene, camera = random_scene(random_camera(32, 32), 90, seed=11), random_camera(32, 32)
    scene.sh[...] = (as_bf16(scene.sh).astype(np.uint32) << 16).view(np.float32)
    case = make_case(scene, camera)
    exact, half = in_order(case, sh_dtype="f32"), in_order(case, sh_dtype="bf16")
    np.testing.assert_array_equal(as_bf16(half.sh), as_bf16(exact.sh))
    for name in ("means", "log_scales", "quats", "logit_opacities", "means2d"):
        np.testing.assert_array_equal(getattr(half, name), getattr(exact, name))


def in_order(case: Case, **changes: Any) -> Gradients:
    """Returns gradients that are the same bits in every run."""
    gradients = run(case, step(VARIANTS["s06 in order"], **changes), upstream_of(case)).gradients
    assert gradients is not None
    return gradients


@needs_emulation
@pytest.mark.parametrize("sh_dtype", ["f32", "bf16"])
@pytest.mark.parametrize("count", [1, 31, 33, 128, 203])
def test_rows_by_way_of_shared_memory_get_the_same_gradients(count: int, sh_dtype: str) -> None:
    """Covers every degree, splats out of sight among the others, and a last warp that is not full."""
    camera = random_camera(32, 32)
    for degree in range(4):
        scene = random_scene(camera, count, seed=count + degree, degree=degree)
        scene.means[1::3] += 1000.0
        scene.sh[...] = (as_bf16(scene.sh).astype(np.uint32) << 16).view(np.float32)
        case = make_case(scene, camera)
        one, staged = (in_order(case, sh_dtype=sh_dtype, sh_bwd=way) for way in ("stream4", "staged"))
        assert one.sh.any()
        for field in fields(Gradients):
            np.testing.assert_array_equal(getattr(staged, field.name), getattr(one, field.name), err_msg=field.name)


@needs_emulation
@pytest.mark.parametrize("name", ["s06", "staged"])
def test_a_frame_that_overflowed_writes_nothing(name: str) -> None:
    case, policy = case_named("hand-made"), POLICIES[name]
    result = run(replace(case, overflow=1), policy, upstream_of(case))
    assert np.isnan(result.image).all()
    np.testing.assert_array_equal(result.lists, case.lists)
    assert not result.left_over.any()
    assert result.gradients is not None
    assert np.isnan(result.gradients.means).all()


@needs_emulation
@pytest.mark.parametrize("name", ["s00", "s06", "s01 with boxes", "staged"])
def test_an_empty_scene_is_the_background(name: str) -> None:
    camera = random_camera(33, 18)
    far_away = random_scene(camera, 40, seed=1)
    far_away.means[:] += 1000.0
    case = make_case(far_away, camera)
    result = run(case, POLICIES[name], np.ones((18, 33, 3), np.float32))
    assert (result.image == np.array(BACKGROUND.background, np.float32)).all()
    assert (result.transmittance == 1).all()
    assert not result.last.any()
    assert result.gradients is not None
    assert not any(np.asarray(getattr(result.gradients, f.name)).any() for f in fields(Gradients)[:6])


# ---- Compilation ----------------------------------------------------------------------------------------------------


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_no_preset_has_compiles_for_every_architecture_without_spills(architecture: int) -> None:
    """Leaves kernels of presets to test_kernel_costs.py."""
    reports = compile_report(backward_source(), [backward_name(POLICIES["transposed"])], architecture)
    staged = [project_name(step(POLICIES["staged"], sh_dtype=sh_dtype)) for sh_dtype in ("f32", "bf16")]
    reports |= compile_report(project_source(), staged, architecture)
    for name, report in reports.items():
        assert report.spill_bytes == 0, name
        most = 128 if architecture < 80 else 80  # Turing's shared memory has room for fewer blocks anyway
        assert report.registers <= (most if name.startswith("project") else 64), name


@needs_nvrtc
@pytest.mark.skipif(nvdisasm_path() is None, reason="needs nvdisasm: pip install nvidia-cuda-nvdisasm")
@pytest.mark.parametrize("architecture", [80, 90, 120])
def test_shuffles_and_atomics_a_splat_fall_from_step_to_step(architecture: int) -> None:
    pairs = 1 if architecture >= 90 else 2  # instructions that add two neighbours
    expected = {  # splats at once, shuffles and atomics in the loop body
        "s00": (1, 0, 9), "s01": (1, 45, 9), "s02 with single sums": (1, 12, 1), "s02": (2, 20, 1),
        "s06": (2, 15, 1), "quad": (4, 28, pairs), "transposed": (5, 0, 3),
    }  # fmt: skip
    names = {n: backward_name(POLICIES[n]) for n in expected}
    compiled = compile_kernels(backward_source(), list(names.values()), architecture)
    for name, (_, shuffles, atomics) in expected.items():
        loops = disassemble(compiled, names[name]).loops()
        body = next(loop for loop in loops if loop.count("RED", "REDG", "ATOM", "ATOMG"))
        assert (body.count("SHFL"), body.count("RED", "REDG", "ATOM", "ATOMG")) == (shuffles, atomics), name
    a_splat = [shuffles / splats for splats, shuffles, _ in expected.values()]
    assert a_splat == [0, 45, 12, 10, 7.5, 7, 0]


@needs_nvrtc
@pytest.mark.skipif(nvdisasm_path() is None, reason="needs nvdisasm: pip install nvidia-cuda-nvdisasm")
@pytest.mark.parametrize("architecture", [80, 90, 120])
@pytest.mark.parametrize(("policy_map", "rows", "instructions"), [("mixed", 1, 21.25), ("columns_8x8", 2, 34.5)])
def test_a_forward_visit_takes_few_instructions(
    policy_map: str, rows: int, instructions: float, architecture: int
) -> None:
    """Counts for one splat and a warp's pixels: a fourth of a load of four addresses, three loads, one exponential a
    row."""
    name = blend_name(step(STEPS["best"], map=policy_map), True, False)
    loops = disassemble(compile_kernels(blend_source(), [name], architecture), name).loops()
    body = next(loop for loop in loops if loop.count("MUFU") == 4 * rows)
    assert body.count("LDS") == 13
    assert len(body.instructions) <= 4 * instructions


@needs_nvrtc
@pytest.mark.skipif(nvdisasm_path() is None, reason="needs nvdisasm: pip install nvidia-cuda-nvdisasm")
@pytest.mark.parametrize("base", ["s06", "best"])
def test_an_ablation_leaves_out_what_it_names_and_nothing_more(base: str) -> None:
    names = {ablate: backward_name(step(STEPS[base], ablate=ablate)) for ablate in ABLATIONS}
    compiled = compile_kernels(backward_source(), list(names.values()), 90)
    codes = {ablate: disassemble(compiled, name) for ablate, name in names.items()}
    atomics, shuffles, specials = (
        {ablate: code.count(*names) for ablate, code in codes.items()} for names in (("REDG",), ("SHFL",), ("MUFU",))
    )
    assert atomics["off"] > 0
    assert atomics["no_atomics"] == atomics["no_reductions"] == atomics["loop_floor"] == 0
    assert shuffles["no_atomics"] == shuffles["off"]
    assert shuffles["no_reductions"] == shuffles["loop_floor"] < 10
    # Exponentials and reciprocals of pixels stay as long as lanes work; then only those of staging are left.
    assert specials["no_atomics"] == specials["no_reductions"] == specials["off"]
    assert 0 < specials["loop_floor"] < 10
    # A staged splat is still read: three loads of 16 bytes, or less where words are not needed.
    floor = max((loop for loop in codes["loop_floor"].loops() if not loop.count("LDG")), key=lambda c: c.count("LDS"))
    assert floor.count("LDS") >= 3


@needs_emulation
@pytest.mark.parametrize("ablate", ABLATIONS[1:])
def test_an_ablation_adds_nothing_and_runs_to_the_end(ablate: str) -> None:
    case = case_named("dense")
    result = run(case, step(STEPS["best"], ablate=ablate), upstream_of(case))
    assert not result.sums.any()
    np.testing.assert_array_equal(result.image, run(case, STEPS["best"]).image)


@needs_nvrtc
@pytest.mark.parametrize(
    ("kernel", "changes", "sentence"),
    [
        (backward_name, {"cmask": False, "touched": False}, "switch on cmask first"),
        (backward_name, {"exp": "expf"}, "switch exp to ex2 first"),
        (lambda p: blend_name(p, True, False), {"compaction": False}, "switch on compaction first"),
        (lambda p: blend_name(p, True, False), {"branchless": False}, "switch on branchless first"),
        (lambda p: blend_name(p, True, False), {"running_T": True}, "off sign_T first"),
        (lambda p: blend_name(p, True, False), {"alpha_cap": "none"}, "switch stop to inclusive first"),
    ],
)
def test_a_combination_that_makes_no_sense_says_what_to_switch_on(kernel: Any, changes: Any, sentence: str) -> None:
    name = kernel(step(S06, **changes))
    with pytest.raises(CompileError, match=sentence):
        compile_report(backward_source() if kernel is backward_name else blend_source(), [name], 90)
