"""`splatscope bench --cpu`: checks the picture, times it, and times compilation and training steps if asked.

Times are wall-clock, of whole calls; runs at different thread counts take turns, so that a slow minute of
the machine falls on all of them. Scenes come from `app/bench/scenes/generated.py`; `bench/measure/report.py` describes
the machine and draws the tables. Options and the way here: `dispatch.py`.
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
from typing import TYPE_CHECKING, Any

from splatscope.app.bench.measure.report import spread
from splatscope.kernels.errors import InputError

if TYPE_CHECKING:
    from splatscope.app.bench.scenes.generated import BenchmarkScene
    from splatscope.assets.capture import Capture
    from splatscope.kernels.backend import Backend
    from splatscope.kernels.types import Frame, Gradients

Milliseconds = dict[str, float]
COUNT_TOLERANCE = 1e-4  # relative; float32 may decide otherwise where an ellipse just touches a pixel row
TRANSMITTANCE_TOLERANCE = 1e-5  # of the mean over all pixels
SETTLING_STEPS = 10  # training steps that are not timed

# In a process of its own and an empty cache folder this compiles everything; the second time it loads.
_COMPILE_PROGRAM = """
from time import perf_counter
import numpy as np
from splatscope.kernels.backends import make_backend
from splatscope.kernels.cpu import training
start = perf_counter()
backend = make_backend("cpu")
backend.warm_up(training=True)
image = np.zeros((16, 16, 3), np.float32)
training.loss(image, image)
rows = [np.zeros((4, 3), np.float32) for _ in range(4)]
training.adam(*rows, rates=np.ones(3, np.float32), step=1)
print(perf_counter() - start)
"""


@dataclass(frozen=True)
class CpuOptions:
    """What to measure."""

    scenes: tuple[str, ...] = ()
    repeat: int = 20
    threads: tuple[int, ...] = ()  # one and all unless given
    compile: bool = True
    train: Path | None = None  # a capture
    resolution: int = -1  # of its photographs, as for training
    train_steps: int = 100


def run_cpu_bench(options: CpuOptions) -> dict[str, Any]:
    """Everything `options` asks for, as it is written to JSON: times in ms, `seconds` where named so.

    Raises InputError for options that make no sense and where a scene or its picture is not what it must be.
    """
    from splatscope.app.bench.measure.report import describe_machine, describe_run

    _check_options(options)
    capture = None if options.train is None else _open_capture(options.train)
    threads = _thread_counts(options)
    results: dict[str, Any] = {"run": describe_run(_command(options)), "machine": describe_machine()}
    if options.compile:
        results["compile"] = _time_compilation()
    results["scenes"] = [_time_scene(name, threads, options.repeat) for name in options.scenes]
    if capture is not None:
        results["training"] = _time_training(capture, options.resolution, options.train_steps)
    return results


def _check_options(options: CpuOptions) -> None:
    from splatscope.app.bench.scenes.generated import scene_camera

    repeat, steps = options.repeat, options.train_steps
    if repeat < 1 or steps < 1:
        raise InputError(f"--repeat and --train-steps must be at least 1, got {repeat} and {steps}.")
    for name in options.scenes:
        scene_camera(name)


def _thread_counts(options: CpuOptions) -> list[int]:
    import numba

    most = numba.config.NUMBA_NUM_THREADS  # pyright: ignore[reportAttributeAccessIssue, reportPrivateImportUsage]
    if wrong := [n for n in options.threads if not 1 <= n <= most]:
        raise InputError(f"--threads must be from 1 to {most} on this machine, got {wrong[0]}.")
    return sorted(set(options.threads or (1, most)))


def _command(options: CpuOptions) -> str:
    """The command line that measures the same; of folders only the name, which is no affair of the reader's."""
    words = ["splatscope bench --cpu --scenes", *options.scenes, f"--repeat {options.repeat}"]
    if options.threads:
        words += ["--threads", *map(str, options.threads)]
    if options.train is not None:
        train, steps = options.train.resolve().name, options.train_steps
        words.append(f"--train {train} -r {options.resolution} --train-steps {steps}")
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
    from splatscope.app.bench.scenes.generated import make_scene, upstream_gradient
    from splatscope.kernels.backends import make_backend

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


def _check_picture(
    scene: BenchmarkScene, both: Callable[[], tuple[Frame, Gradients]], threads: list[int]
) -> dict[str, Any]:
    """A fast wrong picture is worth nothing: counts, mean transmittance, and the same bits on any threads."""
    import zlib

    import numpy as np

    from splatscope.app.bench.scenes.expected import EXPECTED

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
    from splatscope.kernels.backends import make_backend
    from splatscope.training.config import DataConfig
    from splatscope.training.events import Prepared, Stepped
    from splatscope.training.recipes import preset
    from splatscope.training.trainer import Trainer

    config = replace(preset("inria"), data=DataConfig(resolution=resolution))
    backend: Backend = make_backend("cpu")
    _set_threads(_thread_counts(CpuOptions())[-1])
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
