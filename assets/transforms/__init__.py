"""Reads captures with a `transforms.json`, and those of phone apps."""
