"""Carries out a parsed command line: one module a subcommand, imported when it is asked for.

Each module has `run(options)`. The table keeps `--help` fast and rendering free of torch and of the window.
"""

from __future__ import annotations

from importlib import import_module

from splatscope.app.options import bench, subcommands

MODULES: dict[type, str] = {
    subcommands.ViewOptions: "commands.view",
    subcommands.TrainOptions: "commands.train",
    subcommands.RenderOptions: "commands.render",
    subcommands.EvalOptions: "commands.evaluate",
    subcommands.ConvertOptions: "commands.convert",
    subcommands.DoctorOptions: "commands.doctor",
    subcommands.DemoOptions: "commands.demo",
    **{options: f"bench.{name}" for name, options in bench.SUBCOMMANDS.items()},
}


def run(options: object) -> None:
    """Carries out one parsed command line. Raises InputError with a sentence for the user."""
    import_module(f"splatscope.app.{MODULES[type(options)]}").run(options)
