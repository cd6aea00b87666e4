"""The Dear PyGui window: viewport, navigation, input and panels."""
