"""Turns a policy into the kernels of a pass, and a camera into its frame record, before anything is launched.

A policy becomes C++ here: each kernel's own policy struct lists the toggles that it takes, so a new toggle needs
nothing in this file. The order of launches: `planner.py`. The toggles: `kernels/policy.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.constants import JACOBIAN_MARGIN
from splatscope.kernels.cuda.launch.arguments import read_constant, struct_layout
from splatscope.kernels.cuda.launch.buffers import Capacity, DeviceArray
from splatscope.kernels.cuda.launch.compiler import Source, read_source
from splatscope.kernels.policy import Policy, toggle_table
from splatscope.kernels.primitive import Primitive
from splatscope.kernels.types import Camera, RenderSettings

SH_ROWS = 16  # rows of harmonics of every scene on the GPU; rows beyond its degree are zero
DIGIT_BITS = 8  # most bits of a pass of the tile sort
KEY_DIGIT_BITS, KEY_BINS = 9, 512  # most bits of a pass of the depth sort, and counts for a pass
SORT_THREADS, SORT_BLOCKS = 512, 2  # of a sort pass: threads of a block, blocks on a multiprocessor
SORT_ITEMS, WIDE_SORT_ITEMS = 8, 6  # pairs a thread of a sort pass takes; the second number is for 8-byte keys
# Threads of a block by blend.map, as `threads_of` in staged.cuh has them.
BLEND_THREADS = {"columns_8x4": 256, "columns_8x8": 128, "mixed": 256, "adaptive": 256}
PRIMITIVES = {"3dgs": "gs3d", "2dgs": "gs2d", "3dgut": "gut3d"}  # as primitive.cuh has them
BLEND_BACKWARD_THREADS = {"columns_8x4": 256, "columns_8x8": 128, "mixed": 128, "adaptive": 128}


# ---- Kernels of a policy ---------------------------------------------------------------------------------------------


@cache
def source(name: str) -> Source:
    """Returns one of our files with what it includes."""
    return read_source(name)


@cache
def constant(file: str, name: str) -> int:
    """Returns a constexpr number of one of our files or of what it includes, so that Python keeps no copy."""
    return read_constant(source(file).text, name)


@cache
def policy_fields(file: str, aggregate: str) -> dict[str, str]:
    """Returns name -> C++ type of the fields of a kernel's policy struct, in the order that C++ expects."""
    text = re.sub(r"//[^\n]*", "", source(file).text)
    body = re.search(rf"struct\s+{aggregate}\s*\{{(.*?)\}}\s*;", text, re.DOTALL)
    if body is None:
        raise ValueError(f"{file} declares no struct {aggregate}.")
    return {name: kind for kind, name in re.findall(r"(\w+)\s+(\w+)\s*=[^;]*;", body.group(1))}


def instantiation(file: str, kernel: str, policy: Policy, **own: str) -> tuple[str, str]:
    """Returns (file, the kernel as C++ spells it): blend<BlendPolicy{.branchless = true, …}>.

    A field of the kernel's policy takes its value from `own`, else from the toggle of that name, else from C++.
    """
    aggregate = "".join(part.capitalize() for part in kernel.removesuffix("_pass").split("_")) + "Policy"
    rows = [row for row in toggle_table("cuda", ablations=True) if row.cpp]
    values = {row.name: row.spelled(policy.value(row.stage, row.name)) for row in rows} | own
    fields = [f".{name} = {values[name]}" for name in policy_fields(file, aggregate) if name in values]
    return file, f"{kernel}<{aggregate}{{{', '.join(fields)}}}>"


def fused_name(project_backward: str, policy: Policy) -> str:
    """Returns the kernel of projection backward with Adam, given the instantiation of projection backward alone."""
    moves = {"fused": "all"}.get(policy.adam, policy.adam)
    return f"{project_backward.replace('<', '_adam<', 1).removesuffix('>')}, Moves::{moves}>"


