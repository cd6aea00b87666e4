"""Checks a capture before it is trained."""
