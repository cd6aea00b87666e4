"""Compiles and caches CPU kernels. Import this before defining a kernel.

Importing it names the cache folder, with a hash of all our kernel sources in its name. numba itself checks only the
file that defines a kernel, so after an edit in a function called from another file it would run a stale binary.
Importing compiles nothing. `thread_pool.py` shares a kernel among threads; read `lanes.py` next.
"""

from __future__ import annotations

import atexit
import getpass
import hashlib
import os
import shutil
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba.core import config

from splatscope.kernels.caches import cache_folder, cache_path, code_folder, private_folder
from splatscope.kernels.errors import Remark

UNUSED_DAYS = 14  # after which compiled kernels of other versions are removed

_HERE = Path(__file__).parent


def source_hash(folder: Path = _HERE) -> str:
    """Returns a hash of every CPU kernel source, the constants they are compiled with, and numba's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in [*sorted(folder.glob("*.py")), folder.parent / "constants.py"]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def kernel_folder() -> Path:
    """Returns a folder for compiled kernels: NUMBA_CACHE_DIR or the user's cache.

    If that cannot be used, or others can write to it, returns a temporary folder and tells so by a `Remark`.
    """
    named = os.environ.get("NUMBA_CACHE_DIR")
    try:
        return _folder_of_version(Path(named) if named else cache_folder())
    except OSError as error:
        reason = f"{error.filename or named or cache_path()} cannot be used: {error.strerror}"
    try:
        folder = _folder_of_version(private_folder(Path(tempfile.gettempdir()) / f"splatscope-{_user()}"))
        remark = f"Compiled kernels are kept in {folder}"
    except OSError:  # another user has taken that name
        folder = Path(tempfile.mkdtemp(prefix="splatscope-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        remark = "Kernels are compiled again each time"
    warnings.warn(Remark(f"{remark}, because {reason}. NUMBA_CACHE_DIR names another folder for them."), stacklevel=2)
    return folder


def _user() -> str:
    return str(os.geteuid()) if hasattr(os, "geteuid") else getpass.getuser()


def _folder_of_version(base: Path) -> Path:
    folder = base / f"kernels-{source_hash()}"
    if not folder.is_dir():  # a new version: kernels of earlier ones are no longer needed
        remove_unused(base, keep=folder.name)
    with tempfile.TemporaryFile(dir=code_folder(folder)):
        os.utime(folder)
    return folder


def remove_unused(base: Path, keep: str) -> None:
    """Removes folders of compiled kernels that no process has used for `UNUSED_DAYS`."""
    for folder in base.glob("kernels-*"):
        with suppress(OSError):
            if folder.name != keep and time.time() - folder.stat().st_mtime > UNUSED_DAYS * 86400:
                shutil.rmtree(folder)


config.CACHE_DIR = str(kernel_folder())  # pyright: ignore[reportAttributeAccessIssue]
# The thread pool asks numba how many threads to use, and numba then starts its own. Threads of workqueue sleep.
config.THREADING_LAYER_PRIORITY = ["workqueue", "omp", "tbb"]  # pyright: ignore[reportAttributeAccessIssue]

# Division by zero gives infinity as in NumPy. No fast-math: results must not depend on code placement. Arrays
# are not reference-counted (an option of numba's own, hence the underscore): with counts, each array passed to
# a helper or sliced costs two locked instructions, which made blending half as slow again. Such code cannot
# allocate; all its memory comes from the caller.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False, "_nrt": False}


def inline(function: Any) -> Any:
    """Marks a helper that is compiled into each of its callers, which must be a `kernel` or another helper."""
    return numba.njit(forceinline=True, **_OPTIONS)(function)


def kernel(function: Any) -> Any:
    """Marks a kernel that is called from Python, on one thread or by the thread pool on several. It cannot allocate."""
    return numba.njit(cache=True, **_OPTIONS)(function)
