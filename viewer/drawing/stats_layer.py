"""Draws the stage times and the counts of the newest picture over it (F10)."""

from __future__ import annotations

from splatscope.viewer.drawing.layer import MARGIN, Layer
from splatscope.viewer.drawing.style import MONO
from splatscope.viewer.drawing.widgets import count, milliseconds
from splatscope.viewer.figures.schedule import ratio_of, ratio_text
from splatscope.viewer.messages.view import EngineStatus, Picture
from splatscope.viewer.state.session import Session


class StatsLayer:
    """Draws one row for each figure at the upper left."""

    def __init__(self, session: Session, layer: Layer) -> None:
        self._session, self._layer = session, layer

    def draw(self, status: EngineStatus, picture: Picture | None) -> None:
        """Draws the figures if they are wanted and have changed."""
        layer, style = self._layer, self._layer.style
        is_wanted = self._session.dialogs.stats_shown and picture is not None
        rows = self._rows(status, picture) if is_wanted and picture is not None else ()
        if layer.is_stale((rows, layer.canvas.inset)) and rows:
            layer.rows(rows, style.px(MARGIN), layer.canvas.inset + style.px(MARGIN), style.mono, MONO)

    def _rows(self, status: EngineStatus, picture: Picture) -> tuple[tuple[str, str], ...]:
        frame, machine = picture.frame, status.blending
        height, width = picture.rgba.shape[:2]
        rate = 1e3 / picture.render_ms if picture.render_ms > 0 else 0.0
        rows = [
            ("picture", f"{milliseconds(picture.render_ms)}  {rate:5.1f} fps"),
            *((f"  {stage.replace('_', ' ')}", f"{ms:.2f} ms") for stage, ms in frame.stage_ms.items()),
            ("splats", count(status.splat_count)),
            ("visible", count(frame.visible)),
            ("instances", count(frame.instances)),
        ]
        if machine is not None:
            rows.append(("imbalance", ratio_text(ratio_of(frame.tile_counts, machine.machine))))
        rows += [
            ("resolution", f"{width} x {height}  {self._session.picture_share:4.0%}"),
            ("UI", f"{self._session.frame_rate.ms:.1f} ms per frame"),
            ("backend", f"{status.backend}, {status.device}" if status.device else status.backend),
        ]
        if frame.skipped:
            rows.append(("unusable", count(frame.skipped)))
        return tuple(rows)
