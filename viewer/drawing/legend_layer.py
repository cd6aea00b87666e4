"""Draws the legend of the heatmap or of the error map at the lower left."""

from __future__ import annotations

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.layer import MARGIN, Layer
from splatscope.viewer.drawing.photo_layer import error_labels
from splatscope.viewer.drawing.style import SMALL, Item
from splatscope.viewer.drawing.textures import ramp_texture
from splatscope.viewer.drawing.widgets import text_width
from splatscope.viewer.figures.tile_values import Legend, legend_of
from splatscope.viewer.messages.scale import labels_with_room
from splatscope.viewer.messages.view import Picture
from splatscope.viewer.palette import DIM, TEXT
from splatscope.viewer.state.photographs import Photographs

LINE = 20  # points from one line of the heading to the next


class LegendLayer:
    """Draws a colour bar with its labels below one or two lines of heading."""

    def __init__(self, photographs: Photographs, layer: Layer) -> None:
        self._photographs, self._layer = photographs, layer
        self._words: tuple[Picture, Legend | None] | None = None  # legend of the newest picture's overlay
        self.ramp: Item  # texture of the colours

    def connect(self) -> None:
        """Makes the texture; call once the display is shown."""
        self.ramp = ramp_texture()

    def draw(self, picture: Picture | None) -> None:
        """Draws the legend of a picture, if there is one and it has changed."""
        legend = self._legend(picture) if picture is not None else None
        layer, style, px = self._layer, self._layer.style, self._layer.style.px
        if not layer.is_stale(legend) or legend is None:
            return
        height = layer.canvas.size[1]
        head = [legend.title] + [legend.note] * bool(legend.note)
        widths = [text_width(text, style.small) for text in head]
        wide = max(*widths, px(26) + max(text_width(text, style.small) for text, _ in legend.labels))
        bar_height = min(px(170), height - px(90))
        if bar_height < px(40):
            return
        left, bottom = px(MARGIN), height - px(MARGIN)
        upper = bottom - bar_height - px(LINE) * len(head) - px(24)
        layer.ground(left, upper, left + wide + px(20), bottom)
        for k, text in enumerate(head):
            layer.text(left + px(10), upper + px(7) + k * px(LINE), text, style.small, SMALL, DIM)
        self._draw_bar(legend, left + px(10), bottom - px(12), bar_height)

    def _draw_bar(self, legend: Legend, x: float, y0: float, bar_height: float) -> None:
        """Draws the colours upwards from (x, y0), and those labels that do not touch one another."""
        layer, style, px = self._layer, self._layer.style, self._layer.style.px
        y1 = y0 - bar_height
        dpg.draw_image_quad(
            self.ramp, (x, y0), (x, y1), (x + px(14), y1), (x + px(14), y0),
            uv1=(0, 0), uv2=(1, 0), uv3=(1, 1), uv4=(0, 1), parent=layer.node,
        )  # fmt: skip
        places = [bar_height * share for _, share in legend.labels]
        for k in labels_with_room(places, [px(SMALL)] * len(places)):
            y = y0 - places[k]
            dpg.draw_line((x + px(14), y), (x + px(18), y), color=DIM, parent=layer.node)
            layer.text(x + px(24), y - px(7), legend.labels[k][0], style.small, SMALL, TEXT)

    def _legend(self, picture: Picture) -> Legend | None:
        """Returns the legend of the colours over the picture; None if there are none."""
        request, shown, photographs = picture.request, picture.photograph, self._photographs
        if shown is not None and shown.errors is not None and photographs.mode == "error":
            labels = error_labels(photographs.error_top)
            places = tuple((text, k / (len(labels) - 1)) for k, text in enumerate(labels))
            return Legend("difference, of 255", places)
        if self._words is None or self._words[0] is not picture:
            self._words = picture, legend_of(request.overlay, picture.frame, request.scale)
        return self._words[1]
