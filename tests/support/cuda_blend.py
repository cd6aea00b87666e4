"""Runs the CUDA kernels of blending and its derivative on the CPU, each on inputs made from the float64 reference.

Policies of the ladder as C++ spells them, scenes as kernels get them, and one function, `run`, that launches forward
and backward. Read kernels/test_cuda_blend.py next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from splatscope.kernels.constants import ALPHA_CAP, ALPHA_CAPS, JACOBIAN_MARGIN
from splatscope.kernels.cuda.launch.arguments import struct_layout
from splatscope.kernels.cuda.launch.compiler import Kernel, Source, read_source
from splatscope.kernels.cuda.plan.passes import policy_fields
from splatscope.kernels.ladder import step as preset
from splatscope.kernels.policy import Policy, toggle_table
from splatscope.kernels.reference import picture
from splatscope.kernels.reference.backend import ReferenceBackend, Saved
from splatscope.kernels.types import Camera, Gaussians, Gradients, RenderSettings
from tests.support.comparison import settled_pixels
from tests.support.cuda_on_cpu.run import Device, build
from tests.support.small_scenes import hand_made, random_camera, random_scene

BACKGROUND = RenderSettings(background=(0.2, 0.4, 0.7))
DEFAULT_POLICY = Policy()
LOG2_E = float(np.log2(np.e))
PLACES = [0, 1, 2, 4, 5, 6, 7, 8, 10]  # of the nine sums in their row of 12
INTEGER_SCALE = float(2**30)

# ---- Policies -------------------------------------------------------------------------------------------------------

# Fields of each kernel's policy and their types, as C++ declares them: a new toggle needs nothing here.
FORWARD = policy_fields("blend.cuh", "BlendPolicy")
BACKWARD = policy_fields("blend_backward.cuh", "BlendBackwardPolicy")
PROJECT = policy_fields("project_backward.cuh", "ProjectBackwardPolicy")


def values_of(policy: Policy) -> dict[str, Any]:
    """Returns the values that the toggles give to kernels, by field name; switches are bool."""
    rows = [row for row in toggle_table("cuda", ablations=True) if row.cpp]
    values: dict[str, Any] = {row.name: policy.value(row.stage, row.name) for row in rows}
    values |= {row.name: values[row.name] == "on" for row in rows if row.cpp == "bool"}
    return values | {"deterministic": values["reduce"] == "deterministic", "absolute": False, "primitive": "gs3d"}


def step(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**base, **changes}


S00, S01, S02, S03, S04, S05, S06 = (values_of(preset(f"s0{number}")) for number in range(7))
QUAD = step(S06, reduce="deferred_quad")
STAGED = step(QUAD, sh_bwd="staged")
RUNNING = step(STAGED, sign_T=False, running_T=True)
BEST = step(values_of(preset("best")), map="mixed")
TRANSPOSED = step(S06, reduce="transposed")
STEPS = {"s00": S00, "s01": S01, "s02": S02, "s03": S03, "s04": S04, "s05": S05, "s06": S06, "quad": QUAD, "best": BEST}
VARIANTS = {
    "transposed": TRANSPOSED,
    "s02 transposed": step(S02, reduce="transposed"),
    "s01 without masks": step(S01, subtile="off"),
    "s01 with boxes": step(S01, subtile="aabb"),
    "s02 with single sums": step(S02, reduce="scatter"),
    "s02 with colours": step(S02, accum="rgb"),
    "s04 without masks": step(S04, cmask=False),
    "s05 by warp": step(S05, bwd_sync="warp"),
    "s05 with deferred u": step(S05, reduce="deferred_quad"),
    "s06 by block": step(S06, bwd_sync="block"),
    "s06 rows apart": step(S06, row_combine=False, sign_T=False),
    "s06 without lists": step(S06, compaction=False, cmask=False, touched=False, bwd_sync="block", reduce="pair"),
    "s06 in order": step(S06, reduce="deterministic", deterministic=True),
    "s06 in numbers apart": step(S06, layout="soa"),
    "s01 handed out": step(S01, splat_fetch="shuffle"),
    "s04 from lists": step(S04, subtile_list="compacted"),
    "s06 handed out, from lists": step(S06, splat_fetch="shuffle", subtile_list="compacted"),
    "s06 mixed": step(S06, map="mixed"),
    "running": RUNNING,
    "mixed by block": step(RUNNING, map="mixed", bwd_sync="block", cmask=False, touched=False),
    "running from lists": step(RUNNING, subtile_list="compacted"),
    "best handed out": step(BEST, splat_fetch="shuffle"),
    "s06 by slot": step(S06, zero="memset", by_slot=True),
    "staged": STAGED,
    "staged, in order, of all": step(S03, sh_bwd="staged", reduce="deterministic", deterministic=True),
}
POLICIES = STEPS | VARIANTS
# With sums of absolute values: all ways to reduce.
ABSOLUTE = {
    name: step(POLICIES[name], absolute=True)
    for name in ("s00", "s01", "s02 with single sums", "s05", "s06", "s06 by block", "s06 in order", "best",
                 "transposed", "s02 transposed")
}  # fmt: skip
ABLATIONS = ("off", "no_atomics", "no_reductions", "loop_floor")
# Other rules of what a pixel is, each way to end a pixel with some of them.
RULES = {"cap99 inclusive": ("cap99", "inclusive"), "cap999": ("cap999", "inclusive"), "none": ("none", "inclusive")}
RULED = {
    (base, rule): step(STEPS[base], alpha_cap=RULES[rule][0], stop=RULES[rule][1])
    for base, rules in {
        "s04": ("cap99 inclusive", "none"), "s05": ("cap99 inclusive", "cap999"), "s06": ("cap99 inclusive", "none"),
        "best": tuple(RULES),
    }.items()
    for rule in rules
}  # fmt: skip


def cpp(kernel: str, policy: str, values: dict[str, Any], types: dict[str, str]) -> str:
    """Returns the instantiation of a kernel as C++ spells it."""

    def spell(name: str) -> str:
        return str(values[name]).lower() if types[name] == "bool" else f"{types[name]}::{values[name]}"

    return f"{kernel}<{policy}{{{', '.join(f'.{name} = {spell(name)}' for name in types)}}}>"


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
    return read_source("blend.cuh")


@cache
def backward_source() -> Source:
    return read_source("blend_backward.cuh")


@cache
def project_source() -> Source:
    return read_source("project_backward.cuh")


def all_names() -> tuple[list[str], list[str], list[str]]:
    """Returns the instantiations of blending, its derivative and the projection's derivative that the tests run."""
    trained = [*POLICIES.values(), *RULED.values()]
    absolute = list(ABSOLUTE.values())
    blends = [blend_name(p, training=True, wants_depth=False) for p in trained]
    blends += [blend_name(p, training=False, wants_depth=True) for p in STEPS.values()]
    backwards = [backward_name(p) for p in trained] + [backward_name(step(BEST, ablate=a)) for a in ABLATIONS]
    backwards += [backward_name(p) for p in absolute]
    in_order = VARIANTS["s06 in order"]
    halves = (step(in_order, sh_dtype="bf16"), step(in_order, sh_dtype="bf16", sh_bwd="staged"))
    projects = [project_name(p) for p in (*POLICIES.values(), *absolute, *halves, step(in_order, sh_bwd="staged"))]
    return list(dict.fromkeys(blends)), list(dict.fromkeys(backwards)), list(dict.fromkeys(projects))


