"""Blending and its derivative as CUDA kernels, run on the CPU: every step of the ladder against the definition.

Splats, lists and slots are made here from the float64 reference, so that nothing but the kernels under test can be
wrong. Where rounding decides (an alpha at 1/255, a transmittance at 1e-4) pixels are set aside, see comparison.py.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from splatscope.kernels import reference
from splatscope.kernels.arguments import struct_layout
from splatscope.kernels.compiler import (
    ARCHITECTURES,
    CUDA_FOLDER,
    CompileError,
    Kernel,
    Source,
    compile_report,
    nvrtc_path,
    read_source,
)
from splatscope.kernels.constants import JACOBIAN_MARGIN, TILE
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Camera, Gaussians, Gradients, RenderSettings
from tests.comparison import assert_close_with_boundary_band, assert_gradients_close, settled_pixels
from tests.cuda_on_cpu.run import Device, build, is_supported
from tests.small_scenes import hand_made, random_camera, random_scene

needs_emulation = pytest.mark.skipif(not is_supported(), reason="needs Linux and g++")
needs_nvrtc = pytest.mark.skipif(nvrtc_path() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc")

BACKGROUND = RenderSettings(background=(0.2, 0.4, 0.7))
LOG2_E = float(np.log2(np.e))
MOMENTS = 9
INTEGER_SCALE = float(2**30)

# ---- Policies -------------------------------------------------------------------------------------------------------

SHARED = ("map", "subtile", "exp", "log2_opacity", "branchless", "cmask")  # fields of both blend policies
ENUMS = {
    "map": "Map",
    "subtile": "Subtile",
    "exp": "Exponential",
    "reduce": "Reduce",
    "accum": "Accumulate",
    "bwd_sync": "Walk",
    "sh_bwd": "ShBackward",
    "zero": "Zero",
    "sh_dtype": "ShDtype",
}
FORWARD = (*SHARED[:5], "sign_T", "training", "compaction", "cmask", "wants_depth")
BACKWARD = (*SHARED, "reduce", "accum", "bwd_sync", "row_combine", "touched")
PROJECT = ("sh_bwd", "zero", "sh_dtype", "touched", "deterministic", "by_slot")


def step(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**base, **changes}


S00 = {
    "map": "columns_8x4", "subtile": "off", "exp": "expf", "log2_opacity": False, "branchless": False, "sign_T": False,
    "compaction": False, "cmask": False, "reduce": "atomic", "accum": "rgb", "bwd_sync": "block", "row_combine": False,
    "touched": False, "sh_bwd": "regs", "zero": "memset", "sh_dtype": "f32", "deterministic": False, "by_slot": False,
}  # fmt: skip
S01 = step(S00, subtile="ellipse", exp="ex2", reduce="butterfly", accum="projected")
S02 = step(S01, reduce="pair")
S03 = step(S02, sh_bwd="stream4", zero="coop")
S04 = step(S03, compaction=True, cmask=True, touched=True)
S05 = step(S04, branchless=True)
S06 = step(
    S05, map="columns_8x8", bwd_sync="warp", log2_opacity=True, row_combine=True, sign_T=True, reduce="deferred_pair"
)
QUAD = step(S06, reduce="deferred_quad")
STEPS = {"s00": S00, "s01": S01, "s02": S02, "s03": S03, "s04": S04, "s05": S05, "s06": S06, "quad": QUAD}
VARIANTS = {
    "s01 with boxes": step(S01, subtile="aabb"),
    "s02 with single sums": step(S02, reduce="scatter"),
    "s02 with colours": step(S02, accum="rgb"),
    "s04 without masks": step(S04, cmask=False, touched=False),
    "s05 by warp": step(S05, bwd_sync="warp"),
    "s05 with deferred u": step(S05, reduce="deferred_quad"),
    "s06 by block": step(S06, bwd_sync="block"),
    "s06 rows apart": step(S06, row_combine=False, sign_T=False),
    "s06 without lists": step(S06, compaction=False, cmask=False, touched=False, bwd_sync="block", reduce="pair"),
    "s06 in order": step(S06, reduce="deterministic", deterministic=True),
    "s06 by slot": step(S06, zero="memset", by_slot=True),
}
POLICIES = STEPS | VARIANTS


def cpp(kernel: str, policy: str, values: dict[str, Any], names: tuple[str, ...]) -> str:
    """The instantiation of a kernel as C++ spells it."""

    def spell(name: str) -> str:
        value = values[name]
        return str(value).lower() if isinstance(value, bool) else f"{ENUMS[name]}::{value}"

    return f"{kernel}<{policy}{{{', '.join(f'.{n} = {spell(n)}' for n in names)}}}>"


def blend_name(values: dict[str, Any], training: bool, wants_depth: bool) -> str:
    values = step(values, training=training, wants_depth=wants_depth)
    if not training:
        values = step(values, compaction=False, cmask=False)
    return cpp("blend", "BlendPolicy", values, FORWARD)


def backward_name(values: dict[str, Any]) -> str:
    return cpp("blend_backward", "BlendBackwardPolicy", values, BACKWARD)


def project_name(values: dict[str, Any]) -> str:
    return cpp("project_backward", "ProjectBackwardPolicy", values, PROJECT)


@cache
def blend_source() -> Source:
    return read_source("blend_backward.cuh")


@cache
def project_source() -> Source:
    return read_source("project_backward.cuh")


def all_names() -> tuple[list[str], list[str]]:
    """Instantiations of blending, and of the projection's derivative, that the tests run."""
    blends = [blend_name(p, training=True, wants_depth=False) for p in POLICIES.values()]
    blends += [blend_name(p, training=False, wants_depth=True) for p in STEPS.values()]
    blends += [backward_name(p) for p in POLICIES.values()]
    return list(dict.fromkeys(blends)), list(dict.fromkeys(project_name(p) for p in POLICIES.values()))


