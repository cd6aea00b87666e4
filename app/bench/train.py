"""`splatscope bench train CAPTURE`: times the training steps of a real capture, by stage.

The trainer runs as always but for growth, which is off, so that all steps work on the same number of splats. It runs on
a GPU where there is one. Steps are timed in blocks by the wall clock, from the first step queued to the last one done.

Everything is done a few times from the same start, each time in a process of its own. So two spreads are known: of the
medians from run to run, and of the blocks within a run. Synthetic scenes: `step.py`. Whole runs: `runs.py`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from splatscope.app.bench.measure.gpu import describe_gpu
from splatscope.app.bench.measure.machine import describe_run
from splatscope.app.bench.measure.memory import peak_gib, reset_peak
from splatscope.app.bench.measure.process import in_a_process
from splatscope.app.bench.measure.results import spread, write_results
from splatscope.app.options.bench import TrainBenchOptions
from splatscope.app.options.policy import PolicyChoice, choose_policy
from splatscope.app.options.subcommands import TrainOptions
from splatscope.app.run.from_options import plan_training
from splatscope.assets.formats import open_capture
from splatscope.kernels.backends import make_backend
from splatscope.kernels.errors import InputError
from splatscope.kernels.wording import counted
from splatscope.training.events import Prepared, Stepped
from splatscope.training.recipes import with_settings

BLOCKS = 5
WARM_UP = 100  # steps before the first block: compiled, captured, photographs uploaded


def run(options: TrainBenchOptions) -> None:
    """Times, prints, and writes JSON if asked for.

    Raises InputError. If a run fails, the figures of the runs before it are printed and written first.
    """
    for name, value in (("-n", options.train_steps), ("--runs", options.runs)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}.")
    if not options.capture.exists():
        raise InputError(f"There is no capture {options.capture}; give the path of its folder.")
    chosen = choose_policy(options.step, options.toggle)
    results: dict[str, Any] = {"run": describe_run(_command(options, chosen))}
    runs: list[dict[str, Any]] = []
    failed: InputError | None = None
    while len(runs) < options.runs and failed is None:
        try:
            one, found = in_a_process(_run, options, chosen, not runs)
            runs.append(one)
            results |= found
        except InputError as error:
            failed = error
    if failed and not runs:
        raise failed
    results["training"] = together(runs)
    _print(results["training"], results["backend"], options.train_steps)
    if options.out is not None:
        print(f"Wrote {write_results(options.out, results)}")
    if failed:
        raise InputError(f"{failed} The figures are those of {counted(len(runs), 'run')} before it.")


def _command(options: TrainBenchOptions, chosen: PolicyChoice) -> str:
    """Returns the command line that measures the same, with the names of files but not their folders."""
    words = ["splatscope bench train", options.capture.resolve().name]
    words += [f"--resume {options.resume.name}"] if options.resume is not None else []
    words += [f"-n {options.train_steps} --runs {options.runs}", *chosen.options]
    return " ".join(words)


def together(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Joins several runs from one start: facts common to all, medians of their medians, both spreads, and each run."""
    medians = [run["step"]["median"] for run in runs]
    peaks = [run["peak_gib"] for run in runs]
    stages = {name: spread([run["stages"][name]["median"] for run in runs]) for name in runs[0]["stages"]}
    each = [{"step": run["step"], "peak_gib": run["peak_gib"]} for run in runs]
    same = {name: value for name, value in runs[0].items() if name not in ("step", "stages", "peak_gib")}
    step = spread(medians)  # from run to run
    return {**same, "peak_gib": None if None in peaks else max(peaks), "step": step, "stages": stages, "runs": each}


