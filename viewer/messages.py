"""What the window and the engine say to each other. No GUI import, no model: values only.

The window sends the newest `ViewRequest` (a mailbox: older ones are dropped) and queued commands; it
polls `EngineStatus` and the newest `Picture`. Everything is immutable, so nothing is locked while read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.activated import Activated
from splatscope.assets.checkup import Finding
from splatscope.kernels.policy import Filter, Policy
from splatscope.kernels.schedule import CostModel, Machine
from splatscope.kernels.sm_timeline import Recording
from splatscope.kernels.types import Camera, Frame, RenderSettings
from splatscope.viewer.run_status import TrainingStatus
from splatscope.viewer.scale import LINEAR, HeatScale

OverlayName = Literal["none", "tiles", "blended", "depth", "time", "chunks"]
SettingValue = bool | int | float | str | None


@dataclass(frozen=True)
class PhotographWish:
    """The photograph that a picture is to be compared with."""

    index: int  # of SceneInfo.cameras
    error_top: float | None = None  # an error map is wanted, whose colours end at this difference (of 1)


@dataclass(frozen=True)
class ViewRequest:
    """What the viewport wants to see; equal requests need no new picture."""

    camera: Camera
    settings: RenderSettings = RenderSettings()
    policy: Policy = Policy()
    overlay: OverlayName = "none"
    overlay_opacity: float = 0.65
    scale: HeatScale = LINEAR  # of the heatmap
    photograph: PhotographWish | None = None  # of a camera the view stands at


@dataclass(frozen=True, eq=False)
class PhotographShown:
    """A photograph on the pixels of a picture; nothing but `note` until it is read."""

    index: int
    left: int = 0  # px of the picture
    top: int = 0
    rgba: NDArray[np.uint8] | None = None  # [h, w, 4] C-contiguous, alpha 255
    errors: NDArray[np.uint8] | None = None  # [h, w, 4], the error map if it was wished for
    psnr: float | None = None  # dB between the picture and the photograph, at the smaller one's size
    size: tuple[int, int] = (0, 0)  # width and height of that, px
    note: str = ""  # what keeps it from being shown


@dataclass(frozen=True, eq=False)
class Picture:
    """A finished picture, ready to upload."""

    rgba: NDArray[np.uint8]  # [H, W, 4] C-contiguous, alpha 255, overlay already blended in
    frame: Frame
    request: ViewRequest
    serial: int  # grows by one with every picture
    render_ms: float  # that it took: the processor's time or the GPU's, whichever is longer, as the two overlap
    photograph: PhotographShown | None = None  # if one was wished for
    latency_ms: float = 0.0  # from its beginning until it was there, behind the steps that were queued before it


@dataclass(frozen=True)
class NamedCamera:
    """A training or test view the user can jump to."""

    name: str
    camera: Camera
    is_test: bool = False


@dataclass(frozen=True, eq=False)
class SceneInfo:
    """What the scene panel and the navigation need to know of the open scene."""

    path: Path
    kind: Literal["splats", "model", "dataset"]
    sh_degree: int
    low: tuple[float, float, float]  # least corner of the box that holds nearly all positions
    high: tuple[float, float, float]  # greatest corner
    up: tuple[float, float, float]  # guessed up axis in world coordinates, unit length
    extent: float  # world units; speeds scale with it
    cameras: tuple[NamedCamera, ...] = ()
    background: tuple[float, float, float] = (0.0, 0.0, 0.0)  # what the scene was or will be trained over
    filter: Filter = "plain"  # project.filter that it looks right under
    iteration: int | None = None  # of the run that made the splats, if the file's place tells
    warnings: tuple[str, ...] = ()
    generation: int = 0  # grows with every opened scene, so the window knows to go home


@dataclass(frozen=True)
class SearchStatus:
    """Cameras for a bare folder of photographs are being found; it opens when they are."""

    folder: Path
    text: str  # "Matching: 45 of 190 pairs"
    share: float  # of this stage that is done


@dataclass(frozen=True)
class ViewFigures:
    """What the view of a photograph costs and how well it fits."""

    index: int  # of SceneInfo.cameras
    ms: float  # of a picture, the median of a few
    instances: int
    size: tuple[int, int] = (0, 0)  # px it was drawn at
    psnr: float | None = None  # dB


@dataclass(frozen=True)
class Setting:
    """One value of a recipe, as a form shows it."""

    name: str  # "densify.max_splats", as in settings.json
    kind: Literal["switch", "choice", "whole", "number", "list", "text"]  # list: numbers with commas between them
    value: SettingValue
    choices: tuple[str, ...] = ()
    help: str = ""
    label: str = ""  # its name for people
    group: str = ""  # the heading it stands under
    rank: Literal["main", "often", "rest"] = "rest"  # main: always in sight; often: one click away
    usual: SettingValue = None  # value in the nearest preset
    empty: str | None = None  # what an empty field means, as `SetRecipe` takes it; None: nothing a run can use
    hint: str = ""  # shown in the empty field, or to the right of a switch
    counts: bool = True  # False: nothing reads it, as those of another strategy


@dataclass(frozen=True)
class Recipe:
    """What the next run will follow; it can be changed until the run begins."""

    preset: str  # "" if it is none of them any more
    presets: tuple[str, ...]
    settings: tuple[Setting, ...]
    out: str  # folder, "" for one named after capture and date
    base: str = ""  # the preset that it is nearest to
    refused: tuple[tuple[str, ...], str] | None = None  # what the newest change named ("out": the folder), and why not


@dataclass(frozen=True)
class StageChange:
    """What a stage costs under two policies on the same frame: medians, and how sure their difference is."""

    stage: str  # "" for the whole picture
    before_ms: float
    after_ms: float
    low_ms: float  # 95% interval of the change (app/compare.py); infinite while there are too few pairs
    high_ms: float

    @property
    def change_ms(self) -> float:
        """The difference of the two medians."""
        return self.after_ms - self.before_ms

    @property
    def ratio(self) -> float | None:
        """The second median over the first; None for a stage that only the second policy has."""
        return self.after_ms / self.before_ms if self.before_ms else None

    @property
    def is_noise(self) -> bool:
        """True if the interval of the change has 0 in it."""
        return self.low_ms <= 0.0 <= self.high_ms


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two policies measured on the very same frame, taking turns; grows while it is being measured."""

    before: str  # names of the policies
    after: str
    pairs: int  # asked for
    done: int = 0
    stages: tuple[StageChange, ...] = ()  # in order, the whole picture last
    max_difference: float | None = None  # of the pictures, channel by channel; 0 if they are the same bit for bit
    psnr: float | None = None  # dB, of peak 1
    waiting: tuple[str, ...] = ()  # stages that are being compiled
    problem: str = ""  # why it was given up


