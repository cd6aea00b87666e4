"""Runs other rasterisers and trainers for comparison."""
