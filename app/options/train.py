"""Declares the options of `splatscope train`; those that are settings come from their declarations.

A setting has an option here if `training/config.py` declares one. `given_settings` takes the values back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from tyro.conf import Positional, UseAppendAction, arg

from splatscope.app.options.fields import (
    ActivatedChoice,
    BackendChoice,
    StepChoice,
    ToggleChoice,
    UiScale,
    WindowSize,
    optional,
    repeated,
)
from splatscope.training.config import TrainConfig
from splatscope.training.recipes import PresetName
from splatscope.training.setting import Option, SettingRow, setting_table


def _fields() -> Iterator[tuple[str, Any, Any]]:
    """Yields name, type and default of the field for each option, the first setting that names it deciding."""
    named: dict[str, tuple[SettingRow, Option]] = {}
    for row in setting_table(TrainConfig):
        if option := row.declared.option:
            named.setdefault(option.name, (row, option))
    for name, (row, option) in named.items():
        text = f"{row.declared.sentence} {option.more}".strip()
        if row.kind is bool:
            yield name, Annotated[bool, arg(aliases=option.aliases or None, help=text)], False
        elif get_origin(row.kind) is tuple:
            values = repeated(get_args(row.kind)[0], option.metavar, text)
            yield name, Annotated[row.kind, UseAppendAction, values], ()
        else:
            yield name, Annotated[row.kind | None, optional(option.metavar, *option.aliases, text=text)], None


# Any, because a type checker cannot know the fields.
_SettingOptions: Any = make_dataclass("_SettingOptions", _fields(), frozen=True)


@dataclass(frozen=True)
class _RunOptions:
    """Names what to train, and the folder to write to."""

    dataset: Annotated[Path | None, Positional, optional("CAPTURE")] = None
    """The capture: a COLMAP folder, one with transforms.json or transforms_train.json, or photographs alone."""
    source_path: Annotated[Path | None, optional("CAPTURE", "-s")] = None
    """The capture, by an older name of the option."""
    out: Annotated[Path | None, optional("FOLDER", "-m", "--model-path", "--model_path")] = None
    """Folder for the results; output/<capture>-<date> unless given."""
    resume: Annotated[Path | None, optional("PATH")] = None
    """Continue from a run's folder (its newest checkpoint) or a checkpoint .pt, or begin with the splats of a .ply.
    Capture and settings are those of that run unless given.
    A .ply holds no moments and no iteration: the run begins at N if the folder is named iteration_N, else at 0, with
    growth, opacity resets and high rates as at the start; --set densify.enabled=false leaves out growth and resets."""
    activated: ActivatedChoice = "auto"
    preset: Annotated[PresetName | None, optional(f"{{{','.join(get_args(PresetName))}}}")] = None
    """Recipe, inria unless given.
    inria: as published. inria2023: with the first release's opacity rate (0.05).
    absgrad: sums how hard each pixel pulls at a splat without sign, to find where detail is missing.
    mcmc: grows to a number of splats and moves them about.
    fast: a budget of splats, small pictures at first, few steps.
    fast_mcmc: as few steps with splats that move, for captures of few photographs.
    2dgs: disks, after Huang et al. 2024, without its losses of normals and distortion.
    3dgut: Gaussians evaluated along rays, after Wu et al. 2025."""
    settings: Annotated[Path | None, optional("FILE")] = None
    """Begin with the settings of another run instead of a recipe: its settings.json, or its folder.
    Its folder of photographs is not taken over; other options and --set come on top."""


@dataclass(frozen=True)
class TrainOptions(_SettingOptions, _RunOptions):
    """Train a capture; opens the window unless --headless is given or there is no display."""

    set: Annotated[tuple[str, ...], UseAppendAction, repeated(str, "NAME=VALUE")] = ()
    """Any setting by its name in settings.json, for example densify.interval=50 rates.opacity=0.05; an unknown name
    lists the valid ones."""
    headless: bool = False
    """Open no window; show progress in the terminal."""
    paused: bool = False
    """Open the window without starting."""
    size: WindowSize = "1600x1000"
    ui_scale: UiScale = 0.0
    backend: BackendChoice = "auto"
    """What computes; auto is the GPU where one can be used."""
    step: StepChoice = "best"
    toggle: ToggleChoice = ()
    nvtx: bool = False
    """Name the GPU's stages for profilers (Nsight). Kernels are then launched one by one, not as graphs."""


def given_settings(options: TrainOptions) -> dict[str, Any]:
    """Returns the settings that options give, nested as in settings.json; an option left out gives none."""
    given: dict[str, Any] = {}
    for row in setting_table(TrainConfig):
        option = row.declared.option
        value = None if option is None else getattr(options, option.name)
        if option is None or value is None or value is False or value == ():
            continue
        for name, said in ((row.name, value), *option.also):
            *groups, last = name.split(".")
            inside = given
            for part in groups:
                inside = inside.setdefault(part, {})
            inside[last] = said
    return given
