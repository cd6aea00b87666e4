"""`splatscope bench`: its options, and who does what they ask for.

The CPU: `cpu.py`. A GPU: `ladder.py` times every step, `ablate.py` takes one stage apart,
`app/bench/peers/rasterisers.py` puts other rasterisers beside ours. Whole training runs: `runs.py`. Importing this
module must stay cheap: --help needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from splatscope.app.options.bench import BenchOptions
from splatscope.kernels.errors import InputError

if TYPE_CHECKING:
    from splatscope.app.options.policy import PolicyChoice
CPU_SCENES, LADDER_SCENES = ("small", "S4"), ("S1", "S2", "S3", "S4")  # unless others are named
Found = list[tuple[Path | None, dict[str, Any]]]  # (the file, the results in it)


def run(options: BenchOptions) -> None:
    """Measures or reads, prints, and writes what was asked for. Raises InputError."""
    from splatscope.app.bench.measure import report
    from splatscope.app.options.policy import choose_policy

    _check_together(options)
    chosen = choose_policy(options.step, options.toggle)
    if options.kernels:
        from splatscope.app.bench.kernels import print_kernels

        print_kernels(options.steps)
        return
    if options.schedule or options.calibrate:
        _schedule(options)
        return
    if options.recipe:
        _show(options, _run_recipes(options, chosen))
        return
    if options.train is not None and _times_steps_alone(options):
        from splatscope.app.bench.train import TrainBenchOptions, run_train_bench

        sizes = {"sh_interval": options.sh_degree_interval, "num_downscales": options.num_downscales}
        run_train_bench(
            TrainBenchOptions(
                options.train,
                options.resume,
                options.resolution,
                options.train_steps,
                options.runs,
                **sizes,
                out=options.out,
                toggles=chosen,
            )
        )
        return
    if options.from_json:
        found: Found = [(path, report.read_results(path)) for path in options.from_json]
        kinds = {report.kind_of(results) for _, results in found}
        if len(kinds) > 1:
            raise InputError(
                "--from-json got figures of different kinds, as of the CPU and of a GPU; give those of one."
            )
        if kinds == {"schedule"}:
            raise InputError(f"{options.from_json[0]} holds schedules; add --schedule to show them.")
        if options.readme is not None:
            report.check_marks(options.readme, *kinds)
    else:
        kind = "cuda" if options.ladder or options.ablate else "cpu"
        if options.readme is not None:
            report.check_marks(options.readme, kind)  # before minutes of work
        found = _measure(options, kind, chosen)
    _show(options, found)


def _run_recipes(options: BenchOptions, toggles: PolicyChoice) -> Found:
    """(where it was written, the results), one of them."""
    from splatscope.app.bench import runs
    from splatscope.app.bench.measure import report

    if options.train is None:
        raise InputError("--recipe goes with --train CAPTURE; add it.")
    if options.readme is not None:
        report.check_marks(options.readme, "train")  # before minutes of work
    seeds = options.seeds or (0,)
    chosen = options.recipe, options.iterations, options.resolution, seeds, options.set, options.out, toggles
    return [runs.run_recipe_bench(runs.RecipeBenchOptions(options.train, *chosen))]


def _times_steps_alone(options: BenchOptions) -> bool:
    """Whether --train means the steps of a run and nothing else."""
    from splatscope.kernels.backends import gpu_is_present

    return options.resume is not None or (gpu_is_present() and not options.cpu)


def _schedule(options: BenchOptions) -> None:
    """Calibrates, then measures schedules, as asked for."""
    if options.calibrate:
        from splatscope.app.bench.calibrate import run_calibration

        run_calibration()
    if not options.schedule:
        return
    from splatscope.app.bench.figures.schedule import draw_figures
    from splatscope.app.bench.measure import report
    from splatscope.app.bench.scenes.schedule import DEFAULT_SCENES
    from splatscope.app.bench.schedule import ScheduleOptions, run_schedule
    from splatscope.app.bench.tables.schedule import read_schedules, show
    from splatscope.app.bench.tables.schedule_document import schedule_table

    if options.readme is not None:
        report.check_marks(options.readme, "schedule")  # before minutes of work
    files = options.from_json
    if files:
        results = read_schedules(files)
        show(results)
    else:
        scenes = options.scenes or DEFAULT_SCENES
        results = run_schedule(ScheduleOptions(scenes=scenes, repeat=options.repeat, out=options.out))
        if options.out is not None:
            files = (report.results_path(options.out, results, ["schedule"]),)
    if options.readme is not None:
        table = schedule_table(results, [_link(path, options.readme) for path in files])
        report.rewrite_table(options.readme, "schedule", table)
        print(f"Rewrote the table in {options.readme}")
    if options.out is not None:
        folder = options.out.parent if options.out.suffix else options.out
        print(*(f"Wrote {path}" for path in draw_figures(results, folder)), sep="\n")


def _check_together(options: BenchOptions) -> None:
    """Raises InputError for options that say nothing about what is asked for."""
    on_gpu = options.ladder or bool(options.ablate)
    if (options.schedule or options.calibrate) and (on_gpu or options.cpu):
        raise InputError("--schedule and --calibrate are measurements of their own; ask for one at a time.")
    if options.calibrate and options.from_json:
        raise InputError("--calibrate measures; --from-json shows what was measured before. Leave one of them out.")
    others = on_gpu or options.cpu or options.schedule or options.calibrate or options.train is not None
    if options.kernels and (others or options.from_json or options.out is not None or options.readme is not None):
        raise InputError("--kernels measures nothing: it goes with --steps alone.")
    if options.cpu and on_gpu:
        raise InputError("--cpu and --ladder or --ablate are different measurements; ask for one at a time.")
    if options.ladder and options.ablate:
        raise InputError("--ladder and --ablate are different measurements; ask for one at a time.")
    ladder_only = {"--vs": options.vs, "--toggles": options.toggles}
    gpu_only = {"--steps": options.steps and not options.kernels, "--camera": options.camera, "--size": options.size}
    runs_only = {"--iterations": options.iterations, "--seeds": options.seeds, "--set": options.set}
    for name, value in ladder_only.items():
        if value and not options.ladder:
            raise InputError(f"{name} goes with --ladder; add it.")
    for name, value in runs_only.items():
        if value and not options.recipe:
            raise InputError(f"{name} goes with --train CAPTURE --recipe NAME; add them.")
    steps_only = {"--resume": options.resume, "--num-downscales": options.num_downscales}
    for name, value in {**steps_only, "--sh-degree-interval": options.sh_degree_interval}.items():
        if value is not None and options.recipe:
            raise InputError(
                f"{name} does not go with --recipe, whose runs are whole and as the recipe says; see --set."
            )
    if options.train is not None and not options.train.exists():
        raise InputError(f"There is no capture {options.train}; --train takes the path of its folder.")
    for name, value in gpu_only.items():
        if value and not on_gpu:
            raise InputError(f"{name} goes with --ladder or --ablate; add one of them.")
    is_chosen = bool(options.toggle) or options.step != "best"
    if is_chosen and not (on_gpu or (options.train and not options.cpu)):
        raise InputError(
            "--step and --toggle go with --ladder, --ablate or --train, and not with --cpu; --steps names the presets "
            "of a ladder."
        )
    if options.ablate and options.readme is not None:
        raise InputError("--readme takes the table of --cpu or --ladder, not of --ablate.")
    if options.ladder and options.readme is not None and options.out is None:
        raise InputError("--ladder --readme needs --out as well: the table names the file its figures are in.")


def _measure(options: BenchOptions, kind: str, chosen: PolicyChoice) -> Found:
    """(where it was written, the results), one of them."""
    if kind == "cpu":
        from splatscope.app.bench.cpu import CpuOptions, run_cpu_bench
        from splatscope.app.bench.measure.report import results_path, write_results

        if not chosen.is_default:
            raise InputError("--step and --toggle change how steps are made on a GPU; there is none to use here.")
        results = run_cpu_bench(
            CpuOptions(
                scenes=options.scenes or CPU_SCENES,
                repeat=options.repeat,
                threads=options.threads,
                compile=options.compile,
                train=options.train,
                resolution=options.resolution,
                train_steps=options.train_steps,
            )
        )
        if options.out is None:
            return [(None, results)]
        return [(write_results(results_path(options.out, results), results), results)]
    from splatscope.app.bench.scenes.subjects import subject
    from splatscope.app.options.fields import parse_size

    size = None if options.size is None else parse_size(options.size, "--size")
    subjects = [subject(name, options.camera, size) for name in options.scenes or LADDER_SCENES]
    if options.ablate:
        from splatscope.app.bench.ablate import AblateOptions, run_ablation

        return [
            run_ablation(subjects, AblateOptions(options.ablate, options.steps, options.repeat, options.out, chosen))
        ]
    from splatscope.app.bench.ladder import LadderOptions, run_ladder

    return [
        run_ladder(
            subjects, LadderOptions(options.steps, options.repeat, options.toggles, options.vs, options.out, chosen)
        ),
    ]


def _show(options: BenchOptions, found: Found) -> None:
    from splatscope.app.bench.measure import report
    from splatscope.app.bench.tables import runs as bench_recipe_tables
    from splatscope.app.bench.tables import terminal

    for path, results in found:
        if report.kind_of(results) == "cpu":
            report.print_results(results)
        elif options.from_json:  # what was just measured is on the screen already
            if report.kind_of(results) == "train":
                bench_recipe_tables.print_runs(results["training_runs"])
            else:
                terminal.print_results(results)
        if path is not None and not options.from_json:
            print(f"Wrote {path}")
    if options.readme is None:
        return
    sources = [(_link(path, options.readme), results) for path, results in found if path is not None]
    kind = report.kind_of(found[0][1])
    if kind == "train":
        report.rewrite_table(options.readme, "train", bench_recipe_tables.training_table(sources))
    elif kind == "cpu":
        if len(found) > 1:
            raise InputError(f"--readme takes one file of CPU figures, got {len(found)}.")
        report.rewrite_table(options.readme, "cpu", report.markdown_table(found[0][1]))
    else:
        from splatscope.app.bench.tables.documents import cuda_table, peers_table

        place = report.check_marks(options.readme, "cuda")
        table = peers_table(sources) if place == "peers" else cuda_table(sources)
        report.rewrite_table(options.readme, place, table)
    print(f"Rewrote the table in {options.readme}")


def _link(path: Path, readme: Path) -> str:
    """The file as a document beside it names it."""
    import os

    return Path(os.path.relpath(path.resolve(), readme.resolve().parent)).as_posix()
