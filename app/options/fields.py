"""Declares the options that several subcommands share, and parses sizes and colours."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from tyro.conf import UseAppendAction, arg

from splatscope.kernels.errors import InputError
from splatscope.kernels.primitive import Primitive

BackendChoice = Literal["auto", "cpu", "cuda", "reference"]


def optional(metavar: str, *aliases: str, text: str | None = None) -> object:
    """Declares an option that may be left out. Its help says what holds then, so tyro need not add "None"."""
    return arg(metavar=metavar, aliases=aliases or None, help=text, help_behavior_hint="")


def repeated(kind: Any, metavar: str, text: str | None = None) -> object:
    """Declares, next to UseAppendAction, an option with several values that may be given again, which adds to them.

    tyro makes a sequence each time; `parse` joins the sequences into the field's tuple.
    """
    sequences: Any = tuple[tuple[kind, ...], ...]
    several = f"{metavar} [{'...' if len(metavar) > 8 else f'{metavar} ...'}]"
    return arg(constructor=sequences, metavar=several, help=text, help_behavior_hint="(may be repeated)")


# `policy.py` checks step and toggles and makes a policy of them.
StepChoice = Annotated[
    str,
    arg(metavar="NAME", help="Preset of all toggles: s00 to s06 or s06_bf16 of the ladder, or best."),
]
ToggleChoice = Annotated[
    tuple[str, ...],
    UseAppendAction,
    repeated(
        str,
        "STAGE.FIELD=VALUE",
        "Set single toggles on top of the preset, for example blend.map=columns_8x8. The toggles panel lists them, and "
        "an unknown name lists the valid ones.",
    ),
]
ActivatedChoice = Annotated[
    Literal["auto", "none", "both", "scales", "opacities"],
    arg(
        help="Values that a splat file holds activated: scales, not their logarithms, and opacities, not their logits. "
        "auto takes both as activated if all scales are positive and all opacities lie between 0 and 1, and prints a "
        "note."
    ),
]
PrimitiveChoice = Annotated[
    Primitive | None,
    optional(
        "{3dgs,2dgs,3dgut}",
        text="Kind of the splats in a file: flattened Gaussians, disks, or Gaussians along rays. Unless given, two "
        "scales mean disks, and a comment that we write means Gaussians along rays. 2dgs drops third scales.",
    ),
]
Axes = Annotated[
    Literal["auto", "opencv", "opengl"],
    arg(
        help="Axes of the cameras in the files: opencv (y down, z ahead) or opengl (y up, z behind). auto: those of "
        "the format, unless the points clearly show the other ones."
    ),
]
WindowSize = Annotated[str, arg(metavar="WxH", help="Size of the window in pixels.")]
UiScale = Annotated[float, arg(help="Scale of text and controls in the window; 0 follows the screen.")]


def parse_size(text: str, option: str) -> tuple[int, int]:
    """Returns (width, height) of a WxH option. Raises InputError naming the option."""
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(p.isdecimal() and 1 <= int(p) <= 16384 for p in parts):
        raise InputError(
            f"{option} must be WIDTHxHEIGHT with numbers from 1 to 16384, for example 1280x720, got {text!r}."
        )
    return int(parts[0]), int(parts[1])


def parse_color(text: str, option: str) -> tuple[float, float, float]:
    """Returns (r, g, b) of an R,G,B option. Raises InputError naming the option."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != 3 or not all(0.0 <= v <= 1.0 for v in values):
        raise InputError(
            f"{option} must be three numbers from 0 to 1 with commas between, for example 1,1,1, got {text!r}."
        )
    return values[0], values[1], values[2]
