"""Defines the exception whose text is written for the user.

Raise it for anything that a person can correct: a file of the wrong kind, an option out of range, a folder that cannot
be written. The text is one or two plain sentences: what is wrong, where, what was allowed, what was found, what to do.
The command line prints it and exits with status 2; the window shows it. Every other exception is a defect of ours and
keeps its traceback.
"""

from __future__ import annotations

from splatscope.kernels.wording import printable


class InputError(Exception):
    """Reports an input that cannot be used. The message says what is wrong, where, and what to do.

    `str` makes it one printable line, whatever names and values from files it quotes.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class NoRoomError(InputError):
    """Reports that a device has no memory left. A caller that can do without the allocation may continue."""


class Remark(UserWarning):
    """Warns that something works differently than expected; the command line prints it."""
