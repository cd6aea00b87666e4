"""Pictures for the viewport: which one is on the screen, which one is on its way, what they cost.

While training runs, a GPU is handed the picture behind the steps it has been given and goes on with steps behind the
picture; the picture is taken when it is there. Otherwise it is waited for. Belongs to the engine's thread.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.app.engine.measurements import Measurements
from splatscope.app.engine.photograph_cache import PhotographCache
from splatscope.app.engine.pictures import compose, lay_over
from splatscope.app.engine.view_budget import ViewBudget
from splatscope.kernels.backend import Backend, LiveBackend
from splatscope.kernels.types import Frame, Gaussians
from splatscope.viewer.messages.view import Picture, ViewRequest

Asked = tuple[ViewRequest | None, int]  # and how many photographs had been read, if it is to be beside one
SHARPENING_SECONDS = 1.0  # after a view has turned, in which the window asks for all its pixels
SAME_LENS = 0.01  # relative difference of the angle of view that rounding to whole pixels makes


@dataclass(frozen=True, eq=False)
class _Begun:
    """A picture that a backend works on."""

    shown: Any  # kernels.api.PendingShow; None: `made` is there already
    made: tuple[NDArray[np.uint8], Frame] | None
    request: ViewRequest
    began: float  # time.perf_counter()
    host_seconds: float  # spent so far, waiting for the GPU not included unless there is nothing else to do
    training: bool  # which waits for it


class FrameQueue:
    """See the module's text."""

    def __init__(self, governor: ViewBudget, instruments: Measurements) -> None:
        self.governor = governor
        self._instruments = instruments
        self.shown: object = None  # what the newest picture, finished or not, depends on
        self._asked: Asked = None, 0  # what it was asked for as
        self._turned = float("-inf")  # when the newest picture of another view than the one before was begun
        self._begun: _Begun | None = None
        self._serial = 0

    @property
    def busy(self) -> bool:
        """True while a picture is on its way."""
        return self._begun is not None

    @property
    def ready(self) -> bool:
        """True if `finish` does not wait for the GPU."""
        return self._begun is not None and (self._begun.shown is None or self._begun.shown.ready)

    def is_new(self, asked: Asked) -> bool:
        """Whether that is another view than the newest picture's. If it only has more or fewer pixels it is none, so
        that a resolution that gives way to the time pictures take costs no more time, but for a view that has just
        come to rest."""
        if asked == self._asked:
            return False
        return _is_another_view(asked, self._asked) or time.perf_counter() - self._turned < SHARPENING_SECONDS

    def begin(self, backend: Backend, gaussians: Gaussians, request: ViewRequest, asked: Asked, training: bool) -> None:
        """Starts a picture; one that cannot be started ahead is finished at once. Nothing may be on its way. What it
        costs is noted if there is `training` that waits for it. `asked` is what the window wants, `request` what of it
        can be drawn now."""
        began = time.perf_counter()
        if _is_another_view(asked, self._asked):
            self._turned = began
        self._asked = asked
        shown = made = None
        if isinstance(backend, LiveBackend):
            shown = backend.begin_show(gaussians, request.camera, request.settings, request.policy)
        else:
            frame = backend.render(gaussians, request.camera, request.settings, request.policy)
            made = compose(frame, request), frame
        self._begun = _Begun(shown, made, request, began, time.perf_counter() - began, training)

    def finish(self, backend: Backend, shelf: PhotographCache | None) -> Picture:
        """Takes the picture, waiting if it is not there; `shelf` has the photograph it is compared with."""
        begun, self._begun = self._begun, None
        assert begun is not None
        start = time.perf_counter()
        if begun.made is not None:
            rgba, frame = begun.made
        else:
            rgba, frame = begun.shown.finish()
            lay_over(rgba, frame, begun.request)
        beside = None
        if begun.request.photograph and shelf:
            beside = shelf.beside(begun.request.photograph, rgba, begun.request.camera)
        end = time.perf_counter()
        self._instruments.add_picture(backend, frame, begun.began)
        seconds = max(begun.host_seconds + end - start, 1e-3 * sum(frame.stage_ms.values()))
        if begun.training:
            self.governor.note(begun.began, seconds)
        self._serial += 1
        latency_ms = 1e3 * (end - begun.began)
        return Picture(rgba, frame, begun.request, self._serial, 1e3 * seconds, beside, latency_ms)


def _is_another_view(asked: Asked, before: Asked) -> bool:
    """Whether they differ in more than the number of pixels."""
    (request, photographs), (other, photographs_before) = asked, before
    if request is None or other is None or photographs != photographs_before:
        return asked != before
    if replace(request, camera=other.camera) != other:
        return True
    a, b = request.camera, other.camera
    is_same_lens = math.isclose(a.width / a.fx, b.width / b.fx, rel_tol=SAME_LENS) and math.isclose(
        a.height / a.fy, b.height / b.fy, rel_tol=SAME_LENS
    )
    return a.view_from_world != b.view_from_world or not is_same_lens
