"""Heatmap panel: which figure of tiles lies over the picture, how strongly, on which scale, and saving it."""

from __future__ import annotations

from dataclasses import replace

import dearpygui.dearpygui as dpg

from splatscope.kernels.types import Int32
from splatscope.viewer.messages import EngineStatus, OverlayName, Picture
from splatscope.viewer.scale import HeatScale
from splatscope.viewer.style import DIM, SMALL, TEXT, Item, inside
from splatscope.viewer.textures import ramp_texture
from splatscope.viewer.tile_values import OVERLAYS, WHY_GREY, needs_recording, tile_values
from splatscope.viewer.widgets import Facts, Panel, Ui, button, count, labelled, text_width, tooltip

BAR_WIDTH = 308  # points
MOST = 1_000_000_000  # where a locked scale may end


class HeatmapPanel(Panel):
    """See the module's text."""

    title = "Heatmap"

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._drawn: tuple[HeatScale, int] | None = None  # scale and its end, as the labels show them
        self._serial = -1
        self._frame_top = 10  # where the scale of the newest picture would end by itself

    def build(self) -> None:
        style, session = self.style, self.session
        self._shown = dpg.add_checkbox(label="Over the picture (Tab)", callback=lambda: session.toggle_heatmap())
        self._kinds: dict[OverlayName, Item] = {}
        for name, overlay in OVERLAYS.items():
            kind = dpg.add_selectable(
                label=f"{overlay.label}", user_data=name, callback=lambda _, __, name: session.show_overlay(name)
            )
            dpg.bind_item_theme(kind, style.can_be_grey)
            self._kinds[name] = kind
        self._why = dpg.add_text(WHY_GREY, color=DIM, wrap=0)
        dpg.bind_item_font(self._why, style.small)
        with labelled(style, "Opacity"):
            self._opacity = self.ui.field(
                dpg.add_slider_float(
                    max_value=1.0, format="%.2f", clamped=True, width=-1, callback=lambda _, value: self._set(value)
                )
            )
        with labelled(style, "Scale"):
            self._log = dpg.add_checkbox(label="log", callback=lambda _, on: self._rescale(log=on))
            lock = dpg.add_checkbox(label="ends at", callback=lambda _, on: self._lock(on))
            tooltip(style, lock, "Holds the range, so that views and settings can be compared by their colours")
            self._locked = lock
            self._end = self.ui.field(
                dpg.add_input_int(
                    width=-1, step=0, min_value=1, min_clamped=True, max_value=MOST, max_clamped=True, on_enter=False,
                    callback=lambda _, end: self._rescale(locked_top=max(1, end)),
                )
            )  # fmt: skip
        with inside(dpg.add_group(show=False)) as self._numbers:
            self._build_numbers()
            button(
                style, "Save PNG and NPY", self._save,
                tip="The picture, the heatmap with this legend, and the counts, to the screenshots' folder (P)",
            )  # fmt: skip

    def _build_numbers(self) -> None:
        style = self.style
        with inside(dpg.add_drawlist(style.px(BAR_WIDTH), style.px(38))):
            dpg.draw_image(ramp_texture(), (0, style.px(4)), (style.px(BAR_WIDTH), style.px(16)))
            self._labels = dpg.add_draw_node()
        self._facts = Facts(style, ("Max", "Mean", "Min", "Empty tiles", "Visible", "Instances"), 2, 84)

    def _set(self, opacity: float) -> None:
        self.session.overlay_opacity = opacity

    def _rescale(self, **changes: bool | int | None) -> None:
        self.session.scale = replace(self.session.scale, **changes)  # pyright: ignore[reportArgumentType]

    def _lock(self, locked: bool) -> None:
        self._rescale(locked_top=self._frame_top if locked else None)

    def _save(self) -> None:
        self.session.screenshot(heatmap=True)

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        session = self.session
        dpg.set_value(self._shown, session.overlay != "none")
        for name, kind in self._kinds.items():
            dpg.set_value(kind, name == session.overlay_kind)
            dpg.configure_item(kind, enabled=status.recorded is not None or not OVERLAYS[name].needs_recording)
        waits = bool(status.compiling) and needs_recording(session.overlay)
        dpg.configure_item(self._why, show=waits or status.recorded is None)
        dpg.set_value(self._why, "Compiling the kernels that record…" if waits else WHY_GREY)
        dpg.set_value(self._opacity, session.overlay_opacity)
        scale = session.scale
        dpg.set_value(self._log, scale.log)
        dpg.set_value(self._locked, scale.locked_top is not None)
        if not dpg.is_item_active(self._end):
            dpg.set_value(self._end, self._frame_top if scale.locked_top is None else scale.locked_top)
        if picture is not None:
            self._draw_labels(scale, scale.top(self._values(picture)))
        if picture is None or picture.serial == self._serial:
            return
        self._serial = picture.serial
        dpg.configure_item(self._numbers, show=True)
        frame, counts = picture.frame, self._values(picture)
        self._frame_top = HeatScale().top(counts)
        if counts.size:
            self._facts.show("Max", count(int(counts.max())))
            self._facts.show("Mean", f"{counts.mean():,.1f}")
            self._facts.show("Min", count(int(counts.min())))
            self._facts.show("Empty tiles", f"{(counts == 0).mean():.0%}")
        self._facts.show("Visible", count(frame.visible))
        self._facts.show("Instances", count(frame.instances))

    def _values(self, picture: Picture) -> Int32:
        """Of the overlay, or where that is none, of the counts."""
        values = tile_values(picture.request.overlay, picture.frame)
        return picture.frame.tile_counts if values is None else values

    def _draw_labels(self, scale: HeatScale, top: int) -> None:
        if self._drawn == (scale, top):
            return
        self._drawn = scale, top
        style, width, size = self.style, self.style.px(BAR_WIDTH), self.style.px(SMALL)
        dpg.delete_item(self._labels, children_only=True)
        values = scale.ticks(top)
        free_from = 0.0
        for value, share in zip(values, scale.place(values, top).tolist(), strict=True):
            label = count(value)
            wide = text_width(label, style.small)
            left = min(max(width * share - 0.5 * wide, 0.0), width - wide)
            if left < free_from:
                continue
            free_from = left + wide + style.px(4)
            item = dpg.draw_text((left, style.px(20)), label, size=size, color=TEXT, parent=self._labels)
            dpg.bind_item_font(item, style.small)