@dataclass(frozen=True)
class Pass:
    """Holds what decides which kernels run."""

    policy: Policy
    training: bool
    wants_depth: bool
    tiles: int
    gradients: bool = True  # False: the optimiser takes gradients from registers, and no arrays hold them
    lazy_sh: bool = False  # harmonics may be behind (cuda/source/lazy.cuh), and the scene says what they have missed
    absolute: bool = False  # the means2d gradient adds up |dL/d(projected mean)| of each pixel (Ye et al. 2024)
    is_wide: bool = False  # the choice for blend.map = adaptive (cuda/blend_choice.py)
    primitive: Primitive = "3dgs"

    @property
    def key_bytes(self) -> int:
        """Returns the bytes of a pair's sort key: the tile, with depth below it if depth was not sorted before."""
        if self.policy.sort.scheme == "single64":
            return 8
        return 2 if self.tiles <= 1 << 16 else 4

    @property
    def key_bits(self) -> int:
        """Returns the bits of a pair's sort key that count."""
        tile_bits = max(1, (self.tiles - 1).bit_length())
        return tile_bits + (32 if self.key_bytes == 8 else 0)

    @property
    def key_passes(self) -> int:
        """Returns the passes of the sort of pairs."""
        return -(-self.key_bits // DIGIT_BITS)

    def kernels(self) -> dict[str, tuple[str, str]]:
        """Returns role -> (file, instantiation) of the forward and, for training, of the backward pass."""
        policy, key = self.policy, {"key_bytes": str(self.key_bytes)}
        primitive = {} if self.primitive == "3dgs" else {"primitive": f"Primitive::{PRIMITIVES[self.primitive]}"}
        # Compaction serves the backward pass alone.
        mode = {"training": _bool(self.training), "wants_depth": _bool(self.wants_depth), **primitive}
        mode |= {} if self.training else {"compaction": "false", "cmask": "false"}
        # A kernel has one map, and the backward pass is the same for both maps of the forward pass.
        narrow, wide = ({"map": f"Map::{name}"} for name in ("mixed", "columns_8x8"))
        own_map = narrow if policy.blend.map == "adaptive" else {}
        found = {
            "project": instantiation("project.cuh", "project", policy, lazy_sh=_bool(self.lazy_sh), **primitive),
            "offsets": instantiation("bin.cuh", "offsets", policy),
            "emit": instantiation("bin.cuh", "emit", policy, **key),
            "ranges": instantiation("ranges.cuh", "ranges", policy, **key),
            "blend": instantiation("blend.cuh", "blend", policy, **mode, **own_map),
        }
        if self.is_scheduled:
            if policy.schedule.plan == "ranges":
                found["ranges"] = instantiation("ranges.cuh", "ranges_plan", policy, **key)
            else:
                found["plan"] = instantiation("schedule.cuh", "plan", policy)
            found |= self._of_units("blend", found["blend"])
        if self.has_choice:
            of_wide = self._of_units("blend", instantiation("blend.cuh", "blend", policy, **mode, **wide))
            found |= {f"wide {role}": kernel for role, kernel in of_wide.items()}
        if policy.sort.sorter == "onesweep" or policy.schedule.sched == "lpt":
            sizes = {"threads": str(SORT_THREADS), "items": str(SORT_ITEMS), "blocks": str(SORT_BLOCKS)}
            tiles = {**key, **sizes} | ({"items": str(WIDE_SORT_ITEMS)} if self.key_bytes == 8 else {})
            depths = {"key_bytes": "4", "bins": str(KEY_BINS)}
            found["sort tiles"] = instantiation("sort.cuh", "sort_pass", policy, **tiles)
            if policy.sort.scheme == "two_stage" or policy.schedule.sched == "lpt":
                found["histogram"] = instantiation("sort.cuh", "histogram", policy, **depths)
                for role, more in {"first": {"iota": "true"}, "": {}, "last": {"gathers": "true"}}.items():
                    name = f"sort keys {role}".strip()
                    found[name] = instantiation("sort.cuh", "sort_pass", policy, **depths, **sizes, **more)
        if self.training:
            deterministic = _bool(policy.blend_backward.reduce == "deterministic")
            more = ({"absolute": "true"} if self.absolute else {}) | primitive
            found["blend_backward"] = instantiation("blend_backward.cuh", "blend_backward", policy, **more, **own_map)
            if self.is_scheduled:
                found |= self._of_units("blend_backward", found["blend_backward"])
            found["project_backward"] = instantiation(
                "project_backward.cuh", "project_backward", policy, deterministic=deterministic, **more
            )
        return found

    @property
    def is_scheduled(self) -> bool:
        """Returns False where tiles are handed out in the grid's order, all of them whole."""
        schedule = self.policy.schedule
        return (schedule.sched, schedule.chunk) != ("grid", "off") or self.is_recorded

    @property
    def has_choice(self) -> bool:
        """Returns True where either of two kernels may blend a frame. Without a schedule nobody counts the lists."""
        return self.policy.blend.map == "adaptive" and self.is_scheduled

    @property
    def blends_wide(self) -> bool:
        """Returns True where the kernel whose warps have 8 x 8 pixels blends."""
        return self.has_choice and self.is_wide

    @property
    def is_recorded(self) -> bool:
        """Returns True where units of work leave a record of when they ran."""
        return self.policy.schedule.record == "on"

    def _of_units(self, kernel: str, whole: tuple[str, str]) -> dict[str, tuple[str, str]]:
        """Returns the kernels that take units of a schedule, in place of the kernel that takes a tile a block."""
        schedule = self.policy.schedule
        has_chunks, is_forward = schedule.chunk != "off", kernel == "blend"
        own = {
            "chunks": _bool(has_chunks),
            "chunks_last": _bool(schedule.chunk == "catgs"),
            "is_sorted": _bool(schedule.sched == "lpt"),
            "records_work": _bool(schedule.sched == "exact_work" and is_forward),
            "record": _bool(self.is_recorded),
            # Values that make no difference are set the same, so that nothing is compiled twice.
            "coexec": f"Coexec::{'fused' if has_chunks and schedule.coexec == 'fused' else 'queue'}",
            "exact_stop": _bool(not has_chunks or self.training or schedule.exact_stop == "on"),
            "sat_flag": _bool(not has_chunks or not is_forward or schedule.sat_flag == "on"),
        }
        is_apart = has_chunks and schedule.coexec in ("off", "streams")
        found = {}
        for role, part in ((kernel, "tiles"), (f"{kernel} chunks", "chunks")) if is_apart else ((kernel, "both"),):
            dispatch = instantiation("dispatch.cuh", "dispatch", self.policy, **own, part=f"Part::{part}")[1]
            name = f"{kernel}_queue{whole[1].removeprefix(kernel)[:-1]}, {dispatch.removeprefix('dispatch<')}"
            found[role] = f"{kernel}_queue.cuh", name
        return found


def _bool(value: bool) -> str:
    return str(value).lower()


@cache
def frame_dtype() -> np.dtype[Any]:
    """Returns the layout of `struct Frame`."""
    return struct_layout(source("frame.cuh").text, "Frame").dtype


# ---- A scene and a frame ---------------------------------------------------------------------------------------------

LAZY = ("first", "second", "stepped", "reach", "state")  # members of LazySh (cuda/source/lazy.cuh)


@dataclass(frozen=True, eq=False)
class Scene:
    """Holds raw parameters in device memory.

    `sh` has 16 rows of harmonics by sh_dtype (`cuda/step/harmonics.py`): the arrays that are kept, and those converted
    from them for policies that were drawn with.
    """

    count: int
    sh_degree: int
    means: DeviceArray  # [N, 3]
    log_scales: DeviceArray  # [N, 3]
    quats: DeviceArray  # [N, 4]
    logit_opacities: DeviceArray  # [N]
    sh: dict[str, DeviceArray] = field(default_factory=dict)  # [N, 16, 3]
    lazy: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(LAZY))  # for harmonics that may be behind
    sh_dtype: str = "f32"  # the sh_dtype that harmonics are kept in
    primitive: Primitive = "3dgs"


