"""`splatscope bench show FILE...`: shows results measured before, from their JSON files. Needs no GPU."""

from __future__ import annotations

from splatscope.app.bench.figures.schedule import draw_figures
from splatscope.app.bench.measure.results import kind_of, read_results
from splatscope.app.bench.tables import ablation, cpu, ladder, runs, schedule
from splatscope.app.bench.tables.layout import console
from splatscope.app.bench.tables.marks import check_marks
from splatscope.app.bench.tables.publish import Found, publish
from splatscope.app.options.bench import ShowOptions
from splatscope.app.options.former_bench import spelled_now
from splatscope.kernels.errors import InputError


def run(options: ShowOptions) -> None:
    """Prints the tables, and writes a document's table and figures where asked for. Raises InputError."""
    if not options.files:
        raise InputError("`bench show` needs the JSON files that --out wrote.")
    found: Found = [(path, read_results(path)) for path in options.files]
    kinds = {kind_of(results) for _, results in found}
    if len(kinds) > 1:
        raise InputError(
            "`bench show` got files of different kinds, as of the CPU and of a GPU; give the files of one kind."
        )
    (kind,) = kinds
    if options.figures is not None and kind != "schedule":
        raise InputError("--figures draws figures of schedules; these files hold other results. Leave it out.")
    if options.readme is not None:
        check_marks(options.readme, kind)
    _print(kind, found)
    publish(options.readme, found)
    if options.figures is not None:
        print(*(f"Wrote {path}" for path in draw_figures(schedule.newest_of(found), options.figures)), sep="\n")


def _print(kind: str, found: Found) -> None:
    if kind == "schedule":
        schedule.print_results(schedule.newest_of(found))
        return
    for _, results in found:
        if kind == "cpu":
            cpu.print_results(results)
        elif kind == "train":
            runs.print_runs(results["training_runs"])
        else:
            print_gpu_results(results)


def print_gpu_results(results: dict) -> None:
    """Prints the figures of a ladder on a GPU, or of stages taken apart."""
    machine, run = results["machine"], results["run"]
    console().print(f"{machine['gpu']}, {run['date'][:10]}: {spelled_now(run['command'])}")
    for sentence in results.get("absent_peers", []):
        console().print(sentence)
    for scene in results["scenes"]:
        if "ablations" in scene:
            for row in scene["ablations"]:
                ablation.print_ablation(scene["name"], row)
        else:
            ladder.print_scene(scene, machine["copy_gb_per_second"])
