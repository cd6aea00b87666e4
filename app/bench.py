"""`splatscope bench`: checks the picture, times it, prints a table, writes JSON if told where.

Times are wall-clock, of whole calls; runs at different thread counts take turns, so that a slow minute of
the machine falls on all of them. Scenes come from `benchmarks/scenes.py`; `bench_report.py` describes the
machine and draws the tables.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from splatscope.kernels.errors import InputError

if TYPE_CHECKING:  # --help must not load NumPy or numba
    from splatscope.assets.capture import Capture
    from splatscope.benchmarks.scenes import BenchmarkScene
    from splatscope.kernels.api import Backend
    from splatscope.kernels.types import Frame, Gradients

Milliseconds = dict[str, float]
COUNT_TOLERANCE = 1e-4  # relative; float32 may decide otherwise where an ellipse just touches a pixel row
TRANSMITTANCE_TOLERANCE = 1e-5  # of the mean over all pixels
SETTLING_STEPS = 10  # training steps that are not timed

# In a process of its own and an empty cache folder this compiles everything; the second time it loads.
_COMPILE_PROGRAM = """
from time import perf_counter
import numpy as np
from splatscope.kernels.api import make_backend
start = perf_counter()
backend = make_backend("cpu")
backend.warm_up(training=True)
image = np.zeros((16, 16, 3), np.float32)
backend.loss(image, image)
rows = [np.zeros((4, 3), np.float32) for _ in range(4)]
backend.adam(*rows, rates=np.ones(3, np.float32), step=1)
print(perf_counter() - start)
"""


@dataclass(frozen=True)
class BenchOptions:
    """Check and time rendering, forward and backward, and a training step; prints a table."""

    cpu: bool = False
    """Time the CPU backend; the default."""
    ladder: bool = False
    """On a GPU: time every preset from s00 to best on the scenes, stage by stage."""
    toggles: bool = False
    """With --ladder, also the best preset with each toggle at each of its other values."""
    vs: Literal["none", "gsplat"] = "none"
    """With --ladder, also this rasteriser on the same tensors, if it is installed."""
    scenes: tuple[str, ...] = ("small", "S4")
    """Benchmark scenes: small, S4, S1, S2, S3, S1m, S2m (the last five need gigabytes and minutes)."""
    repeat: int = 20
    """Timed runs of each kind."""
    threads: tuple[int, ...] = ()
    """Thread counts to compare; one and all unless given."""
    compile: bool = True
    """Also time how long the kernels take to compile, and to load once compiled."""
    train: Path | None = None
    """A capture whose training steps are timed as well."""
    resolution: Annotated[int, arg(aliases=["-r"])] = -1
    """Size at which --train reads its photographs, as for `splatscope train`."""
    steps: int = 100
    """Training steps timed with --train."""
    out: Path | None = None
    """Write everything measured to this JSON file; in a folder it is named for the processor and the day."""
    from_json: Path | None = None
    """Measure nothing: show the results in this file."""
    readme: Path | None = None
    """Rewrite the table between the bench:cpu marks of this text file."""


def run_bench(options: BenchOptions) -> None:
    """Measures or reads, prints, and writes what was asked for. Raises InputError."""
    from splatscope.app import bench_report

    if options.ladder:
        from splatscope.app.bench_cuda import LadderOptions, run_ladder

        versus = None if options.vs == "none" else options.vs
        run_ladder(
            LadderOptions(
                scenes=options.scenes, repeat=options.repeat, toggles=options.toggles, versus=versus, out=options.out
            )
        )
        return
    if options.readme is not None:
        bench_report.check_marks(options.readme)  # before minutes of work
    stored = options.from_json
    results = run_cpu_bench(options) if stored is None else bench_report.read_results(stored)
    bench_report.print_results(results)
    if options.out is not None:
        print(f"Wrote {bench_report.write_results(options.out, results)}")
    if options.readme is not None:
        bench_report.rewrite_table(options.readme, results)
        print(f"Rewrote the table in {options.readme}")


def run_cpu_bench(options: BenchOptions) -> dict[str, Any]:
    """Everything `options` asks for, as it is written to JSON: times in ms, `seconds` where named so.

    Raises InputError for options that make no sense and where a scene or its picture is not what it must be.
    """
    from splatscope.app.bench_report import describe_machine, describe_run

    _check_options(options)
    capture = None if options.train is None else _open_capture(options.train)
    threads = _thread_counts(options)
    results: dict[str, Any] = {"run": describe_run(_command(options)), "machine": describe_machine()}
    if options.compile:
        results["compile"] = _time_compilation()
    results["scenes"] = [_time_scene(name, threads, options.repeat) for name in options.scenes]
    if capture is not None:
        results["training"] = _time_training(capture, options.resolution, options.steps)
    return results


def _check_options(options: BenchOptions) -> None:
    from splatscope.benchmarks.scenes import scene_camera

    if options.repeat < 1 or options.steps < 1:
        raise InputError(f"--repeat and --steps must be at least 1, got {options.repeat} and {options.steps}.")
    for name in options.scenes:
        scene_camera(name)


def _thread_counts(options: BenchOptions) -> list[int]:
    import numba

    most = numba.config.NUMBA_NUM_THREADS  # pyright: ignore[reportAttributeAccessIssue, reportPrivateImportUsage]
    if wrong := [n for n in options.threads if not 1 <= n <= most]:
        raise InputError(f"--threads must be from 1 to {most} on this machine, got {wrong[0]}.")
    return sorted(set(options.threads or (1, most)))


def _command(options: BenchOptions) -> str:
    """The command line that measures the same; of folders only the name, which is no affair of the reader's."""
    words = ["splatscope bench --cpu --scenes", *options.scenes, f"--repeat {options.repeat}"]
    if options.threads:
        words += ["--threads", *map(str, options.threads)]
    if options.train is not None:
        words.append(f"--train {options.train.resolve().name} -r {options.resolution} --steps {options.steps}")
    return " ".join(words)


