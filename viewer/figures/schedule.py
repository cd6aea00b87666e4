"""What the schedule panel shows of a frame: how uneven its tiles are, and what each way to schedule would make of them.

Tile counts and a machine in, figures out: pure. `Analyst` does it beside the window, one frame at a time and with long
rests, because it takes the interpreter's lock that the engine needs too. The model: kernels/schedule/rules.py and
kernels/schedule/simulator.py; drawing: `schedule_plots.py`.
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
    "seed": "policy, k chunks",
    "length": "policy, one length",
}
EXPLAINED = {
    "grid": "Whole tiles, row after row, as the 2023 rasteriser launches them.",
    "lpt_binned": "Whole tiles, those with most splats first.",
    "fixed": "The 16 tiles with most splats are split into 16 chunks of depth each; longest first.",
    "catgs": "Tiles with more than twice the mean are split into chunks of the mean, after all others (Zhang et al. "
    "2026).",
    "seed": "A cost model chooses how many of the heaviest tiles are split, and each one's number of chunks k (Ryu and "
    "Yoo 2026).",
    "length": "The cost model chooses one length of chunks for all tiles that are split: the default. Where no tile "
    "stands out, tiles stay whole and in the order of the grid.",
}  # for tooltips; one sentence or two for each of VARIANTS
HERE, THREADS, CUSTOM = "this device", "this machine's CPU", "custom"
WHAT_IF = (HERE, *MACHINES, THREADS, CUSTOM)
_COSTS = Calibration()
# A GPU that is not here: six blocks of 256 threads are what registers of the blend kernel leave room for.
ASSUMED = BlendMachine(
    "a GPU",
    Machine(MACHINES["H200"].multiprocessors, 6, _COSTS.saturating_warps / 8),
    CostModel(_COSTS.chunk, _COSTS.tail, second_pass=_COSTS.second_walk, start=_COSTS.start),
)
REST = 19.0  # times what the last frame took: a twentieth of the time is spent here
LEAST_REST = 0.3  # s


@dataclass(frozen=True)
class VariantFigures:
    """One way to schedule a frame, by the model."""

    name: str
    makespan: float  # in splats of a block at full speed
    activity: float  # share of the time in which a multiprocessor has work, mean over them
    chunks: int
    split_tiles: int


@dataclass(frozen=True, eq=False)
class FrameFigures:
    """All of it for one frame on one machine."""

    counts: Int32  # [Ty, Tx]
    on: BlendMachine
    even: Imbalance
    variants: tuple[VariantFigures, ...]
    shown: str  # which of them the rest is about
    units: Units
    timeline: SimulatedSchedule
    parts: Int64  # [T] chunks of each tile

    def of(self, name: str) -> VariantFigures:
        """One of the variants."""
        return next(v for v in self.variants if v.name == name)


def analyse(counts: Int32, on: BlendMachine, shown: str) -> FrameFigures:
    """Simulates every variant; `shown` keeps its timeline."""
    found: list[VariantFigures] = []
    kept: tuple[Units, SimulatedSchedule, Int64] | None = None
    for name in VARIANTS:
        costs = replace(on.costs, second_pass=0.0) if name == "catgs" else on.costs  # as published: stops are inexact
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
    """The machine of that name: a GPU is as this one but for its multiprocessors; where none is here, as assumed."""
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
    """The heaviest tile over an even share, alone: cheap enough for every picture."""
    total = int(counts.sum(dtype=np.int64))
    return int(counts.max(initial=0)) * machine.workers / total if total else 0.0


def ratio_text(ratio: float) -> str:
    """For people: two digits after the point, more for a frame that fills a machine many times over."""
    return f"{ratio:.2f}" if ratio >= 0.1 or ratio == 0 else f"{ratio:.2g}"


def machine_name(on: BlendMachine) -> str:
    """For people: "132 SMs x 8 blocks", "2 threads"."""
    machine = on.machine
    if machine.blocks_each == 1:
        return counted(machine.multiprocessors, "thread")
    return f"{machine.multiprocessors} SMs x {machine.blocks_each} blocks"


def where(on: BlendMachine, choice: str) -> str:
    """Returns the heading of figures for a machine: "On H200, 132 SMs x 6 blocks, simulated"."""
    name = HERE if choice == HERE else choice
    return f"On {name}, {machine_name(on)}, simulated"


def scheduled_as(schedule: SchedulePolicy) -> str:
    """The variant that comes nearest to what a policy does."""
    if schedule.chunk == "modelled":
        return schedule.cost_model
    if schedule.chunk != "off":
        return "catgs" if schedule.chunk == "catgs" else "fixed"
    return "grid" if schedule.sched == "grid" else "lpt_binned"


def spoken_prediction(figures: FrameFigures) -> str:
    """What the predicted Gantt comes to."""
    shown, timeline = figures.of(figures.shown), figures.timeline
    split = f", {counted(shown.split_tiles, 'tile')} in {counted(shown.chunks, 'chunk')}" if shown.chunks else ""
    if shown.name == "length" and (np.diff(figures.units.tile) == 1).all():
        split = ", all tiles as they lie"
    bound = timeline.lower_bound / timeline.makespan if timeline.makespan else 1.0
    return (
        f"{VARIANTS[figures.shown].capitalize()} on {machine_name(figures.on)}: activity {shown.activity:.1%}{split}; "
        f"no order of these units takes less than {bound:.0%} of it."
    )


def spoken_recording(recorded: RecordedFrame) -> str:
    """What the recorded Gantt comes to."""
    recording = recorded.recording
    chunks = int((recording.parts > 1).sum())
    ratio = imbalance(recorded.counts, recorded.on.machine).ratio
    return (
        f"{recorded.on.name}: activity {recording.activity:.1%}, idle tail {recording.idle_tail:.1%} from "
        f"{recording.tail_begins / 1e6:.3f} ms on, imbalance {ratio_text(ratio)}, {counted(len(recording), 'unit')}"
        + (f", {chunks:,} of them chunks." if chunks else ".")
    )


def simulator_error(recorded: RecordedFrame) -> float | None:
    """Makespan that the simulator makes of the splats listed, over the recorded one, less 1."""
    return next((c.makespan_error for c in checks(recorded.recording, recorded.on.costs) if c.name == "listed"), None)


def spoken_overhead(recorded: RecordedFrame) -> str:
    """Returns what recording adds to blending; where other programs disturb the clock by more, nothing measurable."""
    if recorded.overhead <= 0:
        return "no measurable recording overhead"
    return f"recording overhead {recorded.overhead:.1%} of blending"


def spoken_checks(recorded: RecordedFrame) -> str:
    """Returns how far the simulator is from the recorded frame, and what recording costs."""
    found = {check.name: check for check in checks(recorded.recording, recorded.on.costs)}
    if not found:
        return ""
    real, listed = found["durations"], found["listed"]
    return (
        f"Simulator against this recording, on {recorded.on.name}: off by {real.makespan_error:+.1%} with each unit's "
        f"own time, by {listed.makespan_error:+.1%} (activity {100 * listed.activity_error:+.1f} points) with splats "
        f"listed; {spoken_overhead(recorded)}. A place stands empty for {recorded.recording.hand_over / 1e3:.1f} µs "
        "between two units."
    )


class Analyst:
    """Runs `analyse` on a thread of its own; `ask` as often as you like, the newest question wins."""

    def __init__(self) -> None:
        self.newest: FrameFigures | None = None
        self.seconds = 0.0  # that the newest took
        self._thread = ThreadPoolExecutor(1, "schedule")
        self._running: Future[FrameFigures] | None = None
        self._asked: tuple[int, BlendMachine, str] | None = None  # what the newest or running one is about
        self._began = self._rest_until = 0.0

    @property
    def resting(self) -> bool:
        """True while nothing is being worked out."""
        return self._running is None

    def ask(self, key: int, counts: Int32, on: BlendMachine, shown: str) -> bool:
        """Begins with a frame known by `key` unless it is known already or it is too early. True if a new one is done.

        Raises what the analysis raised.
        """
        now, is_new = time.perf_counter(), False
        if self._running is not None and self._running.done():
            self.newest, self._running, is_new = self._running.result(), None, True
            self.seconds = now - self._began
            self._rest_until = now + max(LEAST_REST, REST * self.seconds)
        wanted = key, on, shown
        # What a person has chosen is not to wait.
        is_due = now >= self._rest_until or (self._asked is not None and self._asked[1:] != wanted[1:])
        if self._running is None and wanted != self._asked and is_due:
            self._asked, self._began = wanted, now
            self._running = self._thread.submit(analyse, counts, on, shown)
        return is_new
