"""`splatscope bench --schedule`: ways to hand out tiles and chunks, frame by frame, against the grid.

For each frame of each scene the blend stage is timed under every variant in turn, and its picture compared with the
grid's. From that: speed-ups against imbalance, the best fixed choice of h and k, and the best choice for each frame.
Figures: `bench_schedule_figures.py`. Who was busy when: `bench_timelines.py`. The cost model's constants:
`bench_calibrate.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splatscope.kernels.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from splatscope.app.bench_scenes import Loaded
    from splatscope.kernels.passes import Scene
    from splatscope.kernels.renderer import Renderer
    from splatscope.kernels.types import Camera

CROWDED = "crowded"  # crowded:10 is the scene with a dial at ratio 10
DEFAULT_SCENES = ("S1", "S2", "S3", "S4", *(f"{CROWDED}:{ratio:g}" for ratio in (0.5, 2, 5, 20, 60, 120)))
TURN_DEGREES = 3.0  # from frame to frame
WARM_UP = 2
_LPT = {"schedule.sched": "lpt_binned", "schedule.chunk": "off"}
_FIXED = _LPT | {"schedule.chunk": "fixed"}
FIXED_CHOICES = ((4, 4), (4, 16), (4, 64), (16, 4), (16, 16), (64, 4), (64, 16), (256, 4))  # (h, k)
VARIANTS: dict[str, dict[str, str]] = {
    "grid": {"schedule.sched": "grid", "schedule.chunk": "off"},
    "lpt": _LPT,
    "lpt sorted": _LPT | {"schedule.sched": "lpt"},
    "lpt by ticket": _LPT | {"schedule.take": "ticket"},
    "shortest first": _LPT | {"schedule.sched": "lpt_reverse"},
    "exact work": _LPT | {"schedule.sched": "exact_work"},
    "chunking only, k = 4": _LPT | {"schedule.chunk": "all", "schedule.chunk_k": "4", "schedule.exact_stop": "off"},
    "CaT-GS": _LPT
    | {
        "schedule.sched": "grid",
        "schedule.chunk": "catgs",
        "schedule.exact_stop": "off",
        "schedule.sat_flag": "off",
    },
    **{
        f"h = {h}, k = {k}": _FIXED | {"schedule.chunk_h": str(h), "schedule.chunk_k": str(k)} for h, k in FIXED_CHOICES
    },
    "seed's policy": _LPT | {"schedule.chunk": "policy", "schedule.policy": "seed"},
    "policy": _LPT | {"schedule.chunk": "policy"},
    "policy, inexact": _LPT | {"schedule.chunk": "policy", "schedule.exact_stop": "off"},
    "policy, inexact, no flag": _LPT
    | {"schedule.chunk": "policy", "schedule.exact_stop": "off", "schedule.sat_flag": "off"},
    "policy on two streams": _LPT | {"schedule.chunk": "policy", "schedule.coexec": "streams"},
    "policy fused": _LPT | {"schedule.chunk": "policy", "schedule.coexec": "fused", "schedule.take": "ticket"},
}


@dataclass(frozen=True)
class ScheduleOptions:
    """What to measure."""

    scenes: tuple[str, ...] = DEFAULT_SCENES
    frames: int = 5  # of each scene: the camera turns on the spot
    repeat: int = 10
    variants: tuple[str, ...] = tuple(VARIANTS)
    out: Path | None = None  # JSON; figures go beside it


def run_schedule(options: ScheduleOptions) -> dict[str, Any]:
    """Measures, prints, and writes what was asked for. Raises InputError for what is not there."""
    from splatscope.app.bench_gpu import describe_gpu
    from splatscope.app.bench_report import describe_run, results_path, write_results
    from splatscope.kernels.cuda import need_gpu

    need_gpu()
    if unknown := sorted(set(options.variants) - set(VARIANTS)):
        raise InputError(f"There is no schedule {unknown[0]!r}; there are {', '.join(VARIANTS)}.")
    if "grid" not in options.variants or options.frames < 1:
        raise InputError("A schedule is compared with the grid, on at least one frame.")
    command = f"splatscope bench --schedule --scenes {' '.join(options.scenes)} --repeat {options.repeat}"
    results: dict[str, Any] = {"run": describe_run(command), "machine": describe_gpu(), "scenes": []}
    bench = ScheduleBench(options)
    for name in options.scenes:
        results["scenes"].append(bench.measure(name))
        print_scene(results["scenes"][-1])
        if options.out is not None:
            write_results(results_path(options.out, results, ["schedule"]), results)
    return results


class ScheduleBench:
    """A renderer a variant, so that none takes another's buffers; all share compiled kernels."""

    def __init__(self, options: ScheduleOptions) -> None:
        from splatscope.kernels.renderer import KernelStore, Renderer
        from splatscope.kernels.steps import changed, step

        self.options, kernels = options, KernelStore()
        self.policies = {name: changed(step("best"), VARIANTS[name]) for name in options.variants}
        self.renderers = {name: Renderer(timed=True, kernels=kernels) for name in options.variants}

    def measure(self, name: str) -> dict[str, Any]:
        """All frames of one scene."""
        import torch

        loaded = self._load(name)
        scene = self.renderers["grid"].upload(loaded.gaussians)
        frames = [self._frame(scene, camera) for camera in turned(loaded.camera, self.options.frames)]
        for renderer in self.renderers.values():
            renderer.forget()
        torch.cuda.empty_cache()
        return {"name": name, "splats": scene.count, "frames": frames}

    def _load(self, name: str) -> Loaded:
        from splatscope.app.bench_scenes import Loaded, subject
        from splatscope.benchmarks.crowded import crowded_scene

        kind, _, ratio = name.partition(":")
        if kind != CROWDED:
            return subject(name).load()
        try:
            return Loaded(*crowded_scene(float(ratio), self.workers()), None, None)
        except ValueError as error:
            raise InputError(f"{CROWDED} takes an imbalance ratio, as {CROWDED}:10; got {name!r}.") from error

    def workers(self) -> int:
        """K: blocks of the blend kernel that run at once."""
        from splatscope.kernels.passes import Pass
        from splatscope.kernels.pipeline import BLEND_THREADS
        from splatscope.kernels.pipeline_schedule import resident_blocks

        policy, memory = self.policies["grid"], self.renderers["grid"].memory
        file, name = Pass(policy, False, False, 1).kernels()["blend"]
        kernel = self.renderers["grid"].kernels(file, [name])[name]
        return memory.multiprocessors * resident_blocks(kernel, BLEND_THREADS[policy.blend.map], memory)

    def _frame(self, scene: Scene, camera: Camera) -> dict[str, Any]:
        """Times of the blend and the schedule stage, and how far each picture is from the grid's."""
        import numpy as np
        import torch

        from splatscope.app.bench_timelines import recorded_frame
        from splatscope.kernels.schedule import Machine, imbalance

        images, notes = {}, {}
        for name, renderer in self.renderers.items():
            draw = self._drawing(renderer, scene, camera, name)
            out, _ = renderer.complete(draw)
            for _ in range(WARM_UP):
                draw()
            images[name], notes[name] = out.image.clone(), decided(renderer)
        out = self.renderers["grid"].newest_plan.outputs
        counts = np.diff(out.tile_starts.cpu().numpy().view(np.uint32).astype(np.int64))
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
            "schedule_ms": {name: of.get("schedule", 0.0) for name, of in medians.items()},
            "frame_ms": {name: sum(of.values()) for name, of in medians.items()},
            "psnr": {name: psnr(image, images["grid"]) for name, image in images.items()},
            "decided": notes,
            "recorded": recorded_frame(self.renderers, self.policies, scene, camera),
        }

    def _drawing(self, renderer: Renderer, scene: Scene, camera: Camera, name: str) -> Any:
        return lambda: renderer.forward(scene, camera, policy=self.policies[name])


