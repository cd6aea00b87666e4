"""Finds cameras for photographs without any."""
