"""What the window and the engine say to each other. No GUI import, no model: values only.

The window sends the newest `ViewRequest` (a mailbox: older ones are dropped) and queued commands; it
polls `EngineStatus` and the newest `Picture`. Everything is immutable, so nothing is locked while read.
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
from splatscope.kernels.schedule.rules import CostModel, Machine
from splatscope.kernels.schedule.timeline import Recording
from splatscope.kernels.types import Camera, Frame, RenderSettings
from splatscope.viewer.messages.run import TrainingStatus
from splatscope.viewer.messages.scale import LINEAR, HeatScale

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
    low_ms: float  # 95% interval of the change (app/engine/ab_measurement.py); infinite while there are too few pairs
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
