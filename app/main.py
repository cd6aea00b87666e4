"""Runs the command `splatscope`: parses, dispatches, and turns any ending into a status and at most one sentence.

This is the page to read first. Read next:

- `app/options/subcommands.py` declares the options of each subcommand.
- `app/commands/dispatch.py` finds the file in `app/commands/` that carries a subcommand out.
- `app/open_window.py` makes the window and its engine.
- `app/engine/engine.py` is the thread that owns the model while a window is open; the first lines of
  `app/engine/__init__.py` follow one frame to the screen.
- `app/run/headless.py` trains without a window; `training/trainer.py` is the training loop.

| status | ending |
|---|---|
| 0 | everything is done, even if nobody was left to read the output |
| 1 | the output was the only purpose (doctor, --help, --version) and could not be written |
| 2 | an InputError: the sentence on standard error says what is wrong and what to do |
| 130 | stopped by Ctrl-C, a terminate signal or the end of the terminal; a run is saved |
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from splatscope.app.stop_request import (
    SENTENCE,
    STOPPED,
    ignore_requests,
    leave_when_asked,
    raise_when_asked,
    was_asked,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command line; returns normally on success and raises SystemExit otherwise.

    Without arguments this is the program, which also prepares its streams and signals.
    """
    status = _program(sys.argv[1:]) if arguments is None else _run_to_status(arguments)
    if status:
        raise SystemExit(status)


def _program(arguments: Sequence[str]) -> int:
    leave_when_asked()  # nothing has begun yet; as little as possible is imported before this line
    import atexit

    from splatscope.app.lasting_output import keep_output, tell_remarks

    atexit.register(ignore_requests)  # while Python shuts down: a signal would print a traceback
    output = keep_output()
    tell_remarks()
    status = _run_to_status(arguments, is_program=True)
    leave_when_asked(status)  # everything is printed
    if was_asked():  # threads are at work: Python would wait for them or crash on them
        os._exit(status)
    if status == 0 and output.trouble is not None and _only_prints(arguments):
        if not isinstance(output.trouble, BrokenPipeError):  # `| head` has read what it wanted
            _say(f"The output cannot be written: {output.trouble.strerror}.")
        return 1
    return status


def _only_prints(arguments: Sequence[str]) -> bool:
    """Returns True if printing is the only purpose of a command line."""
    return arguments[:1] == ["doctor"] or not {"--version", "--help", "-h"}.isdisjoint(arguments)


def _run_to_status(arguments: Sequence[str], is_program: bool = False) -> int:
    """Runs the command line and prints why it ended; returns its status."""
    from splatscope.kernels.errors import InputError
    from splatscope.kernels.wording import printable

    try:
        _run(list(arguments), is_program)
    except SystemExit as end:  # help, a usage error, the end of a run that is saved
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 2
    except InputError as error:
        return _say(str(error))
    except MemoryError as error:
        detail = f" ({error})" if str(error) else ""
        return _say(f"There is not enough memory for this{detail}; use a smaller size.")
    except OSError as error:  # the system has refused something, anywhere
        where = f"{error.filename} cannot be used: " if error.filename else ""
        reason = error.strerror or "the system refused it"
        return _say(printable(f"{where}{reason}. Give another path, or check its permissions and its disk."))
    except BaseException as error:
        # A library that is interrupted while it loads may raise an error of its own.
        if not isinstance(error, KeyboardInterrupt) and not was_asked():
            raise
        print(SENTENCE, file=sys.stderr)
        return STOPPED
    return 0


def _run(arguments: list[str], is_program: bool) -> None:
    if arguments == ["--version"]:
        from importlib.metadata import version

        print(f"splatscope {version('splatscope')}")
        return
    from splatscope.app.options.subcommands import parse

    options = parse(arguments)
    from splatscope.app.commands.dispatch import run

    if is_program:
        raise_when_asked()
    run(options)


def _say(sentence: str) -> int:
    """Prints what is wrong; returns the status of a command line that cannot be carried out."""
    print(f"splatscope: {sentence}", file=sys.stderr)
    return 2
