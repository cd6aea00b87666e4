"""Plans the backward stages: dL/d(image) to dL/d(raw parameters). Kernels: cuda/source/blend_backward.cuh,
blend_backward_queue.cuh, project_backward.cuh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from splatscope.kernels.cuda.launch.buffers import DeviceArray, address
from splatscope.kernels.cuda.plan.bin import Listed
from splatscope.kernels.cuda.plan.blend import Blended
from splatscope.kernels.cuda.plan.builder import PlanBuilder
from splatscope.kernels.cuda.plan.passes import BLEND_BACKWARD_THREADS, SH_ROWS, constant
from splatscope.kernels.cuda.plan.project import Projected
from splatscope.kernels.cuda.plan.schedule import Scheduled, add_units

# Numbers of sums that a slot has.
SUM_ROWS = {
    "3dgs": constant("reduce.cuh", "SUM_ROW"),
    **dict.fromkeys(("2dgs", "3dgut"), constant("blend_sums_tilted.cuh", "TILTED_SUM_ROW")),
}
PROJECT_BACKWARD_THREADS = constant("project_backward.cuh", "PROJECT_BACKWARD_THREADS")
# Parameter -> numbers of a splat, harmonics apart.
GRADIENT_SHAPES = {"means": 3, "log_scales": 3, "quats": 4, "logit_opacities": 1, "means2d": 2}


@dataclass(frozen=True, eq=False)
class Differentiated:
    """Holds what goes into the backward pass and what comes out of it."""

    image_gradient: DeviceArray  # [H, W, 3] float32: dL/d(image), for the caller to fill
    gradients: dict[str, DeviceArray | None]  # parameter -> [N, …]; None where an optimiser takes them from registers


def differentiate(
    builder: PlanBuilder, projected: Projected, listed: Listed, scheduled: Scheduled | None, blended: Blended
) -> Differentiated:
    """Adds the backward pass: through blending to sums of each slot, through projection to gradients of each splat."""
    height, width = builder.size
    sums = _sums(builder)
    image_gradient = builder.take("image gradient", (height, width, 3), "f4")
    gradients = _gradient_arrays(builder)
    if builder.policy.project_backward.zero == "memset" and builder.made_for.gradients:
        _clear(builder, list(gradients.values()))
    _blend_backward(builder, projected, listed, scheduled, blended, image_gradient, sums)
    _project_backward(builder, projected, sums, gradients)
    return Differentiated(image_gradient, gradients)


def _sums(builder: PlanBuilder) -> dict[str, Any]:
    """Returns the arguments that say where blend_backward adds up what each slot gets: floats, or integers that make
    the sum the same in any order."""
    (height, width), room = builder.size, builder.capacity.visible
    is_exact = builder.policy.blend_backward.reduce == "deterministic"
    row = SUM_ROWS[builder.made_for.primitive]
    return {
        "sums": None if is_exact else builder.take("sums", (room, row), "f4", zeroed=True),
        "integer_sums": builder.take("integer sums", (room, row), "i8", zeroed=True) if is_exact else None,
        # Sums of at most 8 H W dL/dimage: no carry into the sign while |dL/dimage| is below 4.
        "integer_scale": 2.0 ** int(58 - np.log2(height * width)),
        "touched": builder.take("touched", (room,), "u1", zeroed=True),
    }


def _gradient_arrays(builder: PlanBuilder) -> dict[str, DeviceArray | None]:
    """Returns an array for each parameter; None for each where an optimiser takes gradients from registers."""
    if not builder.made_for.gradients:
        return dict.fromkeys((*GRADIENT_SHAPES, "sh"))
    count = builder.scene.count
    gradients = {name: builder.take(f"gradient {name}", (count, size), "f4") for name, size in GRADIENT_SHAPES.items()}
    dtype = "f4" if builder.policy.project.sh_dtype == "f32" else "u2"
    return gradients | {"sh": builder.take(f"gradient sh {dtype}", (count, SH_ROWS, 3), dtype)}


def _clear(builder: PlanBuilder, arrays: list[DeviceArray | None]) -> None:
    """Adds zeros in all of the arrays."""

    def work() -> None:
        for array in arrays:
            builder.memory.clear(array)

    builder.call("zero", work)


def _blend_backward(
    builder: PlanBuilder,
    projected: Projected,
    listed: Listed,
    scheduled: Scheduled | None,
    blended: Blended,
    image_gradient: DeviceArray,
    sums: Mapping[str, Any],
) -> None:
    """Adds the walk back through each tile's list, with or without a schedule."""
    arguments = {
        "splats": projected.splats,
        "depths": address(projected.depth_bits),
        "closeness": projected.closeness,
        "tile_start": listed.tile_starts,
        "list": listed.slots,
        "entry_counts": blended.entry_counts,
        "last": blended.last,
        "transmittance": blended.transmittance,
        "image_gradient": image_gradient,
        **sums,
    }
    role, threads = "blend_backward", BLEND_BACKWARD_THREADS[builder.policy.blend.map]
    if scheduled is None:
        builder.add(role, role, builder.made_for.tiles, threads, **arguments)
    else:
        add_units(builder, role, role, threads, scheduled, arguments, image=blended.image)


def _project_backward(
    builder: PlanBuilder,
    projected: Projected,
    sums: Mapping[str, Any],
    gradients: Mapping[str, DeviceArray | None],
) -> None:
    """Adds what turns each slot's sums into gradients of raw parameters."""
    scene, policy = builder.scene, builder.policy
    threads = builder.capacity.visible if policy.project_backward.by_slot == "on" else scene.count
    builder.add(
        "project_backward",
        "project_backward",
        -(-threads // PROJECT_BACKWARD_THREADS),
        PROJECT_BACKWARD_THREADS,
        means=scene.means,
        log_scales=scene.log_scales,
        quats=scene.quats,
        logit_opacities=scene.logit_opacities,
        sh=scene.sh[policy.project.sh_dtype],
        splats=projected.splats,
        closeness=projected.closeness,
        warp_slots=projected.warp_slots,
        slot_lanes=projected.slot_lanes,
        **sums,
        **{f"{name}_gradient": array for name, array in gradients.items()},
    )
