"""Declares what a run reports: one frozen value for each thing that happens, in order.

The command line prints the events and the window's engine thread pulls them; neither sees the trainer's insides.
Nothing here is computed. Read `trainer.py` for when each event is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

SavedThing = Literal["splats", "checkpoint", "scores"]


@dataclass(frozen=True)
class Loading:
    """Counts the photographs decoded so far."""

    done: int
    total: int


@dataclass(frozen=True)
class Prepared:
    """Tells that everything is in memory; the first step comes next."""

    training_views: int
    held_out_views: int
    width: int  # px of the first training view, as trained
    height: int
    count: int  # splats
    extent: float  # world units
    background: tuple[float, float, float]
    label: str  # what the scores are: "held-out PSNR" or "training PSNR"
    warnings: tuple[str, ...] = ()
    masks: str = ""  # what masks leave out, a sentence


@dataclass(frozen=True)
class Forecast:
    """Tells how long the run will take; only on the CPU, before the first step."""

    seconds: float
    step_ms: float  # time of a step with the first splats
    suggestion: str  # one sentence with a faster -r, empty if there is no need


@dataclass(frozen=True)
class Stepped:
    """Tells that one iteration is done."""

    iteration: int
    loss: float
    count: int
    stage_ms: dict[str, float] = field(default_factory=dict)  # in order; sums to the step's time


@dataclass(frozen=True)
class Densified:
    """Tells that splats were added and removed."""

    iteration: int
    cloned: int
    split: int  # parents that were replaced by their children
    pruned: int  # without those parents
    count: int  # afterwards
    moved: int = 0  # transparent ones put where they are useful


@dataclass(frozen=True)
class GrowthStopped:
    """Tells that there was no memory for more splats; training continues with the present ones."""

    iteration: int
    count: int
    reason: str  # one sentence or two


@dataclass(frozen=True)
class Evaluating:
    """Counts the views scored so far; sent after each, so that a window need not wait for all of them."""

    done: int
    total: int


@dataclass(frozen=True)
class Evaluated:
    """Holds the mean scores of all scored views."""

    iteration: int
    psnr: float  # dB
    ssim: float
    label: str  # "held-out PSNR" or "training PSNR"
    views: int


@dataclass(frozen=True)
class Saved:
    """Tells that a result is on disk."""

    iteration: int
    path: Path


@dataclass(frozen=True)
class SaveFailed:
    """Tells that some or all of a save could not be written; training continues unless it is over."""

    iteration: int
    what: tuple[SavedThing, ...]
    reason: str  # one sentence
    last: bool = False  # the run is over: nothing is saved after it


@dataclass(frozen=True)
class Resumed:
    """Tells that the run continues an earlier run."""

    iteration: int
    path: Path
    remark: str = ""  # one sentence on what could not be taken over, empty if all was


@dataclass(frozen=True)
class Plateaued:
    """Tells that the scores no longer rise, so the run ends here."""

    iteration: int
    best: float  # dB
    scorings: int  # without a gain


@dataclass(frozen=True)
class Finished:
    """Ends a complete run; no event follows."""

    iteration: int


Event = (
    Loading
    | Prepared
    | Forecast
    | Resumed
    | Stepped
    | Densified
    | GrowthStopped
    | Evaluating
    | Evaluated
    | Saved
    | SaveFailed
    | Plateaued
    | Finished
)
