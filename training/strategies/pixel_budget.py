"""Derives a number of splats from the photographs, for strategies that grow to a budget.

A mean photograph gets a given number of splats for each pixel that shows something.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from splatscope.training.data.dataset import Color, Photograph, spread
from splatscope.training.strategy_config import splats_for

LOOKED_AT = 16  # photographs that the mean is taken over


def budget_for(photographs: Sequence[Photograph], background: Color, splats_per_pixel: float) -> int:
    """Returns `splats_per_pixel` splats for each covered pixel of a mean photograph, at least one."""
    return max(splats_for(covered_pixels(photographs, background), splats_per_pixel), 1)


def covered_pixels(photographs: Sequence[Photograph], background: Color) -> float:
    """Returns the pixels of a mean photograph that differ from the background it was cut out over."""
    behind = np.round(np.array(background) * 255).astype(np.uint8)
    views = spread(list(photographs), LOOKED_AT)
    shown = [(v.pixels != behind).any(axis=2) if v.coverage is None else v.coverage > 0 for v in views]
    return float(np.mean([pixels.sum() for pixels in shown]))