@cache
def kernels() -> dict[str, Kernel]:
    sources = blend_source(), backward_source(), project_source()
    return {name: k for s, names in zip(sources, all_names(), strict=True) for name, k in build(s, names).items()}


# ---- Inputs from the reference --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Case:
    """Holds one view as the kernels get it, and the reference's answer."""

    gaussians: Gaussians
    camera: Camera
    stages: picture.Stages
    saved: Saved
    expected: Any  # Frame
    slot_of: NDArray[np.int64]  # [M] slot of each splat of `stages.projected`
    splats: NDArray[np.float32]  # [V, 12]
    depths: NDArray[np.float32]  # [V]
    lists: NDArray[np.uint32]  # [I]
    tile_start: NDArray[np.uint32]  # [T + 1]
    alpha_margin: float = 1e-4  # relative, within which rounding may decide about 1/255
    alpha_cap: float = ALPHA_CAP
    overflow: int = 0

    @cached_property
    def settled(self) -> NDArray[np.bool_]:
        """Returns [H, W] pixels where rounding decides nothing."""
        return settled_pixels(self.stages, self.camera, alpha_margin=self.alpha_margin, cap=self.alpha_cap)

    @property
    def tiles(self) -> int:
        return len(self.tile_start) - 1


@cache
def case_named(name: str) -> Case:
    if name == "hand-made":
        scene = hand_made()
        # A needle's conic, kept in single precision, moves its alpha by a few 1e-5.
        return replace(make_case(scene.gaussians, scene.camera), alpha_margin=1e-3)
    if name == "needles":
        camera = random_camera(64, 48)
        gaussians = random_scene(camera, 150, seed=6)
        rng = np.random.default_rng(6)
        gaussians.log_scales[:, 0] += np.log(rng.uniform(5, 200, 150)).astype(np.float32)
        gaussians.log_scales[:, 1:] -= 3
        return make_case(gaussians, camera)
    if name == "dense":  # several batches a tile, most pixels stop
        camera = random_camera(29, 21)
        gaussians = random_scene(camera, 600, seed=4)
        gaussians.logit_opacities[:] = np.minimum(gaussians.logit_opacities, 1.5)
        return make_case(gaussians, camera)
    camera = random_camera(64, 48)
    return make_case(random_scene(camera, 200, seed=3, degree=3), camera)


