"""Holds the Dear PyGui window: viewport, navigation, input and panels."""
