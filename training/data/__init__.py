"""Prepares what a run trains on: photographs, held-out views, first splats."""
