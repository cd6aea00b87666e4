"""Holds the panels of the dock, one in a file; `window.py` lists them."""
