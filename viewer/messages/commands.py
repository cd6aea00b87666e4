"""Lists the commands that the window sends to the engine. Values only: no GUI, no model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from splatscope.assets.splats.activated import Activated
from splatscope.kernels.policy import Policy
from splatscope.viewer.messages.view import ViewRequest

# Commands ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenScene:
    """Open a PLY, a model folder or a dataset; what is open stays if this fails."""

    path: Path
    then_train: bool = False  # start training if it could be opened
    activated: Activated = "auto"  # values that a splat file holds without logarithm and logit


@dataclass(frozen=True)
class StopSearch:
    """Stop looking for cameras; what is done is kept."""


@dataclass(frozen=True)
class StartTraining:
    """Start or resume training."""

    until: int | None = None  # pause after this iteration; one past the end makes the run longer


@dataclass(frozen=True)
class PauseTraining:
    """Stop after the step in flight; everything is kept."""


@dataclass(frozen=True)
class StepTraining:
    """One iteration, then pause."""


@dataclass(frozen=True)
class StopTraining:
    """Save the run and stop; `StartTraining` resumes it."""

    save: bool = True  # False: what came after the newest checkpoint is to be lost


@dataclass(frozen=True)
class ScoreNow:
    """Score the run's tested views after the iteration it is at, whether or not it is running."""


@dataclass(frozen=True)
class ResetTraining:
    """Start the run over; its files stay on disk."""


@dataclass(frozen=True)
class GoBack:
    """Return to the newest checkpoint, or to the run's beginning if there is none."""


@dataclass(frozen=True)
class SetRecipe:
    """Follow another recipe, if no run has begun."""

    preset: str = ""  # preset to take first; "": the values as they are set
    changes: tuple[tuple[str, str], ...] = ()  # setting and value as text
    out: str | None = None  # folder; None leaves it


@dataclass(frozen=True)
class ForeseeTime:
    """Measure how long the run would take, if none has begun; the answer joins `EngineStatus.checkup`."""


@dataclass(frozen=True)
class SetViewShare:
    """How much of the time pictures of a still view may take while training, and how many a second there may be."""

    share: float
    rate: float = 30.0


@dataclass(frozen=True)
class SurveyViews:
    """Draw every known camera's view a few times, with these settings, and tell what it costs; training waits."""

    request: ViewRequest


@dataclass(frozen=True)
class LoadThumbnails:
    """These small photographs are looked at."""

    indices: tuple[int, ...]


@dataclass(frozen=True)
class DrawAgain:
    """Draw the wanted view once more though nothing has changed, so that its stage times become statistics."""


@dataclass(frozen=True)
class SaveScreenshot:
    """Render `request` at its own size and write PNG; with an overlay also its legend and NPY counts."""

    request: ViewRequest
    folder: Path


@dataclass(frozen=True)
class SavePly:
    """Write the splats as they are now."""

    path: Path


@dataclass(frozen=True)
class Compare:
    """Measure `request` under its own policy and under another one; training waits until it is done."""

    request: ViewRequest
    before: Policy
    names: tuple[str, str]  # of the other policy, and of the request's
    pairs: int = 20


@dataclass(frozen=True)
class SaveComparison:
    """Write the newest comparison, with every single time, as JSON."""

    folder: Path


@dataclass(frozen=True)
class RecordTrace:
    """Draw without a rest for a while and write what ran when, for chrome://tracing or Perfetto."""

    folder: Path
    seconds: float = 1.0


@dataclass(frozen=True)
class RecordFrame:
    """Draw `request` with schedule.record on, and keep what ran when until the next one."""

    request: ViewRequest


@dataclass(frozen=True)
class SaveRecordedFrame:
    """Write the newest recorded frame: a Chrome trace, CSV of units, figures as JSON and pictures."""

    folder: Path


Command = (
    OpenScene
    | StopSearch
    | StartTraining
    | PauseTraining
    | StepTraining
    | StopTraining
    | ScoreNow
    | ResetTraining
    | GoBack
    | SetRecipe
    | ForeseeTime
    | SetViewShare
    | LoadThumbnails
    | SurveyViews
    | DrawAgain
    | SaveScreenshot
    | SavePly
    | Compare
    | SaveComparison
    | RecordTrace
    | RecordFrame
    | SaveRecordedFrame
)
