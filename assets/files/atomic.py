"""Writing files so that nobody ever meets half of one: under a temporary name, then renamed.

It does not decide what is written. Every writer in this folder goes through it; `splats/ply.py` shows how.
"""

from __future__ import annotations

import errno
import glob
import itertools
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from splatscope.kernels.errors import InputError

ABANDONED_SECONDS = 60.0  # since something was written to a temporary file of a process that is gone

_numbers = itertools.count()  # so that no two temporary files of a process share a name
_REASONS = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EDQUOT: "your disk quota is used up; free some space or choose another folder",
    errno.EFBIG: "the file would be larger than this file system allows; choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "you may not write there; choose another folder or change its permissions",
    errno.EPERM: "you may not write there; choose another folder or change its permissions",
    errno.EISDIR: "a folder of that name is in the way; move it away or choose another name",
    errno.ENOTDIR: "a part of the path is a file, not a folder; move it away or choose another path",
    errno.EEXIST: "a part of the path is a file, not a folder; move it away or choose another path",
    errno.ENOENT: "the folder does not exist and cannot be made; choose another path",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    errno.ELOOP: "a link there leads back to itself; choose another path",
    errno.EIO: "the disk reported an error; choose another disk",
}


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yields a temporary path beside `path`; renamed to `path` on success, removed on failure.

    The temporary name keeps the suffix, so writers that look at it behave. Missing folders are made, and removed again
    if they stay empty.
    Raises InputError if the folder cannot be written or the disk is full.
    """
    path = Path(path)
    temporary = _temporary(path)
    made: list[Path] = []  # folders, innermost first
    try:
        made = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        while temporary.exists():  # left by a process that had the same number
            temporary = _temporary(path)
        temporary.touch(exist_ok=False)  # fails here rather than after a minute of work
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        ours = {str(place) for place in (temporary, *path.parents)}
        if error.filename is not None and str(error.filename) not in ours:
            raise  # the caller failed to read something else: not ours to explain
        reason = _REASONS.get(error.errno or 0, "the system refused it; choose another folder")
        raise InputError(f"{path} cannot be written: {reason}.") from error
    finally:
        with suppress(OSError):  # gone already, or never made
            temporary.unlink()
        with suppress(OSError):  # what was made for a file that is there, or another one by now
            for folder in made:
                folder.rmdir()


def _temporary(path: Path) -> Path:
    """A name beside `path` that tells which process writes there."""
    token = f"{os.getpid() & 0xFFFFFF:06x}{next(_numbers) & 0xFF:02x}"
    return path.with_name(f".{path.stem[:80]}.{token}{path.suffix}")


def _remove_abandoned(path: Path) -> None:
    """Removes temporary files for `path` that killed processes have left."""
    pattern = re.compile(rf"\.{re.escape(path.stem[:80])}\.([0-9a-f]{{6}})[0-9a-f]{{2}}{re.escape(path.suffix)}")
    for other in path.parent.glob(f".{glob.escape(path.stem[:80])}.????????{glob.escape(path.suffix)}"):
        match = pattern.fullmatch(other.name)
        with suppress(OSError):
            is_old = time.time() - other.stat().st_mtime > ABANDONED_SECONDS
            if match and is_old and not is_running(int(match[1], 16)):
                other.unlink()


def is_running(process: int) -> bool:
    """Returns True if this machine runs a process of that number. A file on a shared disk is young while another
    machine writes it."""
    if sys.platform == "win32":  # where asking would end it
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody else's
        return True
    return True
