"""Scores pictures against photographs."""
