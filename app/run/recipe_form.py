"""Makes the window's form of a run's settings from their declarations (`training/setting.py`).

A declared setting appears here by itself. The window knows none by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, get_args, get_origin

from splatscope.training.config import TrainConfig
from splatscope.training.recipes import PRESETS, preset
from splatscope.training.setting import SettingRow, setting_table
from splatscope.viewer.messages.view import Setting, SettingValue

_KINDS: dict[type, Literal["switch", "whole", "number", "text"]] = {bool: "switch", int: "whole", float: "number"}


def form_of(config: TrainConfig, base: str) -> tuple[Setting, ...]:
    """Returns the settings that a form shows, the main ones first; `base` is the preset with the usual values."""
    usual = {s.name: s.value for s in settings_of(preset(base, config.iterations))}
    usual["iterations"] = preset(base).iterations
    rows = [row for row in setting_table(TrainConfig) if row.declared.in_form]
    rows.sort(key=_place)
    return tuple(
        replace(_setting(row, config), usual=usual[row.name], rank=row.rank, counts=_counts(row, config.strategy))
        for row in rows
    )


def nearest_preset(config: TrainConfig) -> tuple[str, bool]:
    """Returns the preset that fewest settings differ from, and True if none does.

    Settings of photographs do not count.
    """
    own = {s.name: s.value for s in settings_of(config) if not s.name.startswith("data.")}

    def differing(name: str, iterations: int | None) -> int:
        return sum(own[s.name] != s.value for s in settings_of(preset(name, iterations)) if s.name in own)

    # a preset of its own length first: some derive other values from the length of the run
    found = {name: min(differing(name, None), differing(name, config.iterations)) for name in PRESETS}
    name = min(found, key=lambda name: found[name])
    return name, found[name] == 0


def settings_of(config: TrainConfig) -> Iterator[Setting]:
    """Yields every setting with its value, in order of declaration."""
    return (_setting(row, config) for row in setting_table(TrainConfig))


def _place(row: SettingRow) -> tuple[bool, int, int]:
    """Returns the key that sorts the main settings first, then those changed often; the others keep their order."""
    main, often = row.declared.main, row.declared.often
    return not main, main or (0 if often else 1), often


def _counts(row: SettingRow, strategy: str) -> bool:
    """Returns True if a run of `strategy` reads the setting."""
    return row.declared.for_all or row.group.strategy in ("", strategy)


def _setting(row: SettingRow, config: TrainConfig) -> Setting:
    value, declared = row.value_in(config), row.declared
    setting = Setting(row.name, "text", value, label=row.label, group=row.group.label, help=declared.sentence)
    if get_origin(row.kind) is Literal:
        return replace(setting, kind="choice", choices=get_args(row.kind))
    if get_origin(row.kind) is tuple:
        listed = ", ".join(str(item) for item in value)
        return replace(setting, kind="list", value=listed, empty="[]", hint="none")
    empty, hint = ("null", "none") if row.may_be_none else (declared.empty, declared.hint)
    shown: SettingValue = "" if json.dumps(value) == declared.empty else value
    return replace(setting, kind=_KINDS.get(row.kind, "text"), value=shown, empty=empty, hint=hint)
