"""Keeps the units of one frame with the times that its kernels recorded, and computes figures from them.

A `Recording` is made from the `UnitRecord`s of a GPU (cuda/source/dispatch.cuh) or from the records of the CPU
backend's threads. It gives SM activity as the paper defines it, the idle tail, figures of each tile, and the errors of
the simulator (`simulator.py`). Uses plain NumPy; launches nothing. app/engine/schedule_view.py writes it to files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.schedule.rules import CostModel, Int64, Machine
from splatscope.kernels.schedule.simulator import Float64, SimulatedSchedule, simulate

MULTIPROCESSOR, THREAD = "SM", "thread"
RECORDED = ("multiprocessor", "block", "listed", "walked", "again")  # named as in `UnitRecord`
TileFigure = Literal["listed", "walked", "depth", "time", "chunks"]


@dataclass(frozen=True, eq=False)
class Recording:
    """Holds one frame: its units in the order in which they began. A unit is a whole tile, or a chunk of one."""

    machine: Machine  # the machine that drew the frame; a CPU thread counts as a multiprocessor with one block
    place: str  # word for a multiprocessor: SM or thread
    clock: str  # unit of `cycles`: cycles of an SM's clock, or ns
    tiles: tuple[int, int]  # (Ty, Tx)
    tile: Int64  # [U]
    chunk: Int64  # [U] number of the chunk within its tile, from the front
    parts: Int64  # [U] number of chunks of the unit's tile, 1 for a whole tile
    multiprocessor: Int64  # [U]
    block: Int64  # [U] block of the launch
    start: Float64  # [U] ns after the first start
    end: Float64  # [U] ns
    cycles: Float64  # [U] duration, in the unit that `clock` names
    listed: Int64  # [U] splats in the unit's list
    walked: Int64  # [U] splats visited until all pixels had ended, counted in whole batches
    again: Int64  # [U] splats visited a second time, for an exact stop

    def __len__(self) -> int:
        return len(self.tile)

    @cached_property
    def timeline(self) -> SimulatedSchedule:
        """Returns the recorded times as a `SimulatedSchedule`, which has SM activity and makespan."""
        return SimulatedSchedule(self.machine, self.start, self.end, self.multiprocessor, self.end - self.start)

    @cached_property
    def activity(self) -> float:
        """Returns the share of the time in which a multiprocessor has at least one block, mean over all of them."""
        return self.timeline.sm_activity

    @cached_property
    def last_ends(self) -> Float64:
        """Returns [multiprocessors]: when the last unit of each ends, ns; 0 for a multiprocessor without units."""
        ends = np.zeros(self.machine.multiprocessors)
        np.maximum.at(ends, self.multiprocessor, self.end)
        return ends

    @property
    def tail_begins(self) -> float:
        """Returns when the first multiprocessor has run out of work, ns."""
        return float(self.last_ends.min())

    @property
    def idle_tail(self) -> float:
        """Returns the share of all multiprocessors' time after their own last unit."""
        makespan = self.timeline.makespan
        return float((makespan - self.last_ends).mean() / makespan) if makespan else 0.0

    @cached_property
    def hand_over(self) -> float:
        """Returns the mean time, ns, for which a block's place stays empty between two units while others wait.

        The first units of a multiprocessor fill its places. Each later unit is taken to fill the place that has been
        empty longest.
        """
        places, gaps = self.machine.blocks_each, [np.zeros(0)]
        for own in np.split(np.argsort(self.multiprocessor, kind="stable"), self._borders):
            starts, ends = np.sort(self.start[own]), np.sort(self.end[own])
            gaps.append(starts[places:] - ends[: max(0, len(own) - places)])
        found = np.concatenate(gaps).clip(min=0.0)
        return float(found.mean()) if found.size else 0.0

    @property
    def _borders(self) -> Int64:
        """Returns the positions at which units, sorted by multiprocessor, change to another multiprocessor."""
        return np.flatnonzero(np.diff(np.sort(self.multiprocessor))) + 1

    def per_tile(self, figure: TileFigure) -> NDArray[np.int32]:
        """Returns a figure of each tile, [Ty, Tx]; chunks of a tile are added up.

        `depth` is the share of the list that was visited, in percent.
        """
        if figure not in self._per_tile:
            self._per_tile[figure] = self._figure(figure)
        return self._per_tile[figure]

    @cached_property
    def _per_tile(self) -> dict[TileFigure, NDArray[np.int32]]:
        return {}

    def _figure(self, figure: TileFigure) -> NDArray[np.int32]:
        if figure == "chunks":
            return self._summed(np.ones(len(self)))
        if figure == "depth":
            listed, walked = (self._summed(values).astype(np.float64) for values in (self.listed, self.walked))
            return np.rint(100.0 * walked / np.maximum(listed, 1.0)).astype(np.int32)
        return self._summed({"listed": self.listed, "walked": self.walked, "time": self.cycles}[figure])

    def _summed(self, values: Any) -> NDArray[np.int32]:
        sums = np.bincount(self.tile, values, self.tiles[0] * self.tiles[1])
        return np.minimum(sums, 2**31 - 1).astype(np.int32).reshape(self.tiles)


