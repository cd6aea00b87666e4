"""Chooses a frame's forward blend kernel under blend.map = adaptive: warps of 8 x 4 pixels, or wide ones of 8 x 8.

Wide warps take up to a seventh fewer instructions, but give a tile half the threads. They are faster unless a single
heavy tile decides how long the frame takes. The measure is the longest list, divided by the pairs that each
multiprocessor would have if pairs were dealt out evenly (a share). Both kernels give the same pictures, lists and
gradients to the bit, so a late choice does no harm.

The host chooses by counts of earlier frames, which come with counters that it reads anyway, and replays one captured
graph or the other. A choice therefore costs the GPU nothing. Considered and not built:

- Launch both kernels in each frame, one of which returns at once: a launch of 2,500 such blocks takes 2 µs, 1% of a
  small frame.
- Use a conditional node of a graph: direct launches have none, and CuPy does not offer it.
- Compile both forms into one kernel, with two tiles in a block of 256 threads: a finished tile keeps its registers
  until the neighbouring tile is finished, and viewing needs the registers of the larger form.

Launches: `cuda/plan/blend.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from splatscope.kernels.policy import Policy

# Shares up to which wide warps are taken. On an H200 they took 16% less time at 0.20, 2% more at 0.26, 34% at 0.65.
EVEN = 0.23


class MapChoice:
    """Chooses the kernel of the next frame: 8 x 4 until the counts of a frame are known.

    `newest` is the weight of the newest frame in a running mean: 1 where frames resemble the frame before, less where
    each frame may show a different view.
    """

    def __init__(self, multiprocessors: float, newest: float = 1.0) -> None:
        self._multiprocessors, self._newest = multiprocessors, newest
        self._shares: float | None = None

    @property
    def is_wide(self) -> bool:
        """Returns True for warps of 8 x 8 pixels."""
        return self._shares is not None and self._shares < EVEN

    def is_wide_for(self, policy: Policy) -> bool:
        """Returns `is_wide` where the policy leaves the choice open, else False."""
        return policy.blend.map == "adaptive" and self.is_wide

    def note(self, record: np.void | Mapping[str, Any]) -> None:
        """Learns from the counts of a drawn frame, its `Frame` or `StepResult`. Without a schedule they are 0."""
        heaviest, pairs = int(record["heaviest"]), int(record["instances"])
        if heaviest == 0 or pairs == 0:
            return
        shares = heaviest * self._multiprocessors / pairs
        self._shares = shares if self._shares is None else self._shares + self._newest * (shares - self._shares)
