"""Recognises Git LFS pointers: a few lines of text that a clone without `git lfs pull` has in place of a large file."""

from __future__ import annotations

from pathlib import Path

LFS_SENTENCE = "it is a Git LFS pointer, not the file itself. Fetch the file with 'git lfs pull'."


def lfs_pointer(start: bytes) -> bool:
    """Returns True if the first bytes of a file are those of a Git LFS pointer."""
    return start.lstrip().startswith(b"version https://git-lfs")


def starts(file: Path, count: int = 1 << 12) -> bytes:
    """Returns the first bytes of a file, or none if it cannot be read."""
    try:
        if not file.is_file():
            return b""
        with open(file, "rb") as opened:
            return opened.read(count)
    except (OSError, ValueError):
        return b""
