"""Numbers of things as people say them. Everything that speaks to people may use it."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """ "1 view", "12 views", "1,200 splats"; `many` where that is not `one` and an s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def byte_size(count: float) -> str:
    """ "12 MiB", "2.2 GiB", "140 GiB"."""
    mebibytes = count / 2**20
    if mebibytes < 1023.5:
        return f"{mebibytes:.0f} MiB" if mebibytes >= 1 or count == 0 else "1 MiB"
    gibibytes = mebibytes / 1024
    return f"{gibibytes:.1f} GiB" if gibibytes < 99.95 else f"{gibibytes:.0f} GiB"


def duration(seconds: float) -> str:
    """ "8.5 ms", "350 ms", "1.4 s", "40 s", "12 min", "3 h 20 min"."""
    if seconds < 0.9995:
        return f"{1e3 * seconds:.1f} ms" if seconds < 0.00995 else f"{1e3 * seconds:.0f} ms"
    if seconds < 89.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
