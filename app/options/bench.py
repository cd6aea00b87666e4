"""Declares the options of each benchmark: `splatscope bench NAME`.

`SUBCOMMANDS` lists them. The benchmark NAME is the module `app/bench/NAME.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

from splatscope.app.options.fields import StepChoice, ToggleChoice, optional, repeated
from splatscope.kernels.primitive import Primitive

Stage = Literal["blend_backward", "sort"]
Peer = Literal["all", "gsplat", "inria", "faster_gs"]
StepPeer = Literal["all", "gsplat", "inria", "faster_gs", "faster_gs_fused"]
StepLoss = Literal["all", "ours", "fused_ssim"]
Scenes = Annotated[
    tuple[str, ...],
    UseAppendAction,
    repeated(
        str,
        "NAME",
        "Benchmark scenes (small, S4, S1, S2, S3, S1m, S2m) or splat files; S1 to S4 unless given. All scenes but the "
        "first two need gigabytes and minutes.",
    ),
]
Presets = Annotated[
    tuple[str, ...],
    UseAppendAction,
    repeated(str, "NAME", "Presets to measure, for example s00 s06 best."),
]
AddedRow = Annotated[
    tuple[str, ...],
    UseAppendAction,
    repeated(
        str,
        "STAGE.FIELD=VALUE",
        "Add one row: --step with these toggles on top, for example blend.map=columns_8x8.",
    ),
]
CameraFile = Annotated[
    Path | None,
    arg(
        metavar="FILE.json",
        help_behavior_hint="",
        help="Draw from this camera; without it a splat file is framed.",
    ),
]
PictureSize = Annotated[
    str | None, arg(metavar="WxH", help_behavior_hint="", help="Draw at this size, for example 1920x1080.")
]
Primitives = Annotated[
    tuple[Primitive, ...],
    UseAppendAction,
    repeated(Primitive, "{2dgs,3dgut}", "Also measure the scenes as these primitives, in turns with 3dgs."),
]
Repeat = Annotated[int, arg(help="Timed runs of each kind.")]
Out = Annotated[
    Path | None,
    arg(
        metavar="PATH",
        help_behavior_hint="",
        help="Write everything measured to this JSON file; in a folder it is named for what was measured and the day.",
    ),
]
OutFile = Annotated[
    Path | None, arg(metavar="FILE.json", help_behavior_hint="", help="Write everything measured to this JSON file.")
]
Readme = Annotated[
    Path | None,
    arg(
        metavar="FILE",
        help_behavior_hint="",
        help="Rewrite the table between the marks of this text file, for example <!-- bench:cuda -->.",
    ),
]
Resolution = Annotated[int, arg(aliases=["-r"], help="Size at which photographs are read, as for `splatscope train`.")]
TrainSteps = Annotated[int, arg(aliases=["-n"], help="Training steps to time; on a GPU, of each block.")]


@dataclass(frozen=True)
class BenchOptions:
    """Check and time rendering, training steps and whole runs; `splatscope bench --help` lists the benchmarks."""


@dataclass(frozen=True)
class LadderOptions:
    """Time every preset from s00 to best on a GPU, forward and backward, stage by stage."""

    scenes: Scenes = ()
    steps: Presets = ()
    step: StepChoice = "best"
    toggle: AddedRow = ()
    toggles: bool = False
    """Also time the best preset with each toggle at each of its other values."""
    vs: Annotated[tuple[Peer, ...], UseAppendAction, repeated(Peer, "{all,gsplat,inria,faster_gs}")] = ()
    """Also time these rasterisers on the same tensors, where they are installed."""
    primitive: Primitives = ()
    camera: CameraFile = None
    size: PictureSize = None
    repeat: Repeat = 20
    out: Out = None
    readme: Readme = None


@dataclass(frozen=True)
class AblateOptions:
    """Take a stage apart on a GPU and print the cost of each part."""

    parts: Annotated[tuple[Stage, ...], Positional, arg(metavar="[{blend_backward,sort} ...]")] = (
        "blend_backward",
        "sort",
    )
    """Stages to take apart."""
    scenes: Scenes = ()
    steps: Presets = ()
    step: StepChoice = "best"
    toggle: AddedRow = ()
    camera: CameraFile = None
    size: PictureSize = None
    repeat: Repeat = 20
    out: Out = None


@dataclass(frozen=True)
class KernelsOptions:
    """List registers and occupancy of the presets' kernels on seven architectures; needs no GPU."""

    steps: Presets = ()


@dataclass(frozen=True)
class ScheduleOptions:
    """Time ways to schedule tiles and chunks on a GPU against grid order; with --out also draw figures."""

    scenes: Annotated[
        tuple[str, ...],
        UseAppendAction,
        repeated(
            str,
            "NAME",
            "Benchmark scenes, splat files, or crowded:RATIO, for example crowded:10; S1 to S4 and six crowded ones "
            "unless given.",
        ),
    ] = ()
    variants: Annotated[tuple[str, ...], UseAppendAction, repeated(str, "NAME")] = ()
    """Schedules to compare, with grid among them; all unless given."""
    frames: int = 5
    """Frames of each scene."""
    primitive: Annotated[Primitive, arg(help="Measure the scenes as this primitive.")] = "3dgs"
    repeat: Repeat = 20
    out: Out = None
    readme: Readme = None


@dataclass(frozen=True)
class CalibrateOptions:
    """Measure the constants of the cost model that splits heavy tiles on this GPU, and keep them."""


