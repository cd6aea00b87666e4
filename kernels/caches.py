"""Makes folders of the user's cache, for files that can be made again. Only this user may write to them.

Compiled kernels are code: whoever can write to their folder can run code as this user. A folder of another user is
therefore refused, and code in a folder that others could write to is not run.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

import platformdirs

_PRIVATE = 0o700
_OTHERS_WRITE = 0o022


def cache_folder(name: str = "") -> Path:
    """Returns the named folder of the user's cache; makes it if it is missing. Raises OSError as `private_folder`."""
    cache = private_folder(cache_path())
    return private_folder(cache / name) if name else cache


def cache_path() -> Path:
    """Returns where the user's cache is. XDG_CACHE_HOME moves it on Linux."""
    return Path(platformdirs.user_cache_dir("splatscope", appauthor=False))


def private_folder(path: Path) -> Path:
    """Makes a folder that is closed to others whatever the umask is, and the folders above it; returns it.

    A link is followed if it belongs to this user, but the folder it leads to is not changed. Raises OSError if the
    folder cannot be made, if it belongs to another user, or if others could replace it.
    """
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            with suppress(FileExistsError):  # another process was faster
                folder.mkdir(_PRIVATE)
    if hasattr(os, "geteuid"):  # Windows itself closes a user's folders to others
        if {path.lstat().st_uid, path.stat().st_uid} != {os.geteuid()}:
            raise PermissionError(errno.EACCES, "it belongs to another user", str(path))
        above = path.parent.stat()
        if above.st_uid not in (0, os.geteuid()) or (above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX):
            raise PermissionError(errno.EACCES, "another user may write to the folder above it", str(path))
        if path.stat().st_mode & 0o077 and not path.is_symlink():
            path.chmod(_PRIVATE)
        if path.stat().st_mode & _OTHERS_WRITE:
            raise PermissionError(errno.EACCES, "its file system lets every user write to it", str(path))
    return path


def code_folder(path: Path) -> Path:
    """Makes a `private_folder` for code that will be run. Empties it first if others could write to it."""
    if hasattr(os, "geteuid") and path.is_dir():
        facts = path.stat()
        if facts.st_uid == os.geteuid() and facts.st_mode & _OTHERS_WRITE:
            shutil.rmtree(path)
    return private_folder(path)
