"""Results on their way to disk: a thread writes them from snapshots while the next steps run.

One at a time and in order. What could not be written becomes an event, not an error: training goes on. The files
themselves are those of `output.py` and `checkpoint.py`; read `trainer.py` for when something is saved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from splatscope.kernels.errors import InputError
from splatscope.training.events import Saved, SavedThing, SaveFailed


class BackgroundWriter:
    """A queue of things to write. Made and asked by one thread."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[tuple[int, SavedThing, Future[Saved | None]]] = deque()

    @property
    def busy(self) -> bool:
        """True while something is being written."""
        return any(not future.done() for *_, future in self._waiting)

    def submit(self, iteration: int, what: SavedThing, job: Callable[[], Saved | None]) -> None:
        """Queues one write of the state of that iteration; `job` returns what to report."""
        if self._pool is None:  # made late: a trainer that is only looked at has no thread
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="saving")
        self._waiting.append((iteration, what, self._pool.submit(job)))

    def finished(self, wait: bool = False) -> list[Saved | SaveFailed]:
        """What became of the writes that are over, in order; with `wait` of all."""
        events: list[Saved | SaveFailed] = []
        while self._waiting and (wait or self._waiting[0][2].done()):
            iteration, what, future = self._waiting.popleft()
            try:
                saved = future.result()
            except InputError as error:
                events.append(SaveFailed(iteration, what, str(error)))
            except MemoryError:
                events.append(SaveFailed(iteration, what, "There is not enough memory to write it."))
            else:
                if saved is not None:
                    events.append(saved)
        return events
