"""Draws every view of a scene at its own size and measures time, instances listed, and likeness to the photograph.

Each view is drawn a few times in a row. The first times do not count, because a machine that has just decoded a
photograph, or done nothing, is slower for a while; the median of the others does. The engine asks for a view at a time,
so that the window stays quick. Training waits, because the views are to be compared with each other. Photographs are
decoded here: `photograph_cache.py` keeps only those that somebody looks at.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from splatscope.app.engine.photograph_cache import psnr, resample, resample_mask
from splatscope.app.opening.scene import fit_camera
from splatscope.assets.capture import View
from splatscope.assets.photographs.view_pixels import AlphaUse, MaskUse, read_view
from splatscope.kernels.backend import Backend
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, Frame, Gaussians
from splatscope.training.data.dataset import composite
from splatscope.viewer.figures.overlays import picture_rgba
from splatscope.viewer.messages.view import ViewFigures, ViewRequest

WIDEST = 1600  # px; larger photographs are drawn as wide as this
WARM_UP_MS, FIRST_WARM_UP_MS = 40.0, 400.0  # drawing that does not count, before each view and before the first
DRAWN = 5  # times that count, for each view
LONG_MS = 600.0  # about the most that drawing one view may take; each view is drawn at least once


class ViewSurvey:
    """Measures the splats as they were when it began. Belongs to the engine's thread."""

    def __init__(
        self,
        cameras: Sequence[Camera],
        views: Sequence[View],
        alpha: AlphaUse,
        masks: MaskUse,
        gaussians: Gaussians,
        request: ViewRequest,
    ) -> None:
        """Begins a survey. `views` are the photographs that the cameras took, in the same order; empty if there are
        none.
        """
        self._cameras, self._views = cameras, views
        self._alpha: AlphaUse = alpha
        self._masks: MaskUse = masks
        self._settings, self._policy = request.settings, request.policy
        self._gaussians: Gaussians | None = gaussians  # None at the end, because they take memory
        self.figures: tuple[ViewFigures, ...] = ()

    @property
    def active(self) -> bool:
        """Returns True until every view has been drawn."""
        return len(self.figures) < len(self._cameras)

    def step(self, backend: Backend) -> None:
        """Draws the next view."""
        index = len(self.figures)
        camera = self._cameras[index]
        camera = fit_camera(camera, *_fit_size(camera))
        assert self._gaussians is not None
        arguments = (self._gaussians, camera, self._settings, self._policy)
        frame, ms = _measure(backend, FIRST_WARM_UP_MS if index == 0 else WARM_UP_MS, *arguments)
        figures = ViewFigures(index, ms, frame.instances, (camera.width, camera.height))
        if index < len(self._views):
            try:
                image = read_view(self._views[index], self._alpha, self._masks)
            except InputError:
                pass  # damaged: the page about the capture says so
            else:
                pixels, taken_by = composite(image.pixels, self._settings.background), self._cameras[index]
                left, top, photograph = resample(pixels, taken_by, camera)
                counts = None if image.mask is None else resample_mask(image.mask, taken_by, camera)
                height, width = photograph.shape[:2]
                drawn = picture_rgba(frame.image)[top : top + height, left : left + width, :3]
                figures = replace(figures, psnr=psnr(drawn, photograph, counts))
        self.figures = (*self.figures, figures)
        if not self.active:
            self._gaussians = None


def _measure(backend: Backend, warm_up_ms: float, *arguments: Any) -> tuple[Frame, float]:
    """Draws until the machine is warm, then a few times; returns a picture and the median of their times in ms."""
    start = time.perf_counter()
    frame, ms = _draw(backend, *arguments)
    while 1e3 * (time.perf_counter() - start) < warm_up_ms:
        frame, ms = _draw(backend, *arguments)
    times = min(DRAWN, max(1, round(LONG_MS / max(ms, 1e-3))))
    return frame, median(_draw(backend, *arguments)[1] for _ in range(times))


def _draw(backend: Backend, *arguments: Any) -> tuple[Frame, float]:
    """Draws once; returns the picture and its time in ms, the sum of its stages if the backend knows them."""
    start = time.perf_counter()
    frame = backend.render(*arguments)
    waited = 1e3 * (time.perf_counter() - start)
    return frame, sum(frame.stage_ms.values()) or waited


def _fit_size(camera: Camera) -> tuple[int, int]:
    """Returns the (width, height) that a camera's view is drawn at."""
    scale = min(1.0, WIDEST / camera.width)
    return round(camera.width * scale), max(1, round(camera.height * scale))
