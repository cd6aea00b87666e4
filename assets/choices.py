"""Names the ways to read photographs and cameras that settings offer. Cheap to import: `--help` needs it."""

from __future__ import annotations

from typing import Literal

AlphaUse = Literal["background", "mask", "ignore"]  # what the transparency of photographs does
MaskUse = Literal["use", "invert", "ignore"]  # what masks next to photographs do
AxesChoice = Literal["auto", "opencv", "opengl"]  # auto: as the format has them, unless points say otherwise
