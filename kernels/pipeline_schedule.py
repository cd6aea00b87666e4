"""The launches of the load-balanced path: the plan of a frame, and blending that follows it, forward and backward.

`pipeline.py` calls this where a policy hands out tiles in another order than the grid's, or splits some. What is
decided, and the same in NumPy: `schedule.py`; on the GPU: cuda/schedule.cuh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from splatscope.kernels.arguments import struct_layout
from splatscope.kernels.compiler import MULTIPROCESSORS, Kernel
from splatscope.kernels.cuda_buffers import Memory, address
from splatscope.kernels.passes import DIGIT_BITS, SORT_ITEMS, SORT_THREADS, Pass, source
from splatscope.kernels.policy import SchedulePolicy
from splatscope.kernels.schedule import CostModel, Machine
from splatscope.kernels.schedule_calibration import calibration_of
from splatscope.kernels.sm_timeline import Recording, recording_of_gpu

TILE_PIXELS = 256
POLICY_CHUNKS = 1024  # room for chunks of a frame; where it is full, tiles stay whole
MOST_CHUNKS = 1 << 16  # likewise, where every tile may be split
RESIDENT_THREADS = 1536  # on a multiprocessor of a GPU that is not known
LEAST_GAIN = CostModel().least_gain
FUSED_SHARE = 0.5  # of the blocks that begin with chunks


class Planner(Protocol):
    """What `pipeline._Planner` offers."""

    memory: Memory
    made_for: Pass
    kernels: dict[str, Kernel]
    frame: Any
    tile_starts: Any

    def take(self, name: str, shape: tuple[int, ...], dtype: str, zeroed: bool = False) -> Any: ...
    def add(self, stage: str, role: str, blocks: int, threads: int, **arguments: Any) -> None: ...
    def put_together(self) -> None: ...
    def ticket(self) -> int: ...


@dataclass(frozen=True, eq=False)
class Scheduled:
    """What the plan of a frame leaves: the `UnitArgs` of the blend kernels, and the record of what was decided."""

    record: Any  # bytes of struct Schedule
    units: dict[str, Any]
    tiles: int
    chunk_room: int


def schedule_dtype() -> np.dtype[Any]:
    """The layout of `struct Schedule`."""
    return struct_layout(source("schedule.cuh").text, "Schedule").dtype


def unit_dtype() -> np.dtype[Any]:
    """The layout of `struct UnitRecord`."""
    return struct_layout(source("dispatch.cuh").text, "UnitRecord").dtype


def chunk_dtype() -> np.dtype[Any]:
    """The layout of `struct Chunk`."""
    return struct_layout(source("schedule.cuh").text, "Chunk").dtype


def resident_blocks(kernel: Kernel, threads: int, memory: Memory) -> int:
    """Blocks of a kernel that run at once on a multiprocessor."""
    if kernel.report is None or memory.architecture not in MULTIPROCESSORS:
        return RESIDENT_THREADS // threads
    return kernel.report.blocks_per_multiprocessor(threads, memory.architecture)


def machine_of(kernel: Kernel, threads: int, memory: Memory) -> Machine:
    """The GPU as blocks of `threads` threads of a kernel find it."""
    saturated_by = calibration_of(memory).saturating_warps / (threads // 32)
    return Machine(memory.multiprocessors, resident_blocks(kernel, threads, memory), saturated_by)


def costs_of(policy: SchedulePolicy, training: bool, memory: Memory) -> CostModel:
    """What units cost, by the calibration of the GPU."""
    costs = calibration_of(memory)
    second_pass = costs.training_walk if training else costs.second_walk if policy.exact_stop == "on" else 0.0
    return CostModel(costs.chunk, costs.tail, LEAST_GAIN, second_pass)


def read_recording(
    memory: Memory, find: Callable[[str], Any], frame: np.void, machine: Machine, stage: str = "blend"
) -> Recording:
    """What the units of the newest frame did in a stage; `find` gives buffers by name. Waits for the GPU."""
    tiles = int(frame["tile_rows"]), int(frame["tile_columns"])
    records, chunks = (
        memory.read(find(name)).reshape(-1).view(dtype)
        for name, dtype in ((f"{stage} records", unit_dtype()), ("chunks", chunk_dtype()))
    )
    room = tiles[0] * tiles[1] + len(chunks)
    return recording_of_gpu(records[:room], chunks, int(frame["epoch"]), tiles, machine)


def chunk_room(policy: SchedulePolicy, tiles: int) -> int:
    """How many chunks a frame may have."""
    if policy.chunk in ("off", "policy"):
        return POLICY_CHUNKS if policy.chunk == "policy" else 1
    if policy.chunk == "catgs":  # chunks of the mean, and one more for each tile that is split
        return min(MOST_CHUNKS, 2 * tiles)
    return min(MOST_CHUNKS, int(policy.chunk_k) * (tiles if policy.chunk == "all" else int(policy.chunk_h)))


def add_plan(planner: Planner, threads: int) -> Scheduled:
    """Adds the step that decides the frame's units; `threads` are those of a block of `blend`."""
    made_for, memory, take = planner.made_for, planner.memory, planner.take
    policy, tiles = made_for.policy.schedule, made_for.tiles
    room = chunk_room(policy, tiles)
    record = take("schedule", (schedule_dtype().itemsize,), "u1")
    own = {name: take(f"chunk {name}", (room,), "u4") for name in ("arrived", "ready", "saturated")}
    chunks, units = take("chunks", (room, 6), "u4"), take("units", (tiles + room,), "u4")
    keys, work = take("tile keys", (tiles,), "u4"), take("tile work", (tiles,), "u4", zeroed=True)
    machine, costs = (
        machine_of(planner.kernels["blend"], threads, memory),
        costs_of(policy, made_for.training, memory),
    )
    planner.add(
        "schedule",
        "plan",
        1,
        1024,
        tile_start=planner.tile_starts,
        work=work,
        schedule=record,
        units=units,
        tile_keys=keys,
        tile_parts=take("tile parts", (tiles,), "u4"),
        tile_ranks=take("tile ranks", (tiles,), "u4"),
        split=take("split tiles", (tiles, 2), "u4"),
        chunks=chunks,
        chunk_capacity=room,
        heaviest_tiles=int(policy.chunk_h),
        parts=int(policy.chunk_k),
        workers=machine.workers,
        pace=machine.pace,
        chunk_cost=costs.chunk,
        tail_cost=costs.tail,
        least_gain=costs.least_gain,
        second_pass=costs.second_pass,
        **own,
    )
    arguments = {
        "schedule": record,
        "units": units,
        "sorted_tiles": _sort_tiles(planner, record, keys) if policy.sched == "lpt" else None,
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


def _sort_tiles(planner: Planner, record: Any, keys: Any) -> Any:
    """Tiles by descending count, exactly: by the keys that the plan left in place of an order."""
    tiles, bins, passes = planner.made_for.tiles, 1 << DIGIT_BITS, 32 // DIGIT_BITS
    part = SORT_THREADS * SORT_ITEMS
    fields: Any = schedule_dtype().fields
    count = address(record, fields["tiles"][1])
    starts = planner.take("order bin starts", (passes, bins), "u4")
    moved = [planner.take(f"order keys {i}", (tiles,), "u4") for i in range(2)]
    orders = [planner.take(f"tile orders {i}", (tiles,), "u4") for i in range(2)]
    planner.add(
        "schedule",
        "histogram",
        min(-(-tiles // part), planner.memory.multiprocessors),
        512,
        keys=keys,
        count=count,
        bins=planner.take("bins", (8, bins), "u4", zeroed=True),
        bin_starts=starts,
        passes=passes,
        ticket=planner.ticket(),
    )
    for number in range(passes):
        planner.add(
            "schedule",
            "sort depths" if number else "sort depths first",
            -(-tiles // part),
            SORT_THREADS,
            keys_in=moved[(number - 1) % 2] if number else keys,
            payloads_in=orders[(number - 1) % 2] if number else None,
            keys_out=None if number == passes - 1 else moved[number % 2],
            payloads_out=orders[number % 2],
            count=count,
            bin_starts=address(starts, 4 * bins * number),
            look_back=planner.take("order look-back", (-(-tiles // part), bins), "u8", zeroed=True),
            shift=DIGIT_BITS * number,
            digit_bits=DIGIT_BITS,
            launch=number,
            ticket=planner.ticket(),
        )
    return orders[(passes - 1) % 2]


def add_units(
    planner: Planner, stage: str, role: str, threads: int, scheduled: Scheduled, blend: dict[str, Any], **more: Any
) -> None:
    """Adds the launches that take a frame's units: `role`, and before it `role` chunks where they have their own."""
    policy, records = planner.made_for.policy.schedule, None
    if planner.made_for.is_recorded:
        shape = (scheduled.tiles + scheduled.chunk_room, unit_dtype().itemsize)
        records = planner.take(f"{role} records", shape, "u1", zeroed=True)
    apart = f"{role} chunks"
    for name in (apart, role) if apart in planner.kernels else (role,):
        kernel = planner.kernels[name]
        stay = planner.memory.multiprocessors * resident_blocks(kernel, threads, planner.memory)
        both = apart not in planner.kernels and policy.chunk != "off"
        most = scheduled.chunk_room if name == apart else scheduled.tiles + (scheduled.chunk_room if both else 0)
        blocks = most if policy.take == "hardware" else min(stay, most)
        units = scheduled.units | {"chunk_blocks": max(1, int(FUSED_SHARE * blocks)), "records": records}
        planner.add(stage, name, blocks, threads, blend={"frame": planner.frame, **blend}, units=units, **more)
    if policy.coexec == "streams" and apart in planner.kernels:
        planner.put_together()
