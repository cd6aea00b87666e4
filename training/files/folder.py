"""Looks into the folder of a run, and keeps two runs from writing to it at once.

The lock is the system's own, on the folder itself, so it leaves no file and ends with its process, however that ends.
Where a system or file system has no such lock, nothing is checked. Read `output.py` for what is written.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from splatscope.assets.trained.model_folder import iterations
from splatscope.kernels.errors import InputError

FOLDER = "checkpoints"


def checkpoints(out_dir: Path) -> dict[int, Path]:
    """Returns the files of a run's checkpoints by iteration, lowest first; empty if there are none."""
    found = {}
    for path in (out_dir / FOLDER).glob("iteration_*.pt"):
        number = re.fullmatch(r"iteration_(\d{1,12})", path.stem)
        if number:
            found[int(number[1])] = path
    return dict(sorted(found.items()))


def run_of(checkpoint: Path) -> Path | None:
    """Returns the folder of the run that a checkpoint lies in; None if the file was moved out of it."""
    parent = checkpoint.absolute().parent
    return parent.parent if parent.name == FOLDER else None


def newest_iteration(out_dir: Path) -> int:
    """Returns the iteration of the newest checkpoint below a run's folder; 0 if there is none."""
    return max(checkpoints(out_dir), default=0)


def holdings(folder: Path) -> str:
    """Names an earlier run's files in a folder: "a trained model", "checkpoints up to iteration 200", or nothing."""
    if iterations(folder):
        return "a trained model"
    newest = newest_iteration(folder)
    return f"checkpoints up to iteration {newest:,}" if newest else ""


def newest_on_disk(out_dir: Path) -> str:
    """Returns a sentence about the newest state on disk that a run can continue from."""
    stored = {**iterations(out_dir), **checkpoints(out_dir)}  # the checkpoint where an iteration has both
    if not stored:
        return "Nothing of the run is on disk."
    newest = max(stored)
    return f"On disk is iteration {newest:,}: {resume_line(stored[newest])}"


def resume_line(path: Path, settings: tuple[str, ...] = ()) -> str:
    """Returns the command that continues from a run's folder or one of its files, with other settings (NAME=VALUE) if
    given."""
    changes = f" --set {' '.join(settings)}" if settings else ""
    return f"splatscope train --resume {shlex.quote(str(path))}{changes}"


class FolderLock:
    """Keeps other runs out of a folder. Any thread may renew it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: int | None = None  # the open folder
        self._is_wanted = False  # it was held once and has not been released
        self._mine = Lock()

    def take(self) -> None:
        """Makes the folder and holds it. Raises InputError if another run holds it. A folder that cannot be made or
        opened is not held; the first write there reports why."""
        try:
            import fcntl
        except ImportError:  # Windows
            return
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            held = os.open(self._folder, os.O_RDONLY)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(held)
                raise InputError(
                    f"Another run is writing to {self._folder}; give another --out, or wait until that run is over."
                ) from error
            except OSError:  # a file system without locks
                pass
            self._held, self._is_wanted = held, True

    def renew(self) -> None:
        """Holds the folder of that name again if the folder that was held has been removed. Raises as `take`."""
        with self._mine:
            if not self._is_wanted or (self._held is not None and self._is_there(self._held)):
                return
            self._close()
            self.take()

    def release(self) -> None:
        """Lets other runs write there."""
        with self._mine:
            self._is_wanted = False
            self._close()

    def _close(self) -> None:
        if self._held is not None:
            os.close(self._held)
        self._held = None

    def _is_there(self, held: int) -> bool:
        try:
            return os.path.samestat(os.fstat(held), os.stat(self._folder))
        except OSError:
            return False


@contextmanager
def only_writer(folder: Path) -> Iterator[FolderLock]:
    """Holds the folder meanwhile. Raises InputError if another run holds it."""
    lock = FolderLock(folder)
    lock.take()
    try:
        yield lock
    finally:
        lock.release()
