"""Declares a training setting once, as `kernels/toggles.py` declares a toggle; lists the declarations as a table.

A declaration holds default, sentence, limits, label and command-line option. Five readers go by it:
- `config.py` checks values and reads settings files;
- `app/run/recipe_form.py` makes the window's form;
- `app/options/train.py` makes the options of `splatscope train`;
- `app/run/from_options.py` takes their values over;
- `settings_page.py` writes docs/settings.md.

The settings themselves are in `config.py`. Nothing here loads NumPy or torch, because `--help` needs it.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from splatscope.kernels.errors import InputError

Rank = Literal["main", "often", "rest"]
MOST = 10**9  # limit of numbers without an upper limit of their own: beyond it they are mistakes and overflow somewhere
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_SHOWN = 60  # characters of a wrong value that an error quotes; numbers may have hundreds of digits
_ACRONYMS = {"sh": "SH", "dssim": "DSSIM", "mcmc": "MCMC"}


@dataclass(frozen=True)
class Option:
    """Declares the option of `splatscope train` that gives a setting; several settings may share one."""

    name: str  # "max_splats" for --max-splats
    metavar: str
    aliases: tuple[str, ...] = ()
    more: str = ""  # sentences that --help adds to the setting's own
    also: tuple[tuple[str, Any], ...] = ()  # settings that the option sets too, as (name, value)


@dataclass(frozen=True)
class Declared:
    """Holds all that a field's declaration says apart from its name, type and default; see `setting`."""

    sentence: str
    low: float | None
    high: float | None
    label: str
    main: int
    often: int
    empty: str | None
    hint: str
    listed: str
    in_form: bool
    for_all: bool
    option: Option | None


@dataclass(frozen=True)
class Group:
    """Holds what the declaration of a group of settings says."""

    label: str
    strategy: str = ""  # the strategy whose constants these are; empty: every run reads them


@dataclass(frozen=True)
class SettingRow:
    """Lists one setting: where it is, its type and default, and its declaration."""

    name: str  # as --set takes it: "data.resolution"
    hint: Any  # type of the field
    default: Any
    group: Group
    declared: Declared

    @property
    def label(self) -> str:
        """Returns the label in the window: the declared one, or the name in words ("Split count" for
        densify.split_count).
        """
        text = " ".join(_ACRONYMS.get(word, word) for word in self.name.rpartition(".")[2].split("_"))
        return self.declared.label or text[:1].upper() + text[1:]

    @property
    def rank(self) -> Rank:
        """Returns the setting's prominence in the form."""
        return "main" if self.declared.main else "often" if self.declared.often else "rest"

    @property
    def may_be_none(self) -> bool:
        """Returns True if None is a value of the setting."""
        return types.NoneType in get_args(self.hint)

    @property
    def kind(self) -> Any:
        """Returns the type of the field without its None."""
        return next(c for c in get_args(self.hint) if c is not types.NoneType) if self.may_be_none else self.hint

    def value_in(self, config: Any) -> Any:
        """Returns the setting's value in a whole configuration."""
        for part in self.name.split("."):
            config = getattr(config, part)
        return config

    def check(self, value: Any) -> None:
        """Raises InputError for a value outside the limits. NaN is outside."""
        low, high = self.declared.low, self.declared.high
        if low is None or value is None:
            return
        most = MOST if high is None else high
        if isinstance(value, tuple):
            wrong = [number for number in value if not low <= number <= most]
            if wrong:
                raise InputError(f"{self.name} must be numbers from {low} to {most}, got {shown(wrong[0])}.")
        elif not low <= value <= most:
            allowed = f"at least {low}" if high is None and value < low else f"from {low} to {most}"
            raise InputError(f"{self.name} must be {allowed}, got {shown(value)}.")

    def read(self, value: Any) -> Any:
        """Returns a value from JSON as the field's type. Raises InputError for a value of another type.

        Lists become tuples, and whole numbers may stand for floats.
        """
        return self._read(value, self.hint)

    def _read(self, value: Any, hint: Any) -> Any:
        whole = isinstance(value, int) and not isinstance(value, bool)
        origin, choices = get_origin(hint), get_args(hint)
        if hint is bool and isinstance(value, bool):
            return value
        if hint is int and whole:
            return value
        if hint is float and (isinstance(value, float) or (whole and abs(value) <= sys.float_info.max)):
            return float(value)
        if hint is str and isinstance(value, str) and "\0" not in value:
            return value
        if origin is Literal and value in choices:
            return value
        if origin in (Union, types.UnionType):
            return None if value is None and types.NoneType in choices else self._read(value, choices[0])
        if origin is tuple and isinstance(value, (list, tuple)):
            return tuple(self._read(item, choices[0]) for item in value)
        allowed = f"one of {', '.join(choices)}" if origin is Literal else self.declared.listed or _KINDS[hint]
        raise InputError(f"Training setting {self.name} must be {allowed}, got {shown(value)}.")


def setting(
    default: Any,
    sentence: str,
    low: float | None = None,
    high: float | None = None,
    *,
    label: str = "",
    main: int = 0,
    often: int = 0,
    empty: str | None = None,
    hint: str = "",
    listed: str = "",
    in_form: bool = True,
    for_all: bool = False,
    option: Option | None = None,
) -> Any:
    """Declares a field of a settings group.

    `sentence` explains it in the window, in --help and in docs/settings.md. `low` and `high` are the limits of a number
    or of each number of a list; without `high` it is `MOST`. The rest is needed by few settings:
    - label: its name in the window, if the field's name in words will not do.
    - main, often: its place among those the form shows first, or among those that are changed often; 0: neither.
    - empty: the value, as JSON, that an empty field of the form means; None has one anyway.
    - hint: what an empty field shows, or the words to the right of a checkbox.
    - listed: what a value must be, for the error about one of another type.
    - in_form: False for what is chosen when a capture is opened.
    - for_all: True in a strategy's group for what all strategies read.
    - option: its option of `splatscope train`; --set reaches all settings.
    """
    declared = Declared(sentence, low, high, label, main, often, empty, hint, listed, in_form, for_all, option)
    return field(default=default, metadata={"declared": declared})


def group(default: Any, label: str, strategy: str = "") -> Any:
    """Declares a field that holds a group of settings; `strategy` names the strategy whose constants they are."""
    return field(default=default, metadata={"group": Group(label, strategy)})


@cache
def setting_table(kind: type) -> tuple[SettingRow, ...]:
    """Returns a row for every setting of a dataclass and of the groups inside it, in order of declaration."""
    return tuple(_rows(kind, "", Group("Training")))


def _rows(kind: type, prefix: str, inside: Group) -> Iterator[SettingRow]:
    hints = get_type_hints(kind)
    for each in fields(kind):
        name = f"{prefix}{each.name}"
        if is_dataclass(each.default):
            yield from _rows(type(each.default), f"{name}.", each.metadata["group"])
        else:
            yield SettingRow(name, hints[each.name], each.default, inside, each.metadata["declared"])


def strategy_groups(kind: type) -> Mapping[str, str]:
    """Returns the name of the field with each strategy's settings, by the strategy's name."""
    groups = {each.name: each.metadata["group"].strategy for each in fields(kind) if "group" in each.metadata}
    return {strategy: name for name, strategy in groups.items() if strategy}


def shown(value: Any) -> str:
    """Returns a value as an error quotes it, shortened."""
    if isinstance(value, int) and abs(value) >= 10**_SHOWN:  # Python writes none of more than 4,300 digits
        return f"a number of more than {_SHOWN} digits"
    try:
        text = repr(value)
    except RecursionError:
        return "brackets within brackets"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
