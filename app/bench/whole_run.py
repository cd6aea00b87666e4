"""Makes one whole run of `splatscope bench runs`, from the first step to saved splats, in the process that times it.

The trainer runs as `splatscope train --eval` does, scoring included. The time of scoring, files and compiling is kept
apart from training (`training/stopwatch.py`). Rows of another trainer: `bench/peers/runs.py`.

The seconds since the start of the process count, so nothing is imported here that a run does not need.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from splatscope.app.bench.measure.machine import describe_device
from splatscope.app.bench.measure.memory import peak_gib, reset_peak
from splatscope.app.bench.measure.scores import row_of_scores
from splatscope.app.options.bench import RunsOptions
from splatscope.app.options.policy import PolicyChoice
from splatscope.app.run.resume import settings_in
from splatscope.assets.formats import open_capture
from splatscope.kernels.backends import make_backend
from splatscope.training.config import TrainConfig
from splatscope.training.events import Prepared, Saved, SaveFailed
from splatscope.training.recipes import PRESETS, preset, with_settings
from splatscope.training.stopwatch import process_seconds

PEERS = ("gsplat", "gsplat-mcmc")  # recipes of another trainer


def whole_run(
    options: RunsOptions, chosen: PolicyChoice, recipe: str, seed: int, is_first: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns (the row of a run, facts about all runs). Called in a process of its own."""
    backend = make_backend("auto")
    for remark in chosen.training_remarks(backend.name) if is_first else ():
        print(f"warning: {remark}", flush=True)
    name, remarks = backend.name, []
    if recipe not in PEERS:
        row = run_recipe(options, chosen, recipe, seed, backend)
    else:
        del backend  # leaves its memory to the other trainer
        from splatscope.app.bench.peers.runs import REMARK, run_gsplat  # loads torch

        row, remarks = run_gsplat(options.capture, options.resolution, options.iterations, recipe, seed), [REMARK]
    found: dict[str, Any] = {"machine": describe_device(name)}  # last: the clock since the start is the run's
    return row, found | ({"remarks": remarks} if remarks else {})


def run_recipe(options: RunsOptions, chosen: PolicyChoice, recipe: str, seed: int, backend: Any) -> dict[str, Any]:
    """Makes one whole run in a folder that is removed afterwards; returns its row of the results."""
    from splatscope.training.trainer import Trainer  # loads torch, which only the process of a run needs

    config = settings_for(options, recipe, seed)
    reset_peak()
    start, on_disk = perf_counter(), None
    with tempfile.TemporaryDirectory(prefix="splatscope-bench-") as folder:
        trainer = Trainer(open_capture(options.capture, config.data.images), config, backend, Path(folder))
        begun: dict[str, Any] = {}
        trainer.use(chosen.for_training(config.antialiasing))
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
        "settings": [*options.set, *chosen.options],
        "seed": seed,
        "capture": options.capture.resolve().name,
        **begun,
        **row_of_scores(table),
        "seconds": {name: round(seconds, 3) for name, seconds in trainer.seconds.items()},
        "whole_seconds": round(whole, 3),
        "process_seconds": on_disk,  # since the process was started
        "peak_gib": peak_gib(),
    }


def settings_for(options: RunsOptions, recipe: str, seed: int) -> TrainConfig:
    """Returns the settings of a run by a named recipe, or by the settings.json of another run. Raises InputError."""
    sets = [f"data.resolution={options.resolution}", "data.eval=true", f"seed={seed}"]
    if recipe in PRESETS:
        config = preset(recipe, options.iterations)
    else:
        config = settings_in(Path(recipe))
        sets += [f"iterations={options.iterations}"] if options.iterations else []
    return with_settings(with_settings(config, sets), options.set)
