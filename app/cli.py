"""The options of every subcommand: one dataclass each, read by tyro and by nobody else.

Importing this module must stay cheap: no NumPy-heavy module, no torch, no GUI. `commands.py` does the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional, arg

BackendChoice = Literal["auto", "cpu", "cuda", "reference"]


@dataclass(frozen=True)
class View:
    """Open the window, empty or on a PLY, an Inria model folder or a capture."""

    path: Annotated[Path | None, Positional, arg(metavar="PATH")] = None
    """A splat file (.ply), a model folder, or a capture (COLMAP or transforms_train.json)."""
    backend: BackendChoice = "auto"
    """Who renders: auto is the CPU for now; cuda needs an NVIDIA GPU."""
    size: Annotated[str, arg(metavar="WxH")] = "1600x1000"
    """Size of the window in pixels."""
    ui_scale: float = 0.0
    """Scale of text and controls; 0 follows the screen."""


@dataclass(frozen=True)
class Train:
    """Train a capture; opens the window unless --headless is given or there is no display."""

    dataset: Annotated[Path | None, Positional, arg(metavar="CAPTURE")] = None
    """The capture: a COLMAP folder or a folder with transforms_train.json."""
    source_path: Annotated[Path | None, arg(aliases=["-s"], metavar="CAPTURE")] = None
    """The same, by the option's older name."""
    out: Annotated[Path | None, arg(aliases=["-m", "--model-path", "--model_path"], metavar="FOLDER")] = None
    """Where results go; output/<capture>-<date> unless given."""
    images: Annotated[str, arg(aliases=["-i"], metavar="NAME")] = "images"
    """Folder of photographs inside a COLMAP capture."""
    resolution: Annotated[int, arg(aliases=["-r"])] = -1
    """1, 2, 4, 8 divide the size; another number is the target width; -1 caps the width at 1600."""
    white_background: Annotated[bool, arg(aliases=["-w"])] = False
    """Train over white whatever the images are (RGBA captures are white anyway)."""
    eval: bool = False
    """Hold out every 8th view and measure PSNR on those."""
    iterations: int = 30_000
    """Training steps."""
    preset: Literal["inria", "inria2023"] = "inria"
    """Recipe: inria2023 has the opacity rate of the first release (0.05)."""
    sh_degree: int = 3
    """Highest degree of the spherical harmonics."""
    seed: int = 0
    """Runs with the same seed are identical on the CPU."""
    save_iterations: tuple[int, ...] = (7_000, 30_000)
    """Iterations after which a PLY is written; the last one always is."""
    test_iterations: tuple[int, ...] = ()
    """More iterations after which PSNR and SSIM are measured; the last one always is."""
    test_interval: int = 1_000
    """Measure PSNR and SSIM this often; 0 turns the regular ones off."""
    headless: bool = False
    """No window: progress in the terminal."""
    paused: bool = False
    """Open the window without starting."""
    backend: BackendChoice = "auto"
    """Who computes: auto is the CPU for now; cuda still computes loss and optimiser there."""


@dataclass(frozen=True)
class Render:
    """Render one picture of a scene to PNG, and to float32 NPY if asked."""

    scene: Annotated[Path, Positional, arg(metavar="SCENE")]
    """A splat file (.ply) or a model folder."""
    out: Annotated[Path | None, arg(metavar="FILE.png")] = None
    """The PNG to write."""
    npy: Annotated[Path | None, arg(metavar="FILE.npy")] = None
    """Also write the float32 image [H, W, 3] before any clamping."""
    camera: Annotated[Path | None, arg(metavar="FILE.json")] = None
    """Camera JSON: width, height, fx, fy, cx, cy, view_from_world, or one entry of cameras.json."""
    dataset: Annotated[Path | None, arg(metavar="CAPTURE")] = None
    """Take the camera from this capture instead; needs --view."""
    view: Annotated[str | None, arg(metavar="NAME")] = None
    """Name of the photograph in --dataset whose camera is used."""
    size: Annotated[str | None, arg(metavar="WxH")] = None
    """Size of the picture; the camera's own unless given."""
    background: Annotated[str, arg(metavar="R,G,B")] = "0,0,0"
    """Background colour, each channel 0 to 1."""
    overlay: Literal["none", "tiles"] = "none"
    """tiles draws the tile-count heatmap over the picture."""
    stats: Annotated[Path | None, arg(metavar="FILE.json")] = None
    """Write counts and stage times as JSON."""
    backend: BackendChoice = "auto"
    """Who renders."""


@dataclass(frozen=True)
class Demo:
    """Train the bundled scene live in the window; without a display leave pictures on disk."""

    headless: bool = False
    """No window even if there is a display."""
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Where results go; output/demo-<date> unless given."""
    iterations: Annotated[int | None, arg(metavar="INT")] = None
    """Training steps: 7000 with a window, a few hundred without."""
    backend: BackendChoice = "auto"
    """Who computes."""


def _subcommands() -> dict[str, type]:
    from splatscope.app.bench import BenchOptions

    return {"view": View, "train": Train, "render": Render, "bench": BenchOptions, "demo": Demo}


def parse(arguments: Sequence[str]) -> object:
    """The options object of the subcommand on the command line; `view` if none is named.

    Prints help or a usage error and raises SystemExit as any command line does.
    """
    subcommands = _subcommands()
    arguments = list(arguments)
    if not arguments or (arguments[0] not in subcommands and not arguments[0].startswith("-")):
        arguments.insert(0, "view")
    return tyro.extras.subcommand_cli_from_dict(
        subcommands,
        prog="splatscope",
        description="A viewer and trainer for 3D Gaussian Splatting that shows where every microsecond goes. "
        "`splatscope PATH` is `splatscope view PATH`; `splatscope --version` prints the version.",
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def parse_size(text: str, option: str) -> tuple[int, int]:
    """(width, height) of a WxH option. Raises InputError naming the option."""
    from splatscope.kernels.errors import InputError

    parts = text.lower().split("x")
    if len(parts) != 2 or not all(p.isdecimal() and 1 <= int(p) <= 16384 for p in parts):
        raise InputError(
            f"{option} must be WIDTHxHEIGHT with numbers from 1 to 16384, for example 1280x720, got {text!r}."
        )
    return int(parts[0]), int(parts[1])


def parse_color(text: str, option: str) -> tuple[float, float, float]:
    """(r, g, b) of an R,G,B option. Raises InputError naming the option."""
    from splatscope.kernels.errors import InputError

    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != 3 or not all(0.0 <= v <= 1.0 for v in values):
        raise InputError(
            f"{option} must be three numbers from 0 to 1 with commas between, for example 1,1,1, got {text!r}."
        )
    return values[0], values[1], values[2]
