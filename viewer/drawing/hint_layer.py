"""Draws what the engine is doing, or what to do first while nothing is open."""

from __future__ import annotations

from splatscope.viewer.drawing.layer import MARGIN, Layer
from splatscope.viewer.drawing.style import BODY, LARGE
from splatscope.viewer.drawing.widgets import fit, text_width
from splatscope.viewer.messages.view import EngineStatus, Picture
from splatscope.viewer.palette import ACCENT, DIM, TEXT

FIRST_STEPS = (
    ("Open a scene", TEXT),
    ("Ctrl + O opens a .ply file, a trained model or a capture.", DIM),
    ("F1 lists all keys.", DIM),
)


class HintLayer:
    """Draws the lines in the viewport's middle, or one line at its bottom while there is a picture."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer

    def draw(self, status: EngineStatus, picture: Picture | None) -> None:
        """Draws the hint if it has changed."""
        if status.busy:
            lines = ((status.busy, ACCENT),)
        elif status.scene is None and status.search is None:
            lines = FIRST_STEPS
        else:
            lines = ()
        layer, style, px = self._layer, self._layer.style, self._layer.style.px
        if not layer.is_stale((lines, picture is None)) or not lines:
            return
        width, height = layer.canvas.size
        if picture is not None:  # at the edge, where it hides little of the picture
            text = fit(lines[0][0], width - px(60), style.body)
            left = (width - text_width(text, style.body)) / 2 - px(10)
            layer.rows([(text, "")], left, height - px(MARGIN), style.body, BODY, from_bottom=True)
            return
        y = height / 2 - px(30)
        for k, (text, color) in enumerate(lines):
            font, points = (style.large, LARGE) if k == 0 else (style.body, BODY)
            text = fit(text, width - px(30), font)
            layer.text((width - text_width(text, font)) / 2, y, text, font, points, color)
            y += px(40 if k == 0 else 26)
