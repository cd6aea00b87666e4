"""How counts become colours and numbers at a scale: linear or logarithmic, its end locked or following the frame.

Pure; the heatmap on the screen, in a screenshot and in the panel all read the same `HeatScale`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.types import Int32

STEPS = 5  # between labels of a linear scale
LOG_RANGE = 1000  # end of a logarithmic scale over its beginning
PERCENTILE = 99  # of the counts above 0: one tile that took very long must not darken all others


@dataclass(frozen=True)
class HeatScale:
    """The highest colour is a count of `top` and more, the lowest one of `bottom(top)` and less."""

    log: bool = False
    locked_top: int | None = None  # None: a round number above nearly all counts of the frame

    def top(self, counts: Int32) -> int:
        """Returns where the scale of a frame with these counts ends."""
        if self.locked_top is not None:
            return self.locked_top
        counts = counts[counts > 0]
        return nice_ceiling(float(np.percentile(counts, PERCENTILE)) if counts.size else 0.0)

    def bottom(self, top: int) -> float:
        """Returns where the scale begins: at 0, or at the thousandth part of its end but hardly below 1."""
        return max(min(1.0, top / 2), top / LOG_RANGE) if self.log else 0.0

    def place(self, counts: Int32 | Sequence[float], top: int) -> NDArray[np.float64]:
        """Returns shares of the way up the scale, in [0, 1], of counts of any shape."""
        values, low = np.asarray(counts, dtype=np.float64), self.bottom(top)
        if self.log:
            return np.clip(np.log(np.maximum(values, low) / low) / math.log(top / low), 0.0, 1.0)
        return np.clip(values / max(top, 1), 0.0, 1.0)

    def ticks(self, top: int) -> tuple[float, ...]:
        """Returns counts worth a label, lowest first and `top` last."""
        if not self.log:
            return tuple(dict.fromkeys(round(top * k / STEPS) for k in range(STEPS + 1)))
        low = self.bottom(top)
        powers = [10**k for k in range(len(str(top))) if low < 10**k < top]
        return (low, *powers, top)


LINEAR = HeatScale()


def nice_ceiling(value: float) -> int:
    """Returns the smallest of 10, 20, 50, 100, ... that is not below `value`: a scale that holds still while counts
    move."""
    step = 10
    while True:
        for factor in (1, 2, 5):
            if value <= factor * step:
                return factor * step
        step *= 10


def apart(places: Sequence[float], sizes: Sequence[float], gap: float = 0.0) -> list[int]:
    """Returns the indices of labels that can be drawn without touching: the last one, the first one, and those between
    that have room. Labels are centred on rising `places`; places, sizes and gap are in px."""

    def touch(a: int, b: int) -> bool:
        return abs(places[b] - places[a]) < 0.5 * (sizes[a] + sizes[b]) + gap

    last = len(places) - 1
    kept: list[int] = []
    for k in range(last):
        if not (touch(k, last) or (kept and touch(kept[-1], k))):
            kept.append(k)
    return [*kept, last] if places else []
