"""The options of every subcommand: one dataclass each, read by tyro and by nobody else.

Importing this module must stay cheap: no NumPy-heavy module, no torch, no GUI. `commands/dispatch.py` does the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional, UseAppendAction, arg

from splatscope.app.options import bench
from splatscope.app.options.fields import (
    ActivatedChoice,
    Axes,
    BackendChoice,
    StepChoice,
    ToggleChoice,
    UiScale,
    WindowSize,
    optional,
    repeated,
)
from splatscope.app.options.former_bench import refuse_former


@dataclass(frozen=True)
class ViewOptions:
    """Open the window, empty or on a PLY, an Inria model folder or a capture."""

    path: Annotated[Path | None, Positional, optional("PATH")] = None
    """A splat file (.ply), a model folder, a run's folder, a capture (COLMAP, transforms.json or
    transforms_train.json), or a folder of photographs."""
    activated: ActivatedChoice = "auto"
    axes: Axes = "auto"
    backend: BackendChoice = "auto"
    """Who renders: auto is the GPU where an NVIDIA GPU can be used, else the CPU."""
    size: WindowSize = "1600x1000"
    ui_scale: UiScale = 0.0
    step: StepChoice = "best"
    toggle: ToggleChoice = ()
    nvtx: bool = False
    """Name the GPU's stages for profilers (Nsight); kernels are launched one by one for that, not as graphs."""


