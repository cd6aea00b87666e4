"""The command `splatscope`: parse, dispatch, and turn an InputError into one sentence and exit status 2.

This is the page to read first. `cli.py` declares the options of each subcommand, `commands.py` carries
them out; `engine.py` is the thread that owns the model while a window is open.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from splatscope.kernels.errors import InputError


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command line; returns normally on success and raises SystemExit otherwise."""
    # Nothing is imported above but the error: `--version` and `--help` must answer at once.
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments == ["--version"]:
        from importlib.metadata import version

        print(f"splatscope {version('splatscope')}")
        return
    from splatscope.app.cli import parse

    options = parse(arguments)
    from splatscope.app.commands import run

    try:
        run(options)
    except InputError as error:
        print(f"splatscope: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except MemoryError as error:
        print(f"splatscope: There is not enough memory for this ({error}); use a smaller size.", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("splatscope: stopped.", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        raise SystemExit(1) from None
