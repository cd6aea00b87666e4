"""Numbers of things as people say them. Everything that speaks to people may use it."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """ "1 view", "12 views", "1,200 splats"; `many` where that is not `one` and an s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