@dataclass(frozen=True)
class TrainOptions:
    """TrainOptions a capture; opens the window unless --headless is given or there is no display."""

    dataset: Annotated[Path | None, Positional, optional("CAPTURE")] = None
    """The capture: a COLMAP folder, one with transforms.json or transforms_train.json, or photographs alone."""
    source_path: Annotated[Path | None, optional("CAPTURE", "-s")] = None
    """The same, by the option's older name."""
    out: Annotated[Path | None, optional("FOLDER", "-m", "--model-path", "--model_path")] = None
    """Where results go; output/<capture>-<date> unless given."""
    resume: Annotated[Path | None, optional("PATH")] = None
    """Go on from a run's folder (its newest checkpoint) or a checkpoint .pt, or begin with the splats of a .ply.
    Capture and settings are those of the run that it lies in unless given.
    A .ply holds no moments and no iteration: it is at N if its folder is named iteration_N, else at 0, and then growth,
    opacity resets and high rates come again; --set densify.enabled=false leaves out growth and resets."""
    activated: ActivatedChoice = "auto"
    images: Annotated[str | None, optional("NAME", "-i")] = None
    """Folder of photographs inside a COLMAP capture; images unless given."""
    resolution: Annotated[int | None, optional("INT", "-r")] = None
    """1 to 8 divide the size; 16 or more is the width in pixels; -1, the default, caps the width at 1600."""
    white_background: Annotated[bool, arg(aliases=["-w"])] = False
    """TrainOptions over white whatever the images are (RGBA captures are white anyway)."""
    random_background: bool = False
    """A new background colour every step, which RGBA captures show through; pictures keep the fixed one."""
    alpha: Annotated[Literal["background", "mask", "ignore"] | None, optional("{background,mask,ignore}")] = None
    """Transparency of photographs: shows the background (default), leaves pixels out, or means nothing."""
    masks: Annotated[Literal["use", "invert", "ignore"] | None, optional("{use,invert,ignore}")] = None
    """Masks beside photographs (masks/NAME.png, mask_path, dynamic_mask_NAME.png): leave out what is black, or in
    dynamic ones what is not (default); or the rest; or nothing. A search for cameras looks at what is left."""
    axes: Annotated[Literal["auto", "opencv", "opengl"] | None, optional("{auto,opencv,opengl}")] = None
    """Axes of the cameras in the files: opencv (y down, z ahead) or opengl (y up, z behind). auto, the default: as the
    format has them, unless the points leave no doubt that they are the other ones."""
    eval: bool = False
    """Hold out every 8th view (every Nth by --set data.holdout_interval=N) and measure PSNR on those.
    A test split of the set's own (transforms_test.json, or nerfstudio's test_filenames) is always held out instead."""
    iterations: Annotated[int | None, optional("INT")] = None
    """Training steps; the recipe's own number unless given (30,000; fast and fast_mcmc: 18,000).
    Schedules of fast and fast_mcmc scale with it. The others keep those of 30,000, as published, and a shorter run ends
    before they do: growth at 15,000, that of mcmc at 25,000, the fall of the means' rate at 30,000.
    With --resume or --settings schedules stay as they are there."""
    preset: Annotated[
        Literal["inria", "inria2023", "absgrad", "mcmc", "fast", "fast_mcmc"] | None,
        optional("{inria,inria2023,absgrad,mcmc,fast,fast_mcmc}"),
    ] = None
    """Recipe: inria, the default, is the published one; inria2023 has the first release's opacity rate (0.05);
    absgrad adds up what each pixel pulls at a splat, sign left out, to find where detail is missing;
    mcmc grows to a number of splats and moves them about; fast has a budget, small pictures at first and few steps;
    fast_mcmc takes as few, with splats that move, for captures of few photographs."""
    settings: Annotated[Path | None, optional("FILE")] = None
    """Begin with the settings of another run instead of a recipe: its settings.json, or its folder.
    Which photographs it was trained on is not taken over; other options and --set come on top."""
    max_splats: Annotated[int | None, optional("INT")] = None
    """Growth stops here; splats that a run begins with stay.
    fast gets there by the middle of a run. mcmc adds a twentieth and fast_mcmc a tenth every 100 iterations, so a run
    that is short or begins with few may end below it.
    Unless given, mcmc has a million, fast and fast_mcmc as many as the photographs' pixels ask for, at most a
    million."""
    init: Annotated[Literal["points", "random"] | None, optional("{points,random}")] = None
    """The first splats: on the capture's points, the default, or at random."""
    num_downscales: Annotated[int | None, optional("INT")] = None
    """Halve the photographs this often at first; the size doubles every 3000 iterations."""
    warmup_length: Annotated[int | None, optional("INT")] = None
    """Iterations before the first splat is added or removed; 500 unless given (fast, fast_mcmc: 2 to 3% of the run)."""
    sh_degree: Annotated[int | None, optional("INT")] = None
    """Highest degree of the spherical harmonics; 3 unless given."""
    sh_degree_interval: Annotated[int | None, optional("INT")] = None
    """Iterations between two degrees; 1000 unless given (fast, fast_mcmc: 3% of the run)."""
    exposure: bool = False
    """Learn an affine colour transform for each training photograph."""
    antialiasing: Annotated[Literal["plain", "compensated", "mip"] | None, optional("{plain,compensated,mip}")] = None
    """Filter that splats are trained, scored and afterwards shown with, so that small ones do not slip between pixels:
    plain, the default, widens them; compensated lowers their opacity likewise; mip is Mip-Splatting's 2D filter."""
    patience: Annotated[int | None, optional("INT")] = None
    """End the run after this many scorings without a gain; 0, the default, never does."""
    seed: Annotated[int | None, optional("INT")] = None
    """Runs with the same seed are identical on the CPU; 0 unless given."""
    save_iterations: Annotated[tuple[int, ...], UseAppendAction, repeated(int, "INT")] = ()
    """Iterations after which a PLY is written, 7000 and 30000 unless given (fast, fast_mcmc: none); the last always."""
    test_iterations: Annotated[tuple[int, ...], UseAppendAction, repeated(int, "INT")] = ()
    """More iterations after which PSNR and SSIM are measured; the last one always is."""
    test_interval: Annotated[int | None, optional("INT")] = None
    """Measure PSNR and SSIM this often, 1000 unless given; 0 turns the regular ones off."""
    set: Annotated[tuple[str, ...], UseAppendAction, repeated(str, "NAME=VALUE")] = ()
    """Any setting by its name in settings.json, for example densify.interval=50 rates.opacity=0.05;
    a wrong one is answered with those there are."""
    headless: bool = False
    """No window: progress in the terminal."""
    paused: bool = False
    """Open the window without starting."""
    size: WindowSize = "1600x1000"
    ui_scale: UiScale = 0.0
    backend: BackendChoice = "auto"
    """Who computes: auto is the GPU where one can be used."""
    step: StepChoice = "best"
    toggle: ToggleChoice = ()
    nvtx: bool = False
    """Name the GPU's stages for profilers (Nsight); kernels are launched one by one for that, not as graphs."""


