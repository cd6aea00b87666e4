"""Two policies on the very same frame, taking turns: what each stage costs more or less, and what the picture loses.

One call of `advance` draws one picture, so that the engine can do other things in between. Which of the two goes
first changes from pair to pair, so that neither gets the warmer clock. The engine sees to it that splats stay as they
are meanwhile.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from splatscope.assets.atomic import atomic_path
from splatscope.kernels.api import Backend, LiveBackend
from splatscope.kernels.types import Float32, Frame, Gaussians
from splatscope.viewer.messages import Compare, Comparison, StageChange

WARM_UP = 2  # pictures of each that do not count: the first is launched, the second captured as a graph


class Measurement:
    """A comparison in the making."""

    def __init__(self, wanted: Compare, gaussians: Gaussians) -> None:
        self.wanted = wanted
        self.result = Comparison(*wanted.names, wanted.pairs)
        self.samples: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
        self._policies = wanted.before, wanted.request.policy
        self._gaussians = gaussians
        self._warm = [0, 0]
        self._images: list[Float32] = []

    @property
    def active(self) -> bool:
        """True while `advance` has something to do."""
        return self.result.done < self.wanted.pairs and not self.result.problem

    def wait(self, backend: LiveBackend) -> bool:
        """True while kernels of either policy are being compiled. Raises InputError for one that cannot be."""
        camera = self.wanted.request.camera
        waiting = [stage for policy in self._policies for stage in backend.waiting_for(camera, policy)]
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
            self.result = replace(self.result, done=done // 2 + 1, stages=changes(*self.samples))

    def give_up(self, reason: str) -> None:
        """Ends it with a sentence."""
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


def changes(before: list[dict[str, float]], after: list[dict[str, float]]) -> tuple[StageChange, ...]:
    """What each stage costs more or less, pair by pair; the whole picture last, as "". A stage that is not run costs 0.

    A pair is one picture of each, made one right after the other.
    """
    stages = list(dict.fromkeys(stage for times in (*after, *before) for stage in times))
    found = []
    for stage in [*stages, ""]:
        old, new = (
            np.array([times.get(stage, 0.0) if stage else sum(times.values()) for times in side])
            for side in (before, after)
        )
        low, middle, high = np.percentile(new - old, (25, 50, 75))
        medians = float(np.median(old)), float(np.median(new))
        found.append(StageChange(stage, *medians, float(middle), float(high - low) / 2))
    return tuple(found)


def save_comparison(path: Path, measured: Measurement, backend: Backend, scene: str) -> None:
    """Policies, frame, single times and results as JSON."""
    result, wanted = measured.result, measured.wanted
    sides = zip(
        ("before", "after"), wanted.names, (wanted.before, wanted.request.policy), measured.samples, strict=True
    )
    psnr = result.psnr if result.psnr is not None and np.isfinite(result.psnr) else None
    content = {
        "scene": scene,
        "backend": backend.name,
        "device": backend.device,
        "camera": asdict(wanted.request.camera),
        "settings": asdict(wanted.request.settings),
        **{side: {"name": name, "policy": asdict(p), "stage_ms": times} for side, name, p, times in sides},
        "stages": [asdict(change) for change in result.stages],
        "max_difference": result.max_difference,
        "psnr_db": psnr,  # null if the pictures are the same
    }
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n")
