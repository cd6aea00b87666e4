"""Resolves the paths of a capture: which files may be read, and what a path written in one of them means.

A capture may come from anyone. Its files are looked for below its own folder and nowhere else. A path that leads
elsewhere (absolute, or with "..") was mostly written where the capture was before, so its last parts are tried below
the folder.

Links are made by the user and are followed, as `images -> /data/images`, with three limits:
- never into a folder around the one that holds the link (a link to `/` would walk the disk);
- never twice into the same folder;
- a walk that finds too many files ends with an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from splatscope.kernels.errors import InputError

MOST_FILES = 500_000  # below one folder; the largest captures have a tenth


def walk_below(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yields (folder, names of folders, names of files) as `os.walk` does, in order, within the limits above.

    The caller may remove names of folders. Raises InputError for a folder with more than `MOST_FILES` files.
    """
    seen = {os.path.realpath(folder)}
    count = 0
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in sorted(folders) if _is_entered(os.path.join(parent, name), seen)]
        count += len(files) + len(folders)
        if count > MOST_FILES:
            raise InputError(
                f"{folder} holds more than {MOST_FILES:,} files, the last of them in {parent}. Open the folder of one "
                "capture; if a link in it leads to a large part of the disk, remove the link."
            )
        yield Path(parent), folders, sorted(files)


def leads_outside(name: str) -> bool:
    """Returns True for an absolute path of any system, and for one that climbs out of its folder."""
    plain = name.replace("\\", "/")
    return plain.startswith("/") or plain[1:3] == ":/" or os.path.normpath(plain).split(os.sep)[0] == ".."


def lies_outside(folder: Path, name: str) -> bool:
    """Returns True if a capture in `folder` names a file that exists, but not below the folder."""
    return leads_outside(name) and is_file(folder / name)


def file_below(folder: Path, name: str) -> Path | None:
    """Returns the file that a capture in `folder` calls `name`, or None if there is none below the folder."""
    parts = PurePosixPath(os.path.normpath(name.replace("\\", "/"))).parts
    starts = range(len(parts)) if leads_outside(name) else (0,)
    paths = (Path(*parts[start:]) for start in starts)
    return next((folder / path for path in paths if not leads_outside(str(path)) and is_file(folder / path)), None)


def is_file(path: Path) -> bool:
    """Returns True for a file, and False also for text that cannot be a path."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _is_entered(path: str, seen: set[str]) -> bool:
    """Returns False for a link into a folder around it, and for a folder already visited by another name."""
    real = os.path.realpath(path)
    is_around = os.path.islink(path) and os.path.join(os.path.realpath(os.path.dirname(path)), "").startswith(
        os.path.join(real, "")
    )
    before = len(seen)
    if not is_around:
        seen.add(real)
    return len(seen) > before
