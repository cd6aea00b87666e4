"""`splatscope bench --ladder`: every step of the ladder on the GPU, forward and backward, stage by stage.

Kernel times are between CUDA events while the host is kept ahead of the GPU, so that its own time does not count;
frame times are wall-clock over many frames, so that it does. Steps take turns repetition by repetition. Splats and
tensors of all steps are the same. Another rasteriser beside ours on the same tensors: `bench_gsplat.py`. The CPU's
benchmark is `bench.py`; tables and files: `bench_report.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from splatscope.kernels.errors import InputError

if TYPE_CHECKING:  # --help must load neither torch nor NumPy
    import numpy as np

    from splatscope.benchmarks.scenes import BenchmarkScene
    from splatscope.kernels.pipeline import Plan, Scene
    from splatscope.kernels.policy import Policy
    from splatscope.kernels.renderer import Renderer

SLEEP_CYCLES = 2_000_000  # about 1 ms in which the host gets ahead of the GPU
WARM_UP = 3  # passes before anything is timed: launched, captured, replayed
WALL_FRAMES = 30
COUNT_TOLERANCE = 1e-4  # relative; as for the CPU
COPY_BYTES = 1 << 30
MODES = ("view", "forward", "forward_backward")  # without and with what training needs


@dataclass(frozen=True)
class LadderOptions:
    """What to measure."""

    scenes: tuple[str, ...] = ("S1", "S2", "S3", "S4")
    steps: tuple[str, ...] = ()  # all unless given
    repeat: int = 20
    toggles: bool = False  # also `best` with each toggle at each of its other values
    versus: str | None = None  # "gsplat"
    out: Path | None = None  # JSON


def run_ladder(options: LadderOptions) -> dict[str, Any]:
    """Measures, prints, and writes JSON if told where. Raises InputError for what is not there."""
    from splatscope.app.bench_report import describe_run, write_results
    from splatscope.kernels.cuda import need_gpu

    need_gpu()
    policies = _policies(options)
    if options.versus not in (None, "gsplat"):
        raise InputError(f"--vs must be gsplat, got {options.versus!r}.")
    command = f"splatscope bench --ladder --scenes {' '.join(options.scenes)} --repeat {options.repeat}"
    results: dict[str, Any] = {"run": describe_run(command), "machine": describe_gpu(), "scenes": []}
    bench = LadderBench(policies, options.repeat)
    for name in options.scenes:
        result = bench.measure(name)
        if options.versus is not None:
            from splatscope.app.bench_gsplat import measure_gsplat

            result["versus"] = {"gsplat": measure_gsplat(name, options.repeat)}
        results["scenes"].append(result)
        print_scene(result, results["machine"].get("copy_gb_per_second"))
        if options.out is not None:  # after each scene: minutes are not lost with the last one
            write_results(options.out, results)
    return results


def _policies(options: LadderOptions) -> dict[str, Policy]:
    """name -> policy, in the order of the table."""
    from splatscope.kernels.policy import toggle_table
    from splatscope.kernels.steps import STEPS, step

    found = {name: step(name) for name in options.steps or STEPS}
    if options.toggles:
        for row in toggle_table("cuda"):
            for value in row.values:
                policy = step("best").with_value(row.stage, row.name, value)
                if policy != step("best") and not policy.problems():
                    found[f"best, {row.key} = {value}"] = policy
    return found


def describe_gpu() -> dict[str, Any]:
    """The card, its copy rate, and the versions that decide how fast the kernels are."""
    import cupy  # pyright: ignore[reportMissingImports]
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "cupy": cupy.__version__,
        "copy_gb_per_second": round(_copy_rate() / 1e9, 1),
    }


def _copy_rate() -> float:
    """Bytes read and written a second by a copy on the device, the fastest of ten."""
    import torch

    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(10):
        pair = EventPair()
        target.copy_(source)
        pair.end()
        times.append(pair)
    torch.cuda.synchronize()
    return 2 * COPY_BYTES / (min(pair.ms for pair in times) / 1e3)


class EventPair:
    """The GPU's clock before and after what is launched between."""

    def __init__(self) -> None:
        import torch

        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._start.record()

    def end(self) -> None:
        """What follows is not timed."""
        self._end.record()

    @property
    def ms(self) -> float:
        """Milliseconds, once the GPU is done."""
        return self._start.elapsed_time(self._end)


