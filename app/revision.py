"""Finds the commit of this source: from git, or as written here by `git archive` (see .gitattributes)."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

_ARCHIVED = "$Format:%h$"  # the commit's name in an archive


def revision() -> str | None:
    """Returns the commit, with a plus where the source was edited or, in an archive, may have been; None if
    not known.
    """
    root = Path(__file__).resolve().parents[1]
    with suppress(OSError, subprocess.CalledProcessError):
        if Path(_git(root, "rev-parse", "--show-toplevel")) == root:
            return _git(root, "rev-parse", "--short=12", "HEAD") + ("+" if _git(root, "status", "--porcelain") else "")
    return None if "$" in _ARCHIVED else f"{_ARCHIVED}+"


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()
