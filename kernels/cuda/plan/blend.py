"""Plans the blending stage: each tile's list to pixels. Kernels: cuda/source/blend.cuh, blend_queue.cuh."""

from __future__ import annotations

from dataclasses import dataclass

from splatscope.kernels.cuda.launch.buffers import DeviceArray, address
from splatscope.kernels.cuda.plan.bin import Listed
from splatscope.kernels.cuda.plan.builder import PlanBuilder
from splatscope.kernels.cuda.plan.passes import BLEND_THREADS
from splatscope.kernels.cuda.plan.project import Projected
from splatscope.kernels.cuda.plan.schedule import Scheduled, add_units


@dataclass(frozen=True, eq=False)
class Blended:
    """Holds the pixels of a picture of H x W, and what the backward pass needs to know of them."""

    image: DeviceArray  # [H, W, 3] float32
    transmittance: DeviceArray  # [H, W] float32
    depth: DeviceArray | None  # [H, W] float32, if the pass wants it
    last: DeviceArray | None  # [H, W] uint32: the last entry that each pixel blended; training only
    entry_counts: DeviceArray | None  # [T] uint32: entries of a tile that any pixel blended; training only


def blend(builder: PlanBuilder, projected: Projected, listed: Listed, scheduled: Scheduled | None) -> Blended:
    """Adds the blending of all tiles: in the order of the schedule, or without one a block a tile."""
    (height, width), made_for, take = builder.size, builder.made_for, builder.take
    training = made_for.training
    blended = Blended(
        image=take("image", (height, width, 3), "f4"),
        transmittance=take("transmittance", (height, width), "f4"),
        depth=take("depth", (height, width), "f4") if made_for.wants_depth else None,
        last=take("last", (height, width), "u4") if training else None,
        entry_counts=take("entry counts", (made_for.tiles,), "u4") if training else None,
    )
    arguments = {
        "splats": projected.splats,
        "depths": address(projected.depth_bits),  # camera z, whose bits these are
        "closeness": projected.closeness,
        "tile_start": listed.tile_starts,
        "list": listed.slots,
        "entry_counts": blended.entry_counts,
        "image": blended.image,
        "transmittance": blended.transmittance,
        "depth": blended.depth,
        "last": blended.last,
    }
    role, threads = "blend", BLEND_THREADS[builder.policy.blend.map]
    if scheduled is None:
        builder.add("blend", role, made_for.tiles, threads, **arguments)
        return blended
    if made_for.blends_wide:
        role, threads = "wide blend", BLEND_THREADS["columns_8x8"]
    add_units(builder, "blend", role, threads, scheduled, arguments)
    return blended
