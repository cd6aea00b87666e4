"""`splatscope bench --train CAPTURE --recipe NAME...`: whole runs, from the first step to the saved splats, scored.

The trainer runs as `splatscope train --eval` does, scoring included, each run in a process of its own; what scores,
files and compiling cost is kept apart from training (`training/stopwatch.py`). One row a run goes into the JSON, with
PSNR over seconds of training, and the seconds from the start of its process until the splats were on disk.
Another trainer's rows look the same: `bench/peers/runs.py`. Tables: `bench/tables/runs.py`; single steps:
`train.py`.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from splatscope.app.bench.measure.memory import peak_gib, reset_peak
from splatscope.app.bench.tables.runs import row_of_scores
from splatscope.app.options.policy import NO_CHOICE, PolicyChoice
from splatscope.kernels.errors import InputError

if TYPE_CHECKING:
    from splatscope.training.config import TrainConfig
PEERS = ("gsplat", "gsplat-mcmc")
OWNED = {  # settings that the benchmark gives its runs, and what to do instead
    "seed": "give --seeds, a run for each",
    "iterations": "give --iterations",
    "data.resolution": "give -r",
    "data.eval": "every run holds views out, to be scored on",
}


@dataclass(frozen=True)
class RecipeBenchOptions:
    """What to run."""

    capture: Path
    recipes: tuple[str, ...]
    iterations: int | None = None  # of each; None: as the recipe has it
    resolution: int = -1
    seeds: tuple[int, ...] = (0,)
    set: tuple[str, ...] = ()  # single settings, as for `train`
    out: Path | None = None
    toggles: PolicyChoice = NO_CHOICE


def run_recipe_bench(options: RecipeBenchOptions) -> tuple[Path | None, dict[str, Any]]:
    """(the file it was written to, if asked for; the results); each run is printed when it is over. Raises InputError,
    also if a run fails: those before it are printed and written."""
    from splatscope.app.bench.measure.process import in_a_process
    from splatscope.app.bench.measure.report import describe_run, results_path, write_results
    from splatscope.app.bench.tables.runs import print_runs
    from splatscope.training.recipes import PRESETS

    _refuse_owned(options.set)
    for name in options.recipes:
        if name in PRESETS or name.endswith(".json"):
            settings_for(options, name, 0).check()  # before minutes of work
        elif name not in PEERS:
            known = ", ".join((*PRESETS, *PEERS))
            raise InputError(f"There is no recipe {name!r} to run; there are {known}, and the settings.json of a run.")
    recipes, left_out = _runnable(options.recipes)
    name = options.capture.resolve().name
    results: dict[str, Any] = {"run": describe_run(f"splatscope bench --train {name} {_words(options)}")}
    if left_out:
        results["absent_peers"] = [left_out]
        print(left_out, flush=True)
    runs = results["training_runs"] = []
    file = None
    for recipe in recipes:
        for seed in options.seeds:
            try:
                row, found = in_a_process(_run, options, recipe, seed, not runs)
            except InputError as error:
                kept = f" What ran before it is in {file}." if file else ""
                raise InputError(f"{recipe}, seed {seed}: {error}{kept}") from error
            runs.append(row)
            print_runs([row])
            results |= found
            if options.out is not None:  # after each, so that a session cut short leaves what it has
                file = file or results_path(options.out, results, ("train", name))
                write_results(file, results)
    return file, results


def _refuse_owned(settings: tuple[str, ...]) -> None:
    """Raises InputError for settings that the benchmark itself gives the runs."""
    for setting in settings:
        name = setting.partition("=")[0].strip()
        if name in OWNED:
            raise InputError(f"--set {name} does not go with --recipe: {OWNED[name]}.")


def _runnable(recipes: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """(those that this machine can run, a sentence about others). Raises InputError if there are none."""
    from splatscope.app.bench.peers.rasterisers import PEERS as RASTERISERS
    from splatscope.app.bench.peers.rasterisers import find_peers
    from splatscope.kernels.backends import gpu_is_present

    if not any(name in PEERS for name in recipes):
        return recipes, ""
    (left_out, *_) = find_peers(("all",), {"gsplat": RASTERISERS["gsplat"]})[1] or [""]
    if not left_out and not gpu_is_present():
        left_out = "gsplat needs an NVIDIA GPU, and there is none here, so it is not in the table."
    runnable = tuple(name for name in recipes if not left_out or name not in PEERS)
    if not runnable:
        raise InputError(f"There is nothing to run: {left_out}")
    return runnable, left_out


def _run(options: RecipeBenchOptions, recipe: str, seed: int, is_first: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """(a run's row, what the results say of all runs). Called in a process of its own."""
    from splatscope.kernels.backends import make_backend

    backend = make_backend("auto")
    for remark in options.toggles.training_remarks(backend.name) if is_first else ():
        print(f"warning: {remark}", flush=True)
    name, remarks = backend.name, []
    if recipe not in PEERS:
        row = run_recipe(options, recipe, seed, backend)
    else:
        del backend  # memory is the other trainer's
        from splatscope.app.bench.peers.runs import REMARK, run_gsplat

        row, remarks = run_gsplat(options.capture, options.resolution, options.iterations, recipe, seed), [REMARK]
    found: dict[str, Any] = {"machine": describe_device(name)}  # last: the clock since the start is the run's
    return row, found | ({"remarks": remarks} if remarks else {})


def run_recipe(options: RecipeBenchOptions, recipe: str, seed: int, backend: Any) -> dict[str, Any]:
    """One whole run in a folder that goes afterwards: its row of the results."""
    from splatscope.assets.formats import open_capture
    from splatscope.training.events import Prepared, Saved, SaveFailed
    from splatscope.training.stopwatch import process_seconds
    from splatscope.training.trainer import Trainer

    config = settings_for(options, recipe, seed)
    reset_peak()
    start, on_disk = perf_counter(), None
    with tempfile.TemporaryDirectory(prefix="splatscope-bench-") as folder:
        trainer = Trainer(open_capture(options.capture, config.data.images), config, backend, Path(folder))
        begun: dict[str, Any] = {}
        trainer.use(options.toggles.for_training(config.antialiasing))
        for event in trainer.run():
            if isinstance(event, Prepared):
                begun = {"views": event.training_views, "held_out": event.held_out_views}
                begun |= {"width": event.width, "height": event.height, "first_splats": event.count}
            elif isinstance(event, Saved):
                on_disk = round(process_seconds(), 3)
            elif isinstance(event, SaveFailed):
                on_disk = None
        whole = perf_counter() - start
        table = trainer.scores
    return {
        "trainer": "splatscope",
        "recipe": recipe,
        "settings": [*options.set, *options.toggles.options],
        "seed": seed,
        "capture": options.capture.resolve().name,
        **begun,
        **row_of_scores(table),
        "seconds": {name: round(seconds, 3) for name, seconds in trainer.seconds.items()},
        "whole_seconds": round(whole, 3),
        "process_seconds": on_disk,  # since the process was started
        "peak_gib": peak_gib(),
    }


def settings_for(options: RecipeBenchOptions, recipe: str, seed: int) -> TrainConfig:
    """Those of a run by a named recipe, or by the settings.json of another run. Raises InputError."""
    from splatscope.app.run.resume import settings_in
    from splatscope.training.recipes import PRESETS, preset, with_settings

    sets = [f"data.resolution={options.resolution}", "data.eval=true", f"seed={seed}"]
    if recipe in PRESETS:
        config = preset(recipe, options.iterations)
    else:
        config = settings_in(Path(recipe))
        sets += [f"iterations={options.iterations}"] if options.iterations else []
    return with_settings(with_settings(config, sets), options.set)


def describe_device(backend: str) -> dict[str, Any]:
    """What the run was on."""
    from splatscope.app.bench.measure.gpu import describe_gpu
    from splatscope.app.bench.measure.report import describe_machine

    return describe_gpu() if backend == "cuda" else describe_machine()


def _words(options: RecipeBenchOptions) -> str:
    words = [f"--recipe {' '.join(options.recipes)}"]
    words += [f"-r {options.resolution}"] if options.resolution != -1 else []
    words += [f"--iterations {options.iterations}"] if options.iterations else []
    words += [f"--seeds {' '.join(map(str, options.seeds))}"] if options.seeds != (0,) else []
    words += [f"--set {' '.join(options.set)}"] if options.set else []
    words += options.toggles.options
    return " ".join(words)
