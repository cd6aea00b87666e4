"""`splatscope bench step`: times whole training steps on the benchmark scenes on a GPU, by stage.

    splatscope bench step --scenes S1 S2 S4 [-n 200] [--views 8] [--toggle optimizer.adam=fused]
                          [--vs gsplat inria faster_gs faster_gs_fused [--losses ours fused_ssim]]

A step is forward, loss, backward, Adam and statistics from raw parameters, as training runs it. Learning rates are
zero, so that all steps do the same work: Adam moves the same bytes.

- With --views, steps take turns with cameras turned about the first, so that splats come into sight and leave it. Lazy
  Adam gains from that.
- `gpu` is the time between events around many steps, `wall` the host's clock around the same steps. Stages come from a
  run of their own, whose events cost a little.
- With --vs, steps of other rasterisers take turns with ours (`bench/peers/steps.py`), with our loss kernels or with
  those of the public package fused_ssim, or a row of each (--losses).

Nothing is trained here. The trainer is `training/trainer.py`.
"""

from __future__ import annotations

import json
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch

from splatscope.app.bench.peers.rasterisers import PARAMETERS
from splatscope.app.bench.peers.step_losses import LossChoice
from splatscope.app.bench.peers.steps import (
    PeerSteps,
    StepPeer,
    compare_steps,
    find_contenders,
    largest_difference,
    print_rows,
)
from splatscope.app.bench.scenes.generated import BenchmarkScene, make_scene, scene_camera
from splatscope.app.bench.scenes.subjects import LADDER_SCENES
from splatscope.app.options.bench import StepOptions
from splatscope.app.options.policy import choose_policy
from splatscope.kernels.cuda.backend import need_gpu
from splatscope.kernels.cuda.renderer import KernelStore
from splatscope.kernels.cuda.training_step import AdamRates, StepRequest, TrainingStep
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Camera, RenderSettings

WARM_UP = 10
REPEATS = 5
NO_RATES = AdamRates(0, 0, 0, 0, 0, 0)


def run(options: StepOptions) -> None:
    """Measures, prints, and writes JSON if asked for. Raises InputError."""
    scenes = options.scenes or LADDER_SCENES
    _check(options, scenes)
    policy = choose_policy(options.step, options.toggle).policy
    need_gpu()
    contenders, absent = find_contenders(options.vs, options.losses or ("ours",))
    for sentence in absent:
        print(sentence)
    kernels, results = KernelStore(), []
    for name in scenes:
        torch.cuda.reset_peak_memory_stats()
        made = make_scene(name)
        results.append(measure(made, policy, options.train_steps, options.views, kernels))
        print_table(results[-1])
        if contenders:
            rows = measure_in_turns(made, policy, options.train_steps, options.views, kernels, contenders)
            results[-1]["beside"] = rows
            print_rows(rows)
        if options.out is not None:
            options.out.write_text(json.dumps(results, indent=1))


def _check(options: StepOptions, scenes: tuple[str, ...]) -> None:
    """Raises InputError for scenes that do not exist and for numbers below 1, before anything is measured."""
    if options.train_steps < 1 or options.views < 1:
        raise InputError(f"-n and --views must be at least 1, got {options.train_steps} and {options.views}.")
    for name in scenes:
        scene_camera(name)


def turned(camera: Camera, angle: float) -> Camera:
    """Returns the same camera after a turn about its vertical axis, in radians."""
    turn = np.eye(4)
    turn[0, 0] = turn[2, 2] = np.cos(angle)
    turn[0, 2], turn[2, 0] = np.sin(angle), -np.sin(angle)
    c = camera
    return Camera.from_matrix(turn @ c.matrix, c.width, c.height, c.fx, c.fy, c.cx, c.cy, c.near)


def measure(made: BenchmarkScene, policy: Policy, steps: int, views: int, kernels: Any) -> dict[str, Any]:
    """Times the steps of one scene. Raises InputError where there is no room."""
    result: dict[str, Any] = {"scene": made.name, "splats": made.gaussians.count}
    for timed in (False, True):
        training = TrainingStep(made.gaussians, policy, timed_every=int(timed), kernels=kernels)
        requests = _requests(training, made, views)
        for number in range(max(WARM_UP, 2 * views)):
            training.run(requests[number % views])
        outcomes = training.outcomes(wait=True)[-views:]
        result["visible"] = round(sum(outcome.visible for outcome in outcomes) / views)
        result["pairs"] = round(sum(outcome.instances for outcome in outcomes) / views)
        if timed:
            result["stages"] = _stages(training, requests)
        else:
            result |= _totals(training, requests, steps)
        del training
        torch.cuda.empty_cache()
    return result


