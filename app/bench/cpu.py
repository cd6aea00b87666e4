"""`splatscope bench cpu`: checks the picture of the CPU backend and times it, compilation, and training steps if asked.

Times are wall-clock times of whole calls. Runs at different thread counts take turns, so that a slow minute of the
machine falls on all of them. Scenes: `bench/scenes/generated.py`. Tables: `bench/tables/cpu.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numba
import numpy as np

from splatscope.app.bench.measure.machine import describe_machine, describe_run
from splatscope.app.bench.measure.results import results_path, spread, write_results
from splatscope.app.bench.scenes.expected import EXPECTED
from splatscope.app.bench.scenes.generated import BenchmarkScene, make_scene, scene_camera, upstream_gradient
from splatscope.app.bench.tables.cpu import print_results
from splatscope.app.bench.tables.publish import check_readme, publish
from splatscope.app.options.bench import CpuOptions
from splatscope.assets.capture import Capture
from splatscope.assets.formats import open_path
from splatscope.kernels.backends import make_backend
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Frame, Gradients
from splatscope.training.config import DataConfig
from splatscope.training.events import Prepared, Stepped
from splatscope.training.recipes import preset

Milliseconds = dict[str, float]
SCENES = ("small", "S4")  # scenes to measure unless others are named
COUNT_TOLERANCE = 1e-4  # relative; float32 may decide otherwise where an ellipse just touches a pixel row
TRANSMITTANCE_TOLERANCE = 1e-5  # largest error of the mean over all pixels
SETTLING_STEPS = 10  # training steps that are not timed
# In a process of its own and an empty cache folder this compiles everything; the second time it loads.
_COMPILE_MODULE = "splatscope.app.bench.measure.compilation"


def run(options: CpuOptions) -> None:
    """Measures, prints, and writes JSON and a document's table where asked for. Raises InputError."""
    check_readme(options.readme, "cpu", options.out)
    results = run_cpu_bench(options)
    written = None
    if options.out is not None:
        written = write_results(results_path(options.out, results), results)
    print_results(results)
    if written is not None:
        print(f"Wrote {written}")
    publish(options.readme, [(written, results)])


def run_cpu_bench(options: CpuOptions) -> dict[str, Any]:
    """Measures everything that `options` ask for: times in ms, `seconds` where named so.

    Raises InputError for options that make no sense, and for a scene or a picture that is not the expected one.
    """
    scenes = options.scenes or SCENES
    _check_options(options, scenes)
    capture = None if options.train is None else _open_capture(options.train)
    threads = _thread_counts(options.threads)
    results: dict[str, Any] = {"run": describe_run(_command(options, scenes)), "machine": describe_machine()}
    if options.compile:
        results["compile"] = _time_compilation()
    results["scenes"] = [_time_scene(name, threads, options.repeat) for name in scenes]
    if capture is not None:
        results["training"] = _time_training(capture, options.resolution, options.train_steps)
    return results


def _check_options(options: CpuOptions, scenes: tuple[str, ...]) -> None:
    repeat, steps = options.repeat, options.train_steps
    if repeat < 1 or steps < 1:
        raise InputError(f"--repeat and --train-steps must be at least 1, got {repeat} and {steps}.")
    for name in scenes:
        scene_camera(name)


def _thread_counts(asked: tuple[int, ...]) -> list[int]:
    most = numba.config.NUMBA_NUM_THREADS  # pyright: ignore[reportAttributeAccessIssue, reportPrivateImportUsage]
    if wrong := [n for n in asked if not 1 <= n <= most]:
        raise InputError(f"--threads must be from 1 to {most} on this machine, got {wrong[0]}.")
    return sorted(set(asked or (1, most)))


def _command(options: CpuOptions, scenes: tuple[str, ...]) -> str:
    """Returns the command line that measures the same, with only the name of the capture's folder."""
    words = ["splatscope bench cpu --scenes", *scenes, f"--repeat {options.repeat}"]
    if options.threads:
        words += ["--threads", *map(str, options.threads)]
    if options.train is not None:
        train, steps = options.train.resolve().name, options.train_steps
        words.append(f"--train {train} -r {options.resolution} --train-steps {steps}")
    return " ".join(words)


def _time_compilation() -> dict[str, float]:
    """Times, in seconds, until every kernel of a training step is compiled, and until it is loaded from the cache."""
    with tempfile.TemporaryDirectory(prefix="splatscope-bench-") as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        command = [sys.executable, "-m", _COMPILE_MODULE]
        cold, warm = (
            float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
            for _ in range(2)
        )
    return {"cold_seconds": cold, "warm_seconds": warm}


def _time_scene(name: str, threads: list[int], repeat: int) -> dict[str, Any]:
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
    numba.set_num_threads(count)


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Returns (ms, the result of the call)."""
    start = perf_counter()
    result = call()
    return 1e3 * (perf_counter() - start), result


class _Samples:
    """Keeps the times of one scene at one thread count."""

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
        """Returns the spreads of the totals and of every stage, in the order the stages run."""
        totals = {name: spread(values) for name, values in self._totals.items()}
        return {**totals, "stages": {stage: spread(values) for stage, values in self._stages.items()}}


def _check_picture(
    scene: BenchmarkScene, both: Callable[[], tuple[Frame, Gradients]], threads: list[int]
) -> dict[str, Any]:
    """Checks counts, mean transmittance, and that pictures are the same bits on any threads; returns these figures.

    Raises InputError before anything is timed: a fast wrong picture is worth nothing.
    """
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
    capture = open_path(path)
    if not isinstance(capture, Capture):
        raise InputError(f"--train needs a capture with photographs, got splats: {path}.")
    return capture


def _time_training(capture: Capture, resolution: int, steps: int) -> dict[str, Any]:
    """Times steps from the beginning of a run, at its first number of splats; nothing of the run is kept."""
    from splatscope.training.trainer import Trainer  # loads torch, whose threads have no part in the other times

    config = replace(preset("inria"), data=DataConfig(resolution=resolution))
    backend = make_backend("cpu")
    _set_threads(_thread_counts(())[-1])
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