def make_case(
    gaussians: Gaussians, camera: Camera, settings: RenderSettings = BACKGROUND, policy: Policy = DEFAULT_POLICY
) -> Case:
    expected, saved = ReferenceBackend().forward(gaussians, camera, settings, policy)
    stages = saved.stages
    projected = stages.projected
    order = np.argsort(projected.index.numpy())
    slot_of = np.empty(len(order), np.int64)
    slot_of[order] = np.arange(len(order))

    mean, covariance, determinant, opacity = projected.footprint()
    xx, xy, yy = covariance.T
    columns = (
        *mean.T, *(0.5 * LOG2_E / determinant * np.stack([-yy, 2 * xy, -xx])), np.log2(opacity),
        *stages.colors.detach().numpy().T,
    )  # fmt: skip
    splats = np.zeros((len(order), 12), np.float32)
    splats[slot_of, :9] = np.stack(columns, 1)
    splats[slot_of, 11] = projected.index.numpy().astype(np.uint32).view(np.float32)
    depths = np.zeros(len(order), np.float32)
    depths[slot_of] = projected.depth.detach().numpy()
    start = np.concatenate([[0], np.cumsum(stages.lists.counts.ravel())]).astype(np.uint32)
    lists = slot_of[stages.lists.splat].astype(np.uint32)
    cap = ALPHA_CAPS[policy.blend.alpha_cap]
    return Case(gaussians, camera, stages, saved, expected, slot_of, splats, depths, lists, start, alpha_cap=cap)


def frame_record(case: Case) -> NDArray[Any]:
    """Returns struct Frame for this view."""
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
        "instance_capacity": len(case.lists), "slots": len(case.splats), "visible": len(case.splats),
        "instances": len(case.lists),
        "overflow": case.overflow,
    }  # fmt: skip
    for name, value in values.items():
        record[name] = value
    return record


