"""`splatscope bench schedule`: times ways to hand out tiles and chunks, frame by frame, against the grid.

For each frame of each scene the blend stage is timed under every variant in turn, and its picture is compared with the
grid's.

- Scenes and cameras: `bench/scenes/schedule.py`.
- Tables and judgements: `bench/tables/schedule.py`.
- Figures: `bench/figures/schedule.py`.
- Which multiprocessor was busy when: `bench/measure/timelines.py`.
- The constants of the cost model: `calibrate.py`.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from splatscope.app.bench.figures.schedule import draw_figures
from splatscope.app.bench.measure.gpu import describe_gpu, hold
from splatscope.app.bench.measure.machine import describe_run
from splatscope.app.bench.measure.results import results_path, write_results
from splatscope.app.bench.measure.timelines import RECORDED, recorded_frame
from splatscope.app.bench.scenes.primitives import as_primitive
from splatscope.app.bench.scenes.schedule import DEFAULT_SCENES, check_scene, load_frames
from splatscope.app.bench.tables.publish import check_readme, publish
from splatscope.app.bench.tables.schedule import print_scene, print_summary
from splatscope.app.options.bench import ScheduleOptions
from splatscope.kernels.cuda.backend import need_gpu
from splatscope.kernels.cuda.plan.passes import BLEND_THREADS, Pass, Scene
from splatscope.kernels.cuda.plan.planner import Outputs
from splatscope.kernels.cuda.plan.schedule import calibration_of, resident_blocks
from splatscope.kernels.cuda.renderer import KernelStore, Renderer
from splatscope.kernels.errors import InputError
from splatscope.kernels.ladder import changed, step
from splatscope.kernels.policy import Policy, SchedulePolicy
from splatscope.kernels.primitive import Primitive
from splatscope.kernels.schedule.rules import Int64, Machine, imbalance
from splatscope.kernels.types import Camera

WARM_UP = 2
_LPT = {"schedule.sched": "lpt_binned", "schedule.chunk": "off"}
_ALL = _LPT | {"schedule.chunk": "all", "schedule.exact_stop": "off"}
_FIXED = _LPT | {"schedule.chunk": "fixed"}
_POLICY = _LPT | {"schedule.chunk": "modelled"}
CHUNKS_OF_ALL = (2, 4, 8, 16, 64)
FIXED_CHOICES = ((4, 4), (4, 16), (4, 64), (16, 4), (16, 16), (16, 64), (64, 4), (64, 16), (64, 64), (256, 4))  # (h, k)
FUSED = {"schedule.coexec": "fused", "schedule.take": "ticket"}
FUSED_SHARES = ("10", "25", "50", "75", "90")  # % of the blocks begin with chunks, where the policy has that toggle


def _variants() -> dict[str, dict[str, str]]:
    catgs = {
        "schedule.sched": "grid",
        "schedule.chunk": "catgs",
        "schedule.exact_stop": "off",
        "schedule.sat_flag": "off",
    }
    shares: dict[str, dict[str, str]] = {"policy fused": _POLICY | FUSED}
    if hasattr(SchedulePolicy(), "fused_share"):
        shares = {f"policy fused, {n}%": _POLICY | FUSED | {"schedule.fused_share": n} for n in FUSED_SHARES}
    return {
        "grid": {"schedule.sched": "grid", "schedule.chunk": "off"},
        "lpt": _LPT,
        "lpt sorted": _LPT | {"schedule.sched": "lpt"},
        "lpt by ticket": _LPT | {"schedule.take": "ticket"},
        "shortest first": _LPT | {"schedule.sched": "lpt_reverse"},
        "exact work": _LPT | {"schedule.sched": "exact_work"},
        **{f"chunk all, k = {k}": _ALL | {"schedule.chunk_k": str(k)} for k in CHUNKS_OF_ALL},
        "chunk all, k = 16, no flag": _ALL | {"schedule.chunk_k": "16", "schedule.sat_flag": "off"},
        "CaT-GS": _LPT | catgs,
        **{
            f"h = {h}, k = {k}": _FIXED | {"schedule.chunk_h": str(h), "schedule.chunk_k": str(k)}
            for h, k in FIXED_CHOICES
        },
        "seed's policy": _POLICY | {"schedule.cost_model": "seed"},
        "policy": _POLICY,
        "policy, planned apart": _POLICY | {"schedule.plan": "apart"},
        "policy, inexact": _POLICY | {"schedule.exact_stop": "off"},
        "policy, inexact, no flag": _POLICY | {"schedule.exact_stop": "off", "schedule.sat_flag": "off"},
        "policy, chunks first": _POLICY | {"schedule.coexec": "off"},
        "policy on two streams": _POLICY | {"schedule.coexec": "streams"},
        **shares,
    }


VARIANTS = _variants()


def run(options: ScheduleOptions) -> None:
    """Measures, prints, and writes JSON, figures and a document's table where asked for. Raises InputError."""
    check_readme(options.readme, "schedule", options.out)
    results = run_schedule(options)
    if options.out is None:
        return
    publish(options.readme, [(results_path(options.out, results, ["schedule"]), results)])
    folder = options.out.parent if options.out.suffix else options.out
    print(*(f"Wrote {path}" for path in draw_figures(results, folder)), sep="\n")


