"""Plans the binning stage: (splat, tile) pairs, sorted by tile into one list for each tile.

`list_by_tile` writes the pairs and sorts them; `find_ranges` finds where each tile's list begins, alone or as a part of
the kernel that makes the tile schedule (`schedule.py`). Kernels: cuda/source/bin.cuh, sort.cuh, ranges.cuh.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from splatscope.kernels.cuda.launch.buffers import DeviceArray
from splatscope.kernels.cuda.plan.builder import PlanBuilder
from splatscope.kernels.cuda.plan.order import Ordered
from splatscope.kernels.cuda.plan.passes import DIGIT_BITS, constant
from splatscope.kernels.cuda.plan.project import Projected
from splatscope.kernels.cuda.plan.sort import (
    SCAN_GROUP,
    Sorting,
    add_sort_pass,
    bins_of,
    bits_of_passes,
    look_back_rows,
    sorting_for,
)

BINS = 1 << DIGIT_BITS
OFFSETS_THREADS, EMIT_THREADS = constant("bin.cuh", "OFFSETS_THREADS"), constant("bin.cuh", "EMIT_THREADS")
OFFSETS_PART = 8 * OFFSETS_THREADS  # splats that a block of `offsets` sums: OffsetsPolicy::each a thread
CHUNK = constant("bin.cuh", "CHUNK")  # places that a block of `emit` fills at a time
RANGES_THREADS = constant("ranges.cuh", "RANGES_THREADS")
EMIT_BLOCKS, RANGES_BLOCKS = 4, 8  # on a multiprocessor


@dataclass(frozen=True, eq=False)
class Listed:
    """Holds the lists of T tiles; I is the room for pairs."""

    keys: DeviceArray  # [I] keys of the sorted pairs, of 2, 4 or 8 bytes
    slots: DeviceArray  # [I] uint32: slots of splats, tile by tile, nearest first
    tile_starts: DeviceArray  # [T + 1] uint32: where each tile's list begins in `slots`; `find_ranges` fills it


def list_by_tile(builder: PlanBuilder, projected: Projected, ordered: Ordered | None) -> Listed:
    """Adds what writes all (splat, tile) pairs and sorts them by tile.

    `ordered` has the splats by depth; without it the keys hold tile and depth, and the sort takes both.
    """
    made_for, room, dtype = builder.made_for, builder.capacity.instances, f"u{builder.made_for.key_bytes}"
    keys = [builder.take(f"{dtype} keys {i}", (room,), dtype) for i in range(2)]
    slots = [builder.take(f"slots {i}", (room,), "u4") for i in range(2)]
    digit_bits = bits_of_passes(made_for.key_bits, DIGIT_BITS)[1]
    sorting = sorting_for(builder, projected.sort_bins, "tile_sort", "instances", room, digit_bits, "tile", BINS)
    _emit(builder, projected, ordered, keys[0], slots[0], digit_bits)
    last = made_for.key_passes % 2
    if builder.policy.sort.sorter == "torch":
        last = 1
        _sort_by_torch(builder, keys, slots)
    else:
        _sort(builder, sorting, keys, slots)
    return Listed(keys[last], slots[last], builder.take("tile starts", (made_for.tiles + 1,), "u4"))


def _emit(
    builder: PlanBuilder,
    projected: Projected,
    ordered: Ordered | None,
    keys: DeviceArray,
    slots: DeviceArray,
    digit_bits: int,
) -> None:
    """Adds what finds where each splat's pairs begin, and what writes them."""
    room, visible = builder.capacity.instances, builder.capacity.visible
    places = {
        "placed": builder.take("placed", (visible, 4), "u4"),
        "chunk_splats": builder.take("chunk splats", (-(-room // CHUNK),), "u4"),
    }
    parts = -(-visible // OFFSETS_PART)
    sums = {
        "footprints": projected.footprints if ordered is None else ordered.footprints,
        "order": None if ordered is None else ordered.slots,
        "look_back": builder.take("offsets look-back", (look_back_rows(parts, SCAN_GROUP),), "u8", zeroed=True),
    }
    builder.add("emit", "offsets", parts, OFFSETS_THREADS, ticket=builder.ticket(), **sums, **places)
    builder.add(
        "emit",
        "emit",
        min(-(-room // CHUNK), EMIT_BLOCKS * builder.memory.multiprocessors),
        EMIT_THREADS,
        **places,
        extents=projected.extents,
        depth_bits=projected.depth_bits,
        keys=keys,
        slots=slots,
        bins=bins_of(projected.sort_bins, "tile"),
        passes=builder.made_for.key_passes,
        digit_bits=digit_bits,
    )


def _sort(builder: PlanBuilder, sorting: Sorting, keys: list[DeviceArray], slots: list[DeviceArray]) -> None:
    """Adds one pass a digit, from one pair of arrays to the other and back."""
    for number in range(builder.made_for.key_passes):
        source, target = ((keys[i], slots[i]) for i in (number % 2, 1 - number % 2))
        add_sort_pass(builder, sorting, "sort tiles", number, source, target)


def _sort_by_torch(builder: PlanBuilder, keys: list[DeviceArray], slots: list[DeviceArray]) -> None:
    """Adds torch's sort of the first pair of arrays into the second. The host waits for the number of pairs."""

    def work() -> None:
        count = int(builder.read_frame()["instances"])
        places = builder.memory.sort(keys[0][:count], builder.made_for.key_bits)
        builder.memory.gather(keys[0], places, keys[1])
        builder.memory.gather(slots[0], places, slots[1])

    builder.call("tile_sort", work)


def find_ranges(
    builder: PlanBuilder,
    listed: Listed,
    threads: int = RANGES_THREADS,
    blocks_each: int = RANGES_BLOCKS,
    **arguments: Any,
) -> None:
    """Adds the launch that finds where each tile's list begins.

    `blocks_each` bounds the blocks on a multiprocessor; `arguments` are further ones of the kernel.
    """
    pairs = threads * 16 // builder.made_for.key_bytes  # that a block looks at
    blocks = min(builder.capacity.instances // pairs + 1, blocks_each * builder.memory.multiprocessors)
    builder.add("ranges", "ranges", blocks, threads, keys=listed.keys, tile_starts=listed.tile_starts, **arguments)