def _time_compilation() -> dict[str, float]:
    """Seconds until every kernel of a training step is ready: compiled, and loaded from the cache."""
    with tempfile.TemporaryDirectory(prefix="splatscope-bench-") as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        command = [sys.executable, "-c", _COMPILE_PROGRAM]
        cold, warm = (
            float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
            for _ in range(2)
        )
    return {"cold_seconds": cold, "warm_seconds": warm}


def _time_scene(name: str, threads: list[int], repeat: int) -> dict[str, Any]:
    from splatscope.benchmarks.scenes import make_scene, upstream_gradient
    from splatscope.kernels.api import make_backend

    backend, scene = make_backend("cpu"), make_scene(name)
    gradient = upstream_gradient(scene.camera)
    backend.warm_up(training=True)

    def forward() -> Frame:
        return backend.forward(scene.gaussians, scene.camera)[0]

    def both() -> tuple[Frame, Gradients]:
        frame, saved = backend.forward(scene.gaussians, scene.camera)
        return frame, backend.backward(saved, gradient)

    checked = _check_picture(scene, both, threads)
    samples = {count: _Samples() for count in threads}
    for _ in range(repeat):
        for count, sample in samples.items():
            _set_threads(count)
            forward()  # the threads wake up, the caches fill
            sample.add_forward(*_timed(forward))
            sample.add_both(*_timed(both))
    return {
        "name": name,
        "splats": scene.gaussians.count,
        "width": scene.camera.width,
        "height": scene.camera.height,
        "bits_match": scene.bits_match,
        **checked,
        "threads": {str(count): sample.summary() for count, sample in samples.items()},
    }


def _set_threads(count: int) -> None:
    import numba

    numba.set_num_threads(count)


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """(ms, what the call returned)"""
    start = perf_counter()
    result = call()
    return 1e3 * (perf_counter() - start), result


class _Samples:
    """Times of one scene at one thread count."""

    def __init__(self) -> None:
        self._totals: dict[str, list[float]] = {"forward": [], "forward_backward": []}
        self._stages: dict[str, list[float]] = {}

    def add_forward(self, ms: float, frame: Frame) -> None:
        self._totals["forward"].append(ms)
        self._add_stages(frame.stage_ms)

    def add_both(self, ms: float, result: tuple[Frame, Gradients]) -> None:
        self._totals["forward_backward"].append(ms)
        self._add_stages(result[1].stage_ms)

    def _add_stages(self, stage_ms: Milliseconds) -> None:
        for stage, ms in stage_ms.items():
            self._stages.setdefault(stage, []).append(ms)

    def summary(self) -> dict[str, Any]:
        """Spreads of the totals and of every stage, in the order the stages run."""
        totals = {name: spread(values) for name, values in self._totals.items()}
        return {**totals, "stages": {stage: spread(values) for stage, values in self._stages.items()}}


