"""Writes results as tables, for the terminal and for documents."""