def run_schedule(options: ScheduleOptions) -> dict[str, Any]:
    """Measures, prints, and writes JSON if asked for. Raises InputError for scenes and variants that do not exist."""
    need_gpu()
    if unknown := sorted(set(options.variants) - set(VARIANTS)):
        raise InputError(f"There is no schedule {unknown[0]!r}; there are {', '.join(VARIANTS)}.")
    if options.variants and "grid" not in options.variants:
        raise InputError("--variants needs grid among them: a schedule is compared with the grid.")
    if options.frames < 1 or options.repeat < 1:
        raise InputError(f"--frames and --repeat must be at least 1, got {options.frames} and {options.repeat}.")
    scenes = options.scenes or DEFAULT_SCENES
    for name in scenes:
        check_scene(name)
    results: dict[str, Any] = {"run": describe_run(_command(options, scenes)), "machine": describe_gpu(), "scenes": []}
    bench = ScheduleBench(options)
    results["machine"] |= {"workers": bench.workers(), "calibration": asdict(calibration_of(bench.memory))}
    for name in scenes:
        results["scenes"].append(bench.measure(name))
        print_scene(results["scenes"][-1])
        if options.out is not None:
            write_results(results_path(options.out, results, ["schedule"]), results)
    print_summary(results)
    return results


def _command(options: ScheduleOptions, scenes: tuple[str, ...]) -> str:
    """Returns the command line that measures the same."""
    words = ["splatscope", "bench", "schedule", "--scenes", *scenes]
    words += ["--variants", *options.variants] if options.variants else []
    words += ["--frames", str(options.frames)] if options.frames != ScheduleOptions.frames else []
    words += ["--primitive", options.primitive] if options.primitive != "3dgs" else []
    return shlex.join([*words, "--repeat", str(options.repeat)])


