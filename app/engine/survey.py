"""Every view of a scene drawn at its own size: how long it takes, how many instances it lists, how well it fits.

Each is drawn a few times in a row, the first ones not counted, and the median stands: a machine that has just
decoded a photograph, or done nothing, is slower for a while, which is not the view's fault. A view at a time, so that
the window stays quick meanwhile; training waits, because the views are to be compared. The photographs are decoded
here: `photograph_cache.py` is for those somebody looks at.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from splatscope.app.engine.open_capture import OpenCapture
from splatscope.app.engine.photograph_cache import lay, lay_mask, psnr
from splatscope.app.opening.scene import Scene, fit_camera, listed_views
from splatscope.assets.capture import View
from splatscope.assets.photographs.view_pixels import AlphaUse, MaskUse, read_view
from splatscope.kernels.backend import Backend
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, Frame, Gaussians
from splatscope.training.data.dataset import composite
from splatscope.viewer.figures.overlays import picture_rgba
from splatscope.viewer.messages.view import ViewFigures, ViewRequest

WIDEST = 1600  # px; larger photographs are drawn as wide as this
WARM_UP_MS, FIRST_WARM_UP_MS = 40.0, 400.0  # of drawing that is not counted, before a view and before the first one
DRAWN = 5  # times that count
LONG_MS = 600.0  # drawing one view may take, about; at least once it counts


class ViewSurvey:
    """Of the splats as they were when it began. Belongs to the engine's thread."""

    def __init__(
        self,
        cameras: Sequence[Camera],
        views: Sequence[View],
        alpha: AlphaUse,
        masks: MaskUse,
        gaussians: Gaussians,
        request: ViewRequest,
    ) -> None:
        """`views` are the photographs those cameras took; none if they are not at hand."""
        self._cameras, self._views = cameras, views
        self._alpha: AlphaUse = alpha
        self._masks: MaskUse = masks
        self._settings, self._policy = request.settings, request.policy
        self._gaussians: Gaussians | None = gaussians  # let go of at the end
        self.figures: tuple[ViewFigures, ...] = ()

    @property
    def active(self) -> bool:
        """True until every view has been drawn."""
        return len(self.figures) < len(self._cameras)

    def step(self, backend: Backend) -> None:
        """Draws the next view."""
        index = len(self.figures)
        camera = self._cameras[index]
        camera = fit_camera(camera, *_drawn_size(camera))
        assert self._gaussians is not None
        arguments = (self._gaussians, camera, self._settings, self._policy)
        frame, ms = _measured(backend, FIRST_WARM_UP_MS if index == 0 else WARM_UP_MS, *arguments)
        figures = ViewFigures(index, ms, frame.instances, (camera.width, camera.height))
        if index < len(self._views):
            try:
                image = read_view(self._views[index], self._alpha, self._masks)
            except InputError:
                pass  # damaged, which the page about the capture tells
            else:
                pixels, taken_by = composite(image.pixels, self._settings.background), self._cameras[index]
                left, top, photograph = lay(pixels, taken_by, camera)
                counts = None if image.mask is None else lay_mask(image.mask, taken_by, camera)
                height, width = photograph.shape[:2]
                drawn = picture_rgba(frame.image)[top : top + height, left : left + width, :3]
                figures = replace(figures, psnr=psnr(drawn, photograph, counts))
        self.figures = (*self.figures, figures)
        if not self.active:
            self._gaussians = None


def survey_of(scene: Scene | None, desk: OpenCapture | None, gaussians: Gaussians, request: ViewRequest) -> ViewSurvey:
    """A survey of what is open, drawn as `request` draws."""
    cameras = [named.camera for named in scene.info.cameras] if scene else []
    if desk is None:
        return ViewSurvey(cameras, (), "background", "use", gaussians, request)
    data = desk.session.trainer.config.data
    return ViewSurvey(cameras, listed_views(desk.capture), data.alpha, data.masks, gaussians, request)


def _measured(backend: Backend, warm_up_ms: float, *arguments: Any) -> tuple[Frame, float]:
    """A picture, and the median of the ms that it took, once the machine is warm."""
    start = time.perf_counter()
    frame, ms = _drawn(backend, *arguments)
    while 1e3 * (time.perf_counter() - start) < warm_up_ms:
        frame, ms = _drawn(backend, *arguments)
    times = min(DRAWN, max(1, round(LONG_MS / max(ms, 1e-3))))
    return frame, median(_drawn(backend, *arguments)[1] for _ in range(times))


def _drawn(backend: Backend, *arguments: Any) -> tuple[Frame, float]:
    """A picture, and the ms that it took."""
    start = time.perf_counter()
    frame = backend.render(*arguments)
    waited = 1e3 * (time.perf_counter() - start)
    return frame, sum(frame.stage_ms.values()) or waited


def _drawn_size(camera: Camera) -> tuple[int, int]:
    scale = min(1.0, WIDEST / camera.width)
    return round(camera.width * scale), max(1, round(camera.height * scale))
