"""Writes docs/settings.md, the table of all training settings: `python -m splatscope.training.settings_page`."""

from __future__ import annotations

from itertools import groupby
from typing import Any, Literal, get_args, get_origin

from splatscope.training.config import TrainConfig
from splatscope.training.setting import SettingRow, setting_table

_HEAD = """# Training settings

Every setting of a run, by group. `--set NAME=VALUE` changes any of them, for example `--set densify.interval=50`; the
options in the last column do so too. In the window they are in the Training panel, and each run keeps its own in
`settings.json`. Defaults are those of the recipe `inria`. [training.md](training.md) says how to train.

This page is written by `python -m splatscope.training.settings_page > docs/settings.md`.
"""
_TABLE_HEAD = ("| name | default | allowed | meaning | option |", "|---|---|---|---|---|")


def settings_page() -> str:
    """Returns the page as Markdown."""
    parts = [_HEAD]
    for heading, grouped in groupby(setting_table(TrainConfig), key=lambda row: row.group):
        rows = list(grouped)
        parts.append("\n".join([f"## {heading.label}", "", *_readers(rows), *_TABLE_HEAD, *map(_line, rows), ""]))
    return "\n".join(parts)


def _readers(rows: list[SettingRow]) -> list[str]:
    """Returns the lines that say which strategy alone reads a group."""
    strategy = rows[0].group.strategy
    others = "".join(f"; all read `{row.name}`" for row in rows if row.declared.for_all)
    return [f"Only the strategy `{strategy}` reads this group{others}.", ""] if strategy else []


def _line(row: SettingRow) -> str:
    option = row.declared.option
    names = () if option is None else (*option.aliases, f"--{option.name.replace('_', '-')}")
    cells = (
        f"`{row.name}`",
        _value(row.default),
        _allowed(row),
        row.declared.sentence,
        " ".join(f"`{n}`" for n in names),
    )
    return f"| {' | '.join(cells)} |"


def _allowed(row: SettingRow) -> str:
    """Returns the values that a setting may have."""
    if get_origin(row.kind) is Literal:
        return ", ".join(get_args(row.kind))
    if row.kind in (bool, str):
        return {bool: "true, false", str: "text"}[row.kind]
    low, high = row.declared.low, row.declared.high
    if low is None:  # several ranges, or a list, which the sentence or the error text explains
        return row.declared.listed or "see the meaning"
    numbers = f"at least {_value(low)}" if high is None else f"{_value(low)} to {_value(high)}"
    return f"{numbers}, each" if get_origin(row.kind) is tuple else numbers


def _value(value: Any) -> str:
    """Returns a default as a person would write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "empty"
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    print(settings_page(), end="")
