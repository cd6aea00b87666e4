"""Plans the projection stage: raw parameters to splats on the screen, in slots. Kernel: cuda/source/project.cuh."""

from __future__ import annotations

from dataclasses import dataclass

from splatscope.kernels.cuda.launch.buffers import DeviceArray
from splatscope.kernels.cuda.plan.builder import PlanBuilder
from splatscope.kernels.cuda.plan.passes import KEY_BINS, constant
from splatscope.kernels.cuda.plan.sort import ALL_BIN_ROWS, SCAN_GROUP, look_back_rows

PROJECT_THREADS, MOST_ROUNDS = (constant("project.cuh", name) for name in ("PROJECT_THREADS", "MOST_ROUNDS"))
LEAST_BLOCKS = 20  # on a multiprocessor, before a thread takes more than one splat


@dataclass(frozen=True, eq=False)
class Projected:
    """Holds what projection leaves for each of S visible slots; V is the room for slots, N the number of splats."""

    splats: DeviceArray  # [V, 12] float32: what blending reads
    extents: DeviceArray  # [V, 8] float32: what tile tests read
    depth_bits: DeviceArray  # [V] uint32: the bits of camera z
    closeness: DeviceArray | None  # [V] float32, 3dgut: see cuda/source/primitive.cuh
    footprints: DeviceArray  # [V, 2] uint32: tiles that the splat may touch
    warp_slots: DeviceArray  # [ceil(N / 32), 2] uint32: visible lanes, first slot of the 32
    slot_lanes: DeviceArray  # [ceil(N / 32)] uint32
    sort_bins: DeviceArray  # [ALL_BIN_ROWS, KEY_BINS] uint32: counts of digits, cleared for the sorts


def project(builder: PlanBuilder) -> Projected:
    """Adds the projection of all splats."""
    scene, count, room, take = builder.scene, builder.scene.count, builder.capacity.visible, builder.take
    projected = Projected(
        splats=take("splats", (room, 12), "f4"),
        extents=take("extents", (room, 8), "f4"),
        depth_bits=take("depth_bits", (room,), "u4"),
        closeness=take("closeness", (room,), "f4") if builder.made_for.primitive == "3dgut" else None,
        footprints=take("footprints", (room, 2), "u4"),
        warp_slots=take("warp_slots", (-(-count // 32), 2), "u4"),
        slot_lanes=take("slot_lanes", (-(-count // 32),), "u4"),
        sort_bins=take("sort bins", (ALL_BIN_ROWS, KEY_BINS), "u4"),
    )
    rounds = _rounds(count, builder.memory.multiprocessors)
    parts = -(-count // (PROJECT_THREADS * rounds))
    builder.add(
        "project",
        "project",
        parts,
        PROJECT_THREADS,
        means=scene.means,
        log_scales=scene.log_scales,
        quats=scene.quats,
        logit_opacities=scene.logit_opacities,
        sh=scene.sh[builder.policy.project.sh_dtype],
        splats=projected.splats,
        extents=projected.extents,
        footprints=projected.footprints,
        depth_bits=projected.depth_bits,
        closeness=projected.closeness,
        warp_slots=projected.warp_slots,
        slot_lanes=projected.slot_lanes,
        sort_bins=projected.sort_bins,
        sort_bin_count=ALL_BIN_ROWS * KEY_BINS,
        look_back=take("project look-back", (look_back_rows(parts, SCAN_GROUP),), "u8", zeroed=True),
        lazy=scene.lazy,
        rounds=rounds,
        ticket=builder.ticket(),
    )
    return projected


def _rounds(count: int, multiprocessors: int) -> int:
    """Returns how many splats a thread takes: at most MOST_ROUNDS, and leaving multiprocessors LEAST_BLOCKS each."""
    return min(max(count // (LEAST_BLOCKS * PROJECT_THREADS * multiprocessors), 1), MOST_ROUNDS)
