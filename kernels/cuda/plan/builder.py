"""Collects the operations of one plan and hands out the buffers they use.

Each stage (`project.py`, `sort.py`, …) is a function that takes the builder and the values of earlier stages, adds its
operations, and returns the arrays it leaves. The builder holds nothing that one stage tells another, except two counts
which the kernels need to be unique within a frame: tickets, and uses of a look-back buffer. Read `project.py` next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from splatscope.kernels.cuda.launch.buffers import Buffers, Capacity, DeviceArray, Memory, address
from splatscope.kernels.cuda.launch.compiler import Kernel
from splatscope.kernels.cuda.plan.operations import Call, Launch, Operation, Together
from splatscope.kernels.cuda.plan.passes import Pass, Scene, frame_dtype


class PlanBuilder:
    """Collects the operations of one plan.

    `size` is (height, width) in pixels; `frame` the bytes of the `Frame` record; `read_frame` waits for the kernels
    and returns that record.
    """

    def __init__(
        self,
        memory: Memory,
        buffers: Buffers,
        frame: DeviceArray,
        read_frame: Callable[[], np.void],
        scene: Scene,
        size: tuple[int, int],
        made_for: Pass,
        capacity: Capacity,
        kernels: Mapping[str, Kernel],
    ) -> None:
        self.memory, self._buffers, self.frame, self.read_frame = memory, buffers, frame, read_frame
        self.scene, self.size, self.made_for, self.policy = scene, size, made_for, made_for.policy
        self.capacity, self.kernels = capacity, kernels
        self._operations: list[Operation] = []
        self._tickets = 0
        self._uses: dict[str, int] = {}  # by look-back buffer

    def take(self, name: str, shape: tuple[int, ...], dtype: str, zeroed: bool = False) -> DeviceArray:
        """Returns the buffer of that name, as `Buffers.take` does."""
        return self._buffers.take(name, shape, dtype, zeroed)

    def add(self, stage: str, role: str, blocks: int, threads: int, **arguments: Any) -> None:
        """Adds a launch of the kernel of that role; its `frame` is added to the arguments."""
        kernel = self.kernels[role]
        packed = kernel.arguments.pack(frame=self.frame, **arguments)
        self._operations.append(Launch(stage, kernel, (blocks,), (threads,), packed))

    def call(self, stage: str, work: Callable[[], None]) -> None:
        """Adds work that is no kernel of ours."""
        self._operations.append(Call(stage, work))

    def put_together(self) -> None:
        """Makes the last two launches one operation in which they may run at once."""
        first, second = self._operations[-2:]
        assert isinstance(first, Launch)
        assert isinstance(second, Launch)
        self._operations[-2:] = [Together(second.stage, first, second)]

    def take_operations(self) -> list[Operation]:
        """Returns the operations added since the last call."""
        operations, self._operations = self._operations, []
        return operations

    def ticket(self) -> int:
        """Returns the number of the next counter of `Frame::tickets`, one for each launch that needs one."""
        self._tickets += 1
        return self._tickets - 1

    def next_use(self, look_back: str) -> int:
        """Returns how many launches of the frame have used a look-back buffer before this one."""
        use = self._uses.get(look_back, 0)
        self._uses[look_back] = use + 1
        return use

    def counter(self, name: str) -> int:
        """Returns the device address of a member of the frame record."""
        fields: Any = frame_dtype().fields
        return address(self.frame, fields[name][1])
