"""Replaces tables in text files, each between two marks: <!-- bench:KIND --> and <!-- /bench:KIND -->.

Kinds: cpu, cuda, peers, train and schedule.
"""

from __future__ import annotations

import os
from pathlib import Path

from splatscope.assets.files.atomic import atomic_path
from splatscope.kernels.errors import InputError


def check_marks(path: Path, kind: str) -> str:
    """Returns the kind of table that the text file has a place for: `kind`, or "peers" for figures of a GPU.

    Raises InputError if it has no place for either.
    """
    if kind == "cuda":
        try:
            _split_at_marks(path, "peers")
            return "peers"
        except InputError:
            pass  # the usual table then
    _split_at_marks(path, kind)
    return kind


def rewrite_table(path: Path, kind: str, table: str) -> None:
    """Replaces the text between the marks in a text file by the table."""
    before, after = _split_at_marks(path, kind)
    opened, closed = _marks(kind)
    with atomic_path(path) as temporary:
        temporary.write_text(f"{before}{opened}\n{table}\n{closed}{after}", encoding="utf-8")


def _marks(kind: str) -> tuple[str, str]:
    return f"<!-- bench:{kind} -->", f"<!-- /bench:{kind} -->"


def _split_at_marks(path: Path, kind: str) -> tuple[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--readme {path} cannot be read as text.") from error
    first, last = _marks(kind)
    before, opened, rest = text.partition(first)
    _, closed, after = rest.partition(last)
    if not opened or not closed:
        raise InputError(f"--readme {path} has no place for the table: it needs {first} and {last} in it.")
    return before, after


def link_to(path: Path, readme: Path) -> str:
    """Returns the path of a file relative to the folder of a document, as its links name it."""
    return Path(os.path.relpath(path.resolve(), readme.resolve().parent)).as_posix()
