"""Defines the values that window and engine exchange."""
