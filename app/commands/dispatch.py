"""Carries out a parsed command line: one module a subcommand, imported when it is asked for.

`app/options/NAME.py` declares the options of a subcommand; `run(options)` in `app/commands/NAME.py` carries it out. The
benchmark NAME is `run(options)` in `app/bench/NAME.py`. Only the module asked for is imported, which keeps `--help`
fast and rendering free of torch and of the window.
"""

from __future__ import annotations

from importlib import import_module

from splatscope.app.options import bench, subcommands

MODULES: dict[type, str] = {
    **{
        options: f"commands.{options.__module__.rpartition('.')[2]}"
        for options in subcommands.SUBCOMMANDS.values()
        if options is not bench.BenchOptions  # `bench` alone names no benchmark
    },
    **{options: f"bench.{name}" for name, options in bench.SUBCOMMANDS.items()},
}


def run(options: object) -> None:
    """Carries out one parsed command line. Raises InputError with a sentence for the user."""
    import_module(f"splatscope.app.{MODULES[type(options)]}").run(options)
