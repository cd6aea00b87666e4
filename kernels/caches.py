"""The user's cache: folders for what can be made again, which belong to this user alone.

Compiled kernels are code, so whoever can write there can do what this user can: a folder of somebody else is refused,
and what lies in one that others could write to is not run.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

import platformdirs

_PRIVATE = 0o700
_OTHERS_WRITE = 0o022


def cache_folder(name: str = "") -> Path:
    """Returns a folder of the user's cache by its name, made if need be. Raises OSError as `private_folder`."""
    cache = private_folder(cache_path())
    return private_folder(cache / name) if name else cache


def cache_path() -> Path:
    """Returns where the user's cache is; XDG_CACHE_HOME names another place on Linux."""
    return Path(platformdirs.user_cache_dir("splatscope", appauthor=False))


def private_folder(path: Path) -> Path:
    """Makes a folder that is closed to others whatever the umask is, and the folders above it; returns it.

    Raises OSError if that cannot be, or if the folder is somebody else's.
    """
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            with suppress(FileExistsError):  # another process was faster
                folder.mkdir(_PRIVATE)
    if hasattr(os, "geteuid"):  # Windows keeps a user's folders apart itself
        facts = path.stat()
        if facts.st_uid != os.geteuid():
            raise PermissionError(errno.EACCES, "it belongs to another user", str(path))
        if facts.st_mode & 0o077:
            path.chmod(_PRIVATE)
        if path.stat().st_mode & _OTHERS_WRITE:
            raise PermissionError(errno.EACCES, "its file system lets every user write to it", str(path))
    return path


def code_folder(path: Path) -> Path:
    """Makes a `private_folder` for code that will be run: emptied if others could write to it until now."""
    if hasattr(os, "geteuid") and path.is_dir():
        facts = path.stat()
        if facts.st_uid == os.geteuid() and facts.st_mode & _OTHERS_WRITE:
            shutil.rmtree(path)
    return private_folder(path)