def _run(options: TrainBenchOptions, chosen: PolicyChoice, is_first: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns (the figures of a run, the device it was on). Called in a process of its own."""
    backend = make_backend("auto")
    for remark in chosen.training_remarks(backend.name) if is_first else ():
        print(f"warning: {remark}", flush=True)
    found: dict[str, Any] = {"backend": backend.device}
    if backend.trains_on_device:
        found["machine"] = describe_gpu()
    return _time_blocks(options, chosen, backend), found


def _time_blocks(options: TrainBenchOptions, chosen: PolicyChoice, backend: Any) -> dict[str, Any]:
    from splatscope.training.trainer import Trainer  # loads torch, which only the process of a run needs

    config, begin = _plan(options)
    result: dict[str, Any] = {"capture": options.capture.resolve().name}
    blocks: list[float] = []
    stages: dict[str, list[float]] = {}
    done, start = 0, 0.0
    reset_peak()
    with tempfile.TemporaryDirectory(prefix="splatscope-bench-") as folder:
        trainer = Trainer(open_capture(options.capture), config, backend, Path(folder), begin)
        trainer.use(chosen.for_training(config.antialiasing))
        for event in trainer.run():
            if isinstance(event, Prepared):
                result |= {"splats": event.count, "width": event.width, "height": event.height}
            if not isinstance(event, Stepped):
                continue
            done += 1
            if done > WARM_UP:
                for stage, ms in event.stage_ms.items():
                    stages.setdefault(stage, []).append(ms)
            if done >= WARM_UP and (done - WARM_UP) % options.train_steps == 0:
                trainer.settle()
                now = perf_counter()
                if done > WARM_UP:
                    blocks.append(1e3 * (now - start) / options.train_steps)
                start = now
            if len(blocks) == BLOCKS:
                break
        result["sh_degree"] = trainer.sh_degree
    result |= {"peak_gib": peak_gib(), "step": spread(blocks)}
    return {**result, "stages": {name: spread(ms) for name, ms in stages.items()}}


def _plan(options: TrainBenchOptions) -> tuple[Any, Any]:
    """Returns (settings, beginning) of a run that is long enough, without growth, scores and files."""
    train = TrainOptions(
        options.capture,
        resume=options.resume,
        resolution=options.resolution,
        sh_degree_interval=options.sh_degree_interval,
        num_downscales=options.num_downscales,
        iterations=1_000_000,
    )
    plan = plan_training(train)
    changes = ["densify.enabled=false", "checkpoint.enabled=false", "test_interval=0", "save_iterations=[]"]
    return with_settings(plan.config, [*changes, "test_iterations=[]"]), plan.begin


def _print(training: dict[str, Any], device: str, steps: int) -> None:
    step, stages, runs = training["step"], training["stages"], training["runs"]
    whole = step["median"]
    widest = max(run["step"]["max"] - run["step"]["min"] for run in runs)
    peak = "" if training["peak_gib"] is None else f", at most {training['peak_gib']:.2f} GiB of its memory"
    print(
        f"{training['capture']}: {training['splats']:,} splats, degree {training['sh_degree']}, "
        f"{training['width']}×{training['height']} on {device}{peak}"
    )
    print(f"  {'step':<18}{whole:9.3f} ms")
    if len(runs) > 1:
        print(
            f"  {'from run to run':<18}{_share(step['max'] - step['min'], whole)}: medians of {len(runs)} runs, ",
            end="",
        )
        print(f"each a process of its own, {step['min']:.3f} to {step['max']:.3f} ms")
    blocks = f"of {BLOCKS} blocks of {counted(steps, 'step')}"
    print(f"  {'within a run':<18}{_share(widest, whole)}: extremes {blocks}, in the widest run")
    known = 0.0
    for stage, times in stages.items():
        if stage != "other":
            known += times["median"]
            print(f"  {stage:<18}{times['median']:9.3f} ms {100 * times['median'] / whole:6.1f} %")
    print(f"  {'unattributed':<18}{whole - known:9.3f} ms {100 * (whole - known) / whole:6.1f} %")


def _share(difference: float, whole: float) -> str:
    """Returns the words for a difference, absolute and relative."""
    return f"{difference:9.3f} ms {100 * difference / whole:6.1f} %"
