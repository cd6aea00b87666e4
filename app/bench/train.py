"""`splatscope bench --train`: milliseconds a training step of a real capture takes, by stage, on what would train it.

The trainer runs as always but for growth, which is off, so that all steps work on the same number of splats. Steps are
timed in blocks by the wall clock, from the first step queued to the last one done. All of that is done a few times from
the same start, each time in a process of its own: the run-to-run spread is that of the runs' medians, and apart from it
stands the spread of a run's own blocks. Synthetic scenes: `app/bench/step.py`. Whole runs: `runs.py`.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from splatscope.app.options.policy import NO_CHOICE, PolicyChoice
from splatscope.kernels.errors import InputError
from splatscope.kernels.wording import counted

BLOCKS = 5
WARM_UP = 100  # steps before the first block: compiled, captured, photographs uploaded


@dataclass(frozen=True)
class TrainBenchOptions:
    """What to time."""

    capture: Path
    resume: Path | None = None  # splats or a checkpoint to start from; else the capture's points
    resolution: int = -1
    steps: int = 500  # a block
    runs: int = 3
    sh_interval: int | None = None  # iterations between two degrees
    num_downscales: int | None = None
    out: Path | None = None
    toggles: PolicyChoice = NO_CHOICE


def run_train_bench(options: TrainBenchOptions) -> dict[str, Any]:
    """Times, prints, and writes JSON if asked for. Raises InputError, also if a run fails: what those before it
    measured is printed and written."""
    from splatscope.app.bench.measure.process import in_a_process
    from splatscope.app.bench.measure.report import describe_run, write_results

    for name, value in (("-n", options.steps), ("--runs", options.runs)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}.")
    resume = "" if options.resume is None else f" --resume {options.resume.name}"
    words = ["splatscope bench --train", f"{options.capture.resolve().name}{resume}", f"-n {options.steps}"]
    words.append(f"--runs {options.runs}")
    results: dict[str, Any] = {"run": describe_run(" ".join([*words, *options.toggles.options]))}
    runs: list[dict[str, Any]] = []
    failed: InputError | None = None
    while len(runs) < options.runs and failed is None:
        try:
            run, found = in_a_process(_run, options, not runs)
            runs.append(run)
            results |= found
        except InputError as error:
            failed = error
    if failed and not runs:
        raise failed
    results["training"] = together(runs)
    _print(results["training"], results["backend"], options.steps)
    if options.out is not None:
        print(f"Wrote {write_results(options.out, results)}")
    if failed:
        raise InputError(f"{failed} The figures are those of {counted(len(runs), 'run')} before it.")
    return results


def together(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of several runs from one start: what is the same in all, medians of their medians, both spreads, and each run."""
    from splatscope.app.bench.measure.report import spread

    medians = [run["step"]["median"] for run in runs]
    peaks = [run["peak_gib"] for run in runs]
    stages = {name: spread([run["stages"][name]["median"] for run in runs]) for name in runs[0]["stages"]}
    each = [{"step": run["step"], "peak_gib": run["peak_gib"]} for run in runs]
    same = {name: value for name, value in runs[0].items() if name not in ("step", "stages", "peak_gib")}
    step = spread(medians)  # from run to run
    return {**same, "peak_gib": None if None in peaks else max(peaks), "step": step, "stages": stages, "runs": each}


def _run(options: TrainBenchOptions, is_first: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """(a run's figures, what it was on). Called in a process of its own."""
    from splatscope.app.bench.measure.gpu import describe_gpu
    from splatscope.kernels.backends import make_backend

    backend = make_backend("auto")
    for remark in options.toggles.training_remarks(backend.name) if is_first else ():
        print(f"warning: {remark}", flush=True)
    found: dict[str, Any] = {"backend": backend.device}
    if backend.trains_on_device:
        found["machine"] = describe_gpu()
    return _time_blocks(options, backend), found


def _time_blocks(options: TrainBenchOptions, backend: Any) -> dict[str, Any]:
    from splatscope.app.bench.measure.memory import peak_gib, reset_peak
    from splatscope.app.bench.measure.report import spread
    from splatscope.assets.formats import open_capture
    from splatscope.training.events import Prepared, Stepped
    from splatscope.training.trainer import Trainer

    config, begin = _plan(options)
    result: dict[str, Any] = {"capture": options.capture.resolve().name}
    blocks: list[float] = []
    stages: dict[str, list[float]] = {}
    done, start = 0, 0.0
    reset_peak()
    with tempfile.TemporaryDirectory(prefix="splatscope-bench-") as folder:
        trainer = Trainer(open_capture(options.capture), config, backend, Path(folder), begin)
        trainer.use(options.toggles.for_training(config.antialiasing))
        for event in trainer.run():
            if isinstance(event, Prepared):
                result |= {"splats": event.count, "width": event.width, "height": event.height}
            if not isinstance(event, Stepped):
                continue
            done += 1
            if done > WARM_UP:
                for stage, ms in event.stage_ms.items():
                    stages.setdefault(stage, []).append(ms)
            if done >= WARM_UP and (done - WARM_UP) % options.steps == 0:
                trainer.settle()
                now = perf_counter()
                if done > WARM_UP:
                    blocks.append(1e3 * (now - start) / options.steps)
                start = now
            if len(blocks) == BLOCKS:
                break
        result["sh_degree"] = trainer.sh_degree
    result |= {"peak_gib": peak_gib(), "step": spread(blocks)}
    return {**result, "stages": {name: spread(ms) for name, ms in stages.items()}}


def _plan(options: TrainBenchOptions) -> tuple[Any, Any]:
    """(settings, beginning) of a run without growth, scores and files that is long enough."""
    from splatscope.app.options.subcommands import TrainOptions
    from splatscope.app.run.training_setup import plan_training
    from splatscope.training.recipes import with_settings

    train = TrainOptions(
        options.capture,
        resume=options.resume,
        resolution=options.resolution,
        sh_degree_interval=options.sh_interval,
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
    """A difference, absolute and relative."""
    return f"{difference:9.3f} ms {100 * difference / whole:6.1f} %"