class LadderBench:
    """Renderers with and without events, which share compiled kernels; a scene at a time."""

    def __init__(self, policies: dict[str, Policy], repeat: int) -> None:
        from splatscope.kernels.renderer import KernelStore, Renderer

        self.policies, self.repeat = policies, repeat
        kernels = KernelStore()
        self._plain, self._timed = Renderer(kernels=kernels), Renderer(timed=True, kernels=kernels)

    def measure(self, name: str) -> dict[str, Any]:
        """All steps on one scene."""
        import torch

        from splatscope.benchmarks.scenes import make_scene, upstream_gradient

        made = make_scene(name)
        for renderer in (self._plain, self._timed):
            renderer.forget()
        scene = self._plain.upload(made.gaussians)
        gradient = torch.from_numpy(upstream_gradient(made.camera)).cuda()
        jobs = {
            step: _Job(self._plain, self._timed, scene, made, policy, gradient)
            for step, policy in self.policies.items()
        }
        for step, job in jobs.items():
            start = perf_counter()
            job.warm_up()
            print(f"{name} {step}: ready in {perf_counter() - start:.2f} s", flush=True)
        for job in jobs.values():  # buffers that grew for a later step took the graphs of earlier ones with them
            job.warm_up()
        for _ in range(self.repeat):
            for job in jobs.values():
                job.sample()
        for job in jobs.values():
            job.time_wall()
        best = jobs.get("best")
        result = {
            "name": name,
            "splats": scene.count,
            "width": made.camera.width,
            "height": made.camera.height,
            "bits_match": made.bits_match,
            "steps": {step: job.summary(best) for step, job in jobs.items()},
        }
        for renderer in (self._plain, self._timed):
            renderer.forget()
        torch.cuda.empty_cache()
        return result


