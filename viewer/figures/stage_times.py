"""Stage times of recent pictures or training steps: which of them count, and which figures they are enough for. No GUI.

Pictures of one view are counted apart from those of a moving one. The first after a change is a warm-up (buffers of
another size, kernels that run for the first time): it is shown as such until the next one takes its place. While
nothing changes nothing is drawn either, so a panel that shows figures asks for more pictures until there are enough:
`wants_more`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.wording import counted

RECENT = 240  # pictures or training steps that figures are taken over, at most
ENOUGH_FOR_MEAN, ENOUGH_FOR_P99 = 3, 20
WANTED = 100  # pictures of a still view that are asked for, or as many as fit into DRAWING_MS, but at least LEAST
DRAWING_MS, LEAST = 2000.0, 5
SHARE = 0.5  # of the time, at most, that such pictures take: the machine is not to be busy with them alone


@dataclass(frozen=True)
class StageFigures:
    """The times of one stage, ms; None for what there are too few pictures for."""

    newest: float
    mean: float | None
    p99: float | None


class StageTimes:
    """Takes in times, one picture or step after the other."""

    def __init__(self) -> None:
        self.stages: tuple[str, ...] = ()  # of the newest picture, in order
        self.is_still = False  # figures are of one view
        self.is_warm_up = False  # the one picture there is does not count
        self._recent: deque[list[float]] = deque(maxlen=RECENT)
        self._before: tuple[object, object] | None = None  # setting and view of the newest

    def __len__(self) -> int:
        """How many count."""
        return 0 if self.is_warm_up else len(self._recent)

    def forget(self) -> None:
        """Begins again, as for another scene."""
        self._recent.clear()
        self._before = None

    def add(self, stage_ms: Mapping[str, float], setting: object = None, view: object = None) -> None:
        """Takes in the stages of one picture, in order, and what it was drawn with; steps have neither.

        Another setting, or other stages, begin again; so does a view that comes to rest or leaves.
        """
        if not stage_ms:  # times are not known yet
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
        """The times there are, [pictures, stages] ms."""
        return np.array(self._recent, dtype=np.float64).reshape(len(self._recent), len(self.stages))

    def wants_more(self, seconds: float, picture_ms: float) -> bool:
        """Returns True if another picture of the view should be drawn, `seconds` after the newest one, which took
        `picture_ms`."""
        is_enough = len(self) >= WANTED or (len(self) >= LEAST and float(self.table.sum()) >= DRAWING_MS)
        return not is_enough and 1e3 * seconds >= picture_ms * (1.0 / SHARE - 1.0)

    def in_words(self, one: str) -> str:
        """Returns how many pictures figures are of: "24 frames, this view"; `one` is a picture's name."""
        if self.is_warm_up:
            return f"1 {one}, a warm-up"
        number = f"last {RECENT} {one}s" if len(self) == RECENT else counted(len(self), one)
        where = "" if self._before is None or self._before[1] is None else ", this view"
        if where and not self.is_still:
            where = ", moving"
        return f"{number}{where}"


def figures(times: NDArray[np.float64]) -> StageFigures:
    """Returns the figures of one time or more, ms."""
    mean = float(times.mean()) if len(times) >= ENOUGH_FOR_MEAN else None
    p99 = float(np.percentile(times, 99)) if len(times) >= ENOUGH_FOR_P99 else None
    return StageFigures(float(times[-1]), mean, p99)


def figure(ms: float | None) -> str:
    """Returns up to five digits, right-aligned; a dash for no time."""
    if ms is None:
        return f"{'–':>6}"
    digits = 3 if ms < 9.9995 else 2 if ms < 99.995 else 1
    return f"{ms:6.{digits}f}"
