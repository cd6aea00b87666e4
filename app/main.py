"""The command `splatscope`: parse, dispatch, and turn whatever ends it into a status and at most one sentence.

This is the page to read first. `options/subcommands.py` declares the options of each subcommand, `commands/dispatch.py`
carries them out; `engine/engine.py` is the thread that owns the model while a window is open.

| status | ending |
|---|---|
| 0 | everything is done, also where nobody was left to read what was printed |
| 1 | the output was all that was asked for (doctor, --help, --version) and could not be written |
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

    Without arguments this is the program, which sees to its streams and signals.
    """
    status = _program(sys.argv[1:]) if arguments is None else _ended(arguments)
    if status:
        raise SystemExit(status)


def _program(arguments: Sequence[str]) -> int:
    leave_when_asked()  # nothing has begun, and as little as possible is imported above
    import atexit

    from splatscope.app.lasting_output import keep_output, tell_remarks

    atexit.register(ignore_requests)  # while Python takes itself down, which it would do with a traceback
    output = keep_output()
    tell_remarks()
    status = _ended(arguments, is_program=True)
    leave_when_asked(status)  # everything is said
    if was_asked():  # threads are in the middle of something, and Python would wait for them or crash on them
        os._exit(status)
    if status == 0 and output.trouble is not None and _is_told(arguments):
        if not isinstance(output.trouble, BrokenPipeError):  # `| head` has read what it wanted
            _say(f"The output cannot be written: {output.trouble.strerror}.")
        return 1
    return status


def _is_told(arguments: Sequence[str]) -> bool:
    """True of a command line whose output is all that it makes."""
    return arguments[:1] == ["doctor"] or not {"--version", "--help", "-h"}.isdisjoint(arguments)


def _ended(arguments: Sequence[str], is_program: bool = False) -> int:
    """Runs the command line; returns the status of its ending, once that is said."""
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
    except OSError as error:  # whatever the system refuses, wherever that is noticed
        where = f"{error.filename} cannot be used: " if error.filename else ""
        reason = error.strerror or "the system refused it"
        return _say(printable(f"{where}{reason}. Give another path, or see to its permissions and its disk."))
    except BaseException as error:
        # A library that is interrupted while it loads may say so by an error of its own.
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
    """Says what is wrong; returns the status of a command line that cannot be carried out."""
    print(f"splatscope: {sentence}", file=sys.stderr)
    return 2