class _Job:
    """One step on one scene."""

    def __init__(
        self, plain: Renderer, timed: Renderer, scene: Scene, made: BenchmarkScene, policy: Policy, gradient: Any
    ) -> None:
        self.plain, self.timed, self.scene, self.made = plain, timed, scene, made
        self.policy, self.gradient = policy, gradient
        self.samples: dict[str, list[float]] = {mode: [] for mode in MODES}
        self.stages: dict[str, list[float]] = {}
        self.wall: dict[str, float] = {}
        self.image: Any = None
        self.record: np.void | None = None
        self.plan: Plan | None = None

    def run(self, renderer: Renderer, mode: str) -> Any:
        """One pass, started and not waited for."""
        training = mode != "view"
        outputs = renderer.forward(self.scene, self.made.camera, policy=self.policy, training=training)
        if mode == "forward_backward":
            renderer.backward(self.gradient)
        return outputs

    def warm_up(self) -> None:
        """Compiles, makes room, captures; keeps the picture and the counts."""
        for renderer in (self.plain, self.timed):
            for mode in MODES:
                outputs, self.record = renderer.complete(lambda r=renderer, m=mode: self.run(r, m))
                self.image = outputs.image.clone()
                for _ in range(WARM_UP):
                    self.run(renderer, mode)
        self.plan = self.plain.newest_plan

    def sample(self) -> None:
        """One repetition of everything."""
        import torch

        pairs = {}
        for mode in MODES:
            torch.cuda._sleep(SLEEP_CYCLES)
            pairs[mode] = EventPair()
            self.run(self.plain, mode)
            pairs[mode].end()
        torch.cuda._sleep(SLEEP_CYCLES)
        self.run(self.timed, "forward_backward")
        torch.cuda.synchronize()
        for mode, pair in pairs.items():
            self.samples[mode].append(pair.ms)
        self.timed.stage_ms.clear()
        self.run(self.timed, "forward_backward")  # a graph tells the times of its replay at the next one
        torch.cuda.synchronize()
        for stage, ms in self.timed.stage_ms.items():
            self.stages.setdefault(stage, []).append(ms)

    def time_wall(self) -> None:
        """Milliseconds a frame as a program meets them, host and all."""
        import torch

        for mode in ("view", "forward_backward"):
            torch.cuda.synchronize()
            start = perf_counter()
            for _ in range(WALL_FRAMES):
                self.run(self.plain, mode)
            torch.cuda.synchronize()
            self.wall[mode] = 1e3 * (perf_counter() - start) / WALL_FRAMES

    def summary(self, best: _Job | None) -> dict[str, Any]:
        """Everything measured, and what of it is not as it must be."""
        assert self.record is not None
        assert self.plan is not None
        counts = {key: int(self.record[key]) for key in ("visible", "instances", "skipped")}
        result: dict[str, Any] = {
            **counts,
            **{mode: spread(values) for mode, values in self.samples.items()},
            "wall_ms": {mode: round(ms, 4) for mode, ms in self.wall.items()},
            "stages": {stage: spread(values) for stage, values in self.stages.items()},
            "least_bytes": least_bytes(self.plan, self.scene.count, counts, self.made.camera),
            "kernels": kernel_reports(self.plan),
            "wrong": self._wrong(counts),
        }
        if best is not None:
            result["image_difference"] = float((self.image - best.image).abs().max())
        return result

    def _wrong(self, counts: dict[str, int]) -> list[str]:
        """Sentences about counts that are not those of the scene; only exact bounds have expected ones."""
        from splatscope.benchmarks.expected import EXPECTED

        sentences = []
        if self.policy.bin.bounds == "row_span":
            expected = EXPECTED[self.made.name]
            for key, wanted in (("visible", expected.visible), ("instances", expected.instances)):
                if abs(counts[key] - wanted) > COUNT_TOLERANCE * wanted:
                    sentences.append(f"{key} are {counts[key]:,}, expected {wanted:,}")
        if not bool(self.image.isfinite().all()):
            sentences.append("the picture is not finite")
        return sentences


def spread(values: list[float]) -> dict[str, float]:
    """Median, extremes and the middle 80% of some times, and how many there are."""
    import numpy as np

    low, p10, median, p90, high = np.percentile(values, (0, 10, 50, 90, 100))
    named = {"median": median, "min": low, "p10": p10, "p90": p90, "max": high}
    return {key: round(float(value), 5) for key, value in named.items()} | {"runs": len(values)}


def kernel_reports(plan: Plan) -> dict[str, dict[str, Any]]:
    """What the compiler says of each kernel of a plan: registers, spills, shared memory, occupancy."""
    import cupy  # pyright: ignore[reportMissingImports]

    from splatscope.kernels.compiler import MULTIPROCESSORS
    from splatscope.kernels.pipeline import Launch

    architecture, found = int(cupy.cuda.Device().compute_capability), {}
    for launch in [*plan.forward, *plan.backward]:
        if not isinstance(launch, Launch) or (report := launch.kernel.report) is None:
            continue
        row: dict[str, Any] = {
            "registers": report.registers,
            "spill_bytes": report.spill_bytes,
            "shared_bytes": report.shared_bytes,
        }
        if architecture in MULTIPROCESSORS:
            row["occupancy"] = round(report.occupancy(launch.block[0], architecture), 3)
        found[launch.kernel.name] = row
    return found


