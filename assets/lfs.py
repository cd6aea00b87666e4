"""Git LFS pointers: the few lines of text that a clone without `git lfs pull` has where a large file should be."""

from __future__ import annotations

LFS_SENTENCE = "it is a Git LFS pointer, not the file itself. Fetch the file with 'git lfs pull'."


def lfs_pointer(start: bytes) -> bool:
    """Returns True if the first bytes of a file are those of a Git LFS pointer."""
    return start.lstrip().startswith(b"version https://git-lfs")
