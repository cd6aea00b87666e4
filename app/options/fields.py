"""Declares the options that several subcommands share, and parses sizes and colours."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from tyro.conf import UseAppendAction, arg

BackendChoice = Literal["auto", "cpu", "cuda", "reference"]


def optional(metavar: str, *aliases: str) -> object:
    """An option that may be left out; its help says what holds then, so "None" need not."""
    return arg(metavar=metavar, aliases=aliases or None, help_behavior_hint="")


def repeated(kind: Any, metavar: str, text: str | None = None) -> object:
    """What stands beside UseAppendAction where an option takes values of a kind: it may also be given again, which adds
    to them. tyro makes a sequence of each time; `parse` joins them to the tuple that the field says."""
    sequences: Any = tuple[tuple[kind, ...], ...]
    several = f"{metavar} [{'...' if len(metavar) > 8 else f'{metavar} ...'}]"
    return arg(constructor=sequences, metavar=several, help=text, help_behavior_hint="(may be repeated)")


# What they become: `policy.py`, which also checks them.
StepChoice = Annotated[
    str,
    arg(metavar="NAME", help="A preset of all toggles: a step of the ladder, s00 to s06 and s06_bf16, or best."),
]
ToggleChoice = Annotated[
    tuple[str, ...],
    UseAppendAction,
    repeated(
        str,
        "STAGE.FIELD=VALUE",
        "Set single toggles on top of the preset, for example blend.map=columns_8x8; the toggles panel lists them, and "
        "a wrong one is answered with those there are.",
    ),
]
ActivatedChoice = Annotated[
    Literal["auto", "none", "both", "scales", "opacities"],
    arg(
        help="Values that a splat file holds as they are, where others have logarithms of scales and logits of "
        "opacities; auto reads both so if all scales are positive and all opacities lie between 0 and 1, and says so."
    ),
]
Axes = Annotated[
    Literal["auto", "opencv", "opengl"],
    arg(
        help="Axes of the cameras in the files: opencv (y down, z ahead) or opengl (y up, z behind). auto: as the "
        "format has them, unless the points leave no doubt that they are the other ones."
    ),
]
WindowSize = Annotated[str, arg(metavar="WxH", help="Size of the window in pixels.")]
UiScale = Annotated[float, arg(help="Scale of text and controls in the window; 0 follows the screen.")]


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
