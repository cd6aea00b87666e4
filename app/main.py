"""The command `splatscope`: parse, dispatch, and turn an InputError into one sentence and exit status 2.

This is the page to read first. `cli.py` declares the options of each subcommand, `commands.py` carries
them out; `engine.py` is the thread that owns the model while a window is open.
"""

from __future__ import annotations

import io
import signal
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from splatscope.kernels.errors import InputError


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command line; returns normally on success and raises SystemExit otherwise."""
    for stream in (sys.stdout, sys.stderr):  # names of files may be in no encoding; they are shown as far as possible
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    ends = [signal.SIGTERM]
    if sys.platform != "win32":
        ends.append(signal.SIGHUP)  # a terminal was closed; nohup has it ignored
    for number in ends if threading.current_thread() is threading.main_thread() else ():
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)  # as Ctrl-C: what was begun is cleared away
    try:
        _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()  # a full disk under `> file` is noticed here
    except InputError as error:
        _give_up(str(error))
    except MemoryError as error:
        detail = f" ({error})" if str(error) else ""
        _give_up(f"There is not enough memory for this{detail}; use a smaller size.")
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        raise SystemExit(1) from None
    except OSError as error:  # whatever the system refuses, wherever that is noticed
        where = f"{str(error.filename)[:300]} cannot be used: " if error.filename else ""
        reason = error.strerror or "the system refused it"
        _give_up(f"{where}{reason}. Give another path, or see to its permissions and its disk.")
    except KeyboardInterrupt:
        print("splatscope: stopped.", file=sys.stderr)
        raise SystemExit(130) from None


def _run(arguments: list[str]) -> None:
    # Nothing is imported above but the error: `--version` and `--help` must answer at once.
    if arguments == ["--version"]:
        from importlib.metadata import version

        print(f"splatscope {version('splatscope')}")
        return
    from splatscope.app.cli import parse

    options = parse(arguments)
    from splatscope.app.commands import run

    run(options)


def _give_up(sentence: str) -> NoReturn:
    print(f"splatscope: {sentence}", file=sys.stderr)
    raise SystemExit(2) from None
