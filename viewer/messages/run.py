"""The values that describe a training run to the window; a part of `view.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

# stopped: the run can be resumed; finished: all its iterations are done, and it can be made longer
TrainingState = Literal["none", "ready", "running", "paused", "stopping", "stopped", "finished", "error"]
CAN_START: tuple[TrainingState, ...] = ("ready", "paused", "stopped")


@dataclass(frozen=True, eq=False)
class Curve:
    """A plot: x and y of equal length, already decimated to at most a few thousand points."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]


EMPTY_CURVE = Curve(np.zeros(0), np.zeros(0))


@dataclass(frozen=True)
class MemoryUse:
    """Bytes in use, and what a run is foreseen to need at most."""

    name: str  # "GPU memory"
    used: int  # by everybody: the most of the last seconds, as less would come and go with every photograph
    total: int  # 0: not known
    needed: int  # by this run with `splats` splats
    splats: int  # where growth ends, or the most it is likely to reach if no number ends it
    ends: bool  # which of the two
    fits: int  # splats there is room for, about
    text: str = ""  # all of it in a sentence


@dataclass(frozen=True)
class Trouble:
    """Why a run paused by itself, and where it can go back to."""

    text: str
    iteration: int  # whose splats there are
    back_to: int  # iteration of the newest checkpoint before, 0: the run's beginning
    back_label: str  # "Go back to iteration 700"
    number: int = 1  # how often the run has paused so: the same may come again


@dataclass(frozen=True)
class Refined:
    """What the newest refine did to the splats."""

    iteration: int
    added: int  # next to the splats there were
    split: int  # replaced by their children
    pruned: int
    moved: int


@dataclass(frozen=True)
class Phase:
    """Which part of its schedules a run is in."""

    sh_degree: int = 0  # trained by now
    sh_highest: int = 0
    width: int = 0  # px of the first training photograph as steps see it; 0: not read yet
    height: int = 0
    divisor: int = 1  # of its sides, while pictures are small
    refined: Refined | None = None
    next_refine: int = 0  # iteration; 0: none will come
    last_refine: int = 0  # iteration after which splats become no more; 0: they never do
    seconds: float = 0.0  # that the run has taken: loading, steps, scores and files, but no pictures and no pauses


@dataclass(frozen=True, eq=False)
class TrainingStatus:
    """The training run as the panel shows it."""

    state: TrainingState = "none"  # "none": nothing trainable is open
    doing: str = ""  # "loading photographs": what it is at instead of steps
    so_far: str = ""  # how far that is, "3 of 60"
    iteration: int = 0
    iterations: int = 0
    until: int = 0  # iteration that the run pauses after; 0: it continues to the end
    loss: float | None = None
    psnr: float | None = None
    ssim: float | None = None
    psnr_label: str = "held-out PSNR"  # "training PSNR" when no view is held out
    scored_at: int = -1  # iteration of those
    iterations_per_second: float | None = None
    eta_seconds: float | None = None  # until it pauses or ends
    out_dir: Path | None = None
    loss_curve: Curve = EMPTY_CURVE
    psnr_curve: Curve = EMPTY_CURVE
    count_curve: Curve = EMPTY_CURVE  # splats
    step_curve: Curve = EMPTY_CURVE  # ms a step
    stage_ms: dict[str, float] = field(default_factory=dict)  # of the last step
    note: str = ""  # "saved to ...", the forecast
    trouble: Trouble | None = None  # until the run is resumed
    memory: MemoryUse | None = None
    phase: Phase = Phase()
    view_cost: float = 0.0  # share of the last seconds spent on pictures rather than training

    @property
    def can_be_scored(self) -> bool:
        """True if there is something to score that has not been scored yet."""
        begun = self.state in ("running", "paused", "stopped", "finished") or (self.state == "ready" and self.iteration)
        return bool(begun) and self.scored_at != self.iteration and self.doing != "scoring"
