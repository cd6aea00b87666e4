"""Chooses a frame's forward blend kernel under blend.map = adaptive: warps of 8 x 4 pixels, or wide ones of 8 x 8.

Wide warps take up to a seventh fewer instructions and leave a tile half the threads. They win where no tile decides how
long a frame takes, and lose where a tile does. The measure is the longest list in shares; a share is what each
multiprocessor would have if pairs were dealt out evenly. Pictures, lists and gradients are the same to the bit, so a
choice may come late.

The host chooses, by counts of earlier frames: they come with the counters that the host reads anyway, and it replays
one captured graph or the other. So a choice costs the GPU nothing. Considered and not built:

- Both kernels in each frame, one of which returns at once: a launch of 2,500 such blocks takes 2 µs, 1% of a small
  frame.
- A conditional node of a graph: plain launches have none, and CuPy does not offer it.
- One kernel that holds both ways, two tiles in a block of 256 threads: it keeps the registers of a finished tile until
  the neighbouring tile is finished, and for viewing has the registers of the larger way.

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
    """Chooses for the next frame; 8 x 4 until the counts of a frame are known.

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
        """Takes the counts of a frame that was drawn: its `Frame` or `StepResult`. Without a schedule they are 0."""
        heaviest, pairs = int(record["heaviest"]), int(record["instances"])
        if heaviest == 0 or pairs == 0:
            return
        shares = heaviest * self._multiprocessors / pairs
        self._shares = shares if self._shares is None else self._shares + self._newest * (shares - self._shares)