# ---- Recordings from records -----------------------------------------------------------------------------------------


def recording_of_gpu(
    records: NDArray[Any], chunks: NDArray[Any], epoch: int, tiles: tuple[int, int], machine: Machine
) -> Recording:
    """Decodes `UnitRecord`s [T + C], first of tiles, then of chunks; `chunks` are `Chunk`s [C].

    Units that did not run in this frame have records with another epoch.
    """
    tile_count = tiles[0] * tiles[1]
    places = np.flatnonzero(records["epoch"] == epoch)
    records = records[places]
    is_chunk = places >= tile_count
    numbers = np.where(is_chunk, places - tile_count, 0)
    of = chunks[numbers] if len(chunks) else np.zeros(len(places), chunks.dtype)
    columns = {
        name: records[name].astype(np.int64) for name in ("multiprocessor", "block", "listed", "walked", "again")
    }
    clocks = np.stack([records["clock_start"], records["clock_end"]]).astype(np.int64)
    stamps = np.stack([records["ns_start"], records["ns_end"]]).astype(np.int64)
    sms = columns["multiprocessor"]
    if sms.size and sms.max() >= machine.multiprocessors:  # ids have gaps if some multiprocessors are switched off
        machine = replace(machine, multiprocessors=int(sms.max()) + 1)
    start, end = common_time(clocks, stamps, sms)
    order = np.argsort(start, kind="stable")
    whole = np.zeros(len(places), np.int64)
    found = {
        "tile": np.where(is_chunk, of["tile"], places).astype(np.int64),
        "chunk": np.where(is_chunk, of["number"], whole).astype(np.int64),
        "parts": np.where(is_chunk, of["parts"], whole + 1).astype(np.int64),
        "start": start,
        "end": end,
        "cycles": (clocks[1] - clocks[0]).astype(np.float64),
        **columns,
    }
    found = {name: values[order] for name, values in found.items()}
    return Recording(machine, MULTIPROCESSOR, "cycles", tiles, **found)


def common_time(clocks: Int64, stamps: Int64, place: Int64) -> tuple[Float64, Float64]:
    """Returns (starts, ends) [U] in ns after the first start, from one clock for each multiprocessor.

    `clocks` [2, U] count cycles from an unknown start for each `place`. `stamps` [2, U] come from a timer that all
    places share, but that advances in coarse steps. The fit finds one rate for all clocks and an offset for each place,
    so that durations keep the clocks' precision.
    """
    if clocks.shape[1] == 0:
        return np.zeros(0), np.zeros(0)
    places, index = np.unique(place, return_inverse=True)
    stamps = stamps - stamps.min()
    first = np.full(len(places), np.iinfo(np.int64).max)
    np.minimum.at(first, index, clocks.min(axis=0))
    cycles = (clocks - first[index]).astype(np.float64)  # made small before they become floats
    own = cycles * _rate(cycles, stamps.astype(np.float64), index, len(places))
    # A stamp is the true time rounded down by up to one step: it bounds the offset of its place from both sides.
    steps = np.diff(np.unique(stamps))
    step = float(steps.min()) if steps.size else 0.0
    low, high = np.full(len(places), -np.inf), np.full(len(places), np.inf)
    for row in range(2):
        np.maximum.at(low, index, stamps[row] - own[row])
        np.minimum.at(high, index, stamps[row] - own[row] + step)
    offset = 0.5 * (low + high)
    start, end = own[0] + offset[index], own[1] + offset[index]
    return start - start.min(), end - start.min()


