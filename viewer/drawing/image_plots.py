"""Draws images with labels inside a panel, and a small history of two figures. Main thread only.

An image is an array from `figures/schedule_plots.py`, uploaded only when its content has changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import dearpygui.dearpygui as dpg
import numpy as np

from splatscope.viewer.drawing.style import SMALL, Item, Style, inside
from splatscope.viewer.drawing.textures import PictureTexture, make_texture
from splatscope.viewer.drawing.widgets import text_width
from splatscope.viewer.figures.overlays import Rgba
from splatscope.viewer.figures.schedule import ratio_text
from splatscope.viewer.palette import ACCENT, DIM, FIELD, WARN, Color

WIDTH = 308  # points
AXIS = 17
KEPT = 120  # figures in a history, at most


class ImagePlot:
    """Shows an image as wide as the dock, with labels on its left edge and below it."""

    def __init__(self, style: Style, height: int) -> None:
        self._style = style
        self.size = style.px(WIDTH), style.px(height)  # px
        self._texture: PictureTexture | None = None
        self._content: object = None
        self._drawn: object = None  # the texture, and the part of it that is drawn
        self.item = dpg.add_drawlist(self.size[0], self.size[1] + style.px(AXIS))
        self._picture, self._labels = (dpg.add_draw_node(parent=self.item) for _ in range(2))

    def wants(self, content: object) -> bool:
        """Returns True if `content` is not the content shown. Call it in each frame: the texture may need it."""
        if self._texture is not None:
            self._texture.tick()
            self._draw()
        if content == self._content:
            return False
        self._content = content
        return True

    def show(self, rgba: Rgba) -> None:
        """Uploads new pixels."""
        if self._texture is None:
            self._texture = make_texture()
        self._texture.upload(rgba)
        self._draw()

    def _draw(self) -> None:
        assert self._texture is not None
        content = self._texture.item, self._texture.uv_max
        if content != self._drawn:
            self._drawn = content
            dpg.delete_item(self._picture, children_only=True)
            dpg.draw_image(content[0], (0, 0), self.size, uv_max=content[1], parent=self._picture)

    def label(self, below: Sequence[tuple[float, str]], left: Sequence[tuple[float, str]], end: str) -> None:
        """Draws labels below, labels at the left, both at shares of the sides, and `end` at the lower right."""
        style, (width, height) = self._style, self.size
        dpg.delete_item(self._labels, children_only=True)
        free = width - text_width(end, style.small)
        self._text(free, height + style.px(2), end, DIM)
        used = 0.0
        for share, text in below:
            wide = text_width(text, style.small)
            x = min(max(share * width - 0.5 * wide, 0.0), width - wide)
            if x >= used and x + wide + style.px(8) <= free:
                self._text(x, height + style.px(2), text, DIM)
                used = x + wide + style.px(6)
        for share, text in left:
            y = min(max(share * height - 0.5 * style.px(SMALL), 0.0), height - style.px(SMALL))
            self._text(style.px(4), y, text, (222, 226, 233, 190))

    def _text(self, x: float, y: float, text: str, color: Color) -> None:
        item = dpg.draw_text((round(x), round(y)), text, size=self._style.px(SMALL), color=color, parent=self._labels)
        dpg.bind_item_font(item, self._style.small)


class History:
    """Plots the newest figures of two curves: the first on a scale from 0 up, the second from 0 to 1."""

    def __init__(self, style: Style, height: int, names: tuple[str, str]) -> None:
        self._style, self._names = style, names
        self._size = style.px(WIDTH), style.px(height)
        self._figures: tuple[deque[float], deque[float]] = deque(maxlen=KEPT), deque(maxlen=KEPT)
        self.item = dpg.add_drawlist(self._size[0], self._size[1] + style.px(AXIS))
        with inside(self.item):
            dpg.draw_rectangle((0, 0), self._size, color=FIELD, fill=FIELD, rounding=style.px(4))
            self._curves = [dpg.draw_polyline([], color=c, thickness=1.5 * style.scale) for c in (ACCENT, WARN)]
            self._labels: Item = dpg.add_draw_node()

    def forget(self) -> None:
        """Drops all figures, because the next ones are of another kind."""
        for figures in self._figures:
            figures.clear()

    def add(self, which: int, value: float) -> None:
        """Adds a figure to the first (0) or the second (1) curve."""
        self._figures[which].append(value)
        width, height = self._size
        values = np.array(self._figures[which])
        top = 1.0 if which else 1.15 * max(float(values.max()), 1e-6)
        x = width * (np.arange(len(values)) + KEPT - len(values)) / (KEPT - 1)
        points = np.stack([x, height * (1.0 - np.clip(values / top, 0, 1))], 1).tolist()
        dpg.configure_item(self._curves[which], points=points if len(points) > 1 else [])
        self._draw_labels()

    def _draw_labels(self) -> None:
        dpg.delete_item(self._labels, children_only=True)
        style, y = self._style, self._size[1] + self._style.px(2)
        texts = [
            f"{name} {'–' if not figures else f'{figures[-1]:.0%}' if k else ratio_text(figures[-1])}"
            for k, (name, figures) in enumerate(zip(self._names, self._figures, strict=True))
        ]
        right = self._size[0] - text_width(texts[1], style.small)
        for x, text, color in ((0, texts[0], ACCENT), (right, texts[1], WARN)):
            item = dpg.draw_text((x, y), text, size=style.px(SMALL), color=color, parent=self._labels)
            dpg.bind_item_font(item, style.small)
