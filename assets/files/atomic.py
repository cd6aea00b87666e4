"""Writes files so that nobody ever sees half of one: under a temporary name, then renamed.

Every writer in `assets` uses it; `splats/ply.py` shows how.
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

ABANDONED_SECONDS = 60.0  # age after which a temporary file of a process that is gone is removed

_numbers = itertools.count()  # numbers that keep temporary names of a process apart
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
    """Yields a temporary path next to `path`; renames it to `path` on success, removes it on failure.

    The temporary name keeps the suffix, for writers that depend on it. Missing folders are made, and removed again if
    they stay empty. Raises InputError if the folder cannot be written or the disk is full.
    """
    path = Path(path)
    temporary = _temporary(path)
    made: list[Path] = []  # folders, innermost first
    try:
        made = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        while temporary.exists():  # left by an earlier process of the same number
            temporary = _temporary(path)
        temporary.touch(exist_ok=False)  # fails here, not after a minute of work
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
        with suppress(OSError):  # the folder may hold the file, or another one by now
            for folder in made:
                folder.rmdir()


def _temporary(path: Path) -> Path:
    """Returns a name next to `path` that tells which process writes it."""
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
    """Returns True if this machine runs a process of that number.

    On a shared disk the process may be another machine's: its file is recent while it is written.
    """
    if sys.platform == "win32":  # os.kill would end the process there
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's process
        return True
    return True
