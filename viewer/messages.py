"""What the window and the engine say to each other. No GUI import, no model: values only.

The window sends the newest `ViewRequest` (a mailbox: older ones are dropped) and queued commands; it
polls `EngineStatus` and the newest `Picture`. Everything is immutable, so nothing is locked while read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Camera, Frame, RenderSettings

OverlayName = Literal["none", "tiles"]
TrainingState = Literal["none", "ready", "running", "paused", "stopping", "finished", "error"]


@dataclass(frozen=True)
class ViewRequest:
    """What the viewport wants to see; equal requests need no new picture."""

    camera: Camera
    settings: RenderSettings = RenderSettings()
    policy: Policy = Policy()
    overlay: OverlayName = "none"
    overlay_opacity: float = 0.65


@dataclass(frozen=True, eq=False)
class Picture:
    """A finished picture, ready to upload."""

    rgba: NDArray[np.uint8]  # [H, W, 4] C-contiguous, alpha 255, overlay already blended in
    frame: Frame
    request: ViewRequest
    serial: int  # grows by one with every picture
    render_ms: float  # wall time of the forward pass and the overlay


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
    low: tuple[float, float, float]  # 5th percentile of the positions
    high: tuple[float, float, float]  # 95th percentile
    up: tuple[float, float, float]  # guessed up axis in world coordinates, unit length
    extent: float  # world units; speeds scale with it
    cameras: tuple[NamedCamera, ...] = ()
    background: tuple[float, float, float] = (0.0, 0.0, 0.0)  # what the scene was or will be trained over
    warnings: tuple[str, ...] = ()
    generation: int = 0  # grows with every opened scene, so the window knows to go home


@dataclass(frozen=True, eq=False)
class Curve:
    """A plot: x and y of equal length, already decimated to at most a few thousand points."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]


EMPTY_CURVE = Curve(np.zeros(0), np.zeros(0))


@dataclass(frozen=True, eq=False)
class TrainingStatus:
    """The training run as the panel shows it."""

    state: TrainingState = "none"  # "none": nothing trainable is open
    iteration: int = 0
    iterations: int = 0
    loss: float | None = None
    psnr: float | None = None
    ssim: float | None = None
    psnr_label: str = "held-out PSNR"  # "training PSNR" when no view is held out
    iterations_per_second: float | None = None
    eta_seconds: float | None = None
    out_dir: Path | None = None
    loss_curve: Curve = EMPTY_CURVE
    psnr_curve: Curve = EMPTY_CURVE
    stage_ms: dict[str, float] = field(default_factory=dict)  # of the last step
    note: str = ""  # "evaluating 12 of 25", "saved to ...", the forecast
    view_cost: float = 0.0  # share of the last seconds spent on pictures rather than training


@dataclass(frozen=True)
class LogLine:
    """One message for the user; `level` decides its colour and whether it pops up."""

    level: Literal["info", "warning", "error"]
    text: str
    serial: int


@dataclass(frozen=True, eq=False)
class EngineStatus:
    """One consistent snapshot of everything but the picture."""

    scene: SceneInfo | None = None
    splat_count: int = 0
    training: TrainingStatus = TrainingStatus()
    busy: str = ""  # "compiling…", "opening garden.ply…"; empty when idle
    log: tuple[LogLine, ...] = ()  # the last few hundred lines
    backend: str = "cpu"
    device: str = ""  # "2 threads" or the GPU's name


# Commands ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenScene:
    """Open a PLY, a model folder or a dataset; what is open stays if this fails."""

    path: Path
    then_train: bool = False  # start training if it could be opened


@dataclass(frozen=True)
class StartTraining:
    """Begin, or go on after a pause."""


@dataclass(frozen=True)
class PauseTraining:
    """Stop after the step in flight; everything is kept."""


@dataclass(frozen=True)
class StepTraining:
    """One iteration, then pause."""


@dataclass(frozen=True)
class StopTraining:
    """Save what is there and end the run."""


@dataclass(frozen=True)
class SaveScreenshot:
    """Render `request` at its own size and write PNG; with an overlay also its legend and NPY counts."""

    request: ViewRequest
    folder: Path


@dataclass(frozen=True)
class SavePly:
    """Write the splats as they are now."""

    path: Path


Command = OpenScene | StartTraining | PauseTraining | StepTraining | StopTraining | SaveScreenshot | SavePly


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
