"""Measurements that each have a process of their own.

So one finds nothing warm but what lies on disk, its peak of memory and its clock since the start of the process are its
own, and it is what a person meets who gives one command. Who asks: `bench_recipes.py`, `bench_train.py`.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from typing import Any, TypeVar

from splatscope.kernels.errors import InputError

T = TypeVar("T")


def in_a_process(measure: Callable[..., T], *arguments: Any) -> T:
    """What `measure`, a function of a module, returns there. Raises InputError if it does, or if its process ends
    early."""
    context = multiprocessing.get_context("spawn")  # a GPU's context does not survive a fork
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(sender, measure, arguments), daemon=True)
    process.start()
    sender.close()  # ours: the pipe ends when the process does
    try:
        result, problem = receiver.recv()
    except EOFError as error:
        process.join(10)
        raise InputError(
            f"The measurement ended early, with exit code {process.exitcode}; see above for why."
        ) from error
    finally:
        process.terminate()
        process.join(10)
        process.kill()
        process.join()
    if problem:
        raise InputError(problem)
    return result


def _measure(sender: Any, measure: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """In its own process: sends the result, or the sentence of an InputError."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was begun is cleared away
    try:
        sender.send((measure(*arguments), ""))
    except InputError as error:
        sender.send((None, str(error)))
    except KeyboardInterrupt:  # which whoever waits for this meets as well
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is on its way out
