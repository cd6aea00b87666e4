"""Plans the launches of our own radix sort: splats by depth, pairs by tile, tiles by length.

`order.py`, `bin.py` and `schedule.py` call this and say what is sorted. Kernels: cuda/source/sort.cuh.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from splatscope.kernels.cuda.launch.buffers import DeviceArray, address
from splatscope.kernels.cuda.plan.builder import PlanBuilder
from splatscope.kernels.cuda.plan.passes import (
    KEY_BINS,
    SORT_BLOCKS,
    SORT_ITEMS,
    SORT_THREADS,
    WIDE_SORT_ITEMS,
    constant,
)

HISTOGRAM_THREADS = constant("sort.cuh", "HISTOGRAM_THREADS")
HISTOGRAM_BLOCKS = 2  # on a multiprocessor
LAUNCHES_PER_LOOK_BACK = constant("scan.cuh", "LAUNCHES")
# Parts that share one row of look-back.
SCAN_GROUP, SORT_GROUP = constant("scan.cuh", "SCAN_GROUP"), constant("sort.cuh", "SORT_GROUP")
BIN_ROWS = {"depth": 0, "tile": 4, "order": 8}  # sort -> its first row of KEY_BINS counts
ALL_BIN_ROWS = 12
Pairs = tuple[DeviceArray | None, DeviceArray | None]  # keys, payloads


@dataclass(frozen=True, eq=False)
class Sorting:
    """Holds what all passes of one sort share."""

    stage: str
    count: int  # device address of the number of pairs
    room: int  # pairs that fit the arrays
    digit_bits: int  # bits of the key that one pass takes
    name: str  # a key of BIN_ROWS
    bins: int  # counts of one pass in `sort_bins`
    sort_bins: DeviceArray  # [ALL_BIN_ROWS, KEY_BINS] uint32
    look_back: str  # name of a buffer
    most: int  # pairs of the largest sort that uses this look-back buffer


def sorting_for(
    builder: PlanBuilder,
    sort_bins: DeviceArray,
    stage: str,
    counter: str,
    room: int,
    digit_bits: int,
    name: str,
    bins: int,
) -> Sorting:
    """Returns the sort of as many things as a counter of the frame says, with the look-back buffer that sorts share."""
    most = max(builder.capacity.visible, builder.capacity.instances)
    count = builder.counter(counter)
    return Sorting(stage, count, room, digit_bits, name, bins, sort_bins, "sort look-back", most)


def bits_of_passes(bits: int, most: int) -> tuple[int, int]:
    """Returns (passes, bits of a digit) for keys of `bits` bits and digits of at most `most` bits."""
    passes = -(-bits // most)
    return passes, -(-bits // passes)


def look_back_rows(parts: int, group: int) -> int:
    """Returns the rows of a look-back buffer: one for each part, and one for each group of parts."""
    return parts + parts // group + 1


def bins_of(sort_bins: DeviceArray, name: str, offset: int = 0) -> int:
    """Returns the device address of count `offset` of a sort's digits."""
    return address(sort_bins, 4 * (KEY_BINS * BIN_ROWS[name] + offset))


def sort_blocks(room: int, multiprocessors: int) -> int:
    """Returns the blocks of a pass: those that stay resident, or fewer if half parts of all pairs keep fewer busy."""
    return min(-(-room // (SORT_THREADS * SORT_ITEMS // 2)), SORT_BLOCKS * multiprocessors)


def add_order(
    builder: PlanBuilder,
    sorting: Sorting,
    keys: DeviceArray,
    bits: int,
    base: int | None = None,
    has_rare: bool = False,
    gathered: Pairs = (None, None),
) -> DeviceArray:
    """Adds a sort of 32-bit keys and returns their positions, smallest key first: [room] uint32.

    - `base`: device address of a number that is subtracted from each key.
    - `has_rare`: keys may have more bits than `bits`. One more pass takes those, and does nothing if there are none.
    - `gathered`: words of 8 bytes by position, and where to put them in order.
    """
    room, passes = sorting.room, -(-bits // sorting.digit_bits)
    builder.add(
        sorting.stage,
        "histogram",
        min(-(-room // (4 * HISTOGRAM_THREADS)), HISTOGRAM_BLOCKS * builder.memory.multiprocessors),
        HISTOGRAM_THREADS,
        keys=keys,
        count=sorting.count,
        base=base,
        bins=bins_of(sorting.sort_bins, sorting.name),
        passes=passes + has_rare,
        digit_bits=sorting.digit_bits,
    )
    moved = [builder.take(f"{sorting.name} keys {i}", (room,), "u4") for i in range(2)]
    orders = [builder.take(f"{sorting.name} order {i}", (room,), "u4") for i in range(2)]
    rare_order = builder.take(f"{sorting.name} order rare", (room,), "u4") if has_rare else None
    rare_bins = bins_of(sorting.sort_bins, sorting.name, sorting.bins * passes)
    rare: dict[str, Any] = {"rare_bins": rare_bins, "payloads_rare": rare_order}
    source: Pairs = (keys, None)
    last_role, last = "sort keys", {"gather_in": gathered[0], "gather_out": gathered[1]}
    if gathered[0] is not None:
        last_role = "sort keys last"
    for number in range(passes):
        is_last = number == passes - 1
        target = (moved[number % 2] if has_rare or not is_last else None, orders[number % 2])
        role = "sort keys first" if number == 0 else last_role if is_last else "sort keys"
        more = (rare if has_rare else {}) | last if is_last else {"base": base}
        add_sort_pass(builder, sorting, role, number, source, target, **more)
        source = target
    if has_rare:
        rare |= {"payloads_rare": source[1]}
        add_sort_pass(builder, sorting, last_role, passes, (source[0], rare_order), (None, source[1]), **rare, **last)
    return source[1]


def add_sort_pass(
    builder: PlanBuilder,
    sorting: Sorting,
    role: str,
    number: int,
    source: Pairs,
    target: Pairs,
    base: int | None = None,
    rare_bins: int | None = None,
    payloads_rare: DeviceArray | None = None,
    gather_in: DeviceArray | None = None,
    gather_out: DeviceArray | None = None,
) -> None:
    """Adds the pass that sorts (keys, payloads) by digit `number`."""
    launch = builder.next_use(sorting.look_back)
    assert launch < LAUNCHES_PER_LOOK_BACK
    multiprocessors = builder.memory.multiprocessors
    parts = -(-sorting.most // (SORT_THREADS * WIDE_SORT_ITEMS)) + sort_blocks(sorting.most, multiprocessors)
    builder.add(
        sorting.stage,
        role,
        sort_blocks(sorting.room, multiprocessors),
        SORT_THREADS,
        keys_in=source[0],
        payloads_in=source[1],
        keys_out=target[0],
        payloads_out=target[1],
        count=sorting.count,
        base=base,
        bins=bins_of(sorting.sort_bins, sorting.name, sorting.bins * number),
        rare_bins=rare_bins,
        payloads_rare=payloads_rare,
        gather_in=gather_in,
        gather_out=gather_out,
        look_back=builder.take(sorting.look_back, (look_back_rows(parts, SORT_GROUP), KEY_BINS), "u8", zeroed=True),
        shift=sorting.digit_bits * number,
        digit_bits=sorting.digit_bits,
        launch=launch,
        ticket=builder.ticket(),
    )