@dataclass(frozen=True)
class StepOptions:
    """Time whole training steps on the benchmark scenes on a GPU; nothing is trained."""

    scenes: Scenes = ()
    step: StepChoice = "best"
    toggle: ToggleChoice = ()
    train_steps: TrainSteps = 200
    views: int = 1
    """Number of cameras to take steps with in turn: the scene's own, turned evenly about its vertical axis."""
    vs: Annotated[
        tuple[StepPeer, ...], UseAppendAction, repeated(StepPeer, "{all,gsplat,inria,faster_gs,faster_gs_fused}")
    ] = ()
    """Also time the steps of these rasterisers, in turns with ours, where they are installed."""
    losses: Annotated[tuple[StepLoss, ...], UseAppendAction, repeated(StepLoss, "{all,ours,fused_ssim}")] = ()
    """With --vs, losses that the other rasterisers train with, one row each; ours unless given."""
    out: OutFile = None


@dataclass(frozen=True)
class TrainBenchOptions:
    """Time the training steps of a capture, without growth, in five blocks; on a GPU where there is one."""

    capture: Annotated[Path, Positional, arg(metavar="CAPTURE")]
    """The capture, as for `splatscope train`."""
    resume: Annotated[Path | None, optional("PATH")] = None
    """Begin with these splats (.ply) or this checkpoint instead of the capture's points."""
    resolution: Resolution = -1
    num_downscales: Annotated[int | None, optional("INT")] = None
    """As for `splatscope train`."""
    sh_degree_interval: Annotated[int | None, optional("INT")] = None
    """As for `splatscope train`."""
    warmup_length: Annotated[int | None, optional("INT")] = None
    """Accepted for the sake of other trainers' command lines; growth is off anyway."""
    step: StepChoice = "best"
    toggle: ToggleChoice = ()
    train_steps: TrainSteps = 100
    runs: int = 3
    """Repeat everything this many times from the same start, each time in a new process, for the run-to-run spread."""
    out: OutFile = None


@dataclass(frozen=True)
class RunsOptions:
    """Train whole runs by some recipes and score them on views held out."""

    capture: Annotated[Path, Positional, arg(metavar="CAPTURE")]
    """The capture, as for `splatscope train`."""
    recipe: Annotated[tuple[str, ...], UseAppendAction, repeated(str, "NAME")] = ()
    """Recipes, for example inria mcmc fast. gsplat and gsplat-mcmc are another trainer's, left out where it cannot
    run. A run's settings.json is a recipe, too."""
    iterations: Annotated[int | None, optional("INT")] = None
    """Length of the runs, as for `splatscope train`."""
    seeds: Annotated[tuple[int, ...], UseAppendAction, repeated(int, "INT")] = ()
    """Train one run with each of these seeds; 0 unless given."""
    set: Annotated[tuple[str, ...], UseAppendAction, repeated(str, "NAME=VALUE")] = ()
    """Change single settings, as for `splatscope train`; not those that an option here gives."""
    resolution: Resolution = -1
    step: StepChoice = "best"
    toggle: ToggleChoice = ()
    out: Out = None
    readme: Readme = None


@dataclass(frozen=True)
class CpuOptions:
    """Check and time the CPU backend, forward and backward, at some thread counts."""

    scenes: Annotated[
        tuple[str, ...],
        UseAppendAction,
        repeated(
            str,
            "NAME",
            "Benchmark scenes (small, S4, S1, S2, S3, S1m, S2m); small and S4 unless given. All scenes but the first "
            "two need gigabytes and minutes.",
        ),
    ] = ()
    threads: Annotated[tuple[int, ...], UseAppendAction, repeated(int, "INT")] = ()
    """Thread counts to compare; one and all unless given."""
    compile: Annotated[bool, arg(help_behavior_hint="")] = True
    """Do not time how long kernels take to compile, and to load once compiled."""
    train: Annotated[Path | None, optional("CAPTURE")] = None
    """Also time training steps of this capture."""
    resolution: Resolution = -1
    train_steps: TrainSteps = 100
    repeat: Repeat = 20
    out: Out = None
    readme: Readme = None


@dataclass(frozen=True)
class WindowOptions:
    """Time a training run without a window and with one; needs a display that nobody touches meanwhile."""

    capture: Annotated[Path, Positional, arg(metavar="CAPTURE")]
    """The capture to train on."""
    splats: int = 100_000
    """Splats, drawn at random; none are added."""
    seconds: float = 10.0
    """Length of each measurement."""
    backend: Literal["auto", "cpu", "cuda"] = "auto"
    """What computes; auto is the GPU where one can be used."""
    out: OutFile = None


@dataclass(frozen=True)
class ShowOptions:
    """Show results measured before, from the JSON files that --out wrote; measures nothing."""

    files: Annotated[tuple[Path, ...], Positional, arg(metavar="FILE [FILE ...]")]
    """JSON files of one kind: of the CPU, of one GPU, of whole runs or of schedules."""
    readme: Readme = None
    figures: Annotated[Path | None, optional("FOLDER")] = None
    """Draw the figures of schedules into this folder; needs matplotlib."""


SUBCOMMANDS: dict[str, type] = {
    "ladder": LadderOptions,
    "ablate": AblateOptions,
    "kernels": KernelsOptions,
    "schedule": ScheduleOptions,
    "calibrate": CalibrateOptions,
    "step": StepOptions,
    "train": TrainBenchOptions,
    "runs": RunsOptions,
    "cpu": CpuOptions,
    "window": WindowOptions,
    "show": ShowOptions,
}