def _rate(cycles: Float64, stamps: Float64, index: Int64, places: int) -> float:
    """Returns ns per cycle: the slope of one line fitted through the points of all places, each place centred first."""
    counts = 2.0 * np.bincount(index, minlength=places)
    x, y = (
        values - (np.bincount(index, values.sum(axis=0), places) / counts)[index][None] for values in (cycles, stamps)
    )
    square = float((x * x).sum())
    slope = float((x * y).sum()) / square if square else 0.0
    return slope if slope > 0 else 1.0


def recording_of_threads(units: Int64, listed: Int64, tiles: tuple[int, int], threads: int) -> Recording:
    """Makes the recording of the CPU backend. `units` [T, 4] are start and end in ns, thread, entries visited."""
    tile = np.argsort(units[:, 0], kind="stable")
    start, end, place, walked = units[tile].T
    start, end = ((values - start[0]).astype(np.float64) for values in (start, end))
    zero, machine = np.zeros_like(tile), Machine(max(threads, int(place.max(initial=0)) + 1), 1)
    took = end - start
    columns = (tile, zero, zero + 1, place, place, start, end, took, listed[tile], walked, zero)
    return Recording(machine, THREAD, "ns", tiles, *columns)


# ---- Comparison with the simulator -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """Holds one prediction of a recorded frame by the simulator, and its errors."""

    name: str
    makespan_error: float  # predicted over recorded, minus 1
    activity: float  # predicted
    activity_error: float  # predicted minus recorded


def checks(recording: Recording, costs: CostModel | None = None) -> tuple[Check, ...]:
    """Compares the simulator with the recording, with three measures of a unit's work.

    - `durations`: the unit's recorded time, so that only the handing out is checked.
    - `walked`: the splats it visited, plus the `costs` of beginning a tile or a chunk.
    - `listed`: the splats it lists, as the rules count them, plus the same costs.

    The simulator takes the units in the order in which they began. The time of a splat is fitted, so that blocks are
    busy for as long as they were. A place stays empty for `hand_over` after each unit, as recorded.
    """
    machine, real = recording.machine, recording.timeline
    if not len(recording) or not real.makespan:
        return ()
    beginning = np.where(recording.parts > 1, costs.chunk, costs.start) if costs else 0.0
    overhead = beginning * (recording.listed > 0)
    works = {
        "durations": recording.end - recording.start,
        "walked": recording.walked + recording.again + overhead,
        "listed": recording.listed + overhead,
    }
    found = []
    for name, work in works.items():
        own = replace(machine, saturated_by=None) if name == "durations" else machine
        model, scale = _fitted(np.asarray(work, np.float64), own, recording)
        makespan, activity = scale * model.makespan - recording.hand_over, model.sm_activity
        found.append(Check(name, makespan / real.makespan - 1, activity, activity - real.sm_activity))
    return tuple(found)


def _fitted(work: Float64, machine: Machine, recording: Recording) -> tuple[SimulatedSchedule, float]:
    """Simulates units of `work`; returns the schedule, and the ns of one unit of work that match the recorded times.

    The time between two units counts as work of the first one. Converting it to work needs the scale, so both are
    found together, in three rounds.
    """
    taken = float((recording.end - recording.start + recording.hand_over).sum())
    model, scale = simulate(work, machine), 0.0
    for _ in range(3):
        busy = float((model.end - model.start).sum())
        scale = taken / busy if busy else 0.0
        if not scale or not recording.hand_over:
            break
        pace = float(work.sum()) / busy  # speed of a unit among others
        model = simulate(work + recording.hand_over / scale * pace, machine)
    return model, scale


def lanes(recording: Recording) -> Int64:
    """Returns [U]: a row for each unit among its multiprocessor's rows, so that no two units in a row overlap."""
    rows = np.zeros(len(recording), np.int64)
    free: dict[int, list[float]] = {}
    for unit, (place, start, end) in enumerate(
        zip(recording.multiprocessor.tolist(), recording.start.tolist(), recording.end.tolist(), strict=True)
    ):
        ends = free.setdefault(place, [])
        row = next((k for k, until in enumerate(ends) if until <= start), len(ends))
        ends[row : row + 1] = [end]
        rows[unit] = row
    return rows
