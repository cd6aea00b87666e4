"""The bundled scene: a still life on a round pedestal. Rendered by `generate.py`, trained result beside it."""
