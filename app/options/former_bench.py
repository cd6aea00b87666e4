"""Translates former command lines of `splatscope bench`, whose benchmarks were chosen by flags, into today's.

A former command line is refused with its new spelling. Commands recorded in result files are shown in the new spelling.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from splatscope.app.options.bench import SUBCOMMANDS
from splatscope.kernels.errors import InputError

PROGRAM = "splatscope bench"
# Each flag that chose a benchmark, and today's subcommand. Of several flags the first one here decides.
CHOSEN_BY = {"kernels": "kernels", "schedule": "schedule", "calibrate": "calibrate", "recipe": "runs"}
CHOSEN_BY |= {"from-json": "show", "ladder": "ladder", "ablate": "ablate", "cpu": "cpu", "train": "train"}
OTHERS = (
    "steps", "step", "toggle", "toggles", "vs", "scenes", "camera", "size", "repeat", "threads", "compile",
    "no-compile", "iterations", "seeds", "set", "resume", "num-downscales", "sh-degree-interval", "warmup-length",
    "resolution", "r", "train-steps", "n", "runs", "out", "readme",
)  # fmt: skip
POSITIONAL = {"runs": "train", "train": "train", "ablate": "ablate", "show": "from-json"}
KEPT = {("runs", "recipe"), ("cpu", "train")}  # flags that are still options of the subcommand
SHORT = {"r": "resolution", "n": "train-steps", "no-compile": "compile"}  # other spellings of options
ALONE = ("kernels", "ladder", "ablate", "cpu")  # flags of measurements that never went together
Asked = dict[str, list[str]]  # option without its dashes -> its values, in the order given


def refuse_former(arguments: Sequence[str]) -> None:
    """Raises InputError with the new spelling for the arguments of `bench` where they name no subcommand."""
    if not arguments:
        raise InputError(
            f"`bench` needs the name of a benchmark: {', '.join(SUBCOMMANDS)}. `{PROGRAM} --help` says what each does."
        )
    asked = _read(arguments)
    first = next(iter(asked), None)
    if not arguments[0].startswith("-") or {"-h", "--help"} & set(arguments) or first not in {*CHOSEN_BY, *OTHERS}:
        return
    flags = [option for option in asked if option in CHOSEN_BY]
    alone = [flag for flag in flags if flag in ALONE]
    if alone and len({*alone, *({"schedule", "calibrate"} & asked.keys())}) > 1:
        raise InputError(
            f"`bench {' '.join(map(_dashed, flags))}` asks for several benchmarks; ask for one at a time, for example "
            f"`{PROGRAM} {CHOSEN_BY[flags[0]]}`."
        )
    flag = next(iter(flags), first)
    raise InputError(f"`bench {_dashed(flag)}` is now `{new_spelling(arguments)}`.")


def spelled_now(command: str) -> str:
    """Returns a recorded former command in today's spelling, and any other command unchanged."""
    words = shlex.split(command)
    is_former = words[:2] == PROGRAM.split() and words[2:] and words[2].startswith("-")
    return new_spelling(words[2:]) if is_former else command


def new_spelling(arguments: Sequence[str]) -> str:
    """Returns today's command line for the former arguments of `bench`."""
    asked = _read(arguments)
    name = next((name for flag, name in CHOSEN_BY.items() if flag in asked), "cpu")
    if name == "cpu" and {"train", "resume"} <= asked.keys():  # --resume timed steps alone
        name = "train"
    before = f"{PROGRAM} calibrate && " if name == "schedule" and "calibrate" in asked else ""
    if name == "schedule" and "from-json" in asked:
        name = "show"
    known = {field.name.replace("_", "-") for field in fields(SUBCOMMANDS[name])}
    words = [*PROGRAM.split(), name, *asked.get(POSITIONAL.get(name, ""), [])]
    for option, values in (_shown(asked) if name == "show" else asked).items():
        is_known = SHORT.get(option, option) in known  # others were accepted and meant nothing
        if (is_known and option not in CHOSEN_BY) or (name, option) in KEPT:
            words += [_dashed(option), *values]
    return before + shlex.join(words)


def _shown(asked: Asked) -> Asked:
    """Returns the options of `show`: figures were drawn into the folder of --out."""
    found = {"readme": asked["readme"]} if "readme" in asked else {}
    if "schedule" in asked and "out" in asked:
        out = Path(*asked["out"])
        found["figures"] = [str(out.parent if out.suffix else out)]
    return found


def _read(arguments: Sequence[str]) -> Asked:
    """Returns the options with their values; a negative number is a value."""
    asked: Asked = {}
    values: list[str] = []
    for argument in arguments:
        if argument.startswith("-") and not argument[1:2].isdigit():
            option, equals, value = argument.lstrip("-").partition("=")
            values = asked.setdefault(option.replace("_", "-"), [])
            values += [value] if equals else []
        else:
            values.append(argument)
    return asked


def _dashed(option: str) -> str:
    return f"-{option}" if len(option) == 1 else f"--{option}"
