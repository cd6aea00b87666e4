"""Names the folders that tests read: the checkout, its test programs, and the shared captures if present."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"  # the programs that open windows lie here
DATA = ROOT.parent / "shared" / "data"  # real captures and splat files; absent on most machines
STILL_LIFE = ROOT / "assets" / "demo" / "still_life.ply"
