"""When a picture is due while training runs, and what pictures cost it. Numbers only; the engine's thread asks.

Two bounds hold at once: the share of the time that pictures may take, and how many a second there may be. `feed.py`
says what a picture took.
"""

from __future__ import annotations

from dataclasses import dataclass

MOVING_SECONDS = 0.3  # a camera that changed this recently counts as moving
SMOOTHING = 0.2  # weight of the newest picture in the cost that is told


@dataclass
class Governor:
    """See the module's text."""

    share: float  # of the time that pictures of a still camera may take
    moving_share: float  # the same while the camera moves, if that is more
    rate: float  # pictures a second, at most
    cost: float = 0.0  # share of the last seconds that pictures took
    _began: float = float("-inf")
    _seconds: float = 0.0  # that the newest picture took

    def is_due(self, now: float, camera_changed: float) -> bool:
        """True if training may wait for another picture; `camera_changed` is when the camera last did."""
        is_moving = now - camera_changed < MOVING_SECONDS
        share = max(self.moving_share if is_moving else 0.0, self.share)
        return now - self._began >= max(1.0 / self.rate, self._seconds / share)

    def note(self, began: float, seconds: float) -> None:
        """A picture that was begun then has been drawn and cost so much."""
        self._seconds = seconds
        apart = max(began - self._began, self._seconds, 1e-6)
        self._began = began
        self.cost += SMOOTHING * (self._seconds / apart - self.cost)
