"""How many training steps the host may queue ahead of the GPU: so many that they keep it busy for a set time.

Too few, and the GPU stands idle whenever the host's thread is held up for a moment, by a picture it begins or by the
window, which takes Python's lock for a millisecond now and then. Too many, and a picture, which is queued behind them,
comes late. So it is time that is bounded, not a number. Read `training_step.py` next.
"""

from __future__ import annotations

QUEUED_SECONDS = 0.008  # of work queued: longer than the host is held up, shorter than anybody sees
LEAST, MOST = 2, 48  # steps; with one the GPU would wait for the host after each
FIRST = 6  # until a step's time is known
MEASURED = 16  # steps that are timed together, as the host hears of several at once
OUTLIER = 2.0  # times what was known; longer counts as that: scores and saving come between steps


class QueueDepth:
    """Learns from when steps are known to be over, and says how many may be queued."""

    def __init__(self) -> None:
        self.steps = FIRST
        self._seconds = 0.0  # of a step; 0: not known
        self._since: float | None = None  # when the steps that are being timed began
        self._done = 0  # of them

    def finished(self, now: float) -> None:
        """One more step is known to be over; `now` in seconds of any clock."""
        if self._since is None:
            self._since = now
            return
        self._done += 1
        if self._done < MEASURED:
            return
        taken = (now - self._since) / self._done
        self._seconds = min(taken, OUTLIER * self._seconds) if self._seconds else taken
        self._since, self._done = now, 0
        self.steps = min(max(LEAST, round(QUEUED_SECONDS / max(self._seconds, 1e-9))), MOST)

    def restart(self) -> None:
        """The GPU was waited for, or had nothing to do: the time since the last step is no step's."""
        self._since, self._done = None, 0
