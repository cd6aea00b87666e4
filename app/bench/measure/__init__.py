"""Measures time, memory and machines, and keeps the results."""
