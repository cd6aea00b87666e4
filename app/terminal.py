"""Prints the lines of the command line. Names from files are escaped, so that they cannot control the terminal.

`lasting_output.py` handles output that nobody takes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.progress import TextColumn

from splatscope.kernels.wording import printable


class Terminal(Console):
    """Prints plain lines, whole however narrow the terminal is: brackets and colons in names mean nothing."""

    def __init__(self, width: int | None = None) -> None:
        """Makes a console of `width` characters; the terminal's width unless given."""
        super().__init__(highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints texts, each as `printable` has it; what is no text is rich's own, a bar."""
        super().print(*(printable(text) if isinstance(text, str) else text for text in objects), **options)


def column(template: str) -> TextColumn:
    """Returns a column of a progress bar that shows its text as it is, without markup."""
    return TextColumn(template, markup=False)


def say(lines: Iterable[str]) -> None:
    """Prints lines."""
    for line in lines:
        print(printable(line))


def warn(sentences: Iterable[str]) -> None:
    """Prints warnings to standard error."""
    for sentence in sentences:
        print(f"splatscope: warning: {printable(sentence)}", file=sys.stderr)
