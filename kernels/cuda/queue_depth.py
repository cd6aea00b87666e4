"""Bounds the training steps that the host queues ahead of the GPU, so that they keep the GPU busy for a set time.

With too few queued steps, the GPU idles whenever the host's thread is held up for a moment: by a picture that it
begins, or by the window, which takes Python's lock for a millisecond now and then. With too many, a picture comes late,
because it is queued behind them. Therefore the bound is a time, not a number. Read `training_step.py` next.
"""

from __future__ import annotations

QUEUED_SECONDS = 0.008  # duration of queued work: longer than the host is held up, shorter than a person notices
LEAST, MOST = 2, 48  # limits of queued steps; with one step the GPU would wait for the host after each
FIRST = 6  # queued steps until the time of a step is known
MEASURED = 16  # steps that are timed together, because the host learns of several at once
OUTLIER = 2.0  # longest step that counts, as a multiple of the known time: scores and saving come between steps


class QueueDepth:
    """Learns how long steps take, and sets how many may be queued (`steps`)."""

    def __init__(self) -> None:
        self.steps = FIRST
        self._seconds = 0.0  # time of a step; 0: not known
        self._since: float | None = None  # when the current measurement began
        self._done = 0  # steps finished since then

    def finished(self, now: float) -> None:
        """Counts one more finished step; `now` in seconds of any clock."""
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
        """Starts the measurement again, because the GPU had nothing to do since: that time belongs to no step."""
        self._since, self._done = None, 0
