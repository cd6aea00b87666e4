"""`splatscope bench ablate`: takes one stage apart and measures each part by itself.

- blend_backward: the kernel is compiled without its atomics, then also without its reductions, then as the loop around
  them alone (`blend_backward.ablate`). The time that a variant saves over the one before is the cost of the parts left
  out.
- sort: every kernel between projection and blending is launched by itself between two events.

Timing: `bench/measure/gpu.py`. Scenes: `bench/scenes/subjects.py`. Tables: `bench/tables/ablation.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from splatscope.app.bench.ladder import WARM_UP, LadderBench, rows_of
from splatscope.app.bench.measure.gpu import describe_gpu, hold, timed
from splatscope.app.bench.measure.machine import describe_run
from splatscope.app.bench.measure.results import results_path, spread, write_results
from splatscope.app.bench.scenes.subjects import Subject, chosen_subjects
from splatscope.app.bench.tables.ablation import print_ablation
from splatscope.app.options.bench import AblateOptions
from splatscope.app.options.policy import choose_policy
from splatscope.kernels.cuda.backend import need_gpu
from splatscope.kernels.cuda.plan.operations import Launch, Operation, run_operations
from splatscope.kernels.cuda.plan.planner import Outputs
from splatscope.kernels.cuda.renderer import Renderer
from splatscope.kernels.errors import InputError
from splatscope.kernels.ladder import step
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import RenderSettings

VARIANTS = ("off", "no_atomics", "no_reductions", "loop_floor")  # each leaves out more than the one before
SORT_STAGES = ("depth_sort", "emit", "tile_sort", "ranges")


def run(options: AblateOptions) -> None:
    """Measures, prints, and writes JSON if asked for. Raises InputError."""
    subjects = chosen_subjects(options.scenes, options.camera, options.size)
    written = run_ablation(subjects, options)
    if written is not None:
        print(f"Wrote {written}")


def run_ablation(subjects: list[Subject], options: AblateOptions) -> Path | None:
    """Measures, prints, and writes JSON if asked for; returns the file. Raises InputError."""
    if options.repeat < 1:
        raise InputError(f"--repeat must be at least 1, got {options.repeat}.")
    if not options.parts:
        raise InputError("`bench ablate` needs a stage to take apart: blend_backward, sort or both.")
    chosen = choose_policy(options.step, options.toggle)
    policies = {name: step(name) for name in options.steps or ("best",)} | rows_of(chosen)
    need_gpu()
    words = ["splatscope bench ablate", *options.parts, "--scenes", *(subject.words for subject in subjects)]
    words += [*(["--steps", *options.steps] if options.steps else []), *chosen.options]
    command = " ".join([*words, f"--repeat {options.repeat}"])
    results: dict[str, Any] = {"run": describe_run(command), "machine": describe_gpu(), "scenes": []}
    written = None
    if options.out is not None:
        written = results_path(options.out, results, ["ablate", *options.parts, *(s.name for s in subjects)])
    for subject in subjects:
        result: dict[str, Any] = {"name": subject.name, "ablations": []}
        loaded = subject.load()
        held = replace(subject, load=lambda loaded=loaded: loaded)
        for name, policy in policies.items():
            for part in options.parts:
                take_apart = ablate_blend_backward if part == "blend_backward" else ablate_sort
                row = {"part": part, "step": name, **take_apart(held, policy, options.repeat)}
                result["ablations"].append(row)
                print_ablation(subject.name, row)
        results["scenes"].append(result)
        if written is not None:
            write_results(written, results)
    return written


# ---- The derivative of blending --------------------------------------------------------------------------------------


def ablated(policy: Policy, variant: str) -> Policy:
    """Returns the policy with parts of the backward blend left out; its gradients are worthless."""
    return policy.with_value("blend_backward", "ablate", variant)


def ablate_blend_backward(subject: Subject, policy: Policy, repeat: int) -> dict[str, Any]:
    """Times the variants in turns, and splits the time of the whole kernel into its parts."""
    measured = LadderBench({variant: ablated(policy, variant) for variant in VARIANTS}, repeat).measure(subject)
    times = {variant: row["stages"]["blend_backward"] for variant, row in measured["steps"].items()}
    kernels = {
        variant: {name.partition("<")[0]: report for name, report in row["kernels"].items()}.get("blend_backward", {})
        for variant, row in measured["steps"].items()
    }
    medians = {variant: row["median"] for variant, row in times.items()}
    return {"variants": times, "kernels": kernels, "split": split_of(medians)}


def split_of(ms: dict[str, float]) -> dict[str, float]:
    """Splits the milliseconds of the kernel: the bare loop, the gradient's arithmetic, reductions and atomics."""
    return {
        "floor": ms["loop_floor"],
        "gradient math": ms["no_reductions"] - ms["loop_floor"],
        "reductions": ms["no_atomics"] - ms["no_reductions"],
        "atomics": ms["off"] - ms["no_atomics"],
    }


