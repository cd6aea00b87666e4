"""Plans the tile schedule: the launches that decide a frame's units of work, and the blend launches that take units.

`planner.py` calls this where a policy hands out tiles in another order than the grid's, or splits tiles. The rules in
NumPy: `kernels/schedule/rules.py`; on the GPU: cuda/source/schedule.cuh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from splatscope.kernels.cuda.launch.arguments import struct_layout
from splatscope.kernels.cuda.launch.buffers import DeviceArray, Memory, address
from splatscope.kernels.cuda.launch.compiler import MULTIPROCESSORS, Kernel
from splatscope.kernels.cuda.plan.bin import Listed, find_ranges
from splatscope.kernels.cuda.plan.builder import PlanBuilder
from splatscope.kernels.cuda.plan.passes import BLEND_THREADS, KEY_BINS, KEY_DIGIT_BITS, constant, source
from splatscope.kernels.cuda.plan.project import Projected
from splatscope.kernels.cuda.plan.sort import Sorting, add_order, bits_of_passes
from splatscope.kernels.policy import SchedulePolicy
from splatscope.kernels.schedule.calibration import Calibration, stored_calibration
from splatscope.kernels.schedule.rules import LEAST_CUT, CostModel, Machine
from splatscope.kernels.schedule.timeline import Recording, recording_of_gpu

PLAN_THREADS = constant("schedule.cuh", "PLAN_THREADS")  # of the block that decides
TILE_PIXELS = constant("dispatch.cuh", "TILE_PIXELS")
POLICY_CHUNKS = 1024  # room for chunks of a frame; where it is full, tiles stay whole
MOST_CHUNKS = 1 << 16  # the same, where every tile may be split
RESIDENT_THREADS = 1536  # on a multiprocessor of an unknown GPU
LEAST_GAIN = CostModel().least_gain
TRAINING_CUT = 512  # least splats of a chunk in training: the backward pass gains where the forward pass would not


@dataclass(frozen=True, eq=False)
class Scheduled:
    """Holds the tile schedule of a frame: the `UnitArgs` of the blend kernels, and the record of what was decided."""

    record: DeviceArray  # bytes of struct Schedule
    units: dict[str, Any]
    tiles: int
    chunk_room: int


def schedule_dtype() -> np.dtype[Any]:
    """Returns the layout of `struct Schedule`."""
    return struct_layout(source("schedule.cuh").text, "Schedule").dtype


def unit_dtype() -> np.dtype[Any]:
    """Returns the layout of `struct UnitRecord`."""
    return struct_layout(source("dispatch.cuh").text, "UnitRecord").dtype


def chunk_dtype() -> np.dtype[Any]:
    """Returns the layout of `struct Chunk`."""
    return struct_layout(source("schedule.cuh").text, "Chunk").dtype


def resident_blocks(kernel: Kernel, threads: int, memory: Memory) -> int:
    """Returns how many blocks of a kernel run at once on a multiprocessor."""
    if kernel.report is None or memory.architecture not in MULTIPROCESSORS:
        return RESIDENT_THREADS // threads
    return kernel.report.blocks_per_multiprocessor(threads, memory.architecture)


def machine_of(kernel: Kernel, threads: int, memory: Memory) -> Machine:
    """Returns the GPU as blocks of `threads` threads of a kernel find it."""
    saturated_by = calibration_of(memory).saturating_warps / (threads // 32)
    return Machine(memory.multiprocessors, resident_blocks(kernel, threads, memory), saturated_by)


def costs_of(policy: SchedulePolicy, training: bool, memory: Memory) -> CostModel:
    """Returns what units of work cost, by the calibration of the GPU."""
    costs = calibration_of(memory)
    second_pass = costs.training_walk if training else costs.second_walk if policy.exact_stop == "on" else 0.0
    least_cut = TRAINING_CUT if training else LEAST_CUT
    return CostModel(costs.chunk, costs.tail, LEAST_GAIN, second_pass, costs.start, least_cut)


def read_recording(
    memory: Memory, find: Callable[[str], Any], frame: np.void, machine: Machine, stage: str = "blend"
) -> Recording:
    """Returns what the units of the newest frame did in a stage. Waits for the GPU. `find` gives buffers by name."""
    tiles = int(frame["tile_rows"]), int(frame["tile_columns"])
    records, chunks = (
        memory.read(find(name)).reshape(-1).view(dtype)
        for name, dtype in ((f"{stage} records", unit_dtype()), ("chunks", chunk_dtype()))
    )
    room = tiles[0] * tiles[1] + len(chunks)
    return recording_of_gpu(records[:room], chunks, int(frame["epoch"]), tiles, machine)


def chunk_room(policy: SchedulePolicy, tiles: int) -> int:
    """Returns how many chunks a frame may have."""
    if policy.chunk in ("off", "modelled"):
        return POLICY_CHUNKS if policy.chunk == "modelled" else 1
    if policy.chunk == "catgs":  # chunks as long as the mean list, and one more for each tile that is split
        return min(MOST_CHUNKS, 2 * tiles)
    return min(MOST_CHUNKS, int(policy.chunk_k) * (tiles if policy.chunk == "all" else int(policy.chunk_h)))


def schedule_tiles(builder: PlanBuilder, projected: Projected, listed: Listed) -> Scheduled:
    """Adds what finds where tiles begin and decides the frame's units of work.

    With plan = ranges one kernel does both.
    """
    made_for, take = builder.made_for, builder.take
    policy, tiles = made_for.policy.schedule, made_for.tiles
    room = chunk_room(policy, tiles)
    record = take("schedule", (schedule_dtype().itemsize,), "u1")
    own = {name: take(f"chunk {name}", (room,), "u4") for name in ("arrived", "ready", "saturated")}
    chunks, units = take("chunks", (room, 6), "u4"), take("units", (tiles + room,), "u4")
    keys, work = take("tile keys", (tiles,), "u4"), take("tile work", (tiles,), "u4", zeroed=True)
    plan = {
        "tile_start": listed.tile_starts,
        "tiles": tiles,
        "work": work,
        "schedule": record,
        "units": units,
        "tile_keys": keys,
        "tile_parts": take("tile parts", (tiles,), "u4"),
        "tile_ranks": take("tile ranks", (tiles,), "u4"),
        "split": take("split tiles", (tiles, 4), "u4"),
        "chunks": chunks,
        "chunk_capacity": room,
        "heaviest_tiles": int(policy.chunk_h),
        "parts": int(policy.chunk_k),
        **_costs(builder),
        **own,
    }
    if policy.plan == "ranges":
        # A block of PLAN_THREADS threads fills a multiprocessor.
        whole = {"frame": builder.frame, **plan}
        find_ranges(builder, listed, PLAN_THREADS, blocks_each=1, plan=whole, ticket=builder.ticket())
    else:
        find_ranges(builder, listed)
        builder.add("schedule", "plan", 1, PLAN_THREADS, **plan)
    arguments = {
        "schedule": record,
        "units": units,
        "sorted_tiles": _sort_tiles(builder, projected, record, keys) if policy.sched == "lpt" else None,
        "chunks": chunks,
        "alone": take("chunk alone", (room, TILE_PIXELS), "f4"),
        "ends": take("chunk ends", (room, TILE_PIXELS), "f4"),
        "colors": take("chunk colors", (room, TILE_PIXELS, 4), "f4"),
        "lasts": take("chunk lasts", (room, TILE_PIXELS), "u4") if made_for.training else None,
        "counts": take("chunk counts", (room,), "u4") if made_for.training else None,
        "work": work,
        "chunk_blocks": 0,
        **own,
    }
    return Scheduled(record, arguments, tiles, room)


def _costs(builder: PlanBuilder) -> dict[str, float]:
    """Returns the arguments of the plan kernel that say how fast the GPU is and what units cost.

    Where blending may run in either of two kernels, the one of 8 x 4 pixels counts, so that the same tiles are split
    whichever runs.
    """
    made_for, memory = builder.made_for, builder.memory
    machine = machine_of(builder.kernels["blend"], BLEND_THREADS[made_for.policy.blend.map], memory)
    costs = costs_of(made_for.policy.schedule, made_for.training, memory)
    return {
        "workers": machine.workers,
        "pace": machine.pace,
        "chunk_cost": costs.chunk,
        "tail_cost": costs.tail,
        "least_gain": costs.least_gain,
        "second_pass": costs.second_pass,
        "least_cut": costs.least_cut,
    }


def _sort_tiles(builder: PlanBuilder, projected: Projected, record: DeviceArray, keys: DeviceArray) -> DeviceArray:
    """Adds an exact sort of tiles by descending count. The plan kernel leaves the keys in place of an order."""
    tiles = builder.made_for.tiles
    fields: Any = schedule_dtype().fields
    count = address(record, fields["tiles"][1])
    digit_bits = bits_of_passes(32, KEY_DIGIT_BITS)[1]
    bins, look_back = projected.sort_bins, "order look-back"
    sorting = Sorting("schedule", count, tiles, digit_bits, "order", KEY_BINS, bins, look_back, tiles)
    return add_order(builder, sorting, keys, 32)


def add_units(
    builder: PlanBuilder, stage: str, role: str, threads: int, scheduled: Scheduled, blend: dict[str, Any], **more: Any
) -> None:
    """Adds the launches that take a frame's units: `role`, and before it `role` chunks where they have their own."""
    policy, memory, records = builder.made_for.policy.schedule, builder.memory, None
    if builder.made_for.is_recorded:
        shape = (scheduled.tiles + scheduled.chunk_room, unit_dtype().itemsize)
        records = builder.take(f"{stage} records", shape, "u1", zeroed=True)
    apart = f"{role} chunks"
    for name in (apart, role) if apart in builder.kernels else (role,):
        stay = memory.multiprocessors * resident_blocks(builder.kernels[name], threads, memory)
        both = apart not in builder.kernels and policy.chunk != "off"
        most = scheduled.chunk_room if name == apart else scheduled.tiles + (scheduled.chunk_room if both else 0)
        blocks = min(stay, most)
        if policy.take == "hardware" and name != apart:
            # Where chunks come first, a block that had a chunk takes a tile as well, and no block starts in vain.
            blocks = max(scheduled.chunk_room, scheduled.tiles) if both and policy.chunk != "catgs" else most
        first_with_chunks = max(1, blocks * int(policy.fused_share) // 100)
        units = scheduled.units | {"chunk_blocks": first_with_chunks, "records": records}
        builder.add(stage, name, blocks, threads, blend={"frame": builder.frame, **blend}, units=units, **more)
    if policy.coexec == "streams" and apart in builder.kernels:
        builder.put_together()


def calibration_of(memory: Memory) -> Calibration:
    """Returns the calibration of the GPU that has this memory, or the defaults on a processor."""
    if memory.architecture == 0:
        return Calibration()
    import torch

    return stored_calibration(torch.cuda.get_device_name())