def least_bytes(plan: Plan, count: int, counts: dict[str, int], camera: Any) -> dict[str, int]:
    """The fewest bytes each stage must move, each array once: what a roofline divides by the copy rate."""
    made_for, policy = plan.made_for, plan.made_for.policy
    visible, pairs, pixels = counts["visible"], counts["instances"], camera.width * camera.height
    row = 96 if policy.project.sh_dtype == "bf16" else 192  # of harmonics
    entry = made_for.key_bytes + 4
    stages = {
        # Means of all; the other parameters and the harmonics of the visible; splat, extent, depth.
        "project": 12 * count + visible * (32 + row + 48 + 32 + 4),
        # A histogram, four passes over (key, slot); the first reads no slots, the last writes no keys.
        "depth_sort": 60 * visible if policy.sort.sort == "two_stage" else 0,
        "emit": 36 * visible + entry * pairs,
        "tile_sort": 2 * entry * pairs * made_for.key_passes,
        "ranges": made_for.key_bytes * pairs + 4 * made_for.tiles,
        "blend": 4 * pairs + 48 * visible + 20 * pixels,
        "blend_backward": 4 * pairs + 96 * visible + 20 * pixels,
        "project_backward": visible * (96 + 44 + row) + count * (4 * 13 + row),
    }
    return {stage: size for stage, size in stages.items() if size}


def print_scene(result: dict[str, Any], copy_rate: float | None) -> None:
    """Tables for the terminal: a row a step, the stages, and how near the last step's stages come to a copy (GB/s)."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True, width=200)
    title = f"{result['name']}: {result['splats']:,} splats at {result['width']}×{result['height']}; medians in ms"
    totals = Table("step", title=title, title_justify="left")
    for column in ("pairs", "visible", "view", "forward", "forward + backward", "10%–90%", "wall", "against best"):
        totals.add_column(column, justify="right", no_wrap=True)
    for step, row in result["steps"].items():
        both = row["forward_backward"]
        totals.add_row(
            step,
            f"{row['instances']:,}",
            f"{row['visible']:,}",
            *(f"{row[mode]['median']:.3f}" for mode in MODES),
            f"{both['p10']:.3f}–{both['p90']:.3f}",
            f"{row['wall_ms']['forward_backward']:.3f}",
            f"{row.get('image_difference', 0.0):.1e}",
        )
    console.print(totals)
    stages = list(dict.fromkeys(stage for row in result["steps"].values() for stage in row["stages"]))
    table = Table("step", title=f"{result['name']}: median ms a stage", title_justify="left")
    for stage in stages:
        table.add_column(stage, justify="right")
    for step, row in result["steps"].items():
        cells = (f"{row['stages'][stage]['median']:.4f}" if stage in row["stages"] else "" for stage in stages)
        table.add_row(step, *cells)
    console.print(table)
    if copy_rate:
        step, row = list(result["steps"].items())[-1]
        console.print(_roofline(step, row, copy_rate))
    for step, row in result["steps"].items():
        for sentence in row["wrong"]:
            console.print(f"WRONG in {result['name']}, {step}: {sentence}.")
    for name, times in result.get("versus", {}).items():
        console.print(f"{name}: " + ", ".join(f"{mode} {times[mode]['median']:.3f} ms" for mode in times))


def _roofline(step: str, row: dict[str, Any], copy_rate: float) -> Any:
    """The fewest bytes of each stage over its time, and the kernels' cost by the compiler's report."""
    from rich.table import Table

    title = f"{step}: fewest bytes a stage must move, against {copy_rate:,.0f} GB/s of a copy"
    table = Table("stage", title=title, title_justify="left")
    for column in ("ms", "MB", "GB/s", "of a copy", "registers", "spills", "occupancy"):
        table.add_column(column, justify="right")
    kernels = {name.partition("<")[0]: report for name, report in row["kernels"].items()}
    for stage, size in row["least_bytes"].items():
        if stage not in row["stages"]:
            continue
        ms = row["stages"][stage]["median"]
        report = kernels.get({"depth_sort": "sort_pass", "tile_sort": "sort_pass"}.get(stage, stage), {})
        cost = (str(report.get(key, "")) for key in ("registers", "spill_bytes", "occupancy"))
        rate = size / 1e6 / ms
        table.add_row(stage, f"{ms:.4f}", f"{size / 1e6:.1f}", f"{rate:,.0f}", f"{rate / copy_rate:.0%}", *cost)
    return table