def stage_times(draw: Any, renderer: Renderer) -> dict[str, float]:
    """Milliseconds a stage of one drawing, the host ahead of the GPU."""
    import torch

    from splatscope.app.bench_gpu import hold

    hold()
    draw()
    torch.cuda.synchronize()
    renderer.stage_ms.clear()
    draw()  # a graph tells the times of its replay at the next one
    torch.cuda.synchronize()
    return dict(renderer.stage_ms)


def turned(camera: Camera, frames: int) -> list[Camera]:
    """The camera, and as it turns about its own vertical axis, to both sides in turn."""
    from dataclasses import replace

    import numpy as np

    found = []
    for number in range(frames):
        angle = np.radians(TURN_DEGREES) * ((number + 1) // 2) * (-1) ** number
        turn = np.eye(4)
        turn[[0, 0, 2, 2], [0, 2, 0, 2]] = np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)
        rows = tuple(tuple(float(v) for v in row) for row in turn @ camera.matrix)
        found.append(replace(camera, view_from_world=rows) if number else camera)
    return found


def decided(renderer: Renderer) -> dict[str, int]:
    """What the newest frame's plan came to; nothing for the grid."""
    record: np.void | None = renderer.pipeline.read_schedule()
    names = ("chunk_units", "chunks_wanted", "split_tiles", "cut")
    return {} if record is None else {name: int(record[name]) for name in names}