@cache
def kernels() -> dict[str, Kernel]:
    blends, projects = all_names()
    return build(blend_source(), blends) | build(project_source(), projects)


# ---- Inputs from the reference --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Case:
    """One view as the kernels get it, and the reference's own answer."""

    gaussians: Gaussians
    camera: Camera
    stages: reference.Stages
    saved: reference.Saved
    expected: Any  # Frame
    slot_of: NDArray[np.int64]  # [M] slot of each splat of `stages.projected`
    splats: NDArray[np.float32]  # [V, 12]
    depths: NDArray[np.float32]  # [V]
    lists: NDArray[np.uint32]  # [I]
    tile_start: NDArray[np.uint32]  # [T + 1]
    alpha_margin: float = 1e-4  # relative, within which rounding may decide about 1/255

    @property
    def settled(self) -> NDArray[np.bool_]:
        """[H, W] pixels where rounding decides nothing."""
        return settled_pixels(self.stages, self.camera, alpha_margin=self.alpha_margin)

    @property
    def tiles(self) -> int:
        return len(self.tile_start) - 1


@cache
def case_named(name: str) -> Case:
    if name == "hand-made":
        scene = hand_made()
        # A needle's conic, kept in single precision, moves its alpha by a few 1e-5.
        return replace(make_case(scene.gaussians, scene.camera), alpha_margin=1e-3)
    if name == "dense":  # several batches a tile, most pixels stop
        camera = random_camera(29, 21)
        gaussians = random_scene(camera, 600, seed=4)
        gaussians.logit_opacities[:] = np.minimum(gaussians.logit_opacities, 1.5)
        return make_case(gaussians, camera)
    camera = random_camera(64, 48)
    return make_case(random_scene(camera, 200, seed=3, degree=3), camera)


