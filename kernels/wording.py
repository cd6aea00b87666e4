"""Formats counts, sizes, durations and texts from files for people."""

from __future__ import annotations

import re

_LONGEST = 2000  # characters of a printable text


def counted(number: int, one: str, many: str = "") -> str:
    """Returns "1 view", "12 views", "1,200 splats". `many` is the plural if it is not `one` and an s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def byte_size(count: float) -> str:
    """Returns "12 MiB", "2.2 GiB", "140 GiB"."""
    mebibytes = count / 2**20
    if mebibytes < 1023.5:
        return f"{mebibytes:.0f} MiB" if mebibytes >= 1 or count == 0 else "1 MiB"
    gibibytes = mebibytes / 1024
    return f"{gibibytes:.1f} GiB" if gibibytes < 99.95 else f"{gibibytes:.0f} GiB"


def duration(seconds: float) -> str:
    """Returns "8.5 ms", "350 ms", "1.4 s", "40 s", "12 min", "3 h 20 min"."""
    if seconds < 0.9995:
        return f"{1e3 * seconds:.1f} ms" if seconds < 0.00995 else f"{1e3 * seconds:.0f} ms"
    if seconds < 89.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


# Characters that control terminals, line breaks and text direction, and characters that no encoding can write. Joiners
# are allowed: some scripts need them.
_DISTURBING = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
_NO_FILE_NAME = re.compile(r"[^\s/\\]{256,}")  # no system allows names this long


def printable(text: str) -> str:
    """Returns a text as one line that is safe to print or to write into a file of lines, whatever it contains.

    Control characters become visible escapes; a name of more than 255 characters, and a text of more than 2,000, are
    shortened in the middle. A text that is printable already stays as it is.
    """
    text = _DISTURBING.sub(lambda found: repr(found[0])[1:-1], text)
    text = _NO_FILE_NAME.sub(lambda found: _shortened(found[0], 200), text)
    return _shortened(text, _LONGEST) if len(text) > _LONGEST else text


def _shortened(text: str, length: int) -> str:
    half = length // 2
    return f"{text[:half]}…{text[len(text) - half + 1 :]}"
