"""The CUDA stages in order: the arguments and the grid of each kernel. Nothing else launches.

project -> depth sort -> emit -> tile sort -> ranges -> blend, and for training blend_backward -> project_backward. A
pass is a list of steps made once per (scene, image size, policy, capacity): addresses and capacities are fixed in it,
and what changes from frame to frame stands in the `Frame` record, which `begin` writes. So it runs launch by launch,
or is captured in a graph, or runs on the CPU in tests. Which kernels: `passes.py`; memory: `cuda/launch/buffers.py`;
who calls this: `cuda/renderer.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Protocol

import numpy as np

from splatscope.kernels.cuda.launch.buffers import Buffers, Capacity, Memory, address
from splatscope.kernels.cuda.launch.compiler import Kernel
from splatscope.kernels.cuda.plan.passes import (
    DIGIT_BITS,
    KEY_BINS,
    KEY_DIGIT_BITS,
    SH_ROWS,
    Pass,
    Scene,
    frame_dtype,
    frame_record,
)
from splatscope.kernels.cuda.plan.schedule import Scheduled, add_plan, add_units, schedule_dtype
from splatscope.kernels.cuda.plan.sort import (
    ALL_BIN_ROWS,
    SCAN_GROUP,
    Sorting,
    add_order,
    add_sort_pass,
    bins_of,
    bits_of_passes,
    look_back_rows,
)
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, RenderSettings

SUM_ROW = 12  # floats of sums a slot
BINS = 1 << DIGIT_BITS
DEPTH_BITS = 27  # of a depth less the near plane, as bits, that all but depths of 65,536 times that plane have
PROJECT_THREADS = 128
OFFSETS_PART, CHUNK = 2048, 1024  # bin.cuh: splats a block of offsets sums, places a block of emit fills at a time
EMIT_BLOCKS = 4  # that fit a multiprocessor
EPOCHS = 1 << 19  # scan.cuh: frames until look-back words must be cleared
LOOK_BACKS = ("project look-back", "offsets look-back", "sort look-back", "order look-back")
# Of a block, by blend.map: forward and backward.
BLEND_THREADS = {"columns_8x4": 256, "columns_8x8": 128, "mixed": 256, "adaptive": 256}
BLEND_BACKWARD_THREADS = {"columns_8x4": 256, "columns_8x8": 128, "mixed": 128, "adaptive": 128}
GRADIENT_SHAPES = {
    "means": 3,
    "log_scales": 3,
    "quats": 4,
    "logit_opacities": 1,
    "means2d": 2,
}  # floats a splat; and sh

Provider = Callable[[str, Sequence[str]], Mapping[str, Kernel]]  # (file, instantiations) -> kernels


class Launches(Protocol):
    """What `launcher.Launcher` and the CPU harness have in common."""

    def launch(self, kernel: Kernel, grid: tuple[int, ...], block: tuple[int, ...], arguments: np.ndarray) -> None: ...
    def stage(self, name: str) -> AbstractContextManager[None]: ...
    def together(self, first: Callable[[], None], second: Callable[[], None]) -> None: ...


# ---- Steps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Launch:
    """One kernel with everything it is launched with."""

    stage: str
    kernel: Kernel
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: np.ndarray

    def run(self, launches: Launches) -> None:
        launches.launch(self.kernel, self.grid, self.block, self.arguments)


@dataclass(frozen=True, eq=False)
class Call:
    """Something between kernels that is none of ours: clearing memory, torch's sort."""

    stage: str
    work: Callable[[], None]

    def run(self, launches: Launches) -> None:
        self.work()


@dataclass(frozen=True, eq=False)
class Together:
    """Two launches that may run at once; blocks of the first are preferred."""

    stage: str
    first: Launch
    second: Launch

    def run(self, launches: Launches) -> None:
        launches.together(lambda: self.first.run(launches), lambda: self.second.run(launches))


Operation = Launch | Call | Together


def run_steps(steps: Sequence[Operation], launches: Launches) -> None:
    """Runs them in order, each stage under its name."""
    for stage, group in groupby(steps, lambda step: step.stage):
        with launches.stage(stage):
            for step in group:
                step.run(launches)


