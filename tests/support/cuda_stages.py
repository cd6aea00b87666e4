"""Runs the forward CUDA stages up to the tile lists on the CPU, as a pipeline does, without a GPU or a graph.

`lists_of` runs them all; `Stages` runs one after the other on guarded memory. Their tests:
kernels/test_cuda_forward.py.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, LiteralString

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.constants import JACOBIAN_MARGIN
from splatscope.kernels.cuda.launch.arguments import struct_layout
from splatscope.kernels.cuda.launch.compiler import Kernel, read_source
from splatscope.kernels.cuda.plan.builder import PlanBuilder
from splatscope.kernels.cuda.plan.passes import KEY_BINS, LAZY
from splatscope.kernels.cuda.plan.sort import (
    ALL_BIN_ROWS,
    SCAN_GROUP,
    Sorting,
    add_order,
    add_sort_pass,
    bins_of,
    bits_of_passes,
    look_back_rows,
)
from splatscope.kernels.types import Camera, Gaussians, RenderSettings
from tests.support.cuda_on_cpu.run import Device, build
from tests.support.cuda_pipeline import GuardedMemory

BOUNDS = ("row_span", "aabb_o", "circle3s")
PROJECT_VARIANTS = (
    "",
    ", .sh_gate = ShGate::all",
    ", .sh_load = ShLoad::scalar",
    ", .sh_dtype = ShDtype::bf16",
    ", .sh_load = ShLoad::scalar, .sh_dtype = ShDtype::bf16",
    ", .sh_load = ShLoad::staged",
    ", .sh_load = ShLoad::staged, .sh_dtype = ShDtype::bf16",
    ", .sh_gate = ShGate::all, .sh_load = ShLoad::staged",
)
SORT_ROLES = {
    "histogram": "histogram<HistogramPolicy{.bins = 512}>",
    "sort keys first": "sort_pass<SortPolicy{.bins = 512, .iota = true}>",
    "sort keys": "sort_pass<SortPolicy{.bins = 512}>",
    "sort keys last": "sort_pass<SortPolicy{.bins = 512, .gathers = true}>",
    "sort tiles 2": "sort_pass<SortPolicy{.key_bytes = 2}>",
    "sort tiles 2, small parts": "sort_pass<SortPolicy{.key_bytes = 2, .threads = 256, .items = 2}>",
    "sort tiles 4": "sort_pass<SortPolicy{.key_bytes = 4}>",
    "sort tiles 8": "sort_pass<SortPolicy{.key_bytes = 8, .items = 6}>",
}
INSTANTIATIONS = {
    "project.cuh": [
        f"project<ProjectPolicy{{.bounds = Bounds::{bounds}{variant}}}>"
        for bounds in BOUNDS
        for variant in (PROJECT_VARIANTS if bounds == "row_span" else ("",))
    ],
    "bin.cuh": [
        "offsets<OffsetsPolicy{}>",
        *(f"emit<EmitPolicy{{Bounds::{bounds}, {key_bytes}}}>" for bounds in BOUNDS for key_bytes in (2, 4, 8)),
        *SORT_ROLES.values(),
    ],
    "ranges.cuh": [f"ranges<RangesPolicy{{{key_bytes}}}>" for key_bytes in (2, 4, 8)],
}
LAYOUTS = read_source("project.cuh").text
BINS = 256  # of a pass of the tile sort
FRAME, SPLAT, EXTENT = (struct_layout(LAYOUTS, name).dtype for name in ("Frame", "Splat", "Extent"))


@dataclass(frozen=True, eq=False)
class Lists:
    """Holds what the stages leave: the frame's counters, the splats of all slots, and each tile's splats in order."""

    frame: np.void
    splats: NDArray[Any]  # by slot: records, some of them of nothing
    gaussians: NDArray[np.uint32]  # [I] row in the scene, tile by tile
    counts: NDArray[np.int64]  # [T]
    warp_slots: NDArray[np.uint32]  # [ceil(N / 32), 2]
    slot_lanes: NDArray[np.uint32]  # [ceil(N / 32)]


@functools.cache
def kernel(name: str) -> Kernel:
    """Builds all kernels of a file together, because each library of the harness maps its own stacks."""
    file = next(file for file, names in INSTANTIATIONS.items() if name in names)
    return build(read_source(file), INSTANTIATIONS[file])[name]


def frame_record(camera: Camera, gaussians: Gaussians, settings: RenderSettings, **counters: int) -> NDArray[Any]:
    """Returns a `Frame` [1] as the host fills it."""
    frame = np.zeros(1, FRAME)
    row = frame[0]
    position = camera.position
    row["rotation"] = camera.matrix[:3, :3].ravel()
    row["position"] = position.astype(np.float32)
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
    row["sh_degree"] = min(settings.sh_degree, gaussians.sh_degree)
    row["gaussians"] = row["visible_capacity"] = gaussians.count
    row["instance_capacity"], row["epoch"] = 1 << 16, 1
    for name, value in counters.items():
        row[name] = value
    return frame


def inside(frame: NDArray[Any], member: LiteralString) -> int:
    """Returns the address of a member of the frame, as kernels that read a count take it."""
    fields = FRAME.fields
    assert fields is not None
    return int(frame.ctypes.data) + fields[member][1]


def padded_sh(gaussians: Gaussians, dtype: str = "f32") -> NDArray[Any]:
    """Returns [N, 16, 3] with zeros beyond the scene's degree; bf16 as upper halves of floats, rounded to nearest."""
    sh = np.zeros((gaussians.count, 16, 3), np.float32)
    sh[:, : gaussians.sh.shape[1]] = gaussians.sh
    return sh if dtype == "f32" else ((sh.view(np.uint32) + np.uint32(0x8000)) >> 16).astype(np.uint16)


