"""Draws the edge of the photograph whose camera the view is at, and its name."""

from __future__ import annotations

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.layer import MARGIN, Layer
from splatscope.viewer.drawing.style import SMALL
from splatscope.viewer.drawing.widgets import fit, text_width
from splatscope.viewer.messages.view import NamedCamera, Picture
from splatscope.viewer.state.photographs import psnr_text
from splatscope.viewer.state.session import Session

AWAY = "The view has left the photograph; press Left or Right to return to one."


class FrameLayer:
    """Draws the frame, the photograph's name, and how well the picture fits the photograph."""

    def __init__(self, session: Session, layer: Layer) -> None:
        self._session, self._layer, self._canvas = session, layer, layer.canvas

    def draw(self, picture: Picture | None) -> None:
        """Draws what has changed; a view that has left its photograph gets a hint instead."""
        session, layer, px = self._session, self._layer, self._layer.style.px
        view, photographs = session.view, session.photographs
        camera, lens = view.at_camera, view.nav.lens
        shown = picture.photograph if picture is not None else None
        is_this = shown is not None and shown.index == view.camera_index and photographs.active
        fit_text = psnr_text(shown) if is_this else ""
        away = photographs.active and camera is None
        mode = photographs.mode if is_this else "off"
        named = (camera.name, camera.is_test) if camera else None
        if not layer.is_stale((named, lens, fit_text, away, mode)):
            return
        if away:
            bottom = self._canvas.size[1] - px(MARGIN)
            layer.rows([(AWAY, "")], px(MARGIN), bottom, layer.style.small, SMALL, from_bottom=True)
        if camera is not None:
            self._draw_frame(camera, fit_text)

    def _draw_frame(self, camera: NamedCamera, fit_text: str) -> None:
        session, layer, style = self._session, self._layer, self._layer.style
        width, height = self._canvas.size
        inner_width, inner_height = session.view.nav.lens.inner_size(width, height)
        left, top = (width - inner_width) / 2, (height - inner_height) / 2
        corner = (left + inner_width, top + inner_height)
        dpg.draw_rectangle((left, top), corner, color=(255, 255, 255, 70), thickness=1, parent=layer.node)
        scene = session.engine.scene
        total = len(scene.cameras) if scene else 0
        name = f"{session.view.camera_index + 1} / {total}   {camera.name}{'   held out' if camera.is_test else ''}"
        name += f"   {fit_text}" if fit_text else ""
        label = fit(name, inner_width - style.px(40), style.small)
        x = corner[0] - text_width(label, style.small) - style.px(26)
        layer.rows([(label, "")], x, corner[1] - style.px(8), style.small, SMALL, from_bottom=True)
