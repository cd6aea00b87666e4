"""The run that Start would begin: its settings, where it writes, what it goes on from; and the form that shows them.

A `RunPlan` is a value: a change makes a new one, so that a change that cannot be used leaves the old one as it was.
The window knows no setting by name: it draws whatever `recipe` lists, which comes from the dataclasses of
`training/config.py`, with the comments there as explanations.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from splatscope.kernels.errors import InputError
from splatscope.training.config import TrainConfig
from splatscope.training.recipes import PRESETS, preset, with_settings
from splatscope.viewer.messages import Recipe, SetRecipe, Setting, SettingValue

if TYPE_CHECKING:  # torch loads with the trainer
    from splatscope.assets.capture import Capture
    from splatscope.kernels.api import Backend
    from splatscope.training.trainer import Beginning, Trainer

_MAIN = ("iterations", "data.resolution", "data.eval", "strategy", "sh_degree")  # and the strategy's max_splats
_ELSEWHERE = ("data.images",)  # chosen when the capture was opened
_COMMENTED = re.compile(r"^ {4}(\w+): .*?  # (.+)$", re.MULTILINE)
_NUMBERED = 1000  # folders tried for a name that is free


@dataclass(frozen=True)
class RunPlan:
    """Also what makes trainers: the engine calls it with a capture and a backend."""

    config: TrainConfig
    out: Path | None = None  # None: output/<capture>-<date>
    begin: Beginning | None = None

    def __call__(self, capture: Capture, backend: Backend) -> Trainer:
        """A trainer that has read no photograph. Raises InputError if its folder holds a model already."""
        from splatscope.training.trainer import Trainer

        out, begin = self.out or default_out(capture.path.resolve().name), self.begin
        goes_on = begin is not None and begin.checkpoint is not None and out.absolute() in begin.path.absolute().parents
        if _is_taken(out) and not goes_on:
            raise InputError(
                f"{out} already holds a trained model; give another --out, --resume {out} to go on with it, or remove "
                f"that folder first."
            )
        return Trainer(capture, self.config, backend, out, begin)

    def changed(self, wish: SetRecipe) -> RunPlan:
        """The plan with what was wished for. Raises InputError for a value no run can use."""
        config, changes = self.config, dict(wish.changes)
        name = wish.preset or (preset_of(config) if "iterations" in changes else "")
        if name:  # some recipes derive other values from the length of the run
            length = changes.get("iterations", "")
            config = replace(preset(name, int(length) if length.isdecimal() else None), data=config.data)
        config = with_settings(config, [f"{name}={text}" for name, text in wish.changes])
        config.check()
        out = self.out if wish.out is None else Path(wish.out).expanduser() if wish.out.strip() else None
        if out is not None and _is_taken(out):
            raise InputError(f"{out} already holds a trained model; name another folder.")
        return replace(self, config=config, out=out)

    def again(self) -> RunPlan:
        """The same once more, into a folder of its own if this one has been written to."""
        if self.out is None or self.begin is not None or not _is_taken(self.out):
            return self
        names = (self.out.with_name(f"{self.out.name}-{number}") for number in range(2, _NUMBERED))
        return replace(self, out=next((path for path in names if not _is_taken(path)), None))

    def for_another(self) -> RunPlan:
        """For a capture that is opened later: the same settings, nothing to go on from, a folder of its own."""
        return replace(self, out=None, begin=None)

    def recipe(self) -> Recipe:
        """The form."""
        group = {"adaptive": "densify"}.get(self.config.strategy, self.config.strategy)
        main = (*_MAIN, f"{group}.max_splats")
        listed = tuple(s for s in settings_of(self.config) if s.name not in _ELSEWHERE)
        shown = tuple(replace(s, is_main=s.name in main) for s in listed)
        return Recipe(preset_of(self.config), tuple(PRESETS), shown, "" if self.out is None else str(self.out))


def preset_of(config: TrainConfig) -> str:
    """The recipe that a configuration follows, whatever it says of the photographs; "" for one of its own."""
    for name in PRESETS:
        for iterations in (None, config.iterations):
            if replace(preset(name, iterations), data=config.data) == config:
                return name
    return ""


def settings_of(config: Any, prefix: str = "") -> Iterator[Setting]:
    """Every field of a dataclass and of those inside it, in their order."""
    hints, comments = get_type_hints(type(config)), _comments(type(config))
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from settings_of(value, f"{prefix}{field.name}.")
        else:
            yield _setting(f"{prefix}{field.name}", value, hints[field.name], comments.get(field.name, ""))


def _setting(name: str, value: Any, hint: Any, comment: str) -> Setting:
    origin, choices = get_origin(hint), get_args(hint)
    optional = origin in (Union, types.UnionType) and types.NoneType in choices
    if optional:
        hint = next(choice for choice in choices if choice is not types.NoneType)
    kinds: dict[Any, Literal["switch", "whole", "number"]] = {bool: "switch", int: "whole", float: "number"}
    if origin is Literal:
        return Setting(name, "choice", value, choices, comment)
    if hint in kinds:
        return Setting(name, kinds[hint], value, (), comment, optional=optional)
    text: SettingValue = value if isinstance(value, str) else json.dumps(value)  # tuples as lists
    return Setting(name, "text", text, (), comment)


@lru_cache
def _comments(kind: type) -> dict[str, str]:
    """What the source says beside each field; nothing where the source is not at hand."""
    try:
        return dict(_COMMENTED.findall(inspect.getsource(kind)))
    except OSError:
        return {}


def default_out(name: str) -> Path:
    """output/<name>-<date> below the current folder; never the same twice."""
    folder = Path("output") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in range(2, _NUMBERED))
    return folder if not folder.exists() else next((path for path in numbered if not path.exists()), folder)


def _is_taken(out: Path) -> bool:
    return (out / "point_cloud").exists()