# ---- From projection to lists ----------------------------------------------------------------------------------------


def ablate_sort(subject: Subject, policy: Policy, repeat: int) -> dict[str, Any]:
    """Times every kernel between projection and blending, their stages, and two gathers.

    Kernels are launched one by one, each between events of its own, while the host is ahead. An empty pair of events
    shows the time that the events add. The gathers are copies by torch:

    - of the extents in depth order, which `emit` does on its way;
    - of the splats in list order, which blending does on its way and some renderers do as a stage.
    """
    loaded = subject.load()
    renderer = Renderer()
    scene = renderer.upload(loaded.gaussians)
    direct = replace(policy, launch=replace(policy.launch, mode="direct"))

    def forward() -> Outputs:
        return renderer.forward(scene, loaded.camera, policy=direct, training=True)

    _, record = renderer.complete(forward)
    for _ in range(WARM_UP):
        forward()
    plan, pipeline = renderer.newest_plan, renderer.pipeline
    gathers = _gathers(int(record["visible"]), int(record["instances"]), scene.means.device)
    names = part_names(plan.forward)
    samples: dict[str, list[float]] = {}
    for _ in range(repeat):
        pairs = {}
        hold()
        pipeline.begin(scene, loaded.camera, RenderSettings(), renderer.capacity)
        pairs["an empty pair of events"] = timed(lambda: None)
        for operation, name in zip(plan.forward, names, strict=True):
            if operation.stage in SORT_STAGES:
                pairs[name] = timed(lambda one=operation: one.run(renderer.launcher))
            else:
                run_operations([operation], renderer.launcher)
        for name, work in gathers.items():
            pairs[name] = timed(work)
        torch.cuda.synchronize()
        for name, pair in pairs.items():
            samples.setdefault(name, []).append(pair.ms)
    renderer.forget()
    torch.cuda.empty_cache()
    return {
        "visible": int(record["visible"]),
        "instances": int(record["instances"]),
        "parts": {name: spread(values) for name, values in samples.items() if name in names},
        "beside": {name: spread(values) for name, values in samples.items() if name not in names},
    }


def part_names(operations: list[Operation]) -> list[str]:
    """Returns one name for each operation: its stage, and of a stage with several kernels also the kernel.

    For example "depth_sort, sort_pass 2".
    """
    stages = [operation.stage for operation in operations]
    names, seen = [], {}
    for operation in operations:
        if stages.count(operation.stage) == 1:
            names.append(operation.stage)
            continue
        name = operation.kernel.name.partition("<")[0] if isinstance(operation, Launch) else "call"
        seen[operation.stage, name] = number = seen.get((operation.stage, name), 0) + 1
        names.append(f"{operation.stage}, {name} {number}")
    return names


def _gathers(visible: int, instances: int, device: Any) -> dict[str, Callable[[], Any]]:
    """Returns functions that copy rows in random order, as many as in this frame."""
    footprints, splats = torch.empty((visible, 2), device=device), torch.empty((visible, 12), device=device)
    order = torch.randperm(visible, device=device, dtype=torch.int32)
    slots = torch.randint(max(visible, 1), (instances,), device=device, dtype=torch.int32)
    in_order, listed_splats = torch.empty_like(footprints), torch.empty((instances, 12), device=device)
    return {
        "gather of footprints by depth": lambda: torch.index_select(footprints, 0, order, out=in_order),
        "gather of splats by list": lambda: torch.index_select(splats, 0, slots, out=listed_splats),
    }
