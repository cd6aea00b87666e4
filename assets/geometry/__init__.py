"""Measures and places a scene: its extent, its origin, which way is up."""
