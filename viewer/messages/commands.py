"""Lists the commands that the window sends to the engine. Values only: no GUI, no model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from splatscope.assets.splats.read_as import AS_USUAL, ReadAs
from splatscope.kernels.policy import Policy
from splatscope.viewer.messages.view import ViewRequest

# Commands ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenScene:
    """Opens a PLY, a model folder or a dataset; the open scene stays if this fails."""

    path: Path
    then_train: bool = False  # start training if it could be opened
    read_as: ReadAs = AS_USUAL  # how a splat file is read


@dataclass(frozen=True)
class StopSearch:
    """Stops the search for cameras, and keeps its work."""


@dataclass(frozen=True)
class StartTraining:
    """Starts or resumes training."""

    until: int | None = None  # pause after this iteration; one past the end makes the run longer


@dataclass(frozen=True)
class PauseTraining:
    """Pauses after the present step, and keeps everything."""


@dataclass(frozen=True)
class StepTraining:
    """Runs one iteration, then pauses."""


@dataclass(frozen=True)
class StopTraining:
    """Saves and stops the run; `StartTraining` resumes it."""

    save: bool = True  # False: iterations after the newest checkpoint are lost


@dataclass(frozen=True)
class ScoreNow:
    """Scores the tested views after the present iteration, in a running or a paused run."""


@dataclass(frozen=True)
class ResetTraining:
    """Starts the run over; its files stay on disk."""


@dataclass(frozen=True)
class GoBack:
    """Returns to the newest checkpoint, or to the run's beginning if there is none."""


@dataclass(frozen=True)
class SetRecipe:
    """Sets another recipe, if no run has begun."""

    preset: str = ""  # preset to take before the changes; "": the present values
    changes: tuple[tuple[str, str], ...] = ()  # (setting, value) as text
    out: str | None = None  # folder; None leaves it unchanged


@dataclass(frozen=True)
class ForeseeTime:
    """Estimates the time of the run, if none has begun; the answer comes in `EngineStatus.checkup`."""


@dataclass(frozen=True)
class SetViewShare:
    """Limits pictures during training: the share of the time for a still view, and the pictures a second."""

    share: float
    rate: float = 30.0


@dataclass(frozen=True)
class SurveyViews:
    """Draws every camera's view a few times with the request's settings to measure its time; training waits."""

    request: ViewRequest


@dataclass(frozen=True)
class LoadThumbnails:
    """Loads the small photographs of these cameras."""

    indices: tuple[int, ...]


@dataclass(frozen=True)
class DrawAgain:
    """Draws the wanted view once more without a change, to collect its stage times."""


@dataclass(frozen=True)
class SaveScreenshot:
    """Renders `request` at its own size and writes a PNG; with an overlay also its legend and NPY values."""

    request: ViewRequest
    folder: Path


@dataclass(frozen=True)
class SavePly:
    """Writes the present splats."""

    path: Path


@dataclass(frozen=True)
class Compare:
    """Measures `request` under its own policy and under `before`; training waits until this is done."""

    request: ViewRequest
    before: Policy
    names: tuple[str, str]  # names of `before` and of the request's policy
    pairs: int = 20


@dataclass(frozen=True)
class SaveComparison:
    """Writes the newest comparison, with every single time, as JSON."""

    folder: Path


@dataclass(frozen=True)
class RecordTrace:
    """Draws without a rest for a while and writes what ran when, for chrome://tracing or Perfetto."""

    folder: Path
    seconds: float = 1.0


@dataclass(frozen=True)
class RecordFrame:
    """Draws `request` with schedule.record on, and keeps the recording until the next one."""

    request: ViewRequest


@dataclass(frozen=True)
class SaveRecordedFrame:
    """Writes the newest recorded frame: a Chrome trace, CSV of units, figures as JSON and pictures."""

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