@dataclass(frozen=True)
class RenderOptions:
    """RenderOptions one picture of a scene to PNG, and to float32 NPY if asked."""

    scene: Annotated[Path, Positional, arg(metavar="SCENE")]
    """A splat file (.ply) or a model folder."""
    activated: ActivatedChoice = "auto"
    out: Annotated[Path | None, optional("FILE.png")] = None
    """The PNG to write."""
    npy: Annotated[Path | None, optional("FILE.npy")] = None
    """Also write the float32 image [H, W, 3] before any clamping."""
    camera: Annotated[Path | None, optional("FILE.json")] = None
    """Camera JSON: width, height, fx, fy, cx, cy, view_from_world, or one entry of cameras.json."""
    dataset: Annotated[Path | None, optional("CAPTURE")] = None
    """Take the camera from this capture instead; needs --view."""
    view: Annotated[str | None, optional("NAME")] = None
    """Name of the photograph in --dataset whose camera is used."""
    size: Annotated[str | None, optional("WxH")] = None
    """Size of the picture; the camera's own unless given."""
    background: Annotated[str, arg(metavar="R,G,B")] = "0,0,0"
    """Background colour, each channel 0 to 1."""
    overlay: Literal["none", "tiles", "blended", "depth", "time", "chunks"] = "none"
    """A heatmap over the picture: splats listed per tile, blended, how much of the list, time taken, chunks."""
    stats: Annotated[Path | None, optional("FILE.json")] = None
    """Write counts and stage times as JSON."""
    step: StepChoice = "best"
    toggle: ToggleChoice = ()
    backend: BackendChoice = "auto"
    """Who renders: auto is the GPU where one can be used."""


@dataclass(frozen=True)
class EvalOptions:
    """Score trained splats on held-out photographs: PSNR, SSIM, and LPIPS where the packages lpips and torchvision are
    installed (pip install lpips torchvision) and the weights of its network lie in torch's cache. Nothing is downloaded
    here; the run says what is missing and how to get it."""

    model: Annotated[Path, Positional, arg(metavar="MODEL")]
    """A run's folder, a model folder, or a .ply file."""
    activated: ActivatedChoice = "auto"
    dataset: Annotated[Path | None, optional("CAPTURE", "-s", "--source-path")] = None
    """The capture; that of the run unless given."""
    out: Annotated[Path | None, optional("FOLDER")] = None
    """Where pictures and results.json go; the model's folder unless given."""
    iteration: Annotated[int | None, optional("INT")] = None
    """Which iteration of a model folder; its highest unless given."""
    split: Literal["test", "train"] = "test"
    """Held-out views (the set's own, else every 8th by name), or those trained on."""
    precision: Literal["8bit", "float"] = "8bit"
    """Whether pictures are rounded to 8 bits before they are scored; most published figures are."""
    images: Annotated[str | None, optional("NAME", "-i")] = None
    """Folder of photographs inside a COLMAP capture; the run's unless given."""
    resolution: Annotated[int | None, optional("INT", "-r")] = None
    """Size of the photographs, as for train; the run's unless given."""
    white_background: Annotated[bool, arg(aliases=["-w"])] = False
    """Score over white."""
    step: StepChoice = "best"
    toggle: ToggleChoice = ()
    backend: BackendChoice = "auto"
    """Who renders: auto is the GPU where one can be used."""


@dataclass(frozen=True)
class ConvertOptions:
    """Write splats as another PLY: binary or ascii, fewer harmonics, without faint splats."""

    source: Annotated[Path, Positional, arg(metavar="IN")]
    """A splat file (.ply), a model folder (its highest iteration), or a run's checkpoint (.pt)."""
    target: Annotated[Path, Positional, arg(metavar="OUT.ply")]
    """The file to write."""
    activated: ActivatedChoice = "auto"
    encoding: Literal["binary", "ascii"] = "binary"
    """How numbers are written; both keep every bit."""
    sh_degree: Annotated[int | None, optional("INT")] = None
    """Harmonics up to this degree; all of them unless given."""
    min_opacity: Annotated[float | None, optional("FLOAT")] = None
    """Leave out splats fainter than this."""
    overwrite: bool = False
    """Replace a file that is there."""


