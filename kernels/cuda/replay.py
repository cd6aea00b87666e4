"""Keeps plans and replays them as graphs, for `Renderer` and `TrainingStep`.

`PlanCache` keeps the plans used last, and the room they have for splats. `Replay` launches a list of operations one by
one the first time. From the second time on it replays a captured graph, unless the caller wants direct launches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from splatscope.kernels.cuda.launch.buffers import Capacity
from splatscope.kernels.cuda.launch.launcher import Graph, Marks
from splatscope.kernels.cuda.plan.operations import Operation, run_operations

Planned = TypeVar("Planned")


@dataclass(frozen=True)
class Replayed:
    """Holds the times that a replay of a graph gives."""

    stage_ms: dict[str, float]  # times of the previous replay; empty if the GPU had not finished it
    marks: Marks  # events of this replay


@dataclass(eq=False)
class Replay:
    """Runs a list of operations, launch by launch or as a graph."""

    operations: Sequence[Operation]
    graphs: dict[bool, Graph] = field(default_factory=dict)  # key: stages are timed
    _has_run: bool = False

    def run(self, launcher: Any, direct: bool, timed: bool = False) -> Replayed | None:
        """Starts all operations. Launches them one by one, and returns None, with `direct` and the first time."""

        def work() -> None:
            run_operations(self.operations, launcher)

        if direct or not self._has_run:
            self._has_run = True
            work()
            return None
        if timed not in self.graphs:
            self.graphs[timed] = launcher.capture(work)
        graph = self.graphs[timed]
        return Replayed(graph.replay() or {}, graph.marks)


class PlanCache(Generic[Planned]):
    """Keeps the plans used last, and the room that all of them have for visible splats and pairs.

    Calls `wait` before it drops plans whose graphs may be running.
    """

    def __init__(self, kept: int, wait: Callable[[], None] = lambda: None) -> None:
        self.capacity = Capacity(0, 0)
        self.newest: Planned | None = None  # the plan asked for last
        self._kept, self._wait = kept, wait
        self._plans: OrderedDict[Hashable, Planned] = OrderedDict()

    def __len__(self) -> int:
        return len(self._plans)

    def values(self) -> Collection[Planned]:
        """Returns all plans, the most recently used one last."""
        return self._plans.values()

    def find(self, key: Hashable, make: Callable[[], Planned]) -> Planned:
        """Returns the plan for the key; calls `make` if there is none. `make` may drop the other plans."""
        if key not in self._plans:
            plan = make()
            self._plans[key] = plan
            if len(self._plans) > self._kept:
                self._wait()
                self._plans.popitem(last=False)
        self._plans.move_to_end(key)
        self.newest = self._plans[key]
        return self.newest

    def make_room(self, wanted: Capacity) -> None:
        """Raises the capacity to at least `wanted`. Drops all plans if the capacity changes."""
        room = Capacity(max(self.capacity.visible, wanted.visible), max(self.capacity.instances, wanted.instances))
        if room != self.capacity:
            self.forget()
            self.capacity = room

    def forget(self) -> None:
        """Drops all plans and graphs, and with them their references to scenes and buffers."""
        if self._plans:
            self._wait()
        self._plans.clear()
        self.newest = None
