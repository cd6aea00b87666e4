"""Computes what the window shows: arrays and numbers, no GUI."""
