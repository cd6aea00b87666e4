"""The settings of a run as a form shows them, read from the dataclasses of `training/config.py`.

A field appears by itself, with its comment as its explanation. The tables here hold labels that are better than the
name of a field, the settings that are changed most, and the groups that each strategy reads.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from splatscope.training.config import TrainConfig
from splatscope.training.recipes import PRESETS, preset
from splatscope.viewer.messages.view import Setting, SettingValue

Rank = Literal["main", "often", "rest"]
_MAIN = (
    "iterations", "data.resolution", "data.eval", "strategy", "densify.max_splats", "mcmc.max_splats",
    "budget.max_splats", "sh_degree",
)  # fmt: skip
_OFTEN = (
    "antialiasing", "data.masks", "data.alpha", "data.white_background", "exposure.enabled", "initial.source",
    "test_interval", "save_iterations", "plateau.patience",
)  # fmt: skip
_ELSEWHERE = ("data.images", "data.axes")  # chosen when the capture was opened
_LABELS = {
    "data.eval": "Hold out views",
    "data.alpha": "Alpha channel",
    "data.resolution": "Resolution",
    "exposure.enabled": "Fit exposures",
    "initial.source": "Initialise from",
    "initial.random_count": "Random splats",
    "densify.enabled": "Densify",
    "checkpoint.enabled": "Write checkpoints",
    "save_iterations": "Save at",
    "test_iterations": "Score at",
    "test_interval": "Score every",
    "plateau.patience": "Stop early after",
    "dssim_weight": "DSSIM weight",
}
_GROUPS = {
    "": "Training",
    "data": "Photographs",
    "initial": "Initial splats",
    "rates": "Learning rates",
    "densify": "Densification",
    "mcmc": "MCMC",
    "budget": "Budget",
    "resolution": "Progressive resolution",
    "exposure": "Exposure",
    "plateau": "Early stop",
    "checkpoint": "Checkpoints",
}
_EMPTY = {  # the value that an empty field means, and its hint, where the value is not None
    "data.resolution": ("-1", "full, at most 1600 wide"),
    "plateau.patience": ("0", "never"),
}
_BESIDE = {"data.eval": "for scoring"}  # words to the right of a switch
_STRATEGIES = {"adaptive": "densify", "mcmc": "mcmc", "budget": "budget"}  # the group of constants that each reads
_READ_BY_ALL = ("densify.enabled",)
_ACRONYMS = {"sh": "SH", "dssim": "DSSIM", "mcmc": "MCMC"}
_COMMENTED = re.compile(r"^((?: {4}# .+\n)*) {4}(\w+): [^#\n]*(?:  # (.+))?$", re.MULTILINE)


def form_of(config: TrainConfig, base: str) -> tuple[Setting, ...]:
    """Returns every setting that a form shows; `base` names the preset whose values are the usual ones."""
    usual = {s.name: s.value for s in settings_of(preset(base, config.iterations))}
    usual["iterations"] = preset(base).iterations
    own = _STRATEGIES[config.strategy]
    others = {group for group in _STRATEGIES.values() if group != own}
    settings = [
        replace(
            setting,
            usual=usual[setting.name],
            rank=_rank(setting.name),
            counts=setting.name in _READ_BY_ALL or setting.name.partition(".")[0] not in others,
        )
        for setting in settings_of(config)
        if setting.name not in _ELSEWHERE
    ]
    order = {name: place for place, name in enumerate((*_MAIN, *_OFTEN))}
    return tuple(sorted(settings, key=lambda setting: order.get(setting.name, len(order))))


def nearest_preset(config: TrainConfig) -> tuple[str, bool]:
    """Returns the preset that fewest settings differ from, and whether none does. Those of photographs do not count."""
    own = {s.name: s.value for s in settings_of(config) if not s.name.startswith("data.")}

    def differing(name: str, iterations: int | None) -> int:
        return sum(own[s.name] != s.value for s in settings_of(preset(name, iterations)) if s.name in own)

    # of its own length first: some derive other values from that of the run
    found = {name: min(differing(name, None), differing(name, config.iterations)) for name in PRESETS}
    name = min(found, key=lambda name: found[name])
    return name, found[name] == 0


def settings_of(config: Any, prefix: str = "") -> Iterator[Setting]:
    """Yields every field of a dataclass and of those inside it, in order."""
    hints, comments = get_type_hints(type(config)), _comments(type(config))
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from settings_of(value, f"{prefix}{field.name}.")
        else:
            setting = _setting(f"{prefix}{field.name}", value, hints[field.name])
            yield replace(setting, help=_sentence(comments.get(field.name, "")))


def _setting(name: str, value: Any, hint: Any) -> Setting:
    label, group = _LABELS.get(name) or _spoken(name), _GROUPS[name.rpartition(".")[0]]
    origin, choices = get_origin(hint), get_args(hint)
    empty, words = _EMPTY.get(name, (None, ""))
    if origin in (Union, types.UnionType) and types.NoneType in choices:
        hint, empty, words = next(c for c in choices if c is not types.NoneType), "null", "none"
    if origin is Literal:
        return Setting(name, "choice", value, choices, label=label, group=group)
    if origin is tuple:
        listed = ", ".join(str(item) for item in value)
        return Setting(name, "list", listed, label=label, group=group, empty="[]", hint="none")
    kinds: dict[Any, Literal["switch", "whole", "number", "text"]] = {bool: "switch", int: "whole", float: "number"}
    shown: SettingValue = "" if empty is not None and str(value) == empty else value
    words = _BESIDE.get(name, words)
    return Setting(name, kinds.get(hint, "text"), shown, label=label, group=group, empty=empty, hint=words)


def _rank(name: str) -> Rank:
    return "main" if name in _MAIN else "often" if name in _OFTEN else "rest"


def _spoken(name: str) -> str:
    """Returns a label for a setting: "Split count" for "densify.split_count"."""
    text = " ".join(_ACRONYMS.get(word, word) for word in name.rpartition(".")[2].split("_"))
    return text[:1].upper() + text[1:]


@lru_cache
def _comments(kind: type) -> dict[str, str]:
    """Returns the comment of each field, after it or on the lines before it; empty where there is no source."""
    try:
        found = _COMMENTED.findall(inspect.getsource(kind))
    except OSError:
        return {}
    return {name: after or " ".join(before.replace("#", "").split()) for before, name, after in found}


def _sentence(comment: str) -> str:
    """Returns a comment with a capital and a full stop."""
    return f"{comment[:1].upper()}{comment[1:].removesuffix('.')}." if comment else ""