def frame_record(
    scene: Scene, camera: Camera, settings: RenderSettings, capacity: Capacity, epoch: int
) -> NDArray[np.void]:
    """Returns the `Frame` [1] that the first kernel finds: camera, settings, room, and counters at 0."""
    record = np.zeros(1, frame_dtype())
    row = record[0]
    position = camera.position
    row["rotation"] = camera.matrix[:3, :3].ravel()
    row["position"] = position
    row["position_rest"] = position - position.astype(np.float32)
    for name in ("fx", "fy", "cx", "cy", "width", "height"):
        row[name] = getattr(camera, name)
    row["near_z"] = camera.near
    margin_x, margin_y = (0.5 * JACOBIAN_MARGIN * size for size in (camera.width, camera.height))
    row["held_left"] = (-camera.cx - margin_x) / camera.fx
    row["held_right"] = (camera.width - camera.cx + margin_x) / camera.fx
    row["held_top"] = (-camera.cy - margin_y) / camera.fy
    row["held_bottom"] = (camera.height - camera.cy + margin_y) / camera.fy
    row["tile_rows"], row["tile_columns"] = camera.tiles
    row["background"] = settings.background
    row["sh_degree"] = min(settings.sh_degree, scene.sh_degree)
    row["gaussians"] = scene.count
    row["visible_capacity"], row["instance_capacity"] = capacity.visible, capacity.instances
    row["epoch"] = epoch
    return record
