"""Reads and writes any file safely."""
