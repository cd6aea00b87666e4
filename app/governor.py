"""When a picture is due while training runs, and what pictures cost it. Numbers only; the engine's thread asks.

Two bounds hold at once: the share of the time that pictures may take, and how many a second there may be. `feed.py`
says what a picture took. A single picture that took long, as the first of a size does, does not count: what counts is
the shorter of the last two.
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
    still_rate: float = 10.0  # the same of a still camera, if that is less: only the splats change then
    cost: float = 0.0  # share of the last seconds that pictures took
    _began: float = float("-inf")
    _turn: float = float("-inf")  # when the newest picture would have begun, had nothing been late
    _seconds: tuple[float, float] = (0.0, 0.0)  # that the last two pictures took, the newest last

    def is_due(self, now: float, camera_changed: float) -> bool:
        """True if training may wait for another picture; `camera_changed` is when the camera last did."""
        is_moving = now - camera_changed < MOVING_SECONDS
        share = max(self.moving_share if is_moving else 0.0, self.share)
        rests = 1.0 / (self.rate if is_moving else min(self.rate, self.still_rate))
        return now - self._turn >= rests and now - self._began >= min(self._seconds) / share

    def note(self, began: float, seconds: float) -> None:
        """A picture that was begun then has been drawn and cost so much."""
        self._seconds = self._seconds[1], seconds
        apart = max(began - self._began, seconds, 1e-6)
        # A little late is made up for by the next: training is asked between steps only.
        missed = began - self._turn - 1.0 / self.rate
        self._turn = began - missed if 0.0 <= missed < 0.5 / self.rate else began
        self._began = began
        self.cost += SMOOTHING * (seconds / apart - self.cost)
