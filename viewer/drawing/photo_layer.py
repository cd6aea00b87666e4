"""Draws the photograph over the picture: blended in, left of a line, or as a map of the errors.

The photograph has a texture of its own, so that opacity and line change without a new picture.
"""

from __future__ import annotations

import dearpygui.dearpygui as dpg
import numpy as np
from numpy.typing import NDArray

from splatscope.viewer.drawing.layer import Layer
from splatscope.viewer.drawing.style import SMALL
from splatscope.viewer.drawing.textures import PictureTexture, make_texture
from splatscope.viewer.drawing.widgets import text_width
from splatscope.viewer.figures.placement import Box
from splatscope.viewer.messages.view import PhotographShown, Picture
from splatscope.viewer.palette import ACCENT, SHADE
from splatscope.viewer.state.photographs import GRIP
from splatscope.viewer.state.session import Session


class PhotoLayer:
    """Uploads the photograph or the error map of a picture, and draws it."""

    def __init__(self, session: Session, layer: Layer) -> None:
        self._view, self._photographs = session.view, session.photographs
        self._layer, self._canvas = layer, layer.canvas
        self.texture: PictureTexture
        self._uploaded: object = None  # the array on the screen

    def connect(self) -> None:
        """Makes the texture; call once the display is shown."""
        self.texture = make_texture()

    def take_over(self, other: PhotoLayer) -> None:
        """Takes the texture of a replaced layer with its pixels; call it instead of `connect`."""
        self.texture, self._uploaded = other.texture, other._uploaded

    def upload(self, picture: Picture) -> None:
        """Brings the photograph or the error map of a picture to the screen, unless it is there already."""
        pixels = self._pixels(picture.photograph) if picture.photograph is not None else None
        if pixels is not None and pixels is not self._uploaded:
            self._uploaded = pixels
            self.texture.upload(pixels)

    def is_on_line(self, x: float) -> bool:
        """Returns True if x in the viewport is on the line between photograph and picture."""
        photographs = self._photographs
        is_near = abs(x - photographs.line * self._canvas.size[0]) < self._layer.style.px(GRIP)
        return photographs.mode == "wipe" and self._view.at_camera is not None and is_near

    def draw(self, picture: Picture) -> None:
        """Draws the photograph of a picture if it is wanted and has changed."""
        layer, photographs, box = self._layer, self._photographs, self._canvas.box_of(picture)
        is_here = self._view.at_camera is not None and picture.photograph is not None
        content = self._content(picture.photograph, box) if is_here else None
        if not layer.is_stale((content, self._canvas.inset) if content is not None else None) or content is None:
            return
        self._draw_pixels(picture, box)
        if photographs.mode == "wipe":
            line = box[0] + photographs.line * (box[2] - box[0])
            self._draw_line(line, box)
            self._draw_words(line, box)

    def _content(self, shown: PhotographShown | None, box: Box) -> object:
        """Returns all that the layer depends on; None if there is nothing to draw."""
        photographs = self._photographs
        if shown is None or not photographs.active:
            return None
        pixels = self._pixels(shown)
        if pixels is None or pixels is not self._uploaded:  # the mode has changed: the next picture brings its pixels
            return None
        look = (photographs.mode, photographs.opacity, photographs.line)
        texture = (self.texture.item, self.texture.uv_max)
        return look, texture, box, shown.left, shown.top, id(self._uploaded)

    def _draw_pixels(self, picture: Picture, box: Box) -> None:
        """Draws the texture; `box` is where the whole picture lies."""
        shown, photographs = picture.photograph, self._photographs
        pixels = self._pixels(shown) if shown is not None else None
        if shown is None or pixels is None:
            return
        height, width = picture.rgba.shape[:2]
        scale_x, scale_y = (box[2] - box[0]) / width, (box[3] - box[1]) / height
        left, top = box[0] + scale_x * shown.left, box[1] + scale_y * shown.top
        right, bottom = left + scale_x * pixels.shape[1], top + scale_y * pixels.shape[0]
        u, v = self.texture.uv_max
        alpha = 255
        if photographs.mode == "overlay":
            alpha = round(255 * photographs.opacity)
        elif photographs.mode == "wipe":
            line = box[0] + photographs.line * (box[2] - box[0])
            share = min(max((line - left) / (right - left), 0.0), 1.0)
            right, u = left + share * (right - left), u * share
        if right > left and alpha:
            tint, item = (255, 255, 255, alpha), self.texture.item
            dpg.draw_image(item, (left, top), (right, bottom), uv_max=(u, v), color=tint, parent=self._layer.node)

    def _draw_line(self, line: float, box: Box) -> None:
        """Draws the line that can be dragged, and its grip."""
        node, line_width = self._layer.node, self._layer.style.px(2)
        for color, thickness in ((SHADE, 3 * line_width), (ACCENT, line_width)):
            dpg.draw_line((line, box[1]), (line, box[3]), color=color, thickness=thickness, parent=node)
        middle, grip = 0.5 * (box[1] + box[3]), 5 * line_width
        dpg.draw_circle((line, middle), grip, color=ACCENT, fill=ACCENT, parent=node)

    def _draw_words(self, line: float, box: Box) -> None:
        """Names both sides of the line, where there is room for the words."""
        layer, style, px = self._layer, self._layer.style, self._layer.style.px
        away, top = px(10), self._canvas.inset + px(8)
        wide = text_width("photograph", style.small) + 2 * px(9)  # with the margins of `Layer.rows`
        for word, left in (("photograph", line - away - wide), ("picture", line + away)):
            if box[0] <= left <= box[2] - wide:  # a side with less room shows hardly anything
                layer.rows([(word, "")], left, top, style.small, SMALL)

    def _pixels(self, shown: PhotographShown) -> NDArray[np.uint8] | None:
        return shown.errors if self._photographs.mode == "error" else shown.rgba


def error_labels(top: float) -> tuple[str, ...]:
    """Returns the numbers of the error map's legend, lowest first, on a scale of 0 to 255."""
    return tuple(f"{255 * top * k / 4:.0f}" for k in range(5))
