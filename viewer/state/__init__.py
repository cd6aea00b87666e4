"""Keeps the window's state. No GUI: tested without a window."""
