"""Names the window's colours and gives the states of a run theirs. No GUI."""

from __future__ import annotations

Color = tuple[int, int, int] | tuple[int, int, int, int]

WINDOW: Color = (22, 24, 29)
PANEL: Color = (30, 33, 40)
FIELD: Color = (43, 47, 56)
FIELD_HOT: Color = (54, 59, 71)
FIELD_DOWN: Color = (64, 70, 84)
LINE: Color = (52, 57, 68)
TEXT: Color = (222, 226, 233)
DIM: Color = (146, 153, 167)
ACCENT: Color = (84, 160, 255)
ACCENT_DIM: Color = (48, 92, 150)
GOOD: Color = (92, 201, 130)
WARN: Color = (240, 184, 78)
BAD: Color = (239, 99, 99)
BAD_DARK: Color = (92, 34, 38)
CANVAS: Color = (13, 14, 17)  # behind the picture
SHADE: Color = (12, 13, 16, 200)  # behind text on the picture

STATE_COLORS: dict[str, Color] = {
    "none": DIM,
    "ready": TEXT,
    "running": GOOD,
    "paused": WARN,
    "stopping": WARN,
    "stopped": ACCENT,
    "finished": ACCENT,
    "error": BAD,
}
