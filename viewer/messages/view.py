"""Lists the values that the window shows: the engine's pictures and status, and the request for a picture.

The window sends the newest `ViewRequest` (older ones are dropped) and the commands of `commands.py`. It polls
`EngineStatus` and the newest `Picture`. All values are immutable, so that no lock is held while they are read. No GUI,
no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.checks.checkup import Finding
from splatscope.kernels.policy import Filter, Policy
from splatscope.kernels.primitive import Primitive
from splatscope.kernels.schedule.rules import CostModel, Machine
from splatscope.kernels.schedule.timeline import Recording
from splatscope.kernels.types import Camera, Frame, RenderSettings
from splatscope.viewer.messages.run import TrainingStatus
from splatscope.viewer.messages.scale import LINEAR, HeatScale

OverlayName = Literal["none", "tiles", "blended", "depth", "time", "chunks"]
SettingValue = bool | int | float | str | None


@dataclass(frozen=True)
class PhotographWish:
    """Asks for a photograph to compare a picture with."""

    index: int  # into SceneInfo.cameras
    error_top: float | None = None  # asks for an error map whose colours end at this difference (1: full range)


@dataclass(frozen=True)
class ViewRequest:
    """Asks for a picture; equal requests need no new picture."""

    camera: Camera
    settings: RenderSettings = RenderSettings()
    policy: Policy = Policy()
    overlay: OverlayName = "none"
    overlay_opacity: float = 0.65
    scale: HeatScale = LINEAR  # the heatmap's scale
    photograph: PhotographWish | None = None  # photograph of the camera that the view is at


@dataclass(frozen=True, eq=False)
class PhotographShown:
    """Holds a photograph on the pixels of a picture; only `note` until it is read."""

    index: int
    left: int = 0  # px of the picture
    top: int = 0
    rgba: NDArray[np.uint8] | None = None  # [h, w, 4] C-contiguous, alpha 255
    errors: NDArray[np.uint8] | None = None  # [h, w, 4], the error map if asked for
    psnr: float | None = None  # dB between picture and photograph, at the smaller of their sizes
    size: tuple[int, int] = (0, 0)  # width and height of that size, px
    note: str = ""  # why it cannot be shown


@dataclass(frozen=True, eq=False)
class Picture:
    """Holds a finished picture, ready to upload."""

    rgba: NDArray[np.uint8]  # [H, W, 4] C-contiguous, alpha 255, overlay already blended in
    frame: Frame
    request: ViewRequest
    serial: int  # grows by one with every picture
    render_ms: float  # the CPU's or the GPU's time, whichever is longer, because they overlap
    photograph: PhotographShown | None = None  # if asked for
    latency_ms: float = 0.0  # time from the picture's start to its end, including the steps queued before it


@dataclass(frozen=True)
class NamedCamera:
    """Names the camera of a training or test photograph."""

    name: str
    camera: Camera
    is_test: bool = False


@dataclass(frozen=True, eq=False)
class SceneInfo:
    """Describes the open scene for the scene panel and the navigation."""

    path: Path
    kind: Literal["splats", "model", "dataset"]
    sh_degree: int
    low: tuple[float, float, float]  # least corner of the box that holds nearly all positions
    high: tuple[float, float, float]  # greatest corner
    up: tuple[float, float, float]  # guessed up axis in world coordinates, unit length
    extent: float  # size in world units; speeds scale with it
    cameras: tuple[NamedCamera, ...] = ()
    background: tuple[float, float, float] = (0.0, 0.0, 0.0)  # RGB that the scene was or will be trained over
    filter: Filter = "plain"  # the project.filter that the scene was trained with
    primitive: Primitive = "3dgs"  # what its splats are
    iteration: int | None = None  # iteration of the run that made the splats, if the file's path tells
    warnings: tuple[str, ...] = ()
    generation: int = 0  # grows with every opened scene


@dataclass(frozen=True)
class SearchStatus:
    """Describes the search for the cameras of a folder of photographs; the folder opens at its end."""

    folder: Path
    text: str  # "Matching: 45 of 190 pairs"
    share: float  # share of this stage that is done, in [0, 1]


@dataclass(frozen=True)
class ViewFigures:
    """Holds the time of a photograph's view, and how well it fits."""

    index: int  # into SceneInfo.cameras
    ms: float  # median of a few pictures
    instances: int
    size: tuple[int, int] = (0, 0)  # width and height, px
    psnr: float | None = None  # dB


