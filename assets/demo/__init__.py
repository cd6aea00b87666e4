"""The bundled scene: a still life on a round pedestal. Rendered by `generate.py`, trained result beside it."""

from pathlib import Path

TRAINED_SCENE = Path(__file__).parent / "still_life.ply"  # what our own trainer made of it
