"""Makes the scenes and cameras that are measured."""
