"""The one exception whose text is written for the user.

Raise it for anything a person can put right: a file that is not what it should be, an option out of
range, a folder that cannot be written. The text is one or two plain sentences: what, where, what was
allowed, what was found, what to do. The command line prints it and exits with status 2; the window
shows it. Every other exception is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

from splatscope.kernels.wording import printable


class InputError(Exception):
    """Something the user handed us cannot be used; the message says what, where and what to do. As text it is one
    line, whatever names and values from files it quotes."""

    def __str__(self) -> str:
        return printable(super().__str__())


class NoRoomError(InputError):
    """A device has no memory left for something; whoever can do without it may go on."""


class Remark(UserWarning):
    """A sentence about something that works in another way than it should; the command line prints it."""
