"""Forecasts how long a run will take on this processor, and with how many splats it may end.

A few whole passes (forward, loss, backward) are timed before the first step, on views spread over the set. They change
nothing.
Read `trainer.py` next.
"""

from __future__ import annotations

import math
import statistics
import time

from splatscope.kernels.backend import Backend
from splatscope.kernels.backends import host_math
from splatscope.kernels.types import Gaussians, RenderSettings
from splatscope.kernels.wording import duration
from splatscope.training.config import TrainConfig
from splatscope.training.data.dataset import Dataset, spread
from splatscope.training.events import Forecast

PASSES = 5
LONG = 30 * 60  # seconds; a longer run gets a suggestion
# A step slows down as splats and SH rows are added: after i iterations it takes 1 + GROWTH i / (i + HALF)
# times as long as the first. Fitted to runs on a phone capture and a synthetic set.
GROWTH, HALF = 6.0, 3000
PIXEL_POWER = 0.75  # step time grows as pixels to this power
# Where 30,000 steps of the 2023 recipe end, in splats a pixel of a training photograph. Our runs (benchmarks/results):
# fox 0.15, stitch 0.33, fern 0.42, lego, cut out, 0.47, tumbler 0.8, bonsai at 800 pixels 2.5, meeting-room 3.8.
# Published models: room 1.0, garden 5.3, bicycle 6.
SPLATS_A_PIXEL = 0.1, 6.0
ABSGRAD_SHARE = 0.45  # splats with absgrad and its threshold, for each splat without them: lego 0.41, bonsai 0.53
GROWN_AFTER = 6_500  # iterations of growth after which lego had 83% of its splats, bonsai 96%


def forecast(
    backend: Backend,
    gaussians: Gaussians,
    dataset: Dataset,
    settings: RenderSettings,
    config: TrainConfig,
    begun: int = 0,
) -> Forecast:
    """Times `PASSES` views after one to warm up, and extrapolates over the run or the part left after `begun`."""
    views, host, times = dataset.training, host_math(backend), []
    for view in [views[0], *spread(views, PASSES)]:
        target = view.target(settings.background)
        start = time.perf_counter()
        frame, saved = backend.forward(gaussians, view.camera, settings, config.policy)
        _, image_gradient = host.loss(frame.image, target, config.dssim_weight)
        backend.backward(saved, image_gradient)
        times.append(time.perf_counter() - start)
    step = statistics.median(times[1:])
    growing = config.densify.enabled and not begun
    seconds = step * (config.iterations - begun) * (mean_growth(config.iterations) if growing else 1)
    shrunk = dataset.training_views[0].camera.width / views[0].camera.width
    return Forecast(seconds, 1e3 * step, suggest(seconds, shrunk))


def expected_splats(config: TrainConfig, pixels: float, count: int, iteration: int) -> tuple[int, int]:
    """Returns the least and the most splats that a run of the adaptive strategy without max_splats is likely to end
    with: a rule of thumb for the thresholds of the recipes.

    The run has `count` splats at `iteration`; `pixels` is the size of one photograph.
    """
    c = config.densify
    left = min(config.iterations, c.stop) - max(iteration, c.start)
    if not c.enabled or left < c.interval:
        return count, count
    share, kind = min(1.0, left / GROWN_AFTER), ABSGRAD_SHARE if c.absgrad else 1.0
    least, most = (round(count + share * max(kind * each * pixels - count, 0)) for each in SPLATS_A_PIXEL)
    return least, most


def mean_growth(iterations: int) -> float:
    """Returns the mean step time of a run divided by the time of its first step."""
    return 1 + GROWTH * (1 - HALF / iterations * math.log1p(iterations / HALF))


def suggest(seconds: float, shrunk: float) -> str:
    """Returns a sentence that names the mildest -r that brings the run under `LONG`, else the coarsest; empty if the
    run is short.

    `shrunk`: how many times the sides of photographs are divided already.
    """
    coarser = [r for r in (2, 4, 8) if r > 1.01 * shrunk]
    if seconds <= LONG or not coarser:
        return ""
    times = {r: seconds * (shrunk / r) ** (2 * PIXEL_POWER) for r in coarser}
    choice = next((r for r in coarser if times[r] <= LONG), coarser[-1])
    return f"At resolution {choice} (-r {choice}) it would take about {duration(times[choice])}."
