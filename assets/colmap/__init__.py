"""Reads COLMAP captures."""