def _cameras(made: BenchmarkScene, views: int) -> list[Camera]:
    return [turned(made.camera, 2 * np.pi * view / views) for view in range(views)]


def _photograph(made: BenchmarkScene) -> np.ndarray:
    """Returns noise [H, W, 3], the same for all."""
    return np.random.default_rng(0).integers(0, 256, (made.camera.height, made.camera.width, 3), np.uint8)


def _requests(training: TrainingStep, made: BenchmarkScene, views: int) -> list[StepRequest]:
    target = training.targets.add(_photograph(made))
    return [StepRequest(camera, RenderSettings(), target, NO_RATES) for camera in _cameras(made, views)]


class OurSteps:
    """Runs our steps as a job that takes turns with the steps of others."""

    name, version = "ours", ""

    def __init__(self, made: BenchmarkScene, policy: Policy, views: int, kernels: Any) -> None:
        self._made, self._policy, self._views, self._kernels = made, policy, views, kernels
        self._training: Any = None
        self._requests: list[StepRequest] = []

    def start(self) -> None:
        self._training = TrainingStep(self._made.gaussians, self._policy, kernels=self._kernels)
        self._requests = _requests(self._training, self._made, self._views)

    def run(self, number: int) -> None:
        self._training.run(self._requests[number % self._views])

    def finish(self) -> float:
        return self._training.outcomes(wait=True)[-1].loss

    def moved(self) -> float:
        begun, now = self._made.gaussians, self._training.splats.gaussians()
        pairs = [(torch.from_numpy(getattr(of, name)) for name in PARAMETERS) for of in (now, begun)]
        return largest_difference(*pairs)

    def stop(self) -> None:
        self._training, self._requests = None, []


def measure_in_turns(
    made: BenchmarkScene,
    policy: Policy,
    steps: int,
    views: int,
    kernels: Any,
    contenders: list[tuple[StepPeer, LossChoice]],
) -> dict[str, dict[str, Any]]:
    """Times our steps and the steps of others in turns; returns name -> a row, ours first."""
    cameras, pixels = _cameras(made, views), _photograph(made)
    theirs = [
        PeerSteps(
            peer, made.gaussians, cameras, pixels, partial(loss.make, made.camera, kernels), loss.label, loss.version
        )
        for peer, loss in contenders
    ]
    jobs = [OurSteps(made, policy, views, kernels), *theirs]
    return compare_steps(jobs, steps, REPEATS, max(WARM_UP, 2 * views))


def _totals(training: TrainingStep, requests: list[StepRequest], steps: int) -> dict[str, Any]:
    """Returns GPU and wall milliseconds of a step, medians of repeats, and the peak of memory."""
    gpu, wall = [], []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begun = perf_counter()
        start.record()
        for number in range(steps):
            training.run(requests[number % len(requests)])
        end.record()
        training.outcomes(wait=True)
        torch.cuda.synchronize()
        wall.append(1e3 * (perf_counter() - begun) / steps)
        gpu.append(start.elapsed_time(end) / steps)
    return {
        "gpu_ms": round(float(np.median(gpu)), 4),
        "wall_ms": round(float(np.median(wall)), 4),
        "gpu_spread": [round(min(gpu), 4), round(max(gpu), 4)],
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }


def _stages(training: TrainingStep, requests: list[StepRequest]) -> dict[str, float]:
    """Returns the milliseconds of each stage: means over the views of medians of repeats."""
    found: dict[str, list[list[float]]] = {}
    for view, request in [*enumerate(requests)] * (30 if len(requests) == 1 else 8):
        training.run(request)
        training.outcomes(wait=True)
        for stage, ms in training.stage_ms.items():
            found.setdefault(stage, [[] for _ in requests])[view].append(ms)
    return {stage: round(float(np.mean([np.median(t) for t in times])), 4) for stage, times in found.items()}


def print_table(result: dict[str, Any]) -> None:
    """Prints the stages with their share of the step."""
    stages, whole = result["stages"], result["gpu_ms"]
    print(
        f"{result['scene']}: {result['splats']:,} splats, {result['visible']:,} visible, {result['pairs']:,} pairs; "
        f"step {whole:.3f} ms on the GPU, {result['wall_ms']:.3f} wall; {result['peak_gib']} GiB"
    )
    for stage, ms in stages.items():
        print(f"  {stage:<18}{ms:8.3f} ms {100 * ms / whole:5.1f} %")
    print(f"  {'unattributed':<18}{whole - sum(stages.values()):8.3f} ms", flush=True)
