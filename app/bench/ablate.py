"""`splatscope bench --ablate`: one stage taken apart, each part by a measurement of its own.

blend_backward: the kernel compiled without its atomics, then without its reductions as well, then as the loop around
them alone (`blend_backward.ablate`); what a variant saves over the one before is what it left out. sort: every kernel
between projection and blending, launched by itself between two events. Timing: `bench/measure/gpu.py`; scenes:
`bench/scenes/subjects.py`; tables: `bench/tables/terminal.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splatscope.app.bench.ladder import WARM_UP, LadderBench, rows_of
from splatscope.app.bench.measure.gpu import describe_gpu, hold, timed
from splatscope.app.bench.measure.report import describe_run, results_path, spread, write_results
from splatscope.app.bench.tables.terminal import print_ablation
from splatscope.app.options.policy import NO_CHOICE, PolicyChoice
from splatscope.kernels.errors import InputError

if TYPE_CHECKING:
    from splatscope.app.bench.scenes.subjects import Subject
    from splatscope.kernels.cuda.plan.operations import Operation
    from splatscope.kernels.cuda.plan.planner import Outputs
    from splatscope.kernels.policy import Policy

VARIANTS = ("off", "no_atomics", "no_reductions", "loop_floor")  # each leaves out more than the one before
SORT_STAGES = ("depth_sort", "emit", "tile_sort", "ranges")


@dataclass(frozen=True)
class AblateOptions:
    """What to take apart, and of which presets."""

    parts: tuple[str, ...]  # blend_backward, sort
    steps: tuple[str, ...] = ()  # best unless given
    repeat: int = 20
    out: Path | None = None  # JSON
    chosen: PolicyChoice = NO_CHOICE  # another one, beside the preset it starts from


def run_ablation(subjects: list[Subject], options: AblateOptions) -> tuple[Path | None, dict[str, Any]]:
    """Measures, prints, and writes JSON if told where: (the file, the results). Raises InputError."""
    from splatscope.kernels.cuda.backend import need_gpu
    from splatscope.kernels.ladder import step

    if options.repeat < 1:
        raise InputError(f"--repeat must be at least 1, got {options.repeat}.")
    policies = {name: step(name) for name in options.steps or ("best",)} | rows_of(options.chosen)
    need_gpu()
    words = ["splatscope bench --ablate", *options.parts, "--scenes", *(subject.words for subject in subjects)]
    words += [*(["--steps", *options.steps] if options.steps else []), *options.chosen.options]
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
    return written, results


# ---- The derivative of blending --------------------------------------------------------------------------------------


def ablated(policy: Policy, variant: str) -> Policy:
    """The policy with that much of the backward blend left out; its gradients are then worth nothing."""
    return policy.with_value("blend_backward", "ablate", variant)


def ablate_blend_backward(subject: Subject, policy: Policy, repeat: int) -> dict[str, Any]:
    """Times of the variants, which take turns, and what they say of the whole one."""
    measured = LadderBench({variant: ablated(policy, variant) for variant in VARIANTS}, repeat).measure(subject)
    times = {variant: row["stages"]["blend_backward"] for variant, row in measured["steps"].items()}
    kernels = {
        variant: {name.partition("<")[0]: report for name, report in row["kernels"].items()}.get("blend_backward", {})
        for variant, row in measured["steps"].items()
    }
    medians = {variant: row["median"] for variant, row in times.items()}
    return {"variants": times, "kernels": kernels, "split": split_of(medians)}


def split_of(ms: dict[str, float]) -> dict[str, float]:
    """Milliseconds of the loop's floor, the gradient's arithmetic, reductions and atomics; they add up to the whole."""
    return {
        "floor": ms["loop_floor"],
        "gradient math": ms["no_reductions"] - ms["loop_floor"],
        "reductions": ms["no_atomics"] - ms["no_reductions"],
        "atomics": ms["off"] - ms["no_atomics"],
    }


# ---- From projection to lists ----------------------------------------------------------------------------------------


def ablate_sort(subject: Subject, policy: Policy, repeat: int) -> dict[str, Any]:
    """Times of every kernel between projection and blending, of their stages, and of two gathers.

    Kernels are launched one by one, each between events of its own, while the host is ahead; an empty pair of events
    says what that adds. The gathers are copies by torch: of the extents in depth order, which `emit` does as it goes,
    and of the splats in list order, which blending does as it goes and some renderers do as a stage.
    """
    import torch

    from splatscope.kernels.cuda.plan.operations import run_operations
    from splatscope.kernels.cuda.renderer import Renderer
    from splatscope.kernels.types import RenderSettings

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
        for step, name in zip(plan.forward, names, strict=True):
            if step.stage in SORT_STAGES:
                pairs[name] = timed(lambda s=step: s.run(renderer.launcher))
            else:
                run_operations([step], renderer.launcher)
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


def part_names(steps: list[Operation]) -> list[str]:
    """One name a step: the stage, and where it has several kernels which of them: depth_sort, sort_pass 2."""
    from splatscope.kernels.cuda.plan.operations import Launch

    stages = [step.stage for step in steps]
    names, seen = [], {}
    for step in steps:
        if stages.count(step.stage) == 1:
            names.append(step.stage)
            continue
        name = step.kernel.name.partition("<")[0] if isinstance(step, Launch) else "call"
        seen[step.stage, name] = number = seen.get((step.stage, name), 0) + 1
        names.append(f"{step.stage}, {name} {number}")
    return names


def _gathers(visible: int, instances: int, device: Any) -> dict[str, Callable[[], Any]]:
    """Copies of rows in random order, of the sizes of this frame."""
    import torch

    footprints, splats = torch.empty((visible, 2), device=device), torch.empty((visible, 12), device=device)
    order = torch.randperm(visible, device=device, dtype=torch.int32)
    slots = torch.randint(max(visible, 1), (instances,), device=device, dtype=torch.int32)
    in_order, listed_splats = torch.empty_like(footprints), torch.empty((instances, 12), device=device)
    return {
        "gather of footprints by depth": lambda: torch.index_select(footprints, 0, order, out=in_order),
        "gather of splats by list": lambda: torch.index_select(splats, 0, slots, out=listed_splats),
    }
