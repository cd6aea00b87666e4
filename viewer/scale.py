"""How counts become colours and numbers at a scale: linear or logarithmic, its end locked or following the frame.

Pure; the heatmap on the screen, in a screenshot and in the panel all read the same `HeatScale`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.types import Int32

STEPS = 5  # between labels of a linear scale


@dataclass(frozen=True)
class HeatScale:
    """The lowest colour is a count of 0, the highest `top`."""

    log: bool = False  # colours go by log(1 + count)
    locked_top: int | None = None  # None: a round number above the frame's highest count

    def top(self, counts: Int32) -> int:
        """Where the scale of a frame with these counts ends."""
        return nice_ceiling(float(counts.max(initial=0))) if self.locked_top is None else self.locked_top

    def place(self, counts: Int32 | tuple[int, ...], top: int) -> NDArray[np.float64]:
        """Shares of the way up the scale, in [0, 1], of counts of any shape."""
        values = np.asarray(counts, dtype=np.float64)
        shares = np.log1p(values) / math.log1p(max(top, 1)) if self.log else values / max(top, 1)
        return np.clip(shares, 0.0, 1.0)

    def ticks(self, top: int) -> tuple[int, ...]:
        """Counts worth a label, lowest first and `top` last."""
        if not self.log:
            return tuple(dict.fromkeys(round(top * k / STEPS) for k in range(STEPS + 1)))
        powers = [10**k for k in range(len(str(top))) if 10**k <= 0.5 * top]
        return (0, *powers, top)


LINEAR = HeatScale()


def nice_ceiling(value: float) -> int:
    """The smallest of 10, 20, 50, 100, ... that is not below `value`: a scale that holds still while counts move."""
    step = 10
    while True:
        for factor in (1, 2, 5):
            if value <= factor * step:
                return factor * step
        step *= 10
