"""Reads and writes the files of a run."""