@dataclass(frozen=True)
class DoctorOptions:
    """Look over a capture before training: what is there, what is odd, how long it will take."""

    dataset: Annotated[Path, Positional, arg(metavar="CAPTURE")]
    """The capture: a COLMAP folder or a folder with transforms.json or transforms_train.json."""
    images: Annotated[str, arg(aliases=["-i"], metavar="NAME")] = "images"
    """Folder of photographs inside a COLMAP capture."""
    axes: Axes = "auto"
    resolution: Annotated[int, arg(aliases=["-r"])] = -1
    """Size of the photographs that time and memory are told for, as for train."""
    iterations: int = 30_000
    """Length of the run that time is told for."""
    quick: bool = False
    """Decode no photograph and measure nothing."""
    backend: BackendChoice = "auto"
    """Who computes while time is measured."""


@dataclass(frozen=True)
class DemoOptions:
    """TrainOptions the bundled scene live in the window; without a display leave pictures on disk."""

    headless: bool = False
    """No window even if there is a display."""
    out: Annotated[Path | None, optional("FOLDER")] = None
    """Where results go; output/demo-<date> unless given."""
    iterations: Annotated[int | None, optional("INT")] = None
    """Training steps: 7000 with a window, 1200 without."""
    backend: BackendChoice = "auto"
    """Who computes."""


ABOUT = (
    "A viewer and trainer for 3D Gaussian Splatting that shows where every microsecond goes. "
    "`splatscope PATH` is `splatscope view PATH`; `splatscope --version` prints the version."
)


def _subcommands() -> dict[str, type]:
    return {
        "view": ViewOptions,
        "train": TrainOptions,
        "render": RenderOptions,
        "eval": EvalOptions,
        "convert": ConvertOptions,
        "bench": bench.BenchOptions,
        "doctor": DoctorOptions,
        "demo": DemoOptions,
    }


def parse(arguments: Sequence[str]) -> object:
    """The options object of the subcommand on the command line; `view` if none is named.

    Prints help or a usage error and raises SystemExit as any command line does. Raises InputError for an argument that
    is empty: as a path it would be the current folder.
    """
    subcommands = _subcommands()
    arguments = list(arguments)
    _refuse_empty(arguments)
    if not arguments or (arguments[0] not in subcommands and not arguments[0].startswith("-")):
        arguments.insert(0, "view")
    program, description = "splatscope", ABOUT
    if arguments[0] == "bench":  # its subcommands are parsed here, so that the parser of everything else stays small
        program, subcommands, arguments = "splatscope bench", bench.SUBCOMMANDS, arguments[1:]
        description = "Check and time. Each benchmark has options of its own: `splatscope bench NAME --help`."
        refuse_former(arguments)
    options = tyro.extras.subcommand_cli_from_dict(
        subcommands,
        prog=program,
        description=description,
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    return _joined(options)


def _refuse_empty(arguments: Sequence[str]) -> None:
    from splatscope.kernels.errors import InputError

    for before, argument in zip(["", *arguments], arguments, strict=False):
        option, equals, value = argument.partition("=") if argument.startswith("--") else (before, "=", argument)
        if equals and not value.strip():
            where = f"{option} has no value" if option.startswith("-") else "An argument is empty"
            raise InputError(f"{where}; give one, or leave it out. (A shell variable that is not set gives nothing.)")


def _joined(options: Any) -> object:
    """The options with one tuple for each `repeated` one, of all that was given. Raises InputError for one without a
    value."""
    from splatscope.kernels.errors import InputError

    joined: dict[str, Any] = {}
    for field in fields(options):
        value = getattr(options, field.name)
        if isinstance(value, tuple) and value and isinstance(value[0], tuple):  # a positional one is joined already
            if () in value:
                raise InputError(f"--{field.name.replace('_', '-')} needs a value after it; see --help.")
            joined[field.name] = tuple(chain.from_iterable(value))
    return replace(options, **joined)
