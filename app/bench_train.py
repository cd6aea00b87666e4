"""`splatscope bench --train`: milliseconds a training step of a real capture takes, by stage, on what would train it.

The trainer runs as always but for growth, which is off, so that all steps work on the same number of splats. Steps are
timed in blocks by the wall clock, from the first step queued to the last one done; the spread is that of the blocks.
Synthetic scenes: `benchmarks/train_step.py`. Whole runs: `bench_recipes.py`.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from splatscope.app.policy_options import NO_CHOICE, PolicyChoice
from splatscope.kernels.errors import InputError

BLOCKS = 5
WARM_UP = 100  # steps before the first block: compiled, captured, photographs uploaded


@dataclass(frozen=True)
class TrainBenchOptions:
    """What to time."""

    capture: Path
    resume: Path | None = None  # splats or a checkpoint to start from; else the capture's points
    resolution: int = -1
    steps: int = 500  # a block
    sh_interval: int | None = None  # iterations between two degrees
    num_downscales: int | None = None
    out: Path | None = None
    toggles: PolicyChoice = NO_CHOICE


def run_train_bench(options: TrainBenchOptions) -> dict[str, Any]:
    """Times, prints, and writes JSON if asked for. Raises InputError."""
    from splatscope.app.bench_gpu import describe_gpu
    from splatscope.app.bench_report import describe_run, write_results
    from splatscope.kernels.api import make_backend

    if options.steps < 1:
        raise InputError(f"-n must be at least 1, got {options.steps}.")
    backend = make_backend("auto")
    resume = "" if options.resume is None else f" --resume {options.resume.name}"
    words = ["splatscope bench --train", f"{options.capture.resolve().name}{resume}", f"-n {options.steps}"]
    command = " ".join([*words, *options.toggles.options])
    for remark in options.toggles.training_remarks(backend.name):
        print(f"warning: {remark}")
    results = {"run": describe_run(command), "backend": backend.device, "training": _time_blocks(options, backend)}
    if backend.name == "cuda":
        results["machine"] = describe_gpu()
    _print(results["training"], backend.device)
    if options.out is not None:
        print(f"Wrote {write_results(options.out, results)}")
    return results


def _time_blocks(options: TrainBenchOptions, backend: Any) -> dict[str, Any]:
    from splatscope.app.bench_recipes import peak_gib, reset_peak
    from splatscope.app.bench_report import spread
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
        trainer.use(options.toggles.for_training)
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
    from splatscope.app import cli
    from splatscope.app.training_setup import plan_training
    from splatscope.training.recipes import with_settings

    train = cli.Train(
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


def _print(training: dict[str, Any], device: str) -> None:
    step, stages = training["step"], training["stages"]
    whole = step["median"]
    peak = "" if training["peak_gib"] is None else f", at most {training['peak_gib']:.2f} GiB of its memory"
    print(
        f"{training['capture']}: {training['splats']:,} splats, degree {training['sh_degree']}, "
        f"{training['width']}×{training['height']} on {device}{peak}"
    )
    print(f"  {'step':<18}{whole:9.3f} ms   {step['min']:.3f} to {step['max']:.3f} over {step['runs']} blocks")
    known = 0.0
    for stage, times in stages.items():
        if stage != "other":
            known += times["median"]
            print(f"  {stage:<18}{times['median']:9.3f} ms {100 * times['median'] / whole:6.1f} %")
    print(f"  {'unattributed':<18}{whole - known:9.3f} ms {100 * (whole - known) / whole:6.1f} %")
