"""Plans the depth sort: visible slots, nearest first. Kernels: cuda/source/sort.cuh; the launches of a
sort: `sort.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from splatscope.kernels.cuda.launch.buffers import DeviceArray
from splatscope.kernels.cuda.plan.builder import PlanBuilder
from splatscope.kernels.cuda.plan.passes import KEY_BINS, KEY_DIGIT_BITS
from splatscope.kernels.cuda.plan.project import Projected
from splatscope.kernels.cuda.plan.sort import add_order, bits_of_passes, sorting_for

# Bits that the difference between a depth and the near plane has, for depths below 65,536 times that plane.
DEPTH_BITS = 27


@dataclass(frozen=True, eq=False)
class Ordered:
    """Holds the visible slots by depth; V is the room for slots."""

    slots: DeviceArray  # [V] uint32, nearest first
    footprints: DeviceArray  # [V, 2] uint32, those of `Projected` in the same order


def sort_by_depth(builder: PlanBuilder, projected: Projected) -> Ordered:
    """Adds the sort of all visible slots by depth, which takes their footprints along."""
    room = builder.capacity.visible
    footprints = builder.take("sorted footprints", (room, 2), "u4")
    if builder.policy.sort.sorter == "torch":
        ordered = Ordered(builder.take("depth order 0", (room,), "u4"), footprints)
        _sort_by_torch(builder, projected, ordered)
        return ordered
    digit_bits = bits_of_passes(DEPTH_BITS, KEY_DIGIT_BITS)[1]
    sorting = sorting_for(builder, projected.sort_bins, "depth_sort", "slots", room, digit_bits, "depth", KEY_BINS)
    near, gathered = builder.counter("near_z"), (projected.footprints, footprints)
    order = add_order(builder, sorting, projected.depth_bits, DEPTH_BITS, near, has_rare=True, gathered=gathered)
    return Ordered(order, footprints)


def _sort_by_torch(builder: PlanBuilder, projected: Projected, ordered: Ordered) -> None:
    """Adds torch's sort and a copy of the footprints. The host waits for the number of slots, twice."""
    memory = builder.memory

    def sort() -> None:
        count = int(builder.read_frame()["slots"])
        memory.gather(None, memory.sort(projected.depth_bits[:count], 31), ordered.slots)

    def gather() -> None:
        count = int(builder.read_frame()["slots"])
        memory.gather(projected.footprints, ordered.slots[:count], ordered.footprints)

    builder.call("depth_sort", sort)
    builder.call("depth_sort", gather)
