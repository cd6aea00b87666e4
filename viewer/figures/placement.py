"""Computes where a picture lies in the viewport. Pure, no GUI."""

from __future__ import annotations

from splatscope.viewer.messages.view import Picture

Box = tuple[float, float, float, float]  # left, top, right, bottom in px of the viewport
NEARLY = 0.02  # a picture whose aspect differs by less than this share fills the viewport


def box_of(picture: Picture, size: tuple[int, int]) -> Box:
    """Returns the box that a picture takes in a viewport of `size` (width, height) px.

    A picture fills the viewport, except an older picture while the window changes its size.
    """
    height, width = picture.rgba.shape[:2]
    full_width, full_height = size
    if abs(width * full_height / (height * full_width) - 1.0) < NEARLY:
        return 0.0, 0.0, float(full_width), float(full_height)
    scale = min(full_width / width, full_height / height)
    left, top = (full_width - scale * width) / 2, (full_height - scale * height) / 2
    return left, top, left + scale * width, top + scale * height
