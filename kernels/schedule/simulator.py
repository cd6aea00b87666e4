"""Runs units of work on a model of a GPU: tells the makespan, when each multiprocessor is busy, and a lower bound.

The model is list scheduling: each unit in turn goes to the next free place. Time is counted in units of work: 1 is one
splat in one tile by a block at full speed. The model ignores caches, early stops and differences in the cost of splats.
`rules.py` makes the units.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.schedule.rules import Machine

Float64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SimulatedSchedule:
    """Holds the time and the multiprocessor of each unit."""

    machine: Machine
    start: Float64  # [U]
    end: Float64  # [U]
    multiprocessor: NDArray[np.int64]  # [U]
    work: Float64  # [U]

    @property
    def makespan(self) -> float:
        """Returns when the last unit ends."""
        return float(self.end.max(initial=0.0))

    @property
    def lower_bound(self) -> float:
        """Returns a time that no order can beat: the longest unit, or all units at the machine's full speed."""
        return max(float(self.work.max(initial=0.0)), float(self.work.sum()) / self.machine.speed)

    @property
    def idle_area(self) -> float:
        """Returns the unused share of the machine's capacity until the makespan."""
        return 1 - float(self.work.sum()) / (self.machine.speed * self.makespan) if self.makespan else 0.0

    @property
    def sm_activity(self) -> float:
        """Returns the share of time in which a multiprocessor has a block; mean over all (the paper's definition)."""
        spans = self._busy_spans()
        busy = float((spans[1] - spans[0]).sum())
        return busy / (self.machine.multiprocessors * self.makespan) if self.makespan else 0.0

    def activity(self, bins: int = 100) -> Float64:
        """Returns [bins]: the share of multiprocessors that have a block, in equal parts of the makespan."""
        edges = np.linspace(0.0, self.makespan or 1.0, bins + 1)
        starts, ends = self._busy_spans()
        # Busy time before each edge: the spans that began before it, minus their parts after it.
        busy = np.zeros(bins + 1)
        for edges_of, sign in ((np.sort(starts), 1.0), (np.sort(ends), -1.0)):
            before = np.searchsorted(edges_of, edges)
            sums = np.concatenate([[0.0], edges_of.cumsum()])
            busy += sign * (before * edges - sums[before])
        return np.diff(busy) / np.diff(edges) / self.machine.multiprocessors

    def _busy_spans(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Returns (starts, ends) of the spans in which a multiprocessor has a block."""
        order = np.lexsort((self.start, self.multiprocessor))
        # Shifts each multiprocessor's times by more than the makespan, so that spans of two never meet on one axis.
        shift = self.multiprocessor[order] * (self.makespan + 1.0)
        starts, ends = self.start[order] + shift, np.maximum.accumulate(self.end[order] + shift)
        opens = np.ones(len(order), bool)
        opens[1:] = starts[1:] > ends[:-1]
        closes = np.append(opens[1:], True) if len(order) else opens
        return starts[opens] - shift[opens], ends[closes] - shift[closes]


def simulate(work: Any, machine: Machine) -> SimulatedSchedule:
    """Returns when each unit of `work` [U] runs if `machine` takes them in their order."""
    work = np.asarray(work, np.float64)
    shares = machine.saturated_by is not None and machine.saturated_by < machine.blocks_each
    start, multiprocessor = np.zeros(len(work)), np.zeros(len(work), np.int64)
    end = np.zeros(len(work))
    (_hand_out_shared if shares else _hand_out)(work, machine, start, end, multiprocessor)
    return SimulatedSchedule(machine, start, end, multiprocessor, work)


def _hand_out(work: Float64, machine: Machine, start: Float64, end: Float64, place: NDArray[np.int64]) -> None:
    """Hands out units to K workers of equal speed."""
    # Of workers that are free at the same time the first is next. Neighbouring workers sit on different
    # multiprocessors, as blocks do on the hardware.
    free = [(0.0, worker) for worker in range(min(machine.workers, len(work)))]
    for unit, amount in enumerate(work.tolist()):
        now, worker = free[0]
        start[unit], end[unit], place[unit] = now, now + amount, worker % machine.multiprocessors
        heapreplace(free, (now + amount, worker))


def _hand_out_shared(work: Float64, machine: Machine, start: Float64, end: Float64, place: NDArray[np.int64]) -> None:
    """Hands out units to multiprocessors on which blocks share the speed once more than `saturated_by` are resident."""
    saturated, count = machine.saturated_by or 1.0, machine.multiprocessors
    served = [0.0] * count  # work done since time 0 by a block that is always resident on this multiprocessor
    since = [0.0] * count  # the time for which `served` holds
    resident: list[list[tuple[float, int]]] = [[] for _ in range(count)]  # (`served` at the unit's end, unit)
    events: list[tuple[float, int]] = []  # (next end, multiprocessor)
    amounts = work.tolist()

    def add(unit: int, sm: int, now: float) -> None:
        heappush(resident[sm], (served[sm] + amounts[unit], unit))
        start[unit], place[unit] = now, sm

    def next_end(sm: int) -> tuple[float, int]:
        pace = min(1.0, saturated / len(resident[sm]))
        return since[sm] + (resident[sm][0][0] - served[sm]) / pace, sm

    following = min(machine.workers, len(amounts))
    for unit in range(following):
        add(unit, unit % count, 0.0)
    events = [next_end(sm) for sm in range(count) if resident[sm]]
    heapify(events)
    while events:
        now, sm = events[0]
        served[sm], unit = heappop(resident[sm])
        since[sm], end[unit] = now, now
        if following < len(amounts):
            add(following, sm, now)
            following += 1
        if resident[sm]:
            heapreplace(events, next_end(sm))
        else:
            heappop(events)