def spread(values: list[float]) -> dict[str, float]:
    """Median, extremes and the middle 80% of some times, and how many there are."""
    import numpy as np

    low, p10, median, p90, high = np.percentile(values, (0, 10, 50, 90, 100))
    named = {"median": median, "min": low, "p10": p10, "p90": p90, "max": high}
    return {key: round(float(value), 4) for key, value in named.items()} | {"runs": len(values)}


def _check_picture(
    scene: BenchmarkScene, both: Callable[[], tuple[Frame, Gradients]], threads: list[int]
) -> dict[str, Any]:
    """A fast wrong picture is worth nothing: counts, mean transmittance, and the same bits on any threads."""
    import zlib

    import numpy as np

    from splatscope.benchmarks.expected import EXPECTED

    checksums = set()
    frame = None
    for count in threads:
        _set_threads(count)
        frame, gradients = both()
        arrays = (frame.image, gradients.means, gradients.log_scales, gradients.quats, gradients.sh)
        if not all(np.isfinite(array).all() for array in arrays):
            raise InputError(f"Scene {scene.name}: the picture or a gradient is not finite; nothing was timed.")
        checksums.add(tuple(f"{zlib.crc32(array.tobytes()):08x}" for array in arrays))
    assert frame is not None
    if len(checksums) > 1:
        raise InputError(f"Scene {scene.name}: pictures differ between {threads} threads; nothing was timed.")
    expected = EXPECTED[scene.name]
    transmittance = float(frame.transmittance.mean(dtype=np.float64))
    for what, got, wanted, tolerance in (
        ("visible splats", frame.visible, expected.visible, COUNT_TOLERANCE * expected.visible),
        ("instances", frame.instances, expected.instances, COUNT_TOLERANCE * expected.instances),
        ("instances by tile", int(frame.tile_counts.sum()), frame.instances, 0),
        ("mean transmittance", transmittance, expected.transmittance, TRANSMITTANCE_TOLERANCE),
    ):
        if abs(got - wanted) > tolerance:
            raise InputError(f"Scene {scene.name}: {what} are {got:,}, expected {wanted:,}; nothing was timed.")
    return {
        "visible": frame.visible,
        "instances": frame.instances,
        "busiest_tile": int(frame.tile_counts.max()),
        "mean_transmittance": round(transmittance, 7),
        "image_crc32": checksums.pop()[0],
    }


def _open_capture(path: Path) -> Capture:
    from splatscope.assets.capture import Capture
    from splatscope.assets.formats import open_path

    capture = open_path(path)
    if not isinstance(capture, Capture):
        raise InputError(f"--train needs a capture with photographs, got splats: {path}.")
    return capture


def _time_training(capture: Capture, resolution: int, steps: int) -> dict[str, Any]:
    """Steps from the beginning of a run, at its first number of splats; nothing is kept of the run."""
    from splatscope.kernels.api import make_backend
    from splatscope.training.config import DataConfig, preset
    from splatscope.training.events import Prepared, Stepped
    from splatscope.training.trainer import Trainer

    config = replace(preset("inria"), data=DataConfig(resolution=resolution))
    backend: Backend = make_backend("cpu")
    _set_threads(_thread_counts(BenchOptions())[-1])
    stages: dict[str, list[float]] = {}
    totals: list[float] = []
    result: dict[str, Any] = {"capture": capture.path.resolve().name, "sh_degree": 0}
    with tempfile.TemporaryDirectory(prefix="splatscope-bench-") as folder:
        for event in Trainer(capture, config, backend, Path(folder)).run():
            if isinstance(event, Prepared):
                result |= {"splats": event.count, "width": event.width, "height": event.height}
            if isinstance(event, Stepped) and event.iteration > SETTLING_STEPS:
                totals.append(sum(event.stage_ms.values()))
                for stage, ms in event.stage_ms.items():
                    stages.setdefault(stage, []).append(ms)
                if len(totals) == steps:
                    break
    return {**result, "step": spread(totals), "stages": {stage: spread(values) for stage, values in stages.items()}}
