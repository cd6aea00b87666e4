"""Draws the photograph over the picture: blended in, left of a line, or as a map of the errors.

It has a texture of its own, so that opacity and line change without a new picture. `viewport.py` owns it.
"""

from __future__ import annotations

import dearpygui.dearpygui as dpg
import numpy as np
from numpy.typing import NDArray

from splatscope.viewer.drawing.style import Item
from splatscope.viewer.drawing.textures import PictureTexture, make_texture
from splatscope.viewer.messages.view import PhotographShown, Picture
from splatscope.viewer.palette import ACCENT, SHADE
from splatscope.viewer.state.photograph_mode import PhotoComparison

Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels of the viewport


class PhotoLayer:
    """See the module's text."""

    def __init__(self) -> None:
        self.texture: PictureTexture = make_texture()
        self._uploaded: object = None  # the array on the screen

    def upload(self, picture: Picture, comparison: PhotoComparison) -> None:
        """Brings the photograph or the error map of a picture to the screen, unless it is there already."""
        shown = picture.photograph
        pixels = _pixels(shown, comparison) if shown is not None else None
        if pixels is not None and pixels is not self._uploaded:
            self._uploaded = pixels
            self.texture.upload(pixels)

    def content(self, shown: PhotographShown | None, comparison: PhotoComparison, view: Box) -> object:
        """What `draw` depends on; nothing if there is nothing to draw."""
        if shown is None or not comparison.active:
            return None
        pixels = _pixels(shown, comparison)
        if pixels is None or pixels is not self._uploaded:  # of another way to compare: the next picture brings it
            return None
        look = (comparison.mode, comparison.opacity, comparison.line)
        texture = (self.texture.item, self.texture.uv_max)
        return look, texture, view, shown.left, shown.top, id(self._uploaded)

    def draw(self, layer: Item, picture: Picture, comparison: PhotoComparison, view: Box, line_width: float) -> None:
        """Into an empty layer; `view` is where the whole picture lies."""
        shown = picture.photograph
        pixels = _pixels(shown, comparison) if shown is not None else None
        if shown is None or pixels is None:
            return
        height, width = picture.rgba.shape[:2]
        scale_x, scale_y = (view[2] - view[0]) / width, (view[3] - view[1]) / height
        left, top = view[0] + scale_x * shown.left, view[1] + scale_y * shown.top
        right, bottom = left + scale_x * pixels.shape[1], top + scale_y * pixels.shape[0]
        u, v = self.texture.uv_max
        alpha = 255
        if comparison.mode == "overlay":
            alpha = round(255 * comparison.opacity)
        elif comparison.mode == "wipe":
            line = view[0] + comparison.line * (view[2] - view[0])
            share = min(max((line - left) / (right - left), 0.0), 1.0)
            right, u = left + share * (right - left), u * share
        if right > left and alpha:
            tint = (255, 255, 255, alpha)
            dpg.draw_image(self.texture.item, (left, top), (right, bottom), uv_max=(u, v), color=tint, parent=layer)
        if comparison.mode == "wipe":
            line = view[0] + comparison.line * (view[2] - view[0])
            for color, thickness in ((SHADE, 3 * line_width), (ACCENT, line_width)):
                dpg.draw_line((line, view[1]), (line, view[3]), color=color, thickness=thickness, parent=layer)
            middle, grip = 0.5 * (view[1] + view[3]), 5 * line_width
            dpg.draw_circle((line, middle), grip, color=ACCENT, fill=ACCENT, parent=layer)


def _pixels(shown: PhotographShown, comparison: PhotoComparison) -> NDArray[np.uint8] | None:
    return shown.errors if comparison.mode == "error" else shown.rgba


def error_labels(top: float) -> tuple[str, ...]:
    """Returns the numbers of the error map's legend, lowest first, on a scale of 0 to 255."""
    return tuple(f"{255 * top * k / 4:.0f}" for k in range(5))
