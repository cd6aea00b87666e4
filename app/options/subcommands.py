"""Lists the subcommands and parses a command line into the options of one of them.

Each subcommand has a file here that declares its options as a dataclass, read by tyro. `commands/dispatch.py` does the
work. Importing this module must stay cheap: no NumPy, no torch, no GUI.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any

import tyro

from splatscope.app.options import bench
from splatscope.app.options.convert import ConvertOptions
from splatscope.app.options.demo import DemoOptions
from splatscope.app.options.doctor import DoctorOptions
from splatscope.app.options.evaluate import EvalOptions
from splatscope.app.options.former_bench import refuse_former
from splatscope.app.options.render import RenderOptions
from splatscope.app.options.train import TrainOptions
from splatscope.app.options.view import ViewOptions
from splatscope.kernels.errors import InputError

SUBCOMMANDS: dict[str, type] = {
    "view": ViewOptions,
    "train": TrainOptions,
    "render": RenderOptions,
    "eval": EvalOptions,
    "convert": ConvertOptions,
    "bench": bench.BenchOptions,
    "doctor": DoctorOptions,
    "demo": DemoOptions,
}

ABOUT = (
    "A viewer and trainer for 3D Gaussian Splatting that shows where every microsecond goes. "
    "`splatscope PATH` is `splatscope view PATH`; `splatscope --version` prints the version."
)


def parse(arguments: Sequence[str]) -> object:
    """Returns the options of the subcommand on the command line; `view` if none is named.

    Prints help or a usage error and raises SystemExit as any command line does. Raises InputError for an argument that
    is empty: as a path it would be the current folder.
    """
    arguments = list(arguments)
    _refuse_empty(arguments)
    if not arguments or (arguments[0] not in SUBCOMMANDS and not arguments[0].startswith("-")):
        arguments.insert(0, "view")
    program, description, subcommands = "splatscope", ABOUT, SUBCOMMANDS
    if arguments[0] == "bench":  # its subcommands are parsed here, so that the parser of everything else stays small
        program, subcommands, arguments = "splatscope bench", bench.SUBCOMMANDS, arguments[1:]
        description = "Check and time. Each benchmark has options of its own: `splatscope bench NAME --help`."
        refuse_former(arguments)
    options = tyro.extras.subcommand_cli_from_dict(
        subcommands,
        prog=program,
        description=description,
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    return _joined(options)


def _refuse_empty(arguments: Sequence[str]) -> None:
    for before, argument in zip(["", *arguments], arguments, strict=False):
        option, equals, value = argument.partition("=") if argument.startswith("--") else (before, "=", argument)
        if equals and not value.strip():
            where = f"{option} has no value" if option.startswith("-") else "An argument is empty"
            raise InputError(f"{where}; give one, or leave it out. (A shell variable that is not set gives nothing.)")


def _joined(options: Any) -> object:
    """Returns the options with the values of each `repeated` one in one tuple.

    Raises InputError for one without a value.
    """
    joined: dict[str, Any] = {}
    for field in fields(options):
        value = getattr(options, field.name)
        if isinstance(value, tuple) and value and isinstance(value[0], tuple):  # a positional one is joined already
            if () in value:
                raise InputError(f"--{field.name.replace('_', '-')} needs a value after it; see --help.")
            joined[field.name] = tuple(chain.from_iterable(value))
    return replace(options, **joined)
