"""How long a run will take on this processor, measured before the first step.

A few whole passes (forward, loss, backward) are timed on views spread over the set; nothing is changed.
Read `trainer.py` next.
"""

from __future__ import annotations

import statistics
import time

from splatscope.kernels.api import Backend
from splatscope.kernels.types import Gaussians, RenderSettings
from splatscope.training.config import TrainConfig
from splatscope.training.dataset import Photograph, spread
from splatscope.training.events import Forecast

PASSES = 5
LONG = 30 * 60  # seconds; a longer run gets a suggestion
GROWTH = 2.0  # mean step time over a full run, in units of the first step
PIXEL_POWER = 0.75  # step time grows as pixels to this power


def forecast(
    backend: Backend, gaussians: Gaussians, views: list[Photograph], settings: RenderSettings, config: TrainConfig
) -> Forecast:
    """Times `PASSES` views after one to warm up and extrapolates over the run."""
    times = []
    for view in [views[0], *spread(views, PASSES)]:
        target = view.target()
        start = time.perf_counter()
        frame, saved = backend.forward(gaussians, view.camera, settings)
        _, image_gradient = backend.loss(frame.image, target, config.dssim_weight)
        backend.backward(saved, image_gradient)
        times.append(time.perf_counter() - start)
    step = statistics.median(times[1:])
    grown = 1 + (GROWTH - 1) * min(config.iterations / config.densify.stop, 1) if config.densify.enabled else 1
    seconds = step * grown * config.iterations
    return Forecast(seconds, 1e3 * step, suggest(seconds, config.data.resolution))


def suggest(seconds: float, resolution: int) -> str:
    """A sentence naming the mildest -r that brings the run under `LONG`, or the coarsest; empty if it is short."""
    current = resolution if resolution in (1, 2, 4, 8) else 1
    coarser = [r for r in (2, 4, 8) if r > current]
    if seconds <= LONG or not coarser:
        return ""
    times = {r: seconds * (current / r) ** (2 * PIXEL_POWER) for r in coarser}
    choice = next((r for r in coarser if times[r] <= LONG), coarser[-1])
    return f"-r {choice} would take about {duration(times[choice])}."


def duration(seconds: float) -> str:
    """45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