@dataclass(frozen=True)
class Setting:
    """Describes one value of a recipe for the form."""

    name: str  # "densify.max_splats", as in settings.json
    kind: Literal["switch", "choice", "whole", "number", "list", "text"]  # list: numbers with commas between them
    value: SettingValue
    choices: tuple[str, ...] = ()
    help: str = ""
    label: str = ""  # the name in the form
    group: str = ""  # the heading above it
    rank: Literal["main", "often", "rest"] = "rest"  # main: always in sight; often: one click away
    usual: SettingValue = None  # value in the nearest preset
    empty: str | None = None  # the value of an empty field, as `SetRecipe` takes it; None: not allowed
    hint: str = ""  # shown in the empty field, or to the right of a switch
    counts: bool = True  # False: nothing reads the value, as with a setting of another strategy


@dataclass(frozen=True)
class Recipe:
    """Describes the settings of the next run, until the run begins."""

    preset: str  # "" if the values match no preset
    presets: tuple[str, ...]
    settings: tuple[Setting, ...]
    out: str  # folder; "": named after capture and date
    base: str = ""  # the nearest preset
    refused: tuple[tuple[str, ...], str] | None = (
        None  # names in the newest change ("out": the folder), and why it was refused
    )


@dataclass(frozen=True)
class StageChange:
    """Holds a stage's median times under two policies, and the interval of their difference."""

    stage: str  # "" for the whole picture
    before_ms: float
    after_ms: float
    low_ms: float  # 95% interval of the change (app/engine/ab_measurement.py); infinite while there are too few pairs
    high_ms: float

    @property
    def change_ms(self) -> float:
        """Returns the difference of the two medians."""
        return self.after_ms - self.before_ms

    @property
    def ratio(self) -> float | None:
        """Returns the second median over the first; None for a stage that only the second policy has."""
        return self.after_ms / self.before_ms if self.before_ms else None

    @property
    def is_noise(self) -> bool:
        """Returns True if the interval of the change includes 0."""
        return self.low_ms <= 0.0 <= self.high_ms


@dataclass(frozen=True, eq=False)
class Comparison:
    """Holds a measurement of two policies in turns on the same frame; grows while it runs."""

    before: str  # names of the policies
    after: str
    pairs: int  # to measure
    done: int = 0
    stages: tuple[StageChange, ...] = ()  # in order, the whole picture last
    max_difference: float | None = None  # largest difference of a channel; 0 if the pictures are identical
    psnr: float | None = None  # dB, of peak 1
    waiting: tuple[str, ...] = ()  # stages that are being compiled
    problem: str = ""  # why the measurement ended early


@dataclass(frozen=True)
class BlendMachine:
    """Describes the device that blends tiles for a scheduler: its machine and the cost of work."""

    name: str
    machine: Machine
    costs: CostModel


@dataclass(frozen=True, eq=False)
class RecordedFrame:
    """Holds a recorded frame: when its units ran, and the time that recording took."""

    recording: Recording
    counts: NDArray[np.int32]  # [Ty, Tx] splats listed
    request: ViewRequest
    on: BlendMachine
    blend_ms: float  # shortest blend stage with recording
    plain_ms: float  # shortest blend stage without, measured in turns; 0 if unknown

    @property
    def overhead(self) -> float:
        """Returns the time that recording adds, as a share of the blend stage."""
        return self.blend_ms / self.plain_ms - 1 if self.plain_ms else 0.0


@dataclass(frozen=True)
class LogLine:
    """Holds one message for the user; `level` decides its colour, and whether it appears over the picture."""

    level: Literal["info", "warning", "error"]
    text: str
    serial: int
    about: str = ""  # the action that an error is about, as `EngineStatus.done` names it


@dataclass(frozen=True, eq=False)
class EngineStatus:
    """Holds one consistent snapshot of everything but the picture."""

    scene: SceneInfo | None = None
    splat_count: int = 0
    training: TrainingStatus = TrainingStatus()
    busy: str = ""  # "compiling…", "opening garden.ply…"; empty when idle
    search: SearchStatus | None = None  # while cameras are searched
    log: tuple[LogLine, ...] = ()  # the last few hundred lines
    done: Mapping[str, int] = field(default_factory=dict)  # action -> serial of the newest line when it last succeeded
    backend: str = "cpu"
    device: str = ""  # "2 threads" or the GPU's name
    policy: Policy = Policy()  # policy of the pictures: the wanted one once it is compiled
    compiling: tuple[str, ...] = ()  # stages that the wanted policy waits for, of pictures and training
    refused: Policy | None = None  # the wanted policy, if it cannot be used
    comparison: Comparison | None = None  # the newest measurement
    recording: bool = False  # True while a trace is recorded
    blending: BlendMachine | None = None  # known once a picture has been drawn
    recorded: RecordedFrame | None = None  # the newest recorded frame of this scene
    views: tuple[ViewFigures, ...] = ()  # the views measured so far
    recipe: Recipe | None = None  # None once the run begins
    checkup: tuple[Finding, ...] = ()  # findings of `splatscope doctor` for the open capture
    thumbnails: Mapping[int, NDArray[np.uint8]] = field(default_factory=dict)  # [h, w, 3] by camera
