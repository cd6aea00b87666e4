"""Draws with Dear PyGui: the viewport, textures, plots and the widgets that panels share."""
