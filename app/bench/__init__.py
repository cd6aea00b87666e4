"""Measures: one module a measurement, and folders for what they share."""
