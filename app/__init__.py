"""Ties the layers together: command line, engine thread, training runs, benchmarks."""
