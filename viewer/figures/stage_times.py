"""Collects stage times of recent pictures or training steps, and computes mean and 99th percentile. No GUI.

- Pictures of a still view and of a moving view are not mixed.
- The first picture after a change is a warm-up (buffers of another size, kernels that run for the first time). The next
  picture replaces it.
- Without changes the engine draws nothing, so a panel asks for more pictures until there are enough: `wants_more`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.wording import counted

RECENT = 240  # pictures or training steps that the figures use, at most
ENOUGH_FOR_MEAN, ENOUGH_FOR_P99 = 3, 20
WANTED = 100  # pictures of a still view to ask for, or as many as fit into DRAWING_MS, but at least LEAST
DRAWING_MS, LEAST = 2000.0, 5
SHARE = 0.5  # largest share of the time for such pictures, so that the machine is not busy all the time


@dataclass(frozen=True)
class StageFigures:
    """Holds the times of one stage, ms; None if there are too few pictures."""

    newest: float
    mean: float | None
    p99: float | None


class StageTimes:
    """Takes the times of one picture or step after the other."""

    def __init__(self) -> None:
        self.stages: tuple[str, ...] = ()  # names of the newest picture's stages, in order
        self.is_still = False  # all times are of one view
        self.is_warm_up = False  # the only picture does not count
        self._recent: deque[list[float]] = deque(maxlen=RECENT)
        self._before: tuple[object, object] | None = None  # setting and view of the newest picture

    def __len__(self) -> int:
        """Returns the number of pictures that count."""
        return 0 if self.is_warm_up else len(self._recent)

    def forget(self) -> None:
        """Drops all times, as for another scene."""
        self._recent.clear()
        self._before = None

    def add(self, stage_ms: Mapping[str, float], setting: object = None, view: object = None) -> None:
        """Adds the stages of one picture, in order, and its setting and view; training steps have neither.

        Earlier times are dropped when the setting or the stages change, and when a view stops or starts to move.
        """
        if not stage_ms:  # the times are not known yet
            return
        before, self._before = self._before, (setting, view)
        is_first = before is None or before[0] != setting or self.stages != tuple(stage_ms)
        self.stages = tuple(stage_ms)
        is_still = before is not None and before[1] == view
        if is_first or self.is_warm_up or is_still != self.is_still:
            self._recent.clear()
        self.is_still, self.is_warm_up = is_still, is_first
        self._recent.append(list(stage_ms.values()))

    @property
    def table(self) -> NDArray[np.float64]:
        """Returns all times, [pictures, stages] ms."""
        return np.array(self._recent, dtype=np.float64).reshape(len(self._recent), len(self.stages))

    def wants_more(self, seconds: float, picture_ms: float) -> bool:
        """Returns True if the view should be drawn again `seconds` after a picture that took `picture_ms`."""
        is_enough = len(self) >= WANTED or (len(self) >= LEAST and float(self.table.sum()) >= DRAWING_MS)
        return not is_enough and 1e3 * seconds >= picture_ms * (1.0 / SHARE - 1.0)

    def in_words(self, one: str) -> str:
        """Returns the number of pictures behind the figures: "24 frames, this view"; `one` is a picture's name."""
        if self.is_warm_up:
            return f"1 {one}, a warm-up"
        number = f"last {RECENT} {one}s" if len(self) == RECENT else counted(len(self), one)
        where = "" if self._before is None or self._before[1] is None else ", this view"
        if where and not self.is_still:
            where = ", moving"
        return f"{number}{where}"


def figures(times: NDArray[np.float64]) -> StageFigures:
    """Returns the figures of one or more times, ms."""
    mean = float(times.mean()) if len(times) >= ENOUGH_FOR_MEAN else None
    p99 = float(np.percentile(times, 99)) if len(times) >= ENOUGH_FOR_P99 else None
    return StageFigures(float(times[-1]), mean, p99)


def figure(ms: float | None) -> str:
    """Returns a time with up to five digits, right-aligned; a dash for no time."""
    if ms is None:
        return f"{'–':>6}"
    digits = 3 if ms < 9.9995 else 2 if ms < 99.995 else 1
    return f"{ms:6.{digits}f}"
