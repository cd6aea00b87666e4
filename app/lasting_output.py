"""Keeps a run alive when nobody takes its output: the terminal is closed, the disk is full, `| head` has read enough.

Streams here take whatever is written to them, and lose it once the system has refused some of it. What has to be done
about that is decided once, at the end of the program (`main.py`).
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
import warnings
from typing import Any

from splatscope.kernels.errors import Remark
from splatscope.kernels.wording import printable


class LastingOutput(io.RawIOBase):
    """Replaces a stream's file and takes everything; `trouble` is why some of it was lost."""

    def __init__(self, raw: io.RawIOBase | None) -> None:
        """Wraps `raw`, where output goes; None if it was closed before the program began."""
        self._raw = raw
        self.trouble = OSError(errno.EBADF, "it is closed") if raw is None else None

    def write(self, data: Any) -> int:
        if self._raw is not None and self.trouble is None:
            try:
                while (written := self._raw.write(data)) is None:  # a full pipe that somebody has set not to block
                    select.select([], [self._raw], [])
                return written
            except OSError as error:
                self.trouble = error
        return len(data)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._raw is not None and self._raw.isatty()

    def fileno(self) -> int:
        return super().fileno() if self._raw is None else self._raw.fileno()


def keep_output() -> LastingOutput:
    """Replaces standard output and standard error by streams that last; returns the file of standard output.

    Names of files may be in no encoding; they are shown as far as possible.
    """
    _occupy_standard_files()
    sys.stdout, output = _lasting(sys.stdout)
    sys.stderr, _ = _lasting(sys.stderr)
    return output


def _lasting(stream: Any) -> tuple[io.TextIOWrapper, LastingOutput]:
    """Returns a stream that lasts. `stream` is one of sys, None if its file was closed."""
    file = LastingOutput(None if stream is None else getattr(stream.buffer, "raw", stream.buffer))  # -u has no buffer
    encoding = "utf-8" if stream is None else stream.encoding
    buffered = io.BufferedWriter(file)
    return io.TextIOWrapper(buffered, encoding, errors="backslashreplace", line_buffering=True), file


def _occupy_standard_files() -> None:
    """Opens the null device in place of closed standard files. Otherwise the next file that is written would get a
    number that libraries print to."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def tell_remarks() -> None:
    """Prints each `Remark` as a warning of ours; what libraries remark is meant for programmers, who ask with -W."""
    if not sys.warnoptions:
        warnings.simplefilter("always", Remark)
        warnings.showwarning = _tell


def _tell(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    if issubclass(category, Remark):
        print(f"splatscope: warning: {printable(str(message))}", file=sys.stderr)
