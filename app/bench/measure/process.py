"""Measurements that each have a process of their own.

So one finds nothing warm but what lies on disk, its peak of memory and its clock since the start of the process are its
own, and it is what a person meets who gives one command. Whatever goes wrong there is a sentence here. Who asks:
`bench/runs.py`, `bench/train.py`.
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
    """What `measure`, a function of a module, returns there. Raises InputError if it fails, or if its process ends
    early."""
    context = multiprocessing.get_context("spawn")  # a GPU's context does not survive a fork
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(sender, measure, arguments), daemon=True)
    process.start()
    sender.close()  # ours: the pipe ends when the process does
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
    """In its own process: sends the result, or a sentence that says why there is none."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was begun is cleared away
    result, problem = None, ""
    try:
        result = measure(*arguments)
    except InputError as error:
        problem = str(error)
    except Exception as error:
        problem = _sentence(error)
    except KeyboardInterrupt:  # which whoever waits for this meets as well
        return
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is on its way out, and is ended once it has told
    sender.send((result, problem))


def _sentence(error: Exception) -> str:
    """What failed and where, as far as that is ours: "RuntimeError at training/steps/host.py, line 12: no room"."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if PACKAGE in Path(frame.filename).parents] or frames
    place = Path(ours[-1].filename)
    where = place.relative_to(PACKAGE).as_posix() if PACKAGE in place.parents else place.name
    said = (str(error).strip().splitlines() or ["without a word"])[0]
    return f"{type(error).__name__} at {where}, line {ours[-1].lineno}: {said.rstrip('.')[:300]}."


def _how(code: int | None) -> str:
    """What a process ended by that did not say anything."""
    if code is None or code >= 0:
        return f"with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"by {name}" + (", as when the memory does not suffice" if name == "SIGKILL" else "")