class Stages:
    """Runs the kernels one after the other on guarded memory."""

    def __init__(self, frame: NDArray[Any], seed: int = 0) -> None:
        self.device = Device(seed, seconds=20)
        self.each = (1, 3, 8, 2)[seed % 4]  # Gaussians a thread of project looks at
        self.frame = self.device.upload("frame", frame)
        self.builder = Immediate(self)
        self.sort_bins = self.device.empty("sort bins", (ALL_BIN_ROWS, KEY_BINS), np.uint32)
        self._kept: dict[str, NDArray[Any]] = {}

    def begin_frame(self, frame: NDArray[Any]) -> None:
        """Overwrites the frame; look-back words and digit counts stay as the last frame left them."""
        self.frame[...] = frame
        self.builder = Immediate(self)

    def kept(self, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Returns memory that is zero when first asked for."""
        if name not in self._kept:
            self._kept[name] = self.device.upload(name, np.zeros(shape, dtype))
        return self._kept[name]

    def run(self, name: str, blocks: int, threads: int, **values: Any) -> None:
        function = kernel(name)
        self.device.launch(function, (blocks,), (threads,), function.arguments.pack(frame=self.frame, **values))

    def project(self, gaussians: Gaussians, policy: str = "", dtype: str = "f32") -> dict[str, NDArray[Any]]:
        name = f"project<ProjectPolicy{{{policy}}}>"
        n, capacity = gaussians.count, int(self.frame["visible_capacity"][0])
        outputs = {
            "splats": self.device.empty("splats", (capacity,), SPLAT),
            "extents": self.device.empty("extents", (capacity,), EXTENT),
            "depth_bits": self.device.empty("depth_bits", (capacity,), np.uint32),
            "warp_slots": self.device.empty("warp_slots", (-(-n // 32), 2), np.uint32),
            "slot_lanes": self.device.empty("slot_lanes", (-(-n // 32),), np.uint32),
            "footprints": self.device.empty("footprints", (capacity, 2), np.uint32),
        }
        uploads = {
            k: self.device.upload(k, getattr(gaussians, k)) for k in ("means", "log_scales", "quats", "logit_opacities")
        }
        self.run(
            name,
            -(-n // 128) + 1,
            128,
            **uploads,
            sh=self.device.upload("sh", padded_sh(gaussians, dtype)),
            look_back=self.kept("project look-back", (look_back_rows(-(-n // 128), SCAN_GROUP),), np.uint64),
            sort_bins=self.sort_bins,
            sort_bin_count=self.sort_bins.size,
            rounds=self.each,
            closeness=None,
            lazy=dict.fromkeys(LAZY),
            ticket=self.builder.ticket(),
            **outputs,
        )
        return outputs

    def order(self, keys: NDArray[Any], count: int, digit_bits: int = 9, **more: Any) -> NDArray[np.uint32]:
        """Returns the positions of the keys, smallest first; `count` is an address."""
        room = len(keys)
        sorting = Sorting("sort", count, room, digit_bits, "depth", KEY_BINS, self.sort_bins, "sort look-back", room)
        return add_order(self.builder, sorting, keys, more.pop("bits", 32), **more)

    def sort(
        self, keys: NDArray[Any], payloads: NDArray[Any], count: int, bits: int
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Returns sorted copies; `count` is an address, and the digits of the keys are counted."""
        passes, digit_bits = bits_of_passes(bits, 8)
        room = len(keys)
        sorting = Sorting("sort", count, room, digit_bits, "tile", BINS, self.sort_bins, "sort look-back", room)
        for number in range(passes):
            target = self.device.empty("keys", (room,), keys.dtype), self.device.empty("slots", (room,), np.uint32)
            add_sort_pass(self.builder, sorting, f"sort tiles {keys.itemsize}", number, (keys, payloads), target)
            keys, payloads = target
        return keys, payloads


class Immediate(PlanBuilder):
    """Launches the sorts of kernels/cuda/plan/sort.py at once, in the place of a builder that collects them."""

    def __init__(self, stages: Stages) -> None:
        self._stages, self.memory = stages, GuardedMemory(stages.device)
        self._tickets, self._uses = 0, {}

    def take(self, name: str, shape: tuple[int, ...], dtype: str, zeroed: bool = False) -> NDArray[Any]:
        device, kept = self._stages.device, self._stages.kept
        return kept(f"{name} {shape}", shape, np.dtype(dtype)) if zeroed else device.empty(name, shape, dtype)

    def add(self, stage: str, role: str, blocks: int, threads: int, **arguments: Any) -> None:
        self._stages.run(SORT_ROLES[role], blocks, threads, **arguments)


def lists_of(
    gaussians: Gaussians,
    camera: Camera,
    settings: RenderSettings | None = None,
    bounds: str = "row_span",
    key_bytes: int = 2,
    seed: int = 0,
    project_policy: str = "",
    sh_dtype: str = "f32",
    **counters: int,
) -> Lists:
    """Runs all stages up to the tile lists."""
    stages = Stages(frame_record(camera, gaussians, settings or RenderSettings(), **counters), seed)
    row = stages.frame[0]
    projected = stages.project(gaussians, f".bounds = Bounds::{bounds}{project_policy}", sh_dtype)
    slots_used, capacity = inside(stages.frame, "slots"), int(row["instance_capacity"])
    order = sorted_footprints = None
    if key_bytes < 8:
        near = inside(stages.frame, "near_z")
        sorted_footprints = stages.device.empty("sorted footprints", projected["footprints"].shape, np.uint32)
        gathered = projected["footprints"], sorted_footprints
        order = stages.order(projected["depth_bits"], slots_used, bits=27, base=near, has_rare=True, gathered=gathered)

    tiles = int(row["tile_rows"]) * int(row["tile_columns"])
    bits = max(1, (tiles - 1).bit_length()) + 32 * (key_bytes == 8)
    passes, digit_bits = bits_of_passes(bits, 8)
    name = f"emit<EmitPolicy{{Bounds::{bounds}, {key_bytes}}}>"
    keys = stages.device.empty("keys", (capacity,), f"u{key_bytes}")
    slots = stages.device.empty("slots", (capacity,), np.uint32)
    places = {
        "placed": stages.device.empty("placed", (len(projected["extents"]), 4), np.uint32),
        "chunk_splats": stages.device.empty("chunk_splats", (-(-capacity // 1024),), np.uint32),
    }
    parts = max(1, -(-int(row["visible_capacity"]) // 2048))
    stages.run(
        "offsets<OffsetsPolicy{}>",
        parts + 1,
        256,
        footprints=projected["footprints"] if order is None else sorted_footprints,
        order=order,
        look_back=stages.kept("offsets look-back", (look_back_rows(parts, SCAN_GROUP),), np.uint64),
        ticket=stages.builder.ticket(),
        **places,
    )
    stages.run(
        name,
        3,
        256,
        extents=projected["extents"],
        depth_bits=projected["depth_bits"],
        keys=keys,
        slots=slots,
        bins=bins_of(stages.sort_bins, "tile"),
        passes=passes,
        digit_bits=digit_bits,
        **places,
    )
    keys, slots = stages.sort(keys, slots, inside(stages.frame, "instances"), bits)
    name = f"ranges<RangesPolicy{{{key_bytes}}}>"
    tile_starts = stages.device.empty("tile_starts", (tiles + 1,), np.uint32)
    stages.run(name, 1 + seed % 3, 256, keys=keys, tile_starts=tile_starts)

    splats = projected["splats"][: int(row["slots"])]
    listed = splats["gaussian"][slots[: int(row["instances"])]]
    counts = np.diff(tile_starts.astype(np.int64))
    return Lists(row, splats, listed, counts, projected["warp_slots"], projected["slot_lanes"])
