"""Lists the values that describe a training run to the window. `EngineStatus` in `view.py` holds them."""

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
    """Holds a curve: x and y of equal length, decimated to a few thousand points at most."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]


EMPTY_CURVE = Curve(np.zeros(0), np.zeros(0))


@dataclass(frozen=True)
class MemoryUse:
    """Holds the bytes in use, and the estimated need of a run."""

    name: str  # "GPU memory"
    used: int  # bytes in use by all programs; the peak of the last seconds, because every photograph changes it
    total: int  # 0: unknown
    needed: int  # bytes that this run needs with `splats` splats, at most
    splats: int  # the run's limit on splats, or the most it is likely to reach without one
    ends: bool  # True: `splats` is a limit
    fits: int  # splats that fit into memory, about
    text: str = ""  # all values in a sentence


@dataclass(frozen=True)
class Trouble:
    """Says why a run paused by itself, and where it can return to."""

    text: str
    iteration: int  # iteration of the present splats
    back_to: int  # iteration of the newest checkpoint before the fault; 0: the run's beginning
    back_label: str  # "Go back to iteration 700"
    number: int = 1  # how often the run has paused for this fault


@dataclass(frozen=True)
class Refined:
    """Counts what the newest refine did to the splats."""

    iteration: int
    added: int  # next to existing splats
    split: int  # replaced by their children
    pruned: int
    moved: int


@dataclass(frozen=True)
class Phase:
    """Says which phase a run is in: SH degree, size of photographs, refines."""

    sh_degree: int = 0  # trained at present
    sh_highest: int = 0
    width: int = 0  # px of the first training photograph as steps see it; 0: not read yet
    height: int = 0
    divisor: int = 1  # training divides the photographs' sides by it at present
    refined: Refined | None = None
    next_refine: int = 0  # iteration; 0: none will come
    last_refine: int = 0  # iteration of the last refine; 0: none ever comes
    seconds: float = 0.0  # spent on loading, steps, scores and files, without pictures and pauses


@dataclass(frozen=True, eq=False)
class TrainingStatus:
    """Describes the training run for the panel."""

    state: TrainingState = "none"  # "none": nothing trainable is open
    doing: str = ""  # "loading photographs": the activity between steps
    so_far: str = ""  # progress of that activity, "3 of 60"
    iteration: int = 0
    iterations: int = 0
    until: int = 0  # iteration that the run pauses after; 0: it continues to the end
    loss: float | None = None
    psnr: float | None = None
    ssim: float | None = None
    psnr_label: str = "held-out PSNR"  # "training PSNR" when no view is held out
    scored_at: int = -1  # iteration of the scores
    iterations_per_second: float | None = None
    eta_seconds: float | None = None  # time until the run pauses or ends
    out_dir: Path | None = None
    loss_curve: Curve = EMPTY_CURVE
    psnr_curve: Curve = EMPTY_CURVE
    count_curve: Curve = EMPTY_CURVE  # splats
    step_curve: Curve = EMPTY_CURVE  # ms per step
    stage_ms: dict[str, float] = field(default_factory=dict)  # ms of each stage of the last step
    note: str = ""  # "saved to ...", the forecast
    trouble: Trouble | None = None  # None once the run is resumed
    memory: MemoryUse | None = None
    phase: Phase = Phase()
    view_cost: float = 0.0  # share of the last seconds spent on pictures rather than training

    @property
    def can_be_scored(self) -> bool:
        """Returns True if the present iteration can be scored and has not been yet."""
        begun = self.state in ("running", "paused", "stopped", "finished") or (self.state == "ready" and self.iteration)
        return bool(begun) and self.scored_at != self.iteration and self.doing != "scoring"
