"""Holds the training loop, its data, its densification policies and its metrics."""
