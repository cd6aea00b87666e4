"""Reads and writes all files: splats, captures, images, the demo scene."""
