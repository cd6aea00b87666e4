"""Shares the work of a kernel among threads, turn by turn.

A kernel for the pool takes (board, turns, worker, ...). It draws turn numbers from the board until none are left, and
then reports the number of turns it did. The calling thread is worker 0 and works like the others. At the end it waits
for turns that were drawn, never for a helper that has not started. On a busy machine, where a barrier of OpenMP costs
tens of milliseconds, a picture therefore takes no longer than on one thread. Helpers are Python threads; kernels run
without the interpreter's lock. Read `project.py` for an example of a kernel.
"""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import Any

import numba
import numpy as np

from splatscope.kernels.cpu.compile import inline, kernel
from splatscope.kernels.cpu.lane_io import add_to, read_shared

NEXT, DONE, BOARD = 0, 16, 32  # places of int64 on the board; counters are a cache line apart
SPINS = 20_000  # reads of the board, some 20 microseconds, before the caller sleeps
NAP = 50e-6  # s


@inline
def draw_turn(board):
    """Draws and returns the next turn. A number not below the number of turns means that none is left."""
    return add_to(board, NEXT, 1)


@inline
def report_turns(board, count):
    """Notes on the board that `count` turns are done and their results written."""
    add_to(board, DONE, count)


@kernel
def turns_are_done(board, turns, looks):
    """Reads the board up to `looks` times; returns true once every turn is done, else false."""
    while read_shared(board, DONE) < turns:
        looks -= 1
        if looks == 0:
            return False
    return True


class ThreadPool:
    """Runs kernels on helper threads, which it starts when they are first needed.

    Runs one kernel at a time: callers hold `CREW_LOCK`.
    """

    def __init__(self) -> None:
        self._tasks: list[SimpleQueue[Any]] = []
        self._failure: BaseException | None = None

    def run(self, kernel: Any, turns: int, *args: Any) -> None:
        """Calls kernel(board, turns, worker, *args) on as many threads as numba is set to use, and waits."""
        board = np.zeros(BOARD, np.int64)  # new each time: a helper that starts late finds all turns drawn
        helpers = max(0, min(numba.get_num_threads(), turns) - 1)
        while len(self._tasks) < helpers:
            self._start_helper()
        for number, tasks in enumerate(self._tasks[:helpers], 1):
            if tasks.empty():  # otherwise the helper has not even started the last kernel
                tasks.put((kernel, (board, turns, number, *args)))
        kernel(board, turns, 0, *args)
        while not turns_are_done(board, turns, SPINS):
            if self._failure is not None:
                raise RuntimeError("A helper thread failed.") from self._failure
            time.sleep(NAP)

    def _start_helper(self) -> None:
        tasks: SimpleQueue[Any] = SimpleQueue()
        self._tasks.append(tasks)
        threading.Thread(target=self._help, args=(tasks,), name=f"crew-{len(self._tasks)}", daemon=True).start()

    def _help(self, tasks: SimpleQueue[Any]) -> None:
        while True:
            kernel, args = tasks.get()
            try:
                kernel(*args)
            except BaseException as failure:  # the caller raises it
                self._failure = failure
            del kernel, args


CREW = ThreadPool()
CREW_LOCK = threading.RLock()  # each call that runs kernels on `CREW` holds it: the pool serves one caller at a time
