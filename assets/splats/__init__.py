"""Reads and writes splat files."""