@dataclass(frozen=True, eq=False)
class Outputs:
    """Where a pass leaves its results, device arrays that the next pass overwrites."""

    image: Any  # [H, W, 3]
    transmittance: Any  # [H, W]
    depth: Any | None  # [H, W] if asked for
    tile_starts: Any  # [T + 1]
    warp_slots: Any  # [ceil(N / 32), 2] visible lanes, first slot of the 32
    image_gradient: Any | None  # [H, W, 3] for the caller to fill, training only
    gradients: dict[str, Any]  # training only


@dataclass(frozen=True, eq=False)
class Plan:
    """A pass, ready to run."""

    made_for: Pass
    capacity: Capacity
    forward: list[Operation]
    backward: list[Operation]
    outputs: Outputs


class Pipeline:
    """Makes plans in one set of buffers and keeps the frame record they share."""

    def __init__(self, memory: Memory, provide: Provider, before_growth: Callable[[], None] = lambda: None) -> None:
        self.memory = memory
        self.buffers = Buffers(memory, before_growth)
        self._provide = provide
        self._epoch = 0
        self.frame = self.buffers.take("frame", (frame_dtype().itemsize,), "u1")

    def begin(self, scene: Scene, camera: Camera, settings: RenderSettings, capacity: Capacity) -> None:
        """Writes the frame record; call it before each forward pass."""
        self.memory.write(self.frame, frame_record(scene, camera, settings, capacity, self.next_epoch()))

    def next_epoch(self) -> int:
        """The number that sets a frame apart from those before it, for those who write its record themselves."""
        self._epoch += 1
        if self._epoch == EPOCHS:
            self.buffers.clear(LOOK_BACKS)
            self._epoch = 1
        return self._epoch

    def read_frame(self) -> np.void:
        """The frame record as the kernels left it: counters and flags. Waits for them."""
        return self.memory.read(self.frame).view(frame_dtype())[0]

    def read_schedule(self) -> np.void | None:
        """What the newest plan decided, None before there is one. Waits for the kernels."""
        record = self.buffers.find("schedule")
        return None if record is None else self.memory.read(record).view(schedule_dtype())[0]

    def plan(self, scene: Scene, width: int, height: int, made_for: Pass, capacity: Capacity) -> Plan:
        """All steps of a pass. Compiles and allocates what is missing. Raises InputError for what cannot be."""
        made_for.policy.check("cuda")
        if made_for.training and made_for.policy.blend.cmask == "on":
            slots = 1 << (32 - BLEND_BACKWARD_THREADS[made_for.policy.blend.map] // 32)
            if capacity.visible > slots:
                raise InputError(
                    f"{capacity.visible:,} visible splats do not fit blend.cmask, which leaves room for {slots:,}; "
                    "set blend.cmask to off (and what needs it), or blend.map to columns_8x8."
                )
        wanted = made_for.kernels()
        found: dict[str, Kernel] = {}
        for file, roles in groupby(sorted(wanted, key=lambda role: wanted[role][0]), lambda role: wanted[role][0]):
            names = {role: wanted[role][1] for role in roles}
            kernels = self._provide(file, list(dict.fromkeys(names.values())))
            found |= {role: kernels[name] for role, name in names.items()}
        return _Planner(self, scene, width, height, made_for, capacity, found).plan()


class _Planner:
    """One plan in the making."""

    def __init__(
        self,
        pipeline: Pipeline,
        scene: Scene,
        width: int,
        height: int,
        made_for: Pass,
        capacity: Capacity,
        kernels: dict[str, Kernel],
    ) -> None:
        self.memory, self.take, self.frame = pipeline.memory, pipeline.buffers.take, pipeline.frame
        self.read_frame = pipeline.read_frame
        self.scene, self.size, self.made_for, self.policy = scene, (height, width), made_for, made_for.policy
        self.capacity, self.kernels = capacity, kernels
        self.steps: list[Operation] = []
        self.tickets, self.sorts = 0, dict[str, int]()
        self.scheduled: Scheduled | None = None

    def plan(self) -> Plan:
        splats = self._project()
        order = self._sort_depths() if self.policy.sort.scheme == "two_stage" else None
        self._bin(order)
        image, transmittance, depth = self._blend(splats)
        forward, self.steps = self.steps, []
        image_gradient, gradients = (None, {})
        if self.made_for.training:
            image_gradient, gradients = self._backward(splats, image, transmittance)
        outputs = Outputs(image, transmittance, depth, self.tile_starts, self.warp_slots, image_gradient, gradients)
        return Plan(self.made_for, self.capacity, forward, self.steps, outputs)

    def add(self, stage: str, role: str, blocks: int, threads: int, **arguments: Any) -> None:
        kernel = self.kernels[role]
        packed = kernel.arguments.pack(frame=self.frame, **arguments)
        self.steps.append(Launch(stage, kernel, (blocks,), (threads,), packed))

    def put_together(self) -> None:
        """Makes the last two launches one step in which they may run at once."""
        first, second = self.steps[-2:]
        assert isinstance(first, Launch)
        assert isinstance(second, Launch)
        self.steps[-2:] = [Together(second.stage, first, second)]

    def ticket(self) -> int:
        self.tickets += 1
        return self.tickets - 1

    def _each(self, count: int, threads: int, most: int) -> int:
        """How many of `count` things a thread takes, as long as so many threads a multiprocessor have work."""
        return min(max(count // (threads * self.memory.multiprocessors), 1), most)

    def _counter(self, name: str) -> int:
        """The address of a counter of the frame."""
        fields: Any = frame_dtype().fields
        return address(self.frame, fields[name][1])

    def _clear(self, arrays: list[Any]) -> None:
        def work() -> None:
            for array in arrays:
                self.memory.clear(array)

        self.steps.append(Call("zero", work))

    def _project(self) -> Any:
        scene, count, room = self.scene, self.scene.count, self.capacity.visible
        splats = self.take("splats", (room, 12), "f4")
        self.extents = self.take("extents", (room, 8), "f4")
        self.depth_bits = self.take("depth_bits", (room,), "u4")
        self.footprints = self.take("footprints", (room, 2), "u4")
        self.warp_slots = self.take("warp_slots", (-(-count // 32), 2), "u4")
        self.slot_lanes = self.take("slot_lanes", (-(-count // 32),), "u4")
        self.sort_bins = self.take("sort bins", (ALL_BIN_ROWS, KEY_BINS), "u4")
        rounds = self._each(count, 20 * PROJECT_THREADS, most=8)
        parts = -(-count // (PROJECT_THREADS * rounds))
        self.add(
            "project",
            "project",
            parts,
            PROJECT_THREADS,
            means=scene.means,
            log_scales=scene.log_scales,
            quats=scene.quats,
            logit_opacities=scene.logit_opacities,
            sh=scene.sh[self.policy.project.sh_dtype],
            splats=splats,
            extents=self.extents,
            footprints=self.footprints,
            depth_bits=self.depth_bits,
            warp_slots=self.warp_slots,
            slot_lanes=self.slot_lanes,
            sort_bins=self.sort_bins,
            sort_bin_count=ALL_BIN_ROWS * KEY_BINS,
            look_back=self.take("project look-back", (look_back_rows(parts, SCAN_GROUP),), "u8", zeroed=True),
            lazy=scene.lazy,
            rounds=rounds,
            ticket=self.ticket(),
        )
        return splats

    def _sorting(self, stage: str, counter: str, room: int, digit_bits: int, name: str, bins: int) -> Sorting:
        most = max(self.capacity.visible, self.capacity.instances)
        return Sorting(stage, self._counter(counter), room, digit_bits, name, bins, "sort look-back", most)

    def _sort_depths(self) -> Any:
        """Slots, nearest first; and their footprints."""
        room = self.capacity.visible
        self.sorted_footprints = self.take("sorted footprints", (room, 2), "u4")
        if self.policy.sort.sorter == "torch":
            order = self.take("depth order 0", (room,), "u4")
            self._sort_by_torch("depth_sort", self.depth_bits, None, "slots", 31, order)
            self._gather_footprints(order)
            return order
        digit_bits = bits_of_passes(DEPTH_BITS, KEY_DIGIT_BITS)[1]
        sorting = self._sorting("depth_sort", "slots", room, digit_bits, "depth", KEY_BINS)
        near, gathered = self._counter("near_z"), (self.footprints, self.sorted_footprints)
        return add_order(self, sorting, self.depth_bits, DEPTH_BITS, near, has_rare=True, gathered=gathered)

    def _gather_footprints(self, order: Any) -> None:
        def work() -> None:
            count = int(self.read_frame()["slots"])
            self.memory.gather(self.footprints, order[:count], self.sorted_footprints)

        self.steps.append(Call("depth_sort", work))

    def _sort_by_torch(self, stage: str, keys: Any, values: Any, counter: str, bits: int, out: Any) -> None:
        """The count comes to the host, and the host waits."""

        def work() -> None:
            count = int(self.read_frame()[counter])
            places = self.memory.sort(keys[:count], bits)
            self.memory.gather(values, places, out)

        self.steps.append(Call(stage, work))

    def _bin(self, order: Any) -> None:
        """The list of each tile: `self.slots` from `self.tile_starts` on."""
        room, made_for, dtype = self.capacity.instances, self.made_for, f"u{self.made_for.key_bytes}"
        keys = [self.take(f"{dtype} keys {i}", (room,), dtype) for i in range(2)]
        slots = [self.take(f"slots {i}", (room,), "u4") for i in range(2)]
        digit_bits = bits_of_passes(made_for.key_bits, DIGIT_BITS)[1]
        sorting = self._sorting("tile_sort", "instances", room, digit_bits, "tile", BINS)
        places = {
            "placed": self.take("placed", (self.capacity.visible, 4), "u4"),
            "chunk_splats": self.take("chunk splats", (-(-room // CHUNK),), "u4"),
        }
        parts = -(-self.capacity.visible // OFFSETS_PART)
        sums = {
            "footprints": self.footprints if order is None else self.sorted_footprints,
            "order": order,
            "look_back": self.take("offsets look-back", (look_back_rows(parts, SCAN_GROUP),), "u8", zeroed=True),
        }
        self.add("emit", "offsets", parts, 256, ticket=self.ticket(), **sums, **places)
        self.add(
            "emit",
            "emit",
            min(-(-room // CHUNK), EMIT_BLOCKS * self.memory.multiprocessors),
            256,
            **places,
            extents=self.extents,
            depth_bits=self.depth_bits,
            keys=keys[0],
            slots=slots[0],
            bins=bins_of(self, "tile"),
            passes=made_for.key_passes,
            digit_bits=digit_bits,
        )
        last = made_for.key_passes % 2
        if self.policy.sort.sorter == "torch":
            last = 1
            self._sort_tiles_by_torch(keys, slots)
        else:
            for number in range(made_for.key_passes):
                source, target = ((keys[i], slots[i]) for i in (number % 2, 1 - number % 2))
                add_sort_pass(self, sorting, "sort tiles", number, source, target)
        self.slots = slots[last]
        self.tile_starts = self.take("tile starts", (made_for.tiles + 1,), "u4")
        find = partial(self._find_ranges, keys[last])
        if made_for.is_scheduled:
            # By the kernel of 8 x 4 pixels if there are two, so that the same tiles are split whichever runs.
            self.scheduled = add_plan(self, BLEND_THREADS[self.policy.blend.map], find)
        else:
            find(256, blocks_each=8)

    def _find_ranges(self, keys: Any, threads: int, blocks_each: int, **arguments: Any) -> None:
        """Adds the launch that finds where each tile's list begins."""
        pairs = threads * 16 // self.made_for.key_bytes  # of a block
        blocks = min(self.capacity.instances // pairs + 1, blocks_each * self.memory.multiprocessors)
        self.add("ranges", "ranges", blocks, threads, keys=keys, tile_starts=self.tile_starts, **arguments)

    def _sort_tiles_by_torch(self, keys: list[Any], slots: list[Any]) -> None:
        def work() -> None:
            count = int(self.read_frame()["instances"])
            places = self.memory.sort(keys[0][:count], self.made_for.key_bits)
            self.memory.gather(keys[0], places, keys[1])
            self.memory.gather(slots[0], places, slots[1])

        self.steps.append(Call("tile_sort", work))

    def _blend(self, splats: Any) -> tuple[Any, Any, Any]:
        height, width = self.size
        image = self.take("image", (height, width, 3), "f4")
        transmittance = self.take("transmittance", (height, width), "f4")
        depth = self.take("depth", (height, width), "f4") if self.made_for.wants_depth else None
        training = self.made_for.training
        self.last = self.take("last", (height, width), "u4") if training else None
        self.entry_counts = self.take("entry counts", (self.made_for.tiles,), "u4") if training else None
        arguments = {
            "splats": splats,
            "depths": address(self.depth_bits),  # camera z, whose bits these are
            "tile_start": self.tile_starts,
            "list": self.slots,
            "entry_counts": self.entry_counts,
            "image": image,
            "transmittance": transmittance,
            "depth": depth,
            "last": self.last,
        }
        threads = BLEND_THREADS[self.policy.blend.map]
        if self.scheduled is not None:
            role = "blend"
            if self.made_for.blends_wide:
                role, threads = "wide blend", BLEND_THREADS["columns_8x8"]
            add_units(self, "blend", role, threads, self.scheduled, arguments)
        else:
            self.add("blend", "blend", self.made_for.tiles, threads, **arguments)
        return image, transmittance, depth

    def _backward(self, splats: Any, image: Any, transmittance: Any) -> tuple[Any, dict[str, Any]]:
        (height, width), policy, scene = self.size, self.policy, self.scene
        count, room = scene.count, self.capacity.visible
        is_exact = policy.blend_backward.reduce == "deterministic"
        # Sums of at most 8 H W dL/dimage: no carry into the sign while |dL/dimage| is below 4.
        scale = 2.0 ** int(58 - np.log2(height * width))
        sums = {
            "sums": None if is_exact else self.take("sums", (room, SUM_ROW), "f4", zeroed=True),
            "integer_sums": self.take("integer sums", (room, SUM_ROW), "i8", zeroed=True) if is_exact else None,
            "integer_scale": scale,
            "touched": self.take("touched", (room,), "u1", zeroed=True),
        }
        image_gradient = self.take("image gradient", (height, width, 3), "f4")
        gradients = self._gradient_arrays(count)
        if policy.project_backward.zero == "memset" and self.made_for.gradients:
            self._clear(list(gradients.values()))
        arguments = {
            "splats": splats,
            "tile_start": self.tile_starts,
            "list": self.slots,
            "entry_counts": self.entry_counts,
            "last": self.last,
            "transmittance": transmittance,
            "image_gradient": image_gradient,
            **sums,
        }
        role, blend_threads = "blend_backward", BLEND_BACKWARD_THREADS[policy.blend.map]
        if self.scheduled is not None:
            add_units(self, role, role, blend_threads, self.scheduled, arguments, image=image)
        else:
            self.add(role, role, self.made_for.tiles, blend_threads, **arguments)
        threads = room if policy.project_backward.by_slot == "on" else count
        self.add(
            "project_backward",
            "project_backward",
            -(-threads // 128),
            128,
            means=scene.means,
            log_scales=scene.log_scales,
            quats=scene.quats,
            logit_opacities=scene.logit_opacities,
            sh=scene.sh[policy.project.sh_dtype],
            splats=splats,
            warp_slots=self.warp_slots,
            slot_lanes=self.slot_lanes,
            **sums,
            **{f"{name}_gradient": array for name, array in gradients.items()},
        )
        return image_gradient, gradients

    def _gradient_arrays(self, count: int) -> dict[str, Any]:
        if not self.made_for.gradients:  # an optimiser takes them
            return dict.fromkeys((*GRADIENT_SHAPES, "sh"))
        gradients = {name: self.take(f"gradient {name}", (count, size), "f4") for name, size in GRADIENT_SHAPES.items()}
        dtype = "f4" if self.policy.project.sh_dtype == "f32" else "u2"
        return gradients | {"sh": self.take(f"gradient sh {dtype}", (count, SH_ROWS, 3), dtype)}
