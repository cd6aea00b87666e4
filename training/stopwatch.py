"""Where a run's seconds go: reading photographs, preparing, training, scoring, saving; not what others do meanwhile.

A step's time is the host's; on a GPU the host waits in it as soon as it is a few steps ahead, and before every score
and save. Saving is what steps are held up by, and at the end of a run the wait for its files, not what is written
meanwhile. Read `trainer.py` for what is timed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

Activity = Literal["loading", "preparing", "training", "scoring", "saving"]
T = TypeVar("T")
_LOADED = time.perf_counter()


class Stopwatch:
    """Seconds by activity, since the run began."""

    def __init__(self) -> None:
        self.seconds: dict[Activity, float] = dict.fromkeys(
            ("loading", "preparing", "training", "scoring", "saving"), 0.0
        )

    @contextmanager
    def on(self, activity: Activity) -> Iterator[None]:
        """Counts the body towards an activity."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[activity] += time.perf_counter() - start

    def timed(self, activity: Activity, items: Iterator[T]) -> Generator[T]:
        """The same items; making them counts towards an activity, what the caller does with them does not."""
        while True:
            start = time.perf_counter()
            try:  # not by `on`: this is asked for twice a step
                item = next(items, None)
            finally:
                self.seconds[activity] += time.perf_counter() - start
            if item is None:
                return
            yield item


def process_seconds() -> float:
    """Since this process was started, where the system tells; else since this module was loaded."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError, IndexError):
        return time.perf_counter() - _LOADED
