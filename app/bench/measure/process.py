"""Runs each measurement in a process of its own.

So a measurement finds nothing warm except files on disk, and its peak of memory and its clock since the start of the
process are its own: it measures a command as a person would give it. A failure there becomes a sentence here. Used by
`bench/runs.py` and `bench/train.py`.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from splatscope.kernels.errors import InputError

T = TypeVar("T")
PACKAGE = Path(__file__).resolve().parents[3]


def in_a_process(measure: Callable[..., T], *arguments: Any) -> T:
    """Returns the result of `measure`, a function of a module, called in a new process.

    Raises InputError if it fails, or if its process ends early.
    """
    context = multiprocessing.get_context("spawn")  # a GPU's context does not survive a fork
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(sender, measure, arguments), daemon=True)
    process.start()
    sender.close()  # our end, so that the pipe ends when the process does
    try:
        result, problem = receiver.recv()
    except EOFError:
        process.join(10)
        raise InputError(f"The measurement ended early, {_how(process.exitcode)}.") from None
    finally:
        process.terminate()
        process.join(10)
        process.kill()
        process.join()
    if problem:
        raise InputError(problem)
    return result


def _measure(sender: Any, measure: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Sends the result from its own process, or a sentence that says why there is none."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was begun is cleared away
    result, problem = None, ""
    try:
        result = measure(*arguments)
    except InputError as error:
        problem = str(error)
    except Exception as error:
        problem = _sentence(error)
    except KeyboardInterrupt:  # the process that waits for this one gets it as well
        return
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # this process ends by itself, and is ended once it has sent
    sender.send((result, problem))


def _sentence(error: Exception) -> str:
    """Says which error failed where in our code: "RuntimeError at training/steps/host.py, line 12: no room"."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if PACKAGE in Path(frame.filename).parents] or frames
    place = Path(ours[-1].filename)
    where = place.relative_to(PACKAGE).as_posix() if PACKAGE in place.parents else place.name
    said = (str(error).strip().splitlines() or ["without a word"])[0]
    return f"{type(error).__name__} at {where}, line {ours[-1].lineno}: {said.rstrip('.')[:300]}."


def _how(code: int | None) -> str:
    """Says how a process ended that sent nothing."""
    if code is None or code >= 0:
        return f"with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"by {name}" + (", as when the memory does not suffice" if name == "SIGKILL" else "")
