"""Marks the tile under the mouse while a heatmap lies over the picture, and draws its figures next to it."""

from __future__ import annotations

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.layer import Layer
from splatscope.viewer.drawing.style import SMALL
from splatscope.viewer.figures.tile_hover import tile_at, tile_box, tile_rows
from splatscope.viewer.messages.view import EngineStatus, Picture
from splatscope.viewer.palette import TEXT
from splatscope.viewer.state.heatmap import Heatmap

ROOM = 190  # points that the figures take next to the tile


class TileLayer:
    """Finds the hovered tile, tells the heatmap about it and draws it."""

    def __init__(self, heatmap: Heatmap, layer: Layer) -> None:
        self._heatmap, self._layer, self._canvas = heatmap, layer, layer.canvas

    def draw(self, status: EngineStatus, picture: Picture | None) -> None:
        """Draws the tile under the mouse, if that has changed."""
        tile, mouse = None, self._canvas.mouse
        if picture is not None and picture.request.overlay != "none" and mouse is not None:
            tile = tile_at(picture, self._canvas.box_of(picture), mouse)
        self._heatmap.hovered_tile = tile
        content = None if tile is None or picture is None else (tile, picture.serial, status.recorded)
        layer, style, px = self._layer, self._layer.style, self._layer.style.px
        if not layer.is_stale(content) or tile is None or picture is None:
            return
        left, top, right, bottom = tile_box(picture, self._canvas.box_of(picture), tile)
        dpg.draw_rectangle((left, top), (right, bottom), color=TEXT, thickness=style.scale, parent=layer.node)
        rows, (width, height) = tile_rows(picture, status.recorded, tile), self._canvas.size
        x = right + px(8) if right + px(ROOM) < width else max(0, left - px(ROOM))
        layer.rows(rows, x, min(top, height - px(20) * (len(rows) + 1)), style.small, SMALL)