def warp_slots(case: Case) -> NDArray[np.uint32]:
    """Returns [ceil(N / 32), 2] lanes that are visible, slot of the first of them."""
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
    """Holds what the kernels left."""

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
    """Runs the forward pass and, given dL/d(image), the backward pass."""
    device, found = Device(seed), kernels()
    height, width, visible = case.camera.height, case.camera.width, len(case.splats)
    threads = 128 if policy["map"] == "columns_8x8" else 256
    frame = device.upload("frame", frame_record(case).view(np.uint8))
    rows = case.splats.T if policy["layout"] == "soa" else case.splats
    splats = device.upload("splats", np.ascontiguousarray(rows).reshape(visible, 12))
    tile_start, lists = device.upload("tile_start", case.tile_start), device.upload("lists", case.lists)
    image = device.empty("image", (height, width, 3), np.float32)
    transmittance, depth = (device.empty(n, (height, width), np.float32) for n in ("transmittance", "depth"))
    last = device.empty("last", (height, width), np.uint32)
    entry_counts = device.empty("entry_counts", (case.tiles,), np.uint32)
    kernel = found[blend_name(policy, training, wants_depth)]
    arguments = kernel.arguments.pack(
        frame=frame, splats=splats, depths=device.upload("depths", case.depths), closeness=None, tile_start=tile_start,
        list=lists,
        entry_counts=entry_counts, image=image, transmittance=transmittance, depth=depth, last=last,
    )  # fmt: skip
    device.launch(kernel, (case.tiles,), (threads,), arguments)

    threads = 256 if policy["map"] == "columns_8x4" else 128
    sums = device.upload("sums", np.zeros((visible, 12), np.float32))
    integer_sums = device.upload("integer_sums", np.zeros((visible, 12), np.int64))
    touched = device.upload("touched", np.zeros(visible, np.uint8))
    gradients, after_blend = None, np.zeros((visible, len(PLACES)))
    if upstream is not None:
        kernel = found[backward_name(policy)]
        arguments = kernel.arguments.pack(
            frame=frame, splats=splats, depths=None, closeness=None, tile_start=tile_start, list=lists,
            entry_counts=entry_counts, last=last,
            transmittance=transmittance, image_gradient=device.upload("image_gradient", upstream), sums=sums,
            integer_sums=integer_sums, integer_scale=INTEGER_SCALE, touched=touched,
        )  # fmt: skip
        device.launch(kernel, (case.tiles,), (threads,), arguments)
        after_blend = sums[:, PLACES].astype(np.float64) + integer_sums[:, PLACES] / INTEGER_SCALE
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
    is_half = policy["sh_dtype"] == "bf16"
    shapes = {"means": 3, "log_scales": 3, "quats": 4, "logit_opacities": 1, "sh": 48, "means2d": 2}
    out = {name: device.empty(name, (count, size), np.float32) for name, size in shapes.items()}
    if is_half:
        rows, out["sh"] = as_bf16(rows), device.empty("sh", (count, 48), np.uint16)
    if policy["zero"] == "memset":
        for array in out.values():
            array[...] = 0
    arguments = kernel.arguments.pack(
        frame=frame, splats=splats, closeness=None, warp_slots=device.upload("warp_slots", warp_slots(case)),
        slot_lanes=device.upload("slot_lanes", np.ascontiguousarray(warp_slots(case)[:, 0])),
        means=device.upload("in means", g.means), log_scales=device.upload("in log_scales", g.log_scales),
        quats=device.upload("in quats", g.quats), sh=device.upload("in sh", rows),
        logit_opacities=device.upload("in logits", g.logit_opacities), sums=sums, integer_sums=integer_sums,
        integer_scale=INTEGER_SCALE, touched=touched, **{f"{n}_gradient": a for n, a in out.items()},
    )  # fmt: skip
    threads = len(splats) if policy["by_slot"] else count
    device.launch(kernel, (-(-threads // 128),), (128,), arguments)
    visible = np.zeros(count, bool)
    visible[case.stages.projected.index.numpy()] = True
    sh = (out["sh"].astype(np.uint32) << 16).view(np.float32) if is_half else out["sh"]
    sh = sh.reshape(count, 16, 3)
    assert case.overflow or not sh[:, g.sh.shape[1] :].any()
    return Gradients(
        out["means"], out["log_scales"], out["quats"], out["logit_opacities"][:, 0], sh[:, : g.sh.shape[1]],
        out["means2d"], visible,
    )  # fmt: skip


def as_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounds to nearest even, by way of torch."""
    halves = torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)
    return halves.view(torch.uint16).numpy()


def upstream_of(case: Case) -> NDArray[np.float32]:
    """Returns dL/d(image): random, zero where rounding decides."""
    upstream = np.random.default_rng(0).standard_normal(case.expected.image.shape).astype(np.float32)
    upstream[~case.settled] = 0
    return upstream


@cache
def upstream_and_gradients(scene: str) -> tuple[NDArray[np.float32], Gradients]:
    """Returns dL/d(image), random and zero where rounding decides, and the reference's gradients."""
    upstream = upstream_of(case_named(scene))
    return upstream, ReferenceBackend().backward(case_named(scene).saved, upstream)