def psnr(image: Any, wanted: Any) -> float:
    """Decibels between two pictures, at most 200."""
    import numpy as np

    error = float((image.double() - wanted.double()).square().mean())
    return float(-10 * np.log10(max(error, 1e-20)))


# ---- What comes of it ------------------------------------------------------------------------------------------------


def speed_ups(scene: dict[str, Any]) -> dict[str, list[float]]:
    """variant -> blend time of the grid over its own, frame by frame. Also the fixed choice that is best over the
    scene, and the best of all for each frame.
    """
    import numpy as np

    frames = scene["frames"]
    found = {
        name: [frame["blend_ms"]["grid"] / frame["blend_ms"][name] for frame in frames]
        for name in frames[0]["blend_ms"]
    }
    fixed = {name: values for name, values in found.items() if name.startswith("h = ")}
    exact = fixed | {name: found[name] for name in ("grid", "lpt", "seed's policy", "policy") if name in found}
    if fixed:
        found["best fixed"] = max(fixed.values(), key=lambda values: float(np.mean(values)))
    found["oracle"] = [max(values) for values in zip(*exact.values(), strict=True)]
    return found


def print_scene(scene: dict[str, Any]) -> None:
    """One row a variant: speed-up of blending over the grid, what the plan costs, how far the picture is."""
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    frames, gains = scene["frames"], speed_ups(scene)
    ratios = [frame["ratio"] for frame in frames]
    title = f"{scene['name']}: imbalance {min(ratios):.2f} to {max(ratios):.2f}, {len(frames)} frames"
    table = Table(title=title, title_justify="left")
    table.add_column("variant", no_wrap=True)
    for column in ("blend ms", "speed-up", "least", "most", "plan µs", "frame ms", "least PSNR"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, values in gains.items():
        cells = ["", "", "", ""]
        if name in frames[0]["blend_ms"]:
            mean = {
                key: np.mean([frame[key][name] for frame in frames]) for key in ("blend_ms", "schedule_ms", "frame_ms")
            }
            least = min(frame["psnr"][name] for frame in frames)
            cells = [f"{mean['blend_ms']:.3f}", f"{1e3 * mean['schedule_ms']:.1f}", f"{mean['frame_ms']:.3f}"]
            cells.append(f"{least:.1f}" if least < 199 else "same")
        spread = (f"{np.mean(values):.2f}", f"{min(values):.2f}", f"{max(values):.2f}")
        table.add_row(name, cells[0], *spread, *cells[1:])
    console = Console(highlight=False)
    console.width = max(console.width, 130)  # in a file too, no column is cut
    console.print(table)
