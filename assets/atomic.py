"""Writing files so that nobody ever meets half of one: under a temporary name, then renamed.

It does not decide what is written. Every writer in this folder goes through it; `ply.py` shows how.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from splatscope.kernels.errors import InputError

_REASONS = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EDQUOT: "your disk quota is used up; free some space or choose another folder",
    errno.EFBIG: "the file would be larger than this file system allows; choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "you may not write there; choose another folder or change its permissions",
    errno.EPERM: "you may not write there; choose another folder or change its permissions",
    errno.EISDIR: "a folder of that name is in the way; choose another name",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another path",
    errno.EEXIST: "a part of the path is a file, not a folder; choose another path",
    errno.ENOENT: "the folder does not exist and cannot be made; choose another path",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    errno.EIO: "the disk reported an error; choose another disk",
}


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yields a temporary path beside `path`; renamed to `path` on success, removed on failure.

    The temporary name keeps the suffix, so writers that look at it behave. Missing folders are made.
    Raises InputError if the folder cannot be written or the disk is full.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.stem[:80]}.{secrets.token_hex(4)}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
