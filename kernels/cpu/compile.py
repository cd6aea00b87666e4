"""Compiles and caches CPU kernels. Import this before defining a kernel.

Importing this module sets numba's cache folder, whose name holds a hash of all our kernel sources. numba itself checks
only the file that defines a kernel: after an edit of a function in another file it would run a stale binary. Importing
compiles nothing. `thread_pool.py` shares a kernel among threads; read `lanes.py` next.
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

UNUSED_DAYS = 14  # days after their last use until compiled kernels of other versions are removed

_HERE = Path(__file__).parent


def source_hash(folder: Path = _HERE) -> str:
    """Returns a hash of every CPU kernel source, the constants they are compiled with, and numba's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in [*sorted(folder.glob("*.py")), folder.parent / "constants.py"]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def kernel_folder() -> Path:
    """Returns a folder for compiled kernels, inside NUMBA_CACHE_DIR or the user's cache.

    If that folder cannot be used, or others can write to it, returns a temporary folder and warns with a `Remark`.
    """
    named = os.environ.get("NUMBA_CACHE_DIR")
    try:
        return _folder_of_version(Path(named) if named else cache_folder())
    except OSError as error:
        reason = f"{error.filename or named or cache_path()} cannot be used: {error.strerror}"
    try:
        folder = _folder_of_version(private_folder(Path(tempfile.gettempdir()) / f"splatscope-{_user()}"))
        remark = f"Compiled kernels are kept in {folder}"
    except OSError:  # another user has a folder of that name
        folder = Path(tempfile.mkdtemp(prefix="splatscope-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        remark = "Kernels are compiled again each time"
    warnings.warn(Remark(f"{remark}, because {reason}. NUMBA_CACHE_DIR names another folder for them."), stacklevel=2)
    return folder


def _user() -> str:
    return str(os.geteuid()) if hasattr(os, "geteuid") else getpass.getuser()


def _folder_of_version(base: Path) -> Path:
    folder = base / f"kernels-{source_hash()}"
    if not folder.is_dir():  # a new version: kernels of earlier versions may be removed
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
# The thread pool asks numba how many threads to use, and numba then starts threads of its own. With the layer
# workqueue they sleep.
config.THREADING_LAYER_PRIORITY = ["workqueue", "omp", "tbb"]  # pyright: ignore[reportAttributeAccessIssue]

# Division by zero gives infinity as in NumPy. No fast-math: results must not depend on code placement. Arrays
# are not reference-counted (`_nrt`, a private option of numba): with counts, each array that is sliced or passed
# to a helper costs two locked instructions, and blending took half as long again. Such code cannot allocate; all
# its memory comes from the caller.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False, "_nrt": False}


def inline(function: Any) -> Any:
    """Marks a helper, which numba compiles into each caller. Only a `kernel` or another helper may call it."""
    return numba.njit(forceinline=True, **_OPTIONS)(function)


def kernel(function: Any) -> Any:
    """Marks a kernel that is called from Python, on one thread or by the thread pool on several. It cannot allocate."""
    return numba.njit(cache=True, **_OPTIONS)(function)
