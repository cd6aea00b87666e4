"""Counts a run's seconds by activity: reading photographs, preparing, training, scoring, saving.

- Time that callers spend between two events does not count.
- The time of a step is the host's. On a GPU the host waits in a step as soon as it is a few steps ahead, and before
  every score and save.
- Saving is the time that steps are held up, and at the end of a run the wait for its files; not the time of a write in
  the background.

Read `trainer.py` for what is timed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

Activity = Literal["loading", "preparing", "training", "scoring", "saving"]
T = TypeVar("T")
_LOADED = time.perf_counter()


class Stopwatch:
    """Counts seconds by activity since the run began."""

    def __init__(self) -> None:
        self.seconds: dict[Activity, float] = dict.fromkeys(
            ("loading", "preparing", "training", "scoring", "saving"), 0.0
        )
        self._seen: dict[Activity, float] = {}  # seconds at the last call of `added`

    def restore(self, seconds: Mapping[Activity, float]) -> None:
        """Continues from the seconds of an earlier part of the run."""
        self.seconds.update(seconds)
        self._seen.update(self.seconds)

    def added(self, activity: Activity) -> float:
        """Returns the seconds of an activity since the last call."""
        before, now = self._seen.get(activity, 0.0), self.seconds[activity]
        self._seen[activity] = now
        return now - before

    @contextmanager
    def on(self, activity: Activity) -> Iterator[None]:
        """Counts the body towards an activity."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[activity] += time.perf_counter() - start

    def timed(self, activity: Activity, items: Iterator[T]) -> Generator[T]:
        """Yields the same items. Making them counts towards an activity; the time until the caller asks again does
        not."""
        while True:
            start = time.perf_counter()
            try:  # not by `on`, whose cost would count twice a step
                item = next(items, None)
            finally:
                self.seconds[activity] += time.perf_counter() - start
            if item is None:
                return
            yield item


def process_seconds() -> float:
    """Returns the seconds since this process was started if the system tells, else since this module was loaded."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError, IndexError):
        return time.perf_counter() - _LOADED
