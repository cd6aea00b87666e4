"""Draws pictures for the viewport: knows which one is on the screen, which one is on its way, and what they cost.

While training runs, a GPU gets the picture behind the steps that it has been given, and steps behind the picture; the
queue takes the picture once it is finished. Otherwise `finish` waits for it. Belongs to the engine's thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from splatscope.app.engine.opened import Opened
from splatscope.app.engine.photograph_cache import PhotographCache
from splatscope.app.engine.pictures import blend_heatmap
from splatscope.app.engine.view_budget import ViewBudget
from splatscope.kernels.backend import Backend, LiveBackend, PendingShow
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Frame
from splatscope.viewer.figures.overlays import picture_rgba
from splatscope.viewer.messages.view import Picture, ViewRequest

Asked = tuple[ViewRequest, int]  # a request, and the number of photographs read, if the picture depends on it
SHARPENING_SECONDS = 1.0  # after a view has turned, in which the window asks for all its pixels
SAME_LENS = 0.01  # relative difference of the angle of view that rounding to whole pixels makes


@dataclass(frozen=True)
class _Drawn:
    """Holds a picture of a backend that draws at once, in the form of a pending picture."""

    frame: Frame
    ready: bool = True

    def finish(self) -> tuple[NDArray[np.uint8], Frame]:
        return picture_rgba(self.frame.image), self.frame


@dataclass(frozen=True, eq=False)
class _Begun:
    """Holds a picture that a backend works on."""

    pending: PendingShow
    backend: Backend
    request: ViewRequest
    began: float  # seconds of the queue's clock
    host_seconds: float  # spent by this thread so far
    training: bool  # True: training waits for the picture


class FrameQueue:
    """Begins and finishes one picture at a time."""

    def __init__(
        self,
        budget: ViewBudget,
        on_frame: Callable[[Backend, Frame, float], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Calls `on_frame` with each finished frame, its backend and when it was begun; notes its cost in `budget`."""
        self._budget = budget
        self._on_frame = on_frame
        self._clock = clock
        self._shown: object = None  # what the newest picture, finished or not, depends on
        self._asked: Asked | None = None  # the request that the newest picture was begun for
        self._turned = float("-inf")  # when the newest picture that showed a new view was begun
        self._begun: _Begun | None = None
        self._serial = 0

    @property
    def busy(self) -> bool:
        """Returns True while a picture is on its way."""
        return self._begun is not None

    @property
    def ready(self) -> bool:
        """Returns True if `finish` does not wait for the GPU."""
        return self._begun is not None and self._begun.pending.ready

    def forget_shown(self) -> None:
        """Has the same view drawn once more."""
        self._shown = None

    def is_due(self, opened: Opened, request: ViewRequest, policy: Policy, is_recording: bool) -> bool:
        """Returns True if a picture is to be begun, asked while none is on its way.

        The budget bounds pictures that training waits for. While `is_recording`, nothing bounds them
        and a view that is shown already is drawn again.
        """
        is_bounded = opened.is_training and not is_recording
        if is_bounded and not self._budget.is_due(self._clock(), self.is_new(opened, request)):
            return False
        if opened.gaussians is None:
            return False
        return is_recording or self._shown != _dependencies(opened, request, policy)

    def is_new(self, opened: Opened, request: ViewRequest) -> bool:
        """Returns True if `request` shows a different view from the newest picture.

        A change of resolution alone does not count, except in the first second after the camera stops: dynamic
        resolution must not cause extra pictures.
        """
        asked = request, opened.photographs_read(request)
        if asked == self._asked:
            return False
        return _is_another_view(asked, self._asked) or self._clock() - self._turned < SHARPENING_SECONDS

    def begin(self, backend: Backend, opened: Opened, request: ViewRequest, policy: Policy) -> None:
        """Starts a picture of what is open, with `policy`, while none is on its way.

        A backend that cannot start it ahead draws it at once. The budget pays for it if training waits. Raises what
        the backend raises.
        """
        asked = request, opened.photographs_read(request)
        self._shown = _dependencies(
            opened, request, policy
        )  # set also if the picture fails, because the next would fail too
        splats, began = opened.splats_to_view(), self._clock()
        if _is_another_view(asked, self._asked):
            self._turned = began
        self._asked = asked
        arguments = splats, request.camera, request.settings, policy
        is_live = isinstance(backend, LiveBackend)
        pending = backend.begin_show(*arguments) if is_live else _Drawn(backend.render(*arguments))
        drawn = replace(request, policy=policy)
        self._begun = _Begun(pending, backend, drawn, began, self._clock() - began, opened.is_training)

    def finish(self, photographs: PhotographCache | None) -> Picture:
        """Takes the picture, and waits if it is not finished; `photographs` has the one it is compared with."""
        begun, self._begun = self._begun, None
        assert begun is not None
        start = self._clock()
        request = begun.request
        rgba, frame = begun.pending.finish()
        rgba = blend_heatmap(rgba, frame, request)
        photograph = None
        if request.photograph and photographs:
            photograph = photographs.compare(request.photograph, rgba, request.camera)
        end = self._clock()
        self._on_frame(begun.backend, frame, begun.began)
        seconds = max(begun.host_seconds + end - start, 1e-3 * sum(frame.stage_ms.values()))
        if begun.training:
            self._budget.note(begun.began, seconds)
        self._serial += 1
        latency_ms = 1e3 * (end - begun.began)
        return Picture(rgba, frame, request, self._serial, 1e3 * seconds, photograph, latency_ms)


def _dependencies(opened: Opened, request: ViewRequest, policy: Policy) -> object:
    """Returns all that a picture depends on; two equal ones need no second picture."""
    return replace(request, policy=policy), opened.photographs_read(request), opened.generation, opened.version


def _is_another_view(asked: Asked, before: Asked | None) -> bool:
    """Returns True if the two differ in more than the number of pixels."""
    if before is None or asked[1] != before[1]:
        return True
    request, other = asked[0], before[0]
    if replace(request, camera=other.camera) != other:
        return True
    a, b = request.camera, other.camera
    is_same_lens = math.isclose(a.width / a.fx, b.width / b.fx, rel_tol=SAME_LENS) and math.isclose(
        a.height / a.fy, b.height / b.fy, rel_tol=SAME_LENS
    )
    return a.view_from_world != b.view_from_world or not is_same_lens
