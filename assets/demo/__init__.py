"""Bundles a scene: a still life on a round pedestal, rendered by `generate.py`, with a trained result."""

from pathlib import Path

TRAINED_SCENE = Path(__file__).parent / "still_life.ply"  # what our own trainer made of it
