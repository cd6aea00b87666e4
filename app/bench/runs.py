"""`splatscope bench runs CAPTURE --recipe NAME...`: trains whole runs, to the saved splats, and scores them.

The JSON gets one row for each run, with PSNR over seconds of training, and the seconds from the start of its process
until the splats were on disk. One run: `whole_run.py`. Tables: `bench/tables/runs.py`. Single steps: `train.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from splatscope.app.bench.measure.machine import describe_run
from splatscope.app.bench.measure.process import in_a_process
from splatscope.app.bench.measure.results import results_path, write_results
from splatscope.app.bench.peers.rasterisers import PEERS as RASTERISERS
from splatscope.app.bench.peers.rasterisers import find_peers
from splatscope.app.bench.tables.publish import check_readme, publish
from splatscope.app.bench.tables.runs import print_runs
from splatscope.app.bench.whole_run import PEERS, settings_for, whole_run
from splatscope.app.options.bench import RunsOptions
from splatscope.app.options.policy import PolicyChoice, choose_policy
from splatscope.kernels.backends import gpu_is_present
from splatscope.kernels.errors import InputError
from splatscope.training.recipes import PRESETS

OWNED = {  # settings that the benchmark gives its runs, and what to do instead
    "seed": "give --seeds, a run for each",
    "iterations": "give --iterations",
    "data.resolution": "give -r",
    "data.eval": "every run holds views out, to be scored on",
}


def run(options: RunsOptions) -> None:
    """Prints each run when it is over; writes JSON and a document's table where asked for. Raises InputError."""
    _check(options)
    chosen = choose_policy(options.step, options.toggle)
    check_readme(options.readme, "train", options.out)
    file, results = _run_all(options, chosen)
    if file is not None:
        print(f"Wrote {file}")
    publish(options.readme, [(file, results)])


def _check(options: RunsOptions) -> None:
    """Raises InputError for anything that would end a run, before minutes of work."""
    if not options.recipe:
        raise InputError("`bench runs` needs --recipe with one or more names, for example --recipe inria fast.")
    if not options.capture.exists():
        raise InputError(f"There is no capture {options.capture}; give the path of its folder.")
    _refuse_owned(options.set)
    for name in options.recipe:
        if name in PRESETS or name.endswith(".json"):
            settings_for(options, name, 0).check()
        elif name not in PEERS:
            known = ", ".join((*PRESETS, *PEERS))
            raise InputError(f"There is no recipe {name!r} to run; there are {known}, and the settings.json of a run.")


def _run_all(options: RunsOptions, chosen: PolicyChoice) -> tuple[Path | None, dict[str, Any]]:
    """Returns (the file, if one was asked for; the results). Raises InputError, for example if a run fails.

    The runs before it are printed and written.
    """
    recipes, left_out = _runnable(options.recipe)
    name = options.capture.resolve().name
    results: dict[str, Any] = {"run": describe_run(_command(options, chosen))}
    if left_out:
        results["absent_peers"] = [left_out]
        print(left_out, flush=True)
    runs = results["training_runs"] = []
    file = None
    for recipe in recipes:
        for seed in options.seeds or (0,):
            try:
                row, found = in_a_process(whole_run, options, chosen, recipe, seed, not runs)
            except InputError as error:
                kept = f" What ran before it is in {file}." if file else ""
                raise InputError(f"{recipe}, seed {seed}: {error}{kept}") from error
            runs.append(row)
            print_runs([row])
            results |= found
            if options.out is not None:  # after each run, so that a session cut short leaves the runs it made
                file = file or results_path(options.out, results, ("train", name))
                write_results(file, results)
    return file, results


def _refuse_owned(settings: tuple[str, ...]) -> None:
    """Raises InputError for settings that the benchmark itself gives the runs."""
    for setting in settings:
        name = setting.partition("=")[0].strip()
        if name in OWNED:
            raise InputError(f"--set {name} does not go with `bench runs`: {OWNED[name]}.")


def _runnable(recipes: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Returns (the recipes that this machine can run, a sentence about others). Raises InputError if there are none."""
    if not any(name in PEERS for name in recipes):
        return recipes, ""
    (left_out, *_) = find_peers(("all",), {"gsplat": RASTERISERS["gsplat"]})[1] or [""]
    if not left_out and not gpu_is_present():
        left_out = "gsplat needs an NVIDIA GPU, and there is none here, so it is not in the table."
    runnable = tuple(name for name in recipes if not left_out or name not in PEERS)
    if not runnable:
        raise InputError(f"There is nothing to run: {left_out}")
    return runnable, left_out


def _command(options: RunsOptions, chosen: PolicyChoice) -> str:
    """Returns the command line that measures the same, with only the name of the capture's folder."""
    words = [f"splatscope bench runs {options.capture.resolve().name} --recipe {' '.join(options.recipe)}"]
    words += [f"-r {options.resolution}"] if options.resolution != -1 else []
    words += [f"--iterations {options.iterations}"] if options.iterations else []
    words += [f"--seeds {' '.join(map(str, options.seeds))}"] if options.seeds not in ((), (0,)) else []
    words += [f"--set {' '.join(options.set)}"] if options.set else []
    return " ".join([*words, *chosen.options])
