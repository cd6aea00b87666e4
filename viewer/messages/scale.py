"""Maps counts to places on a colour scale: linear or logarithmic, its end locked or following the frame.

Pure. The heatmap on the screen, in a screenshot and in the panel use the same `HeatScale`, which every view request
carries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.types import Int32

STEPS = 5  # intervals between labels of a linear scale
LOG_RANGE = 1000  # ratio of a logarithmic scale's ends
PERCENTILE = 99  # percentile of the counts above 0, so that one very heavy tile does not darken all others


@dataclass(frozen=True)
class HeatScale:
    """Describes a scale: the highest colour is for counts of `top` and more, the lowest for `bottom(top)` and less."""

    log: bool = False
    locked_top: int | None = None  # None: a round number above nearly all counts of the frame

    def top(self, counts: Int32) -> int:
        """Returns the end of the scale of a frame with these counts."""
        if self.locked_top is not None:
            return self.locked_top
        counts = counts[counts > 0]
        return nice_ceiling(float(np.percentile(counts, PERCENTILE)) if counts.size else 0.0)

    def bottom(self, top: int) -> float:
        """Returns the beginning of the scale: 0, or for a logarithmic scale about top / 1000, but hardly below 1."""
        return max(min(1.0, top / 2), top / LOG_RANGE) if self.log else 0.0

    def place(self, counts: Int32 | Sequence[float], top: int) -> NDArray[np.float64]:
        """Returns the places of counts of any shape on the scale, in [0, 1]."""
        values, low = np.asarray(counts, dtype=np.float64), self.bottom(top)
        if self.log:
            return np.clip(np.log(np.maximum(values, low) / low) / math.log(top / low), 0.0, 1.0)
        return np.clip(values / max(top, 1), 0.0, 1.0)

    def ticks(self, top: int) -> tuple[float, ...]:
        """Returns the counts to label, lowest first and `top` last."""
        if not self.log:
            return tuple(dict.fromkeys(round(top * k / STEPS) for k in range(STEPS + 1)))
        low = self.bottom(top)
        powers = [10**k for k in range(len(str(top))) if low < 10**k < top]
        return (low, *powers, top)


LINEAR = HeatScale()


def nice_ceiling(value: float) -> int:
    """Returns the smallest of 10, 20, 50, 100, ... not below `value`, so that a scale is steady while counts change."""
    step = 10
    while True:
        for factor in (1, 2, 5):
            if value <= factor * step:
                return factor * step
        step *= 10


def labels_with_room(places: Sequence[float], sizes: Sequence[float], gap: float = 0.0) -> list[int]:
    """Returns the indices of labels to draw so that none touch: the last, the first, and those between with room.

    Labels are centred on rising `places`; places, sizes and gap are in px."""

    def touch(a: int, b: int) -> bool:
        return abs(places[b] - places[a]) < 0.5 * (sizes[a] + sizes[b]) + gap

    last = len(places) - 1
    kept: list[int] = []
    for k in range(last):
        if not (touch(k, last) or (kept and touch(kept[-1], k))):
            kept.append(k)
    return [*kept, last] if places else []
