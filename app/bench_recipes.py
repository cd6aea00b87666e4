"""`splatscope bench --train CAPTURE --recipe NAME...`: whole runs, from the first step to the saved splats, scored.

The trainer runs as `splatscope train --eval` does, scoring included, each run in a process of its own; what scores,
files and compiling cost is kept apart from training (`training/stopwatch.py`). One row a run goes into the JSON, with
PSNR over seconds of training, and the seconds from the start of its process until the splats were on disk.
Another trainer's rows look the same: `bench_peer_train.py`. Tables: `bench_recipe_tables.py`; single steps:
`bench_train.py`.
"""

from __future__ import annotations

import gc
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from splatscope.app.policy_options import NO_CHOICE, PolicyChoice
from splatscope.kernels.errors import InputError

GIB = 2**30
PEERS = ("gsplat", "gsplat-mcmc")


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
    """(the file it was written to, if asked for; the results). Raises InputError."""
    from splatscope.app.bench_process import in_a_process
    from splatscope.app.bench_report import describe_run, results_path, write_results
    from splatscope.training.recipes import PRESETS

    unknown = [name for name in options.recipes if name not in (*PRESETS, *PEERS)]
    if unknown:
        raise InputError(f"There is no recipe {unknown[0]!r} to run; there are {', '.join((*PRESETS, *PEERS))}.")
    name = options.capture.resolve().name
    results: dict[str, Any] = {"run": describe_run(f"splatscope bench --train {name} {_words(options)}")}
    runs = results["training_runs"] = []
    file = None
    for recipe in options.recipes:
        for seed in options.seeds:
            row, found = in_a_process(_run, options, recipe, seed, not runs)
            runs.append(row)
            results |= found
            if options.out is not None:  # after each, so that a session cut short leaves what it has
                file = file or results_path(options.out, results, ("train", name))
                write_results(file, results)
    return file, results


def _run(options: RecipeBenchOptions, recipe: str, seed: int, is_first: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """(a run's row, what the results say of all runs). Called in a process of its own."""
    from splatscope.kernels.api import make_backend

    backend = make_backend("auto")
    for remark in options.toggles.training_remarks(backend.name) if is_first else ():
        print(f"warning: {remark}", flush=True)
    name, remarks = backend.name, []
    if recipe not in PEERS:
        row = run_recipe(options, recipe, seed, backend)
    else:
        del backend  # memory is the other trainer's
        from splatscope.app.bench_peer_train import REMARK, run_gsplat

        row, remarks = run_gsplat(options.capture, options.resolution, options.iterations, recipe, seed), [REMARK]
    found: dict[str, Any] = {"machine": describe_device(name)}  # last: the clock since the start is the run's
    return row, found | ({"remarks": remarks} if remarks else {})


def run_recipe(options: RecipeBenchOptions, recipe: str, seed: int, backend: Any) -> dict[str, Any]:
    """One whole run in a folder that goes afterwards: its row of the results."""
    from splatscope.assets.formats import open_capture
    from splatscope.training.events import Prepared, Saved, SaveFailed
    from splatscope.training.recipes import preset, with_settings
    from splatscope.training.stopwatch import process_seconds
    from splatscope.training.trainer import Trainer

    sets = [f"data.resolution={options.resolution}", "data.eval=true", f"seed={seed}", *options.set]
    config = with_settings(preset(recipe, options.iterations), sets)
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


def row_of_scores(table: list[dict[str, Any]]) -> dict[str, Any]:
    """What a row says of its last scoring, and all scorings. Raises InputError if there is none."""
    if not table:
        raise InputError("The run was never scored; leave test_interval above 0.")
    last = table[-1]
    return {
        "iterations": last["iteration"],
        "splats": last["splats"],
        "psnr": round(last["psnr"], 3),
        "ssim": round(last["ssim"], 4),
        "training_seconds": last["training_seconds"],
        "curve": [
            [row["iteration"], row["training_seconds"], round(row["psnr"], 3), round(row["ssim"], 4), row["splats"]]
            for row in table
        ],
    }


def describe_device(backend: str) -> dict[str, Any]:
    """What the run was on."""
    from splatscope.app.bench_gpu import describe_gpu
    from splatscope.app.bench_report import describe_machine

    return describe_gpu() if backend == "cuda" else describe_machine()


def reset_peak() -> None:
    """Begins to measure the most memory that is used."""
    import torch

    gc.collect()  # what an earlier run left
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib() -> float | None:
    """The most that torch's allocator, which all buffers come from, handed out at a time; None without a GPU."""
    import torch

    return round(torch.cuda.max_memory_allocated() / GIB, 3) if torch.cuda.is_available() else None


def _words(options: RecipeBenchOptions) -> str:
    words = [f"--recipe {' '.join(options.recipes)}"]
    words += [f"-r {options.resolution}"] if options.resolution != -1 else []
    words += [f"--iterations {options.iterations}"] if options.iterations else []
    words += [f"--seeds {' '.join(map(str, options.seeds))}"] if options.seeds != (0,) else []
    words += [f"--set {' '.join(options.set)}"] if options.set else []
    words += options.toggles.options
    return " ".join(words)
