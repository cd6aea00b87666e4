"""Measures two policies on the same frame: how much each stage costs more or less, and how the pictures differ.

The two take turns. One call of `advance` draws one picture, so that the engine can do other things in between. Which
policy goes first changes from pair to pair, so that neither always meets a faster clock. The engine does not change the
splats meanwhile.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splatscope.app.provenance import Provenance
from splatscope.assets.files.atomic import atomic_path
from splatscope.kernels.backend import Backend, LiveBackend
from splatscope.kernels.types import Float32, Frame, Gaussians
from splatscope.viewer.messages.commands import Compare
from splatscope.viewer.messages.view import Comparison, StageChange

Float64 = NDArray[np.float64]

RESAMPLED = 500
LEAST_PAIRS = (
    6  # with fewer pairs, even the smallest and the largest difference bound a median with less than 95% confidence
)
WARM_UP = 2  # pictures of each policy that do not count: the first is launched, the second captured as a graph


class Measurement:
    """Draws pictures with two policies by turns and keeps the times of their stages."""

    def __init__(self, wanted: Compare, gaussians: Gaussians, about: Provenance) -> None:
        self.wanted = wanted
        self.about = about
        self.result = Comparison(*wanted.names, wanted.pairs)
        self.samples: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
        self._policies = wanted.before, wanted.request.policy
        self._gaussians = gaussians
        self._warm = [0, 0]
        self._images: list[Float32] = []

    @property
    def active(self) -> bool:
        """Returns True while `advance` has something to do."""
        return self.result.done < self.wanted.pairs and not self.result.problem

    def wait(self, backend: LiveBackend) -> bool:
        """Returns True while kernels of either policy are being compiled. Raises InputError if they cannot
        be compiled.
        """
        camera = self.wanted.request.camera
        primitive = self._gaussians.primitive
        waiting = [stage for policy in self._policies for stage in backend.waiting_for(camera, policy, primitive)]
        self.result = replace(self.result, waiting=tuple(dict.fromkeys(waiting)))
        return bool(waiting)

    def advance(self, backend: Backend) -> None:
        """Draws the next picture. Raises what the backend raises."""
        for which in (0, 1):
            if self._warm[which] < WARM_UP:
                self._warm[which] += 1
                frame = self._draw(backend, which)
                if self._warm[which] == WARM_UP:
                    self._images.append(frame.image)
                if self._warm == [WARM_UP, WARM_UP]:
                    self._compare_pictures()
                return
        done = len(self.samples[0]) + len(self.samples[1])
        which = (0, 1, 1, 0)[done % 4]
        self.samples[which].append(self._draw(backend, which).stage_ms)
        if done % 2:
            self.result = replace(self.result, done=done // 2 + 1, stages=compare_stages(*self.samples))

    def give_up(self, reason: str) -> None:
        """Ends the measurement; `reason` is a sentence."""
        self.result = replace(self.result, problem=reason, waiting=())

    def _draw(self, backend: Backend, which: int) -> Frame:
        request, policy = self.wanted.request, self._policies[which]
        if isinstance(backend, LiveBackend):  # leaves the arrays on the GPU
            return backend.show(self._gaussians, request.camera, request.settings, policy)[1]
        return backend.render(self._gaussians, request.camera, request.settings, policy)

    def _compare_pictures(self) -> None:
        before, after = (image.astype(np.float64) for image in self._images)
        self._images = []
        mean_square = float(np.square(after - before).mean())
        self.result = replace(
            self.result,
            max_difference=float(np.abs(after - before).max(initial=0.0)),
            psnr=float("inf") if mean_square == 0.0 else -10.0 * float(np.log10(mean_square)),
        )


def compare_stages(before: list[dict[str, float]], after: list[dict[str, float]]) -> tuple[StageChange, ...]:
    """Compares the ms of each stage on both sides; the whole picture comes last, as "". A missing stage costs 0.

    The k-th pictures of both sides are a pair, made one right after the other.
    """
    stages = [*dict.fromkeys(stage for times in (*after, *before) for stage in times), ""]
    old, new = (
        np.array([[times.get(stage, 0.0) if stage else sum(times.values()) for times in side] for stage in stages])
        for side in (before, after)
    )
    columns = np.median(old, axis=1), np.median(new, axis=1), *bootstrap_interval(old, new)
    return tuple(StageChange(stage, *map(float, row)) for stage, *row in zip(stages, *columns, strict=True))


def bootstrap_interval(before: Float64, after: Float64) -> tuple[Float64, Float64]:
    """Returns the 95% interval, low and high, of median(after) - median(before) for each row of [S, pairs] ms.

    This is the percentile bootstrap: pairs are drawn with replacement, as many as there are, both sides together, and
    the medians' difference is taken; the middle 95% of RESAMPLED such differences make the interval. The draws are the
    same each time. A change whose interval contains 0 cannot be distinguished from noise. With fewer than LEAST_PAIRS
    pairs the interval is infinite.
    """
    count = before.shape[1]
    if count < LEAST_PAIRS:
        return np.full(len(before), -np.inf), np.full(len(before), np.inf)
    drawn = np.random.default_rng(0).integers(0, count, (RESAMPLED, count))
    differences = np.median(after[:, drawn], axis=2) - np.median(before[:, drawn], axis=2)
    low, high = np.percentile(differences, (2.5, 97.5), axis=1)
    return low, high


def save_comparison(path: Path, measured: Measurement) -> None:
    """Writes policies, frame, single times and results as JSON."""
    result, wanted = measured.result, measured.wanted
    sides = zip(
        ("before", "after"), wanted.names, (wanted.before, wanted.request.policy), measured.samples, strict=True
    )
    psnr = result.psnr if result.psnr is not None and np.isfinite(result.psnr) else None
    content = {
        **measured.about.facts,
        "camera": asdict(wanted.request.camera),
        "settings": asdict(wanted.request.settings),
        **{side: {"name": name, "policy": asdict(p), "stage_ms": times} for side, name, p, times in sides},
        "stages": [_row(change) for change in result.stages],
        "max_difference": result.max_difference,
        "psnr_db": psnr,  # null if the pictures are the same
    }
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n")


def _row(change: StageChange) -> dict[str, object]:
    """Returns a stage's figures for JSON, which has no infinity: an infinite bound is null."""
    known = np.isfinite(change.low_ms)
    bounds = {"low_ms": change.low_ms if known else None, "high_ms": change.high_ms if known else None}
    derived = {"change_ms": change.change_ms, "ratio": change.ratio, "within_noise": change.is_noise}
    return {**asdict(change), **bounds, **derived}