def make_case(gaussians: Gaussians, camera: Camera, settings: RenderSettings = BACKGROUND) -> Case:
    expected, saved = reference.ReferenceBackend().forward(gaussians, camera, settings, Policy())
    stages = saved.stages
    projected = stages.projected
    order = np.argsort(projected.index.numpy())
    slot_of = np.empty(len(order), np.int64)
    slot_of[order] = np.arange(len(order))

    mean, covariance, determinant, opacity = projected.footprint()
    xx, xy, yy = covariance.T
    radius = np.sqrt(2 * np.log(opacity * 255))
    columns = (
        *mean.T, *(0.5 * LOG2_E / determinant * np.stack([-yy, 2 * xy, -xx])), np.log2(opacity),
        *stages.colors.detach().numpy().T, radius * np.sqrt(xx), radius * np.sqrt(yy),
    )  # fmt: skip
    splats = np.zeros((len(order), 12), np.float32)
    splats[slot_of, :11] = np.stack(columns, 1)
    splats[slot_of, 11] = projected.index.numpy().astype(np.uint32).view(np.float32)
    depths = np.zeros(len(order), np.float32)
    depths[slot_of] = projected.depth.detach().numpy()
    start = np.concatenate([[0], np.cumsum(stages.lists.counts.ravel())]).astype(np.uint32)
    lists = slot_of[stages.lists.splat].astype(np.uint32)
    return Case(gaussians, camera, stages, saved, expected, slot_of, splats, depths, lists, start)


def frame_record(case: Case) -> NDArray[Any]:
    """struct Frame for this view."""
    camera = case.camera
    layout = struct_layout(blend_source().text, "Frame")
    record = np.zeros(1, layout.dtype)
    position = camera.position.astype(np.float32)
    rows, columns = camera.tiles
    margin = JACOBIAN_MARGIN * 0.5
    values = {
        "rotation": camera.matrix[:3, :3].ravel(), "position": position,
        "position_rest": camera.position - position.astype(np.float64),
        "fx": camera.fx, "fy": camera.fy, "cx": camera.cx, "cy": camera.cy, "near_z": camera.near,
        "held_left": (-camera.cx - margin * camera.width) / camera.fx,
        "held_right": (camera.width - camera.cx + margin * camera.width) / camera.fx,
        "held_top": (-camera.cy - margin * camera.height) / camera.fy,
        "held_bottom": (camera.height - camera.cy + margin * camera.height) / camera.fy,
        "width": camera.width, "height": camera.height, "tile_columns": columns, "tile_rows": rows,
        "background": BACKGROUND.background, "sh_degree": case.gaussians.sh_degree,
        "gaussians": case.gaussians.count, "visible_capacity": len(case.splats),
        "instance_capacity": len(case.lists), "visible": len(case.splats), "instances": len(case.lists),
    }  # fmt: skip
    for name, value in values.items():
        record[name] = value
    return record