@dataclass(frozen=True)
class BlendMachine:
    """What blends tiles, as a scheduler sees it, and what units of work cost there."""

    name: str
    machine: Machine
    costs: CostModel


@dataclass(frozen=True, eq=False)
class RecordedFrame:
    """A frame whose units wrote down when they ran, and what that cost."""

    recording: Recording
    counts: NDArray[np.int32]  # [Ty, Tx] splats listed
    request: ViewRequest
    on: BlendMachine
    blend_ms: float  # the shortest blend stage while recording
    plain_ms: float  # and while not, taking turns; 0 if it has no times

    @property
    def overhead(self) -> float:
        """What recording adds, as a share of the blend stage."""
        return self.blend_ms / self.plain_ms - 1 if self.plain_ms else 0.0


@dataclass(frozen=True)
class LogLine:
    """One message for the user; `level` decides its colour and whether it pops up."""

    level: Literal["info", "warning", "error"]
    text: str
    serial: int
    about: str = ""  # of an error: what went wrong, as `EngineStatus.done` names it


@dataclass(frozen=True, eq=False)
class EngineStatus:
    """One consistent snapshot of everything but the picture."""

    scene: SceneInfo | None = None
    splat_count: int = 0
    training: TrainingStatus = TrainingStatus()
    busy: str = ""  # "compiling…", "opening garden.ply…"; empty when idle
    search: SearchStatus | None = None  # while cameras are being found
    log: tuple[LogLine, ...] = ()  # the last few hundred lines
    done: Mapping[str, int] = field(default_factory=dict)  # serial of the newest line when a thing last went well
    backend: str = "cpu"
    device: str = ""  # "2 threads" or the GPU's name
    policy: Policy = Policy()  # that pictures are made with; the wanted one once it is compiled
    compiling: tuple[str, ...] = ()  # stages the wanted policy waits for, of pictures and of running training
    refused: Policy | None = None  # the wanted policy, if it cannot be used
    comparison: Comparison | None = None  # the newest
    recording: bool = False  # a trace
    blending: BlendMachine | None = None  # known once a picture has been drawn
    recorded: RecordedFrame | None = None  # the newest, until another scene is opened
    views: tuple[ViewFigures, ...] = ()  # those measured so far
    recipe: Recipe | None = None  # while a run can still be set up
    checkup: tuple[Finding, ...] = ()  # of an open capture, as `splatscope doctor` prints it
    thumbnails: Mapping[int, NDArray[np.uint8]] = field(default_factory=dict)  # [h, w, 3] by camera


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


class EngineClient(Protocol):
    """The window's side of the engine. Every call returns at once."""

    def request_view(self, request: ViewRequest) -> None:
        """Replaces the wanted picture."""
        ...

    def send(self, command: Command) -> None:
        """Queues a command; failures come back as log lines."""
        ...

    def picture(self) -> Picture | None:
        """The newest finished picture."""
        ...

    def status(self) -> EngineStatus:
        """The newest snapshot."""
        ...

    def wait_for_news(self, seconds: float) -> None:
        """Sleeps until something new is there, at most that long."""
        ...
