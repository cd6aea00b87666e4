"""How CPU kernels are compiled and cached. Import this before defining a kernel.

Importing it names the cache folder (numba looks only at the file a kernel is defined in, so an edit in a
function called from another file would run a stale binary: the folder carries a hash of all our kernel
sources instead). Nothing is compiled here. How kernels share threads is in `thread_pool.py`; read `lanes.py` next.
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

UNUSED_DAYS = 14  # after which compiled kernels of other versions go

_HERE = Path(__file__).parent


def source_hash(folder: Path = _HERE) -> str:
    """Hash of every CPU kernel source, the constants they are compiled with, and numba's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in [*sorted(folder.glob("*.py")), folder.parent / "constants.py"]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def kernel_folder() -> Path:
    """Returns a folder for compiled kernels: NUMBA_CACHE_DIR or the user's cache; where that cannot be used or others
    can write to it, one of temporary files, of which a `Remark` tells."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    try:
        return _folder_of_version(Path(named) if named else cache_folder())
    except OSError as error:
        reason = f"{error.filename or named or cache_path()} cannot be used: {error.strerror}"
    try:
        folder = _folder_of_version(private_folder(Path(tempfile.gettempdir()) / f"splatscope-{_user()}"))
        remark = f"Compiled kernels are kept in {folder}"
    except OSError:  # somebody else has taken that name
        folder = Path(tempfile.mkdtemp(prefix="splatscope-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        remark = "Kernels are compiled again each time"
    warnings.warn(Remark(f"{remark}, because {reason}. NUMBA_CACHE_DIR names another folder for them."), stacklevel=2)
    return folder


def _user() -> str:
    return str(os.geteuid()) if hasattr(os, "geteuid") else getpass.getuser()


def _folder_of_version(base: Path) -> Path:
    folder = base / f"kernels-{source_hash()}"
    if not folder.is_dir():  # another version: kernels of earlier ones are not needed any more
        remove_unused(base, keep=folder.name)
    with tempfile.TemporaryFile(dir=code_folder(folder)):
        os.utime(folder)
    return folder


def remove_unused(base: Path, keep: str) -> None:
    """Removes folders of compiled kernels that no process has begun with for `UNUSED_DAYS`."""
    for folder in base.glob("kernels-*"):
        with suppress(OSError):
            if folder.name != keep and time.time() - folder.stat().st_mtime > UNUSED_DAYS * 86400:
                shutil.rmtree(folder)


config.CACHE_DIR = str(kernel_folder())  # pyright: ignore[reportAttributeAccessIssue]
# The crew asks numba how many threads to use, and numba then starts its own. Those of workqueue sleep.
config.THREADING_LAYER_PRIORITY = ["workqueue", "omp", "tbb"]  # pyright: ignore[reportAttributeAccessIssue]

# Division by zero gives infinity as in NumPy; no fast-math: results must not depend on code placement. Arrays
# are not reference-counted (an option of numba's own, hence the underscore): with counts, each array passed to
# a helper or sliced costs two locked instructions, which made blending half as slow again. Such code cannot
# allocate; all its memory comes from the caller.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False, "_nrt": False}


def inline(function: Any) -> Any:
    """A helper that is compiled into each of its callers, which must be a `kernel` or another helper."""
    return numba.njit(forceinline=True, **_OPTIONS)(function)


def kernel(function: Any) -> Any:
    """A kernel called from Python: on one thread, or by the crew on several. It cannot allocate."""
    return numba.njit(cache=True, **_OPTIONS)(function)
