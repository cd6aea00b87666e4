"""Computes what the schedule panel shows of a frame: how uneven its tiles are, and the speed of each schedule.

Pure functions of tile counts and a machine. `Analyst` runs them on a thread next to the window, one frame at a time and
with long rests, because they take Python's lock, which the engine needs too. The model is in kernels/schedule/rules.py
and kernels/schedule/simulator.py; `schedule_plots.py` draws.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from splatscope.kernels.policy import SchedulePolicy
from splatscope.kernels.schedule.calibration import Calibration
from splatscope.kernels.schedule.rules import MACHINES, CostModel, Imbalance, Int64, Machine, Units, imbalance, variant
from splatscope.kernels.schedule.simulator import SimulatedSchedule, simulate
from splatscope.kernels.schedule.timeline import checks
from splatscope.kernels.types import Int32
from splatscope.kernels.wording import counted
from splatscope.viewer.messages.view import BlendMachine, RecordedFrame

VARIANTS = {
    "grid": "grid order",
    "lpt_binned": "longest first",
    "fixed": "16 heaviest in 16",
    "catgs": "CaT-GS",
    "seed": "model, k chunks",
    "length": "model, one length",
}
EXPLAINED = {
    "grid": "Launches whole tiles row after row, like the 2023 rasteriser.",
    "lpt_binned": "Launches whole tiles, those with most splats first.",
    "fixed": "Splits each of the 16 heaviest tiles into 16 chunks of depth; launches the longest first.",
    "catgs": "Splits tiles with more than twice the mean of splats into chunks of the mean, and launches them "
    "last (Zhang et al. 2026).",
    "seed": "Lets a cost model choose how many of the heaviest tiles to split, and the number of chunks k of each "
    "(Ryu and Yoo 2026).",
    "length": "Lets the cost model choose one length for all chunks (the default). If no tile stands out, "
    "all tiles stay whole and in the order of the grid.",
}  # tooltips: one or two sentences for each of VARIANTS
HERE, THREADS, CUSTOM = "this device", "this machine's CPU", "custom"
WHAT_IF = (HERE, *MACHINES, THREADS, CUSTOM)
_COSTS = Calibration()
# Assumed for a GPU that is not here: the blend kernel's registers leave room for six blocks of 256 threads.
ASSUMED = BlendMachine(
    "a GPU",
    Machine(MACHINES["H200"].multiprocessors, 6, _COSTS.saturating_warps / 8),
    CostModel(_COSTS.chunk, _COSTS.tail, second_pass=_COSTS.second_walk, start=_COSTS.start),
)
REST = 19.0  # times the duration of the last analysis, so that analyses take a twentieth of the time
LEAST_REST = 0.3  # s


@dataclass(frozen=True)
class VariantFigures:
    """Holds the model's figures of one way to schedule a frame."""

    name: str
    makespan: float  # length of the frame, in splats of a block at full speed
    activity: float  # share of the time in which a multiprocessor has work, mean over all
    chunks: int
    split_tiles: int


@dataclass(frozen=True, eq=False)
class FrameFigures:
    """Holds all figures of one frame on one machine."""

    counts: Int32  # [Ty, Tx]
    on: BlendMachine
    even: Imbalance
    variants: tuple[VariantFigures, ...]
    shown: str  # name of the variant that `units`, `timeline` and `parts` describe
    units: Units
    timeline: SimulatedSchedule
    parts: Int64  # [T] chunks of each tile

    def of(self, name: str) -> VariantFigures:
        """Returns a variant by its name."""
        return next(v for v in self.variants if v.name == name)


def analyse(counts: Int32, on: BlendMachine, shown: str) -> FrameFigures:
    """Simulates every variant; `shown` keeps its timeline."""
    found: list[VariantFigures] = []
    kept: tuple[Units, SimulatedSchedule, Int64] | None = None
    for name in VARIANTS:
        costs = replace(on.costs, second_pass=0.0) if name == "catgs" else on.costs  # as published, with inexact stops
        units = variant(name, counts, on.machine, costs)
        timeline = simulate(units.work, on.machine)
        parts = np.bincount(units.tile, minlength=counts.size)
        is_split = parts > 1
        found.append(
            VariantFigures(
                name, timeline.makespan, timeline.sm_activity, int(parts[is_split].sum()), int(is_split.sum())
            )
        )
        if name == shown:
            kept = units, timeline, parts
    assert kept is not None
    return FrameFigures(counts, on, imbalance(counts, on.machine), tuple(found), shown, *kept)


def what_if(here: BlendMachine, choice: str, multiprocessors: int, blocks_each: int) -> BlendMachine:
    """Returns the machine named `choice`: like this GPU, or an assumed one, but with other multiprocessors."""
    if choice == HERE:
        return here
    if choice == THREADS:
        count = os.cpu_count() or 1
        return BlendMachine(counted(count, "thread"), Machine(count, 1), here.costs)
    like = here if here.machine.blocks_each > 1 else ASSUMED
    if choice == CUSTOM:
        machine = replace(like.machine, multiprocessors=multiprocessors, blocks_each=blocks_each)
        return BlendMachine(f"{multiprocessors} x {blocks_each}", machine, like.costs)
    machine = replace(like.machine, multiprocessors=MACHINES[choice].multiprocessors)
    return BlendMachine(f"{choice}, {machine.multiprocessors} SMs", machine, like.costs)


