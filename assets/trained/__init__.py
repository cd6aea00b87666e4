"""Reads the folder of a trained model."""
