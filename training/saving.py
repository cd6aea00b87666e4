"""Results on their way to disk: a thread writes them from snapshots while the next steps run.

One save at a time and in order. What could not be written becomes an event, one for a save, not an error: training
goes on. The files themselves are those of `output.py` and `checkpoint.py`; read `trainer.py` for when one is due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

from splatscope.kernels.errors import InputError
from splatscope.training.events import Saved, SavedThing, SaveFailed

Job = Callable[[], Saved | None]  # writes one thing; returns what to report


class BackgroundWriter:
    """A queue of saves. Made and asked by one thread."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[list[Saved | SaveFailed]]] = deque()

    @property
    def busy(self) -> bool:
        """True while something is being written."""
        return any(not future.done() for future in self._waiting)

    def submit(self, iteration: int, jobs: Mapping[SavedThing, Job]) -> None:
        """Queues one save of the state of that iteration; waits if two are being written or waited for already."""
        wait([future for future in self._waiting if not future.done()][:-1])  # a slow disk must not fill the memory
        if self._pool is None:  # made late: a trainer that is only looked at has no thread
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="saving")
        self._waiting.append(self._pool.submit(_saved, iteration, jobs))

    def wait(self) -> None:
        """Returns once nothing is being written; `finished` tells later what became of it."""
        wait(list(self._waiting))

    def finished(self, wait: bool = False) -> list[Saved | SaveFailed]:
        """What became of the saves that are over, in order; with `wait` of all."""
        events: list[Saved | SaveFailed] = []
        while self._waiting and (wait or self._waiting[0].done()):
            events += self._waiting.popleft().result()
        return events


def _saved(iteration: int, jobs: Mapping[SavedThing, Job]) -> list[Saved | SaveFailed]:
    """Writes each. A full disk refuses all for one reason, so what failed is told once, with the first reason."""
    events: list[Saved | SaveFailed] = []
    failed: dict[SavedThing, str] = {}
    for what, job in jobs.items():
        try:
            saved = job()
        except InputError as error:
            failed[what] = str(error)
        except MemoryError:
            failed[what] = "There is not enough memory to write it."
        else:
            events += [] if saved is None else [saved]
    if failed:
        events.append(SaveFailed(iteration, tuple(failed), next(iter(failed.values()))))
    return events