def warp_slots(case: Case) -> NDArray[np.uint32]:
    """[ceil(N / 32), 2] lanes that are visible, slot of the first of them."""
    count = case.gaussians.count
    visible = np.zeros(-(-count // 32) * 32, bool)
    visible[case.stages.projected.index.numpy()] = True
    lanes = visible.reshape(-1, 32)
    words = (lanes * (np.uint64(1) << np.arange(32, dtype=np.uint64))).sum(1)
    before = np.cumsum(lanes.sum(1)) - lanes.sum(1)
    return np.stack([words, before.astype(np.uint64)], 1).astype(np.uint32)


# ---- Running --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Run:
    """What the kernels left."""

    image: NDArray[np.float32]
    transmittance: NDArray[np.float32]
    depth: NDArray[np.float32]
    last: NDArray[np.uint32]
    entry_counts: NDArray[np.uint32]
    lists: NDArray[np.uint32]
    sums: NDArray[np.float64]  # [V, 9] after blend_backward
    gradients: Gradients | None
    left_over: NDArray[np.float64]  # sums and marks after project_backward


def run(
    case: Case,
    policy: dict[str, Any],
    upstream: NDArray[np.float32] | None = None,
    seed: int = 0,
    training: bool = True,
    wants_depth: bool = False,
) -> Run:
    """Forward and, given dL/d(image), backward."""
    device, found = Device(seed), kernels()
    height, width, visible = case.camera.height, case.camera.width, len(case.splats)
    threads = 128 if policy["map"] == "columns_8x8" else 256
    frame = device.upload("frame", frame_record(case).view(np.uint8))
    splats = device.upload("splats", case.splats)
    tile_start, lists = device.upload("tile_start", case.tile_start), device.upload("lists", case.lists)
    image = device.empty("image", (height, width, 3), np.float32)
    transmittance, depth = (device.empty(n, (height, width), np.float32) for n in ("transmittance", "depth"))
    last = device.empty("last", (height, width), np.uint32)
    entry_counts = device.empty("entry_counts", (case.tiles,), np.uint32)
    kernel = found[blend_name(policy, training, wants_depth)]
    arguments = kernel.arguments.pack(
        frame=frame, splats=splats, depths=device.upload("depths", case.depths), tile_start=tile_start, list=lists,
        entry_counts=entry_counts, image=image, transmittance=transmittance, depth=depth, last=last,
    )  # fmt: skip
    device.launch(kernel, (case.tiles,), (threads,), arguments)

    sums = device.upload("sums", np.zeros((visible, 12), np.float32))
    integer_sums = device.upload("integer_sums", np.zeros((visible, 12), np.int64))
    touched = device.upload("touched", np.zeros(visible, np.uint8))
    gradients, after_blend = None, np.zeros((visible, MOMENTS))
    if upstream is not None:
        kernel = found[backward_name(policy)]
        arguments = kernel.arguments.pack(
            frame=frame, splats=splats, tile_start=tile_start, list=lists, entry_counts=entry_counts, last=last,
            transmittance=transmittance, image_gradient=device.upload("image_gradient", upstream), sums=sums,
            integer_sums=integer_sums, integer_scale=INTEGER_SCALE, touched=touched,
        )  # fmt: skip
        device.launch(kernel, (case.tiles,), (threads,), arguments)
        after_blend = sums[:, :MOMENTS].astype(np.float64) + integer_sums[:, :MOMENTS] / INTEGER_SCALE
        gradients = run_project(device, case, policy, frame, splats, sums, integer_sums, touched)
    left_over = np.concatenate([sums.ravel(), integer_sums.ravel(), touched]).astype(np.float64)
    return Run(image, transmittance, depth, last, entry_counts, lists, after_blend, gradients, left_over)


def run_project(
    device: Device,
    case: Case,
    policy: dict[str, Any],
    frame: NDArray[np.uint8],
    splats: NDArray[np.float32],
    sums: NDArray[np.float32],
    integer_sums: NDArray[np.int64],
    touched: NDArray[np.uint8],
) -> Gradients:
    kernel, g, count = kernels()[project_name(policy)], case.gaussians, case.gaussians.count
    rows = np.zeros((count, 16, 3), np.float32)
    rows[:, : g.sh.shape[1]] = g.sh
    shapes = {"means": 3, "log_scales": 3, "quats": 4, "logit_opacities": 1, "sh": 48, "means2d": 2}
    out = {name: device.empty(name, (count, size), np.float32) for name, size in shapes.items()}
    if policy["zero"] == "memset":
        for array in out.values():
            array[...] = 0
    arguments = kernel.arguments.pack(
        frame=frame, splats=splats, warp_slots=device.upload("warp_slots", warp_slots(case)),
        means=device.upload("in means", g.means), log_scales=device.upload("in log_scales", g.log_scales),
        quats=device.upload("in quats", g.quats), sh=device.upload("in sh", rows),
        logit_opacities=device.upload("in logits", g.logit_opacities), sums=sums, integer_sums=integer_sums,
        integer_scale=INTEGER_SCALE, touched=touched, **{f"{n}_gradient": a for n, a in out.items()},
    )  # fmt: skip
    threads = len(splats) if policy["by_slot"] else count
    device.launch(kernel, (-(-threads // 128),), (128,), arguments)
    visible = np.zeros(count, bool)
    visible[case.stages.projected.index.numpy()] = True
    sh = out["sh"].reshape(count, 16, 3)
    assert not sh[:, g.sh.shape[1] :].any()
    return Gradients(
        out["means"], out["log_scales"], out["quats"], out["logit_opacities"][:, 0], sh[:, : g.sh.shape[1]],
        out["means2d"], visible,
    )  # fmt: skip


def upstream_of(case: Case) -> NDArray[np.float32]:
    """dL/d(image): random, zero where rounding decides."""
    upstream = np.random.default_rng(0).standard_normal(case.expected.image.shape).astype(np.float32)
    upstream[~case.settled] = 0
    return upstream


# ---- Lists by the definition ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TileWeights:
    """Who blends where in one tile."""

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
        weights = reference.blend_weights(rows, torch.from_numpy(grid))[0].numpy() if len(rows) else np.zeros((0, 0))
        is_settled = bool(settled[y : y + height, x : x + width].all())
        found.append(TileWeights(weights.reshape(len(rows), height, width), y, x, is_settled))
    return found


def warp_of(policy: dict[str, Any], y: NDArray[np.int64], x: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which warp owns pixel (y, x) of a tile."""
    return y // (8 if policy["map"] == "columns_8x8" else 4) * 2 + x // 8


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
            getattr(result, array), getattr(case.expected, array), tight=5e-5, flip_size=0.01, flip_fraction=5e-3,
            band=~settled, what=array,
        )  # fmt: skip
    nearer = np.where(np.isnan(case.expected.depth), 1.0, case.expected.depth)
    assert_close_with_boundary_band(
        result.depth / nearer, case.expected.depth / nearer, tight=1e-4, flip_size=10.0, flip_fraction=5e-3,
        band=~settled, what="depth",
    )  # fmt: skip


@needs_emulation
@pytest.mark.parametrize(
    ("name", "scene"),
    [(name, scene) for name in STEPS for scene in ("hand-made", "random")] + [(name, "dense") for name in POLICIES],
)
def test_gradients_of_raw_parameters_are_those_of_the_reference(name: str, scene: str) -> None:
    case, upstream = case_named(scene), upstream_of(case_named(scene))
    result = run(case, POLICIES[name], upstream)
    wanted = reference.ReferenceBackend().backward(case.saved, upstream)
    assert result.gradients is not None
    assert_gradients_close(result.gradients, wanted, relative=2e-4, row_relative=2e-2)
    assert not result.left_over.any()  # clean for the next backward pass


@needs_emulation
@pytest.mark.parametrize("name", [n for n, p in POLICIES.items() if p["compaction"]])
def test_compaction_keeps_exactly_the_contributors_in_order(name: str) -> None:
    case, policy = case_named("dense"), POLICIES[name]
    result = run(case, policy)
    bits = (28 if policy["map"] == "columns_8x8" else 24) if policy["cmask"] else 32
    checked = dropped = 0
    for tile, of_tile in enumerate(tile_weights(case)):
        start, end = case.tile_start[tile : tile + 2]
        kept = result.lists[start : start + result.entry_counts[tile]]
        if not of_tile.is_settled:
            continue
        blends = of_tile.weights > 0
        keeps = blends.any((1, 2))
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
    """Hundreds of alphas within rounding of 1/255: one that only one pass counts would show as 0.004."""
    case = borderline_case()
    upstream = np.zeros(case.expected.image.shape, np.float32)
    upstream[..., 0] = 1  # so that the red sum of a splat is its total weight
    result = run(case, POLICIES[name], upstream)
    blended = float((1 - result.transmittance.astype(np.float64)).sum())
    assert blended > 1.0
    assert result.sums[:, 6].sum() == pytest.approx(blended, abs=1e-3)


@cache
def borderline_case() -> Case:
    """Round splats whose alpha is 1/255 at a ring of pixels, as exactly as single precision has it."""
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
@pytest.mark.parametrize("name", ["s04", "s06", "quad"])
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


@needs_emulation
@pytest.mark.parametrize("name", ["s00", "s05", "s06"])
def test_steps_that_only_regroup_work_leave_the_picture_as_it_was(name: str) -> None:
    case = case_named("dense")
    picture = run(case, STEPS[name]).image
    same = {"s00": [], "s05": ["s02", "s04", "s05 by warp"], "s06": ["quad", "s06 by block", "s06 without lists"]}[name]
    for other in same:
        np.testing.assert_array_equal(run(case, POLICIES[other]).image, picture, err_msg=other)
    viewed = run(case, STEPS[name], training=False, wants_depth=True).image
    np.testing.assert_array_equal(viewed, picture)


@needs_emulation
@pytest.mark.parametrize("name", ["s00", "s06", "s01 with boxes"])
def test_an_empty_scene_is_the_background(name: str) -> None:
    camera = random_camera(33, 18)
    far_away = random_scene(camera, 40, seed=1)
    far_away.means[:] += 1000.0
    case = make_case(far_away, camera)
    result = run(case, POLICIES[name], np.ones((18, 33, 3), np.float32))
    np.testing.assert_array_equal(result.image, np.broadcast_to(np.float32(BACKGROUND.background), (18, 33, 3)))
    assert (result.transmittance == 1).all()
    assert not result.last.any()
    assert result.gradients is not None
    assert not any(np.asarray(getattr(result.gradients, f.name)).any() for f in fields(Gradients)[:6])


# ---- Warp sums ------------------------------------------------------------------------------------------------------

SUMS_TEXT = """#include "reduce.cuh"
enum class Way : int { butterfly, scatter, pair, deferred_pair, deferred_quad };
struct SumArgs {
    const float* terms;  // [splats][9 or 6][32]
    const float* u;      // [splats][32], the same in all lanes of a column
    float* sums;         // [splats][9]
    int* writes;         // [splats][9]
};
__device__ __forceinline__ void add(SumArgs args, const Holding& holding, const float* values) {
    for (int i = 0; i < holding.count; i++) {
        args.sums[holding.splat * 9 + holding.first + i] = values[i];
        args.writes[holding.splat * 9 + holding.first + i]++;
    }
}
template <Way W>
__global__ void __launch_bounds__(32) sums(SumArgs args) {
    constexpr int TERMS = W >= Way::deferred_pair ? 6 : 9;
    constexpr int SPLATS = W == Way::deferred_quad ? 4 : W >= Way::pair ? 2 : 1;
    const int lane = int(lane_index());
    float v[SPLATS][TERMS];
    for (int s = 0; s < SPLATS; s++)
        for (int i = 0; i < TERMS; i++) v[s][i] = args.terms[(s * TERMS + i) * 32 + lane];
    if constexpr (W == Way::butterfly) {
        reduce_butterfly(v[0]);
        add(args, {0, 0, lane == 0 ? 9 : 0}, v[0]);
    } else if constexpr (W == Way::scatter) {
        const float sum = reduce_scatter(v[0]);
        add(args, scatter_holding(lane), &sum);
    } else if constexpr (W == Way::pair) {
        const float sum = reduce_pair(v[0], v[1]);
        add(args, pair_holding(lane), &sum);
    } else if constexpr (W == Way::deferred_pair) {
        const Holding holding = deferred_pair_holding(lane);
        const float sum = reduce_deferred_pair(v[0], v[1], args.u[(lane >> 4) * 32 + lane]);
        add(args, holding, &sum);
    } else {
        const Holding holding = quad_holding(lane);
        quad_fold(v[0], v[1]);
        quad_fold(v[2], v[3]);
        const float2 sum = reduce_folded_quad(v[0], v[2], args.u[holding.splat * 32 + lane]);
        const float both[2] = {sum.x, sum.y};
        add(args, holding, both);
    }
}
"""
WAYS = {"butterfly": 1, "scatter": 1, "pair": 2, "deferred_pair": 2, "deferred_quad": 4}


@cache
def sum_source() -> Source:
    return Source("sums.cuh", (*read_source("reduce.cuh").files, ("sums.cuh", SUMS_TEXT)))


@cache
def sum_kernels() -> dict[str, Kernel]:
    return build(sum_source(), [f"sums<Way::{way}>" for way in WAYS])


@needs_emulation
@pytest.mark.parametrize("way", WAYS)
def test_every_sum_of_a_warp_is_right_and_has_one_holder(way: str) -> None:
    splats, is_deferred = WAYS[way], way.startswith("deferred")
    rng = np.random.default_rng(3)
    terms = rng.standard_normal((splats, 6 if is_deferred else 9, 32)).astype(np.float32)
    u = np.tile(rng.standard_normal((splats, 8)), 4).astype(np.float32)
    wide, wide_u = terms.astype(np.float64), u[:, None].astype(np.float64)
    if is_deferred:
        m, v, vv = wide[:, :1], wide[:, 1:2], wide[:, 2:3]
        wide = np.concatenate([m, m * wide_u, v, m * wide_u**2, v * wide_u, vv, wide[:, 3:]], 1)
    device, kernel = Device(seed=2), sum_kernels()[f"sums<Way::{way}>"]
    sums = device.empty("sums", (splats, 9), np.float32)
    writes = device.upload("writes", np.zeros((splats, 9), np.int32))
    arguments = kernel.arguments.pack(
        terms=device.upload("terms", terms), u=device.upload("u", u), sums=sums, writes=writes
    )
    device.launch(kernel, (1,), (32,), arguments)
    np.testing.assert_allclose(sums, wide.sum(2), atol=2e-5)
    assert (writes == 1).all()


# ---- Compilation ----------------------------------------------------------------------------------------------------


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_step_compiles_for_every_architecture_without_spills(architecture: int) -> None:
    blends = [blend_name(p, training, False) for p in STEPS.values() for training in (False, True)]
    blends += [backward_name(p) for p in STEPS.values()]
    reports = compile_report(blend_source(), list(dict.fromkeys(blends)), architecture)
    projects = list(dict.fromkeys(project_name(p) for p in STEPS.values()))
    reports |= compile_report(project_source(), projects, architecture)
    for name, report in reports.items():
        assert report.spill_bytes == 0, name
        assert report.registers <= (96 if name.startswith("project") else 64), name


@needs_nvrtc
@pytest.mark.parametrize(
    ("kernel", "changes", "sentence"),
    [
        (backward_name, {"cmask": False, "touched": False}, "switch on cmask first"),
        (backward_name, {"exp": "expf"}, "switch exp to ex2 first"),
        (lambda p: blend_name(p, True, False), {"compaction": False}, "switch on compaction first"),
        (lambda p: blend_name(p, True, False), {"branchless": False}, "switch on branchless first"),
    ],
)
def test_a_combination_that_makes_no_sense_says_what_to_switch_on(kernel: Any, changes: Any, sentence: str) -> None:
    with pytest.raises(CompileError, match=sentence):
        compile_report(blend_source(), [kernel(step(S06, **changes))], 90)


def test_shared_folder_is_where_the_kernels_are() -> None:
    assert {"blend.cuh", "blend_backward.cuh", "reduce.cuh", "project_backward.cuh"} <= {
        path.name for path in CUDA_FOLDER.glob("*.cuh")
    }
