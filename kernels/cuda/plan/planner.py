"""Plans one pass over a scene as a list of kernel launches. Read `plan_pass` from top to bottom: the whole pipeline.

project -> depth sort -> emit -> tile sort -> ranges -> blend, and for training blend_backward -> project_backward. A
plan is made once for each (scene, image size, policy, capacity): addresses and capacities are fixed in its launches.
What changes from frame to frame is in the `Frame` record, which `begin` writes. So a plan runs launch by launch, or is
captured in a graph, or runs on the CPU in tests. Each stage is a file of this folder. Which kernels: `passes.py`;
memory: `cuda/launch/buffers.py`; callers: `cuda/renderer.py` and `cuda/training_step.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from splatscope.kernels.cuda.launch.buffers import Buffers, Capacity, DeviceArray, Memory
from splatscope.kernels.cuda.launch.compiler import Kernel
from splatscope.kernels.cuda.plan.backward import differentiate
from splatscope.kernels.cuda.plan.bin import find_ranges, list_by_tile
from splatscope.kernels.cuda.plan.blend import blend
from splatscope.kernels.cuda.plan.builder import PlanBuilder
from splatscope.kernels.cuda.plan.operations import Operation
from splatscope.kernels.cuda.plan.order import sort_by_depth
from splatscope.kernels.cuda.plan.passes import (
    BLEND_BACKWARD_THREADS,
    Pass,
    Scene,
    constant,
    frame_dtype,
    frame_record,
)
from splatscope.kernels.cuda.plan.project import project
from splatscope.kernels.cuda.plan.schedule import schedule_dtype, schedule_tiles
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, RenderSettings

EPOCHS = constant("scan.cuh", "EPOCHS")  # frames until look-back words must be cleared
LOOK_BACKS = ("project look-back", "offsets look-back", "sort look-back", "order look-back")

Provider = Callable[[str, Sequence[str]], Mapping[str, Kernel]]  # (file, instantiations) -> kernels


@dataclass(frozen=True, eq=False)
class Outputs:
    """Holds the results of a pass: device arrays that the next pass overwrites."""

    image: DeviceArray  # [H, W, 3]
    transmittance: DeviceArray  # [H, W]
    depth: DeviceArray | None  # [H, W] if asked for
    tile_starts: DeviceArray  # [T + 1]
    warp_slots: DeviceArray  # [ceil(N / 32), 2] visible lanes, first slot of the 32
    image_gradient: DeviceArray | None  # [H, W, 3] for the caller to fill, training only
    gradients: dict[str, DeviceArray]  # parameter -> [N, …], training only; None where no array holds them


@dataclass(frozen=True, eq=False)
class Plan:
    """Holds a pass that is ready to run."""

    made_for: Pass
    capacity: Capacity
    forward: list[Operation]
    backward: list[Operation]
    outputs: Outputs


class Pipeline:
    """Makes plans in one set of buffers and keeps the frame record that plans share."""

    def __init__(self, memory: Memory, provide: Provider, before_growth: Callable[[], None] = lambda: None) -> None:
        self.memory = memory
        self.buffers = Buffers(memory, before_growth)
        self._provide = provide
        self._epoch = 0
        self.frame = self.buffers.take("frame", (frame_dtype().itemsize,), "u1")

    def begin(self, scene: Scene, camera: Camera, settings: RenderSettings, capacity: Capacity) -> None:
        """Writes the frame record. Call it before each forward pass."""
        self.memory.write(self.frame, frame_record(scene, camera, settings, capacity, self.next_epoch()))

    def next_epoch(self) -> int:
        """Returns the number that tells a frame from earlier ones, for callers that write the frame record themselves.

        Clears the look-back words when the numbers begin again.
        """
        self._epoch += 1
        if self._epoch == EPOCHS:
            self.buffers.clear(LOOK_BACKS)
            self._epoch = 1
        return self._epoch

    def read_frame(self) -> np.void:
        """Returns the frame record with the counters and flags that the kernels left. Waits for the kernels."""
        return self.memory.read(self.frame).view(frame_dtype())[0]

    def read_schedule(self) -> np.void | None:
        """Returns the newest tile schedule, or None before there is one. Waits for the kernels."""
        record = self.buffers.find("schedule")
        return None if record is None else self.memory.read(record).view(schedule_dtype())[0]

    def plan(self, scene: Scene, width: int, height: int, made_for: Pass, capacity: Capacity) -> Plan:
        """Plans every launch of a pass, compiling kernels and allocating buffers as needed.

        Raises InputError for toggles that exclude each other, and for more visible splats than blend.cmask can number.
        """
        made_for.policy.check("cuda")
        if made_for.training and made_for.policy.blend.cmask == "on":
            slots = 1 << (32 - BLEND_BACKWARD_THREADS[made_for.policy.blend.map] // 32)
            if capacity.visible > slots:
                raise InputError(
                    f"{capacity.visible:,} visible splats do not fit blend.cmask, which leaves room for {slots:,}; "
                    "set blend.cmask to off (and what needs it), or blend.map to columns_8x8."
                )
        kernels, size = self._kernels(made_for), (height, width)
        memory, buffers, frame = self.memory, self.buffers, self.frame
        return plan_pass(PlanBuilder(memory, buffers, frame, self.read_frame, scene, size, made_for, capacity, kernels))

    def _kernels(self, made_for: Pass) -> dict[str, Kernel]:
        """Returns role -> kernel, asking the provider once for each file."""
        wanted = made_for.kernels()
        found: dict[str, Kernel] = {}
        for file, roles in groupby(sorted(wanted, key=lambda role: wanted[role][0]), lambda role: wanted[role][0]):
            names = {role: wanted[role][1] for role in roles}
            kernels = self._provide(file, list(dict.fromkeys(names.values())))
            found |= {role: kernels[name] for role, name in names.items()}
        return found


def plan_pass(builder: PlanBuilder) -> Plan:
    """Plans a pass, forward and for training backward: each line is a stage, each value what a stage leaves."""
    made_for = builder.made_for
    projected = project(builder)
    ordered = sort_by_depth(builder, projected) if made_for.policy.sort.scheme == "two_stage" else None
    listed = list_by_tile(builder, projected, ordered)
    scheduled = None
    if made_for.is_scheduled:
        scheduled = schedule_tiles(builder, projected, listed)
    else:
        find_ranges(builder, listed)
    blended = blend(builder, projected, listed, scheduled)
    forward = builder.take_operations()

    image_gradient, gradients = None, {}
    if made_for.training:
        differentiated = differentiate(builder, projected, listed, scheduled, blended)
        image_gradient, gradients = differentiated.image_gradient, differentiated.gradients
    backward = builder.take_operations()

    outputs = Outputs(
        blended.image,
        blended.transmittance,
        blended.depth,
        listed.tile_starts,
        projected.warp_slots,
        image_gradient,
        gradients,
    )
    return Plan(made_for, builder.capacity, forward, backward, outputs)
