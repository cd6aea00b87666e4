"""Draws results with matplotlib."""