def ratio_of(counts: Int32, machine: Machine) -> float:
    """Returns the splats of the heaviest tile over a block's even share; cheap enough for every picture."""
    total = int(counts.sum(dtype=np.int64))
    return int(counts.max(initial=0)) * machine.workers / total if total else 0.0


def ratio_text(ratio: float) -> str:
    """Returns a ratio with two decimals, or two significant digits for a ratio below 0.1."""
    return f"{ratio:.2f}" if ratio >= 0.1 or ratio == 0 else f"{ratio:.2g}"


def machine_name(on: BlendMachine) -> str:
    """Returns "132 SMs x 8 blocks" or "2 threads"."""
    machine = on.machine
    if machine.blocks_each == 1:
        return counted(machine.multiprocessors, "thread")
    return f"{machine.multiprocessors} SMs x {machine.blocks_each} blocks"


def where(on: BlendMachine, choice: str) -> str:
    """Returns the heading of figures for a machine: "On H200, 132 SMs x 6 blocks, simulated"."""
    name = HERE if choice == HERE else choice
    return f"On {name}, {machine_name(on)}, simulated"


def variant_of(schedule: SchedulePolicy) -> str:
    """Returns the variant nearest to a policy."""
    if schedule.chunk == "modelled":
        return schedule.cost_model
    if schedule.chunk != "off":
        return "catgs" if schedule.chunk == "catgs" else "fixed"
    return "grid" if schedule.sched == "grid" else "lpt_binned"


def prediction_text(figures: FrameFigures) -> str:
    """Returns the caption of the simulated schedule's plot."""
    shown, timeline = figures.of(figures.shown), figures.timeline
    split = f", {counted(shown.split_tiles, 'tile')} in {counted(shown.chunks, 'chunk')}" if shown.chunks else ""
    if shown.name == "length" and (np.diff(figures.units.tile) == 1).all():
        split = ", all tiles in grid order"
    bound = timeline.lower_bound / timeline.makespan if timeline.makespan else 1.0
    return (
        f"{VARIANTS[figures.shown].capitalize()} on {machine_name(figures.on)}: activity {shown.activity:.1%}{split}; "
        f"no order of these units takes less than {bound:.0%} of its time."
    )


def recording_text(recorded: RecordedFrame) -> str:
    """Returns the caption of the recorded schedule's plot."""
    recording = recorded.recording
    chunks = int((recording.parts > 1).sum())
    ratio = imbalance(recorded.counts, recorded.on.machine).ratio
    return (
        f"{recorded.on.name}: activity {recording.activity:.1%}, idle tail {recording.idle_tail:.1%} from "
        f"{recording.tail_begins / 1e6:.3f} ms on, imbalance {ratio_text(ratio)}, {counted(len(recording), 'unit')}"
        + (f", {chunks:,} of them chunks." if chunks else ".")
    )


def simulator_error(recorded: RecordedFrame) -> float | None:
    """Returns the simulated makespan over the recorded one, minus 1; the simulator gets the splats listed."""
    return next((c.makespan_error for c in checks(recorded.recording, recorded.on.costs) if c.name == "listed"), None)


def overhead_text(recorded: RecordedFrame) -> str:
    """Returns a phrase for the time that recording adds to blending; other programs can make it unmeasurable."""
    if recorded.overhead <= 0:
        return "no measurable recording overhead"
    return f"recording overhead {recorded.overhead:.1%} of blending"


def checks_text(recorded: RecordedFrame) -> str:
    """Returns sentences about the simulator's error for the recorded frame, and about the time of recording."""
    found = {check.name: check for check in checks(recorded.recording, recorded.on.costs)}
    if not found:
        return ""
    real, listed = found["durations"], found["listed"]
    return (
        f"Simulator against this recording, on {recorded.on.name}: off by {real.makespan_error:+.1%} with each unit's "
        f"own time, by {listed.makespan_error:+.1%} (activity {100 * listed.activity_error:+.1f} points) with splats "
        f"listed; {overhead_text(recorded)}. The wait between two units is {recorded.recording.hand_over / 1e3:.1f} µs."
    )


class Analyst:
    """Runs `analyse` on its own thread; only the newest `ask` counts."""

    def __init__(self) -> None:
        self.newest: FrameFigures | None = None
        self.seconds = 0.0  # duration of the newest analysis
        self._thread = ThreadPoolExecutor(1, "schedule")
        self._running: Future[FrameFigures] | None = None
        self._asked: tuple[int, BlendMachine, str] | None = (
            None  # key, machine and variant of the newest or running analysis
        )
        self._began = self._rest_until = 0.0

    @property
    def resting(self) -> bool:
        """Returns True while no analysis runs."""
        return self._running is None

    def ask(self, key: int, counts: Int32, on: BlendMachine, shown: str) -> bool:
        """Starts the analysis of a frame named `key` unless it is known or it is too early.

        Returns True if a new analysis is done. Raises what the analysis raised.
        """
        now, is_new = time.perf_counter(), False
        if self._running is not None and self._running.done():
            self.newest, self._running, is_new = self._running.result(), None, True
            self.seconds = now - self._began
            self._rest_until = now + max(LEAST_REST, REST * self.seconds)
        wanted = key, on, shown
        # A choice of the user does not wait.
        is_due = now >= self._rest_until or (self._asked is not None and self._asked[1:] != wanted[1:])
        if self._running is None and wanted != self._asked and is_due:
            self._asked, self._began = wanted, now
            self._running = self._thread.submit(analyse, counts, on, shown)
        return is_new
