"""The launches of our own radix sort: splats by depth, pairs by tile, tiles by length.

`planner.py` and `schedule.py` call this and say what is sorted. How: cuda/source/sort.cuh.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from splatscope.kernels.cuda.launch.buffers import Memory, address
from splatscope.kernels.cuda.plan.passes import KEY_BINS, SORT_BLOCKS, SORT_ITEMS, SORT_THREADS, WIDE_SORT_ITEMS

HISTOGRAM_THREADS, HISTOGRAM_BLOCKS = 512, 2  # blocks on a multiprocessor
LAUNCHES_PER_LOOK_BACK = 8  # scan.cuh
SCAN_GROUP, SORT_GROUP = 32, 16  # scan.cuh and sort.cuh: parts that have a row of look-back together
BIN_ROWS = {"depth": 0, "tile": 4, "order": 8}  # rows of KEY_BINS counts, where those of a sort begin
ALL_BIN_ROWS = 12


class Planner(Protocol):
    """What `pipeline._Planner` offers."""

    memory: Memory
    sort_bins: Any  # [ALL_BIN_ROWS, KEY_BINS] counts of digits; `project` clears them
    sorts: dict[str, int]  # passes so far, by look-back buffer

    def take(self, name: str, shape: tuple[int, ...], dtype: str, zeroed: bool = False) -> Any: ...
    def add(self, stage: str, role: str, blocks: int, threads: int, **arguments: Any) -> None: ...
    def ticket(self) -> int: ...


@dataclass(frozen=True, eq=False)
class Sorting:
    """What all passes of a sort have in common."""

    stage: str
    count: int  # address of the number of pairs
    room: int  # for how many pairs
    digit_bits: int  # of a pass
    name: str  # of BIN_ROWS
    bins: int  # counts a pass has there
    look_back: str  # name of a buffer
    most: int  # pairs of any sort that uses it


def bits_of_passes(bits: int, most: int) -> tuple[int, int]:
    """How many passes keys of so many bits need, with digits of at most `most` bits; and the bits of each."""
    passes = -(-bits // most)
    return passes, -(-bits // passes)


def look_back_rows(parts: int, group: int) -> int:
    """Rows of a look-back buffer: one a part, and one a group."""
    return parts + parts // group + 1


def bins_of(planner: Planner, name: str, offset: int = 0) -> int:
    """The address of a count of a sort's digits."""
    return address(planner.sort_bins, 4 * (KEY_BINS * BIN_ROWS[name] + offset))


def sort_blocks(planner: Planner, room: int) -> int:
    """Blocks of a pass: as many as stay, or as half parts of all pairs keep busy."""
    return min(-(-room // (SORT_THREADS * SORT_ITEMS // 2)), SORT_BLOCKS * planner.memory.multiprocessors)


def add_order(
    planner: Planner,
    sorting: Sorting,
    keys: Any,
    bits: int,
    base: int | None = None,
    has_rare: bool = False,
    gathered: tuple[Any, Any] = (None, None),
) -> Any:
    """The positions of 32-bit keys, smallest key first: [room]. The number at address `base` is taken from each key.

    With `has_rare`, keys may have more bits than `bits`: one more pass takes those, and does nothing if there are none.
    `gathered`: words of 8 bytes by position, and where to put them in order.
    """
    room, passes = sorting.room, -(-bits // sorting.digit_bits)
    planner.add(
        sorting.stage,
        "histogram",
        min(-(-room // (4 * HISTOGRAM_THREADS)), HISTOGRAM_BLOCKS * planner.memory.multiprocessors),
        HISTOGRAM_THREADS,
        keys=keys,
        count=sorting.count,
        base=base,
        bins=bins_of(planner, sorting.name),
        passes=passes + has_rare,
        digit_bits=sorting.digit_bits,
    )
    moved = [planner.take(f"{sorting.name} keys {i}", (room,), "u4") for i in range(2)]
    orders = [planner.take(f"{sorting.name} order {i}", (room,), "u4") for i in range(2)]
    rare_order = planner.take(f"{sorting.name} order rare", (room,), "u4") if has_rare else None
    rare = {"rare_bins": bins_of(planner, sorting.name, sorting.bins * passes), "payloads_rare": rare_order}
    source: tuple[Any, Any] = (keys, None)
    last_role, last = "sort keys", {"gather_in": gathered[0], "gather_out": gathered[1]}
    if gathered[0] is not None:
        last_role = "sort keys last"
    for number in range(passes):
        is_last = number == passes - 1
        target = (moved[number % 2] if has_rare or not is_last else None, orders[number % 2])
        role = "sort keys first" if number == 0 else last_role if is_last else "sort keys"
        more = (rare if has_rare else {}) | last if is_last else {"base": base}
        add_sort_pass(planner, sorting, role, number, source, target, **more)
        source = target
    if has_rare:
        rare |= {"payloads_rare": source[1]}
        add_sort_pass(planner, sorting, last_role, passes, (source[0], rare_order), (None, source[1]), **rare, **last)
    return source[1]


def add_sort_pass(
    planner: Planner,
    sorting: Sorting,
    role: str,
    number: int,
    source: tuple[Any, Any],
    target: tuple[Any, Any],
    base: int | None = None,
    rare_bins: int | None = None,
    payloads_rare: Any = None,
    gather_in: Any = None,
    gather_out: Any = None,
) -> None:
    """One digit of a sort of (keys, payloads)."""
    launch = planner.sorts.get(sorting.look_back, 0)
    assert launch < LAUNCHES_PER_LOOK_BACK
    planner.sorts[sorting.look_back] = launch + 1
    parts = -(-sorting.most // (SORT_THREADS * WIDE_SORT_ITEMS)) + sort_blocks(planner, sorting.most)
    planner.add(
        sorting.stage,
        role,
        sort_blocks(planner, sorting.room),
        SORT_THREADS,
        keys_in=source[0],
        payloads_in=source[1],
        keys_out=target[0],
        payloads_out=target[1],
        count=sorting.count,
        base=base,
        bins=bins_of(planner, sorting.name, sorting.bins * number),
        rare_bins=rare_bins,
        payloads_rare=payloads_rare,
        gather_in=gather_in,
        gather_out=gather_out,
        look_back=planner.take(sorting.look_back, (look_back_rows(parts, SORT_GROUP), KEY_BINS), "u8", zeroed=True),
        shift=sorting.digit_bits * number,
        digit_bits=sorting.digit_bits,
        launch=launch,
        ticket=planner.ticket(),
    )