class ScheduleBench:
    """Keeps a renderer for each variant, so that none takes another's buffers; all share compiled kernels."""

    def __init__(self, options: ScheduleOptions) -> None:
        self.options, self._kernels = options, KernelStore()
        variants = options.variants or tuple(VARIANTS)
        self.policies = {name: changed(step("best"), VARIANTS[name]) for name in variants}
        self.renderers = {name: Renderer(timed=True, kernels=self._kernels) for name in variants}
        self.memory = self.renderers["grid"].memory

    def measure(self, name: str) -> dict[str, Any]:
        """Measures all frames of one scene."""
        loaded = load_frames(name, self.workers(), self.options.frames)
        compile_ahead(self._kernels, self.policies, loaded.cameras[0], self.options.primitive)
        scene = self.renderers["grid"].upload(as_primitive(loaded.gaussians, self.options.primitive))
        frames = [self._frame(scene, camera, is_first=k == 0) for k, camera in enumerate(loaded.cameras)]
        for renderer in self.renderers.values():
            renderer.forget()
        torch.cuda.empty_cache()
        shown = name if ":" in name else Path(name).name
        return {"name": shown, "primitive": scene.primitive, "splats": scene.count, "frames": frames}

    def workers(self) -> int:
        """Returns K, the number of blocks of the blend kernel that run at once."""
        policy, memory = self.policies["grid"], self.renderers["grid"].memory
        file, name = Pass(policy, False, False, 1, primitive=self.options.primitive).kernels()["blend"]
        kernel = self.renderers["grid"].kernels(file, [name])[name]
        return memory.multiprocessors * resident_blocks(kernel, BLEND_THREADS[policy.blend.map], memory)

    def _frame(self, scene: Scene, camera: Camera, is_first: bool) -> dict[str, Any]:
        """Times the blend and the schedule stage, compares each picture with the grid's, and records the frame.

        For the first frame a sample of tiles is kept as well.
        """
        images, notes = {}, {}
        for name, renderer in self.renderers.items():
            draw = self._drawing(renderer, scene, camera, name)
            out, _ = renderer.complete(draw)
            for _ in range(WARM_UP):
                draw()
            images[name], notes[name] = out.image.clone(), decided(renderer)
        counts = tile_counts(self.renderers["grid"].newest_plan.outputs)
        multiprocessors = self.renderers["grid"].memory.multiprocessors
        figures = imbalance(counts, Machine(multiprocessors, self.workers() // multiprocessors))
        samples: dict[str, dict[str, list[float]]] = {name: {} for name in self.renderers}
        for _ in range(self.options.repeat):
            for name, renderer in self.renderers.items():
                for stage, ms in stage_times(self._drawing(renderer, scene, camera, name), renderer).items():
                    samples[name].setdefault(stage, []).append(ms)
        torch.cuda.synchronize()
        medians = {name: {stage: float(np.median(ms)) for stage, ms in of.items()} for name, of in samples.items()}
        return {
            "ratio": figures.ratio,
            "heaviest": figures.heaviest,
            "instances": figures.total,
            "blend_ms": {name: of["blend"] for name, of in medians.items()},
            # What the plan adds, wherever it is made.
            "schedule_ms": {
                name: of.get("schedule", 0.0) + of["ranges"] - medians["grid"]["ranges"] for name, of in medians.items()
            },
            "frame_ms": {name: sum(of.values()) for name, of in medians.items()},
            "psnr": {name: psnr(image, images["grid"]) for name, image in images.items()},
            "largest_difference": {name: float((image - images["grid"]).abs().max()) for name, image in images.items()},
            "decided": notes,
            "recorded": recorded_frame(self.renderers, self.policies, scene, camera, is_first),
        }

    def _drawing(self, renderer: Renderer, scene: Scene, camera: Camera, name: str) -> Any:
        return lambda: renderer.forward(scene, camera, policy=self.policies[name])


def stage_times(draw: Any, renderer: Renderer) -> dict[str, float]:
    """Returns the milliseconds of each stage of one drawing, with the host ahead of the GPU."""
    hold()
    draw()
    torch.cuda.synchronize()
    renderer.stage_ms.clear()
    draw()  # a graph tells the times of its replay at the next one
    torch.cuda.synchronize()
    return dict(renderer.stage_ms)


def tile_counts(outputs: Outputs) -> Int64:
    """Returns the splats of each tile [T]. Waits for the GPU."""
    return np.diff(outputs.tile_starts.cpu().numpy().view(np.uint32).astype(np.int64))


def compile_ahead(
    kernels: KernelStore, policies: dict[str, Policy], camera: Camera, primitive: Primitive = "3dgs"
) -> None:
    """Begins to compile on all cores the kernels that the variants will ask for one after the other."""
    rows, columns = camera.tiles
    recorded = [policies[name].with_value("schedule", "record", "on") for name in RECORDED if name in policies]
    for policy in (*policies.values(), *recorded):
        kernels.start(Pass(policy, False, False, rows * columns, primitive=primitive))


def decided(renderer: Renderer) -> dict[str, int]:
    """Returns what the plan of the newest frame decided; nothing where it only changed the order of whole tiles."""
    record: np.void | None = renderer.pipeline.read_schedule()
    if record is None or not record["chunk_units"]:
        return {} if record is None or not record["in_grid_order"] else {"in_grid_order": 1}
    return {name: int(record[name]) for name in ("chunk_units", "chunks_wanted", "split_tiles", "cut")}


def psnr(image: Any, wanted: Any) -> float:
    """Returns the decibels between two pictures, at most 200."""
    error = float((image.double() - wanted.double()).square().mean())
    return float(-10 * np.log10(max(error, 1e-20)))
