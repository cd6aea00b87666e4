"""Decides when a picture is due while training runs, and measures what pictures cost training. Numbers only.

Two bounds hold at once: the share of the time that pictures may take, and how many a second there may be. After a
picture, training gets enough time that the picture took no more than its share. A single picture that took long, as
the first one of a size does, counts in part.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

COST_SECONDS = 5.0  # time over which the cost is measured
LONG = 0.25  # seconds that a picture may take without being an exception, or twice as long as the one before


@dataclass
class ViewBudget:
    """Bounds the time that pictures may take from training. Times are seconds of the caller's clock."""

    share: float  # share of the time that pictures of a still view may take
    moving_share: float  # share of the time that pictures of a moving view may take, if that is more
    rate: float  # pictures a second, at most
    still_rate: float = 10.0  # pictures a second of a still view, if that is less: only the splats change then
    _turn: float = float("-inf")  # when the newest picture would have begun, had nothing been late
    _charge: float = 0.0  # seconds that the newest picture counts as
    _pictures: deque[tuple[float, float]] = field(default_factory=deque)  # when they began and how long they took

    def is_due(self, now: float, is_new: bool) -> bool:
        """Returns True if training may wait for another picture; `is_new` if it shows another view than the
        one before.
        """
        if not self._pictures:
            return True
        share = max(self.moving_share if is_new else 0.0, self.share)
        rests = 1.0 / (self.rate if is_new else min(self.rate, self.still_rate))
        return now - self._turn >= rests and now - self._pictures[-1][0] >= self._charge / share

    def note(self, began: float, seconds: float) -> None:
        """Counts a picture that was begun at `began` and took `seconds`."""
        before = self._pictures[-1][1] if self._pictures else 0.0
        self._charge = min(seconds, max(LONG, 2.0 * before))
        # The next picture makes up for a small delay: the engine asks only between training steps.
        missed = began - self._turn - 1.0 / self.rate
        self._turn = began - missed if 0.0 <= missed < 0.5 / self.rate else began
        self._pictures.append((began, seconds))

    def cost(self, now: float) -> float:
        """Returns the share of the last seconds that pictures took, 0 until two have been drawn.

        Each picture counts with the time until the next one.
        """
        pictures = self._pictures
        while len(pictures) > 2 and now - pictures[0][0] > COST_SECONDS:
            pictures.popleft()
        if len(pictures) < 2:
            return 0.0
        (first, _), (last, newest) = pictures[0], pictures[-1]
        seconds = sum(taken for _, taken in pictures)
        # The newest picture counts as well once the time that it has to wait for is over and none has followed.
        return min(1.0, (seconds - newest) / max(last - first, 1e-6), seconds / max(now - first, 1e-6))
