"""Heatmap panel: tile counts over the picture, how strongly, what the colours mean, the counts' range."""

from __future__ import annotations

import dearpygui.dearpygui as dpg

from splatscope.viewer.messages import EngineStatus, Picture
from splatscope.viewer.overlays import heatmap_top, ticks
from splatscope.viewer.style import TEXT, inside
from splatscope.viewer.textures import ramp_texture
from splatscope.viewer.widgets import Facts, Panel, Ui, count, labelled, text_width

BAR_WIDTH = 308  # points


class HeatmapPanel(Panel):
    """See the module's text."""

    title = "Heatmap"

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._top = -1
        self._serial = -1

    def build(self) -> None:
        style, session = self.style, self.session
        self._shown = dpg.add_checkbox(
            label="Splats per tile, over the picture (Tab)", callback=lambda: session.toggle_heatmap()
        )
        with labelled(style, "Opacity"):
            self._opacity = self.ui.field(
                dpg.add_slider_float(
                    max_value=1.0, format="%.2f", clamped=True, width=-1, callback=lambda _, value: self._set(value)
                )
            )
        with inside(dpg.add_group(show=False)) as self._numbers:
            self._build_numbers()

    def _build_numbers(self) -> None:
        style = self.style
        with inside(dpg.add_drawlist(style.px(BAR_WIDTH), style.px(38))):
            dpg.draw_image(ramp_texture(), (0, style.px(4)), (style.px(BAR_WIDTH), style.px(16)))
            self._labels = dpg.add_draw_node()
        self._facts = Facts(style, ("Max", "Mean", "Min", "Empty tiles", "Visible", "Instances"), 2, 84)

    def _set(self, opacity: float) -> None:
        self.session.overlay_opacity = opacity

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        session = self.session
        dpg.set_value(self._shown, session.overlay == "tiles")
        dpg.set_value(self._opacity, session.overlay_opacity)
        if picture is None or picture.serial == self._serial:
            return
        self._serial = picture.serial
        dpg.configure_item(self._numbers, show=True)
        frame = picture.frame
        counts = frame.tile_counts
        self._draw_labels(heatmap_top(counts))
        if counts.size:
            self._facts.show("Max", count(int(counts.max())))
            self._facts.show("Mean", f"{counts.mean():,.1f}")
            self._facts.show("Min", count(int(counts.min())))
            self._facts.show("Empty tiles", f"{(counts == 0).mean():.0%}")
        self._facts.show("Visible", count(frame.visible))
        self._facts.show("Instances", count(frame.instances))

    def _draw_labels(self, top: int) -> None:
        if top == self._top:
            return
        self._top = top
        style, width, size = self.style, self.style.px(BAR_WIDTH), self.style.px(13)
        dpg.delete_item(self._labels, children_only=True)
        values = ticks(top)
        for k, value in enumerate(values):
            label, x = count(value), width * k / (len(values) - 1)
            wide = text_width(label, style.small)
            left = min(max(x - 0.5 * wide, 0.0), width - wide)
            item = dpg.draw_text((left, style.px(20)), label, size=size, color=TEXT, parent=self._labels)
            dpg.bind_item_font(item, style.small)
