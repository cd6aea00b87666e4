"""Chooses the resolution of pictures: lower while the view moves, full when it is still. Pure, no GUI.

The choice uses measured times only. It assumes that the render time grows with the number of pixels; each new
measurement corrects the error of that assumption.
"""

from __future__ import annotations

import math

STEPS = 16  # scales are multiples of 1/16, so that sizes do not flicker
SMALLEST = 3 / STEPS
FIRST_GUESS = 2e-4  # ms a pixel, before anything has been measured
FIRST_BUDGET = 100.0  # ms; makes the first picture appear soon, before the time of a picture is known
SLACK = 1.15  # a time this much over the budget is tolerated before the scale changes


class Resolution:
    """Keeps the newest measurement, and turns a budget into a share of the viewport's sides."""

    def __init__(self) -> None:
        self._ms_per_pixel = 0.0
        self._scale = 1.0

    def observe(self, width: int, height: int, render_ms: float) -> None:
        """Notes the render time of a picture."""
        self._ms_per_pixel = render_ms / max(1, width * height)

    def scale(self, width: int, height: int, budget_ms: float) -> float:
        """Returns the share in (0, 1] of each side at which a picture should take at most `budget_ms`."""
        full_ms = (self._ms_per_pixel or FIRST_GUESS) * width * height
        if not self._ms_per_pixel:
            budget_ms = min(budget_ms, FIRST_BUDGET)
        if full_ms <= budget_ms:
            self._scale = 1.0
            return 1.0
        if full_ms * self._scale**2 > SLACK * budget_ms or full_ms * (self._scale + 1 / STEPS) ** 2 < budget_ms:
            wanted = math.sqrt(budget_ms / full_ms)
            self._scale = min(1.0, max(SMALLEST, math.floor(wanted * STEPS) / STEPS))
        return self._scale
