"""One run a folder: while a run writes below a folder, no other may.

The lock is the system's own, on the folder itself, so that it leaves no file and ends with its process however that
ends. Where a system or file system has no such lock, nothing is checked. Read `output.py` for what is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from splatscope.kernels.errors import InputError


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Makes the folder and holds it. Raises InputError if another run does.

    A folder that cannot be made or opened is not held; whoever writes there first says why.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    held = None
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder, os.O_RDONLY)
    try:
        if held is not None:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    f"Another run is writing to {folder}; give another --out, or wait until that one is over."
                ) from error
            except OSError:  # a file system without locks
                pass
        yield
    finally:
        if held is not None:
            os.close(held)
