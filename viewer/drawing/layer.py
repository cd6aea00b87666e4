"""Draws text and boxes on one layer of the viewport, again only when the layer's content changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.style import Item, Style
from splatscope.viewer.drawing.widgets import text_width
from splatscope.viewer.figures.placement import Box, box_of
from splatscope.viewer.messages.view import Picture
from splatscope.viewer.palette import DIM, SHADE, TEXT, Color

MARGIN = 12  # points between the viewport's edge and what is drawn on the picture


@dataclass
class Canvas:
    """Says where layers can draw. All lengths are px of the window."""

    style: Style
    size: tuple[int, int] = (1, 1)  # width and height of the viewport
    inset: int = 0  # height at the viewport's top that the error bar covers
    mouse: tuple[float, float] | None = None  # in the viewport; None while the mouse is not over the picture

    def box_of(self, picture: Picture) -> Box:
        """Returns the box that a picture takes in the viewport."""
        return box_of(picture, self.size)


class Layer:
    """Holds one draw node. A drawer asks `is_stale` each frame, and draws again only if it is."""

    def __init__(self, canvas: Canvas, parent: Item) -> None:
        self.canvas, self.style = canvas, canvas.style
        self.node = dpg.add_draw_node(parent=parent)
        self._drawn: object = None  # the layer's present content

    def is_stale(self, content: object) -> bool:
        """Returns True if `content` or the viewport's size has changed; the layer is then cleared."""
        content = (content, self.canvas.size)
        if self._drawn == content:
            return False
        self._drawn = content
        dpg.delete_item(self.node, children_only=True)
        return True

    def rows(
        self,
        rows: Sequence[tuple[str, str]],
        left: float,
        edge: float,
        font: Item,
        points: int,
        from_bottom: bool = False,
    ) -> None:
        """Draws rows of name and value on a dark ground; `edge` is the ground's top, or its bottom."""
        px = self.style.px
        line, pad = px(points + 5), px(9)
        names = max(text_width(name, font) for name, _ in rows)
        values = max(text_width(value, font) for _, value in rows)
        width = names + (px(18) + values if values else 0) + 2 * pad
        height = len(rows) * line + 2 * pad - px(5)
        top = edge - height if from_bottom else edge
        self.ground(left, top, left + width, top + height)
        for k, (name, value) in enumerate(rows):
            y = top + pad + k * line
            self.text(left + pad, y, name, font, points, DIM if values else TEXT)
            self.text(left + width - pad - text_width(value, font), y, value, font, points, TEXT)

    def ground(self, left: float, top: float, right: float, bottom: float) -> None:
        """Draws a dark rectangle with round corners, to make text readable on the picture."""
        round_by = self.style.px(5)
        dpg.draw_rectangle((left, top), (right, bottom), color=SHADE, fill=SHADE, rounding=round_by, parent=self.node)

    def text(self, x: float, y: float, text: str, font: Item, points: int, color: Color) -> None:
        """Draws one line of text with its upper left corner at (x, y)."""
        if text:
            at = (round(x), round(y))  # whole pixels keep the glyphs sharp
            item = dpg.draw_text(at, text, size=self.style.px(points), color=color, parent=self.node)
            dpg.bind_item_font(item, font)
