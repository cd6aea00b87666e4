"""Adds, moves and removes splats between steps, one strategy a file."""
