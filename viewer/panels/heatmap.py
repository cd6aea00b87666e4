"""Chooses the heatmap over the picture, its opacity and its scale, shows its figures and saves it."""

from __future__ import annotations

from dataclasses import replace

import dearpygui.dearpygui as dpg

from splatscope.kernels.types import Int32
from splatscope.viewer.drawing.style import SMALL, Item, inside
from splatscope.viewer.drawing.textures import ramp_texture
from splatscope.viewer.drawing.widgets import (
    Facts,
    Panel,
    Ui,
    button,
    count,
    label_row,
    notice,
    small_text,
    text_width,
    tooltip,
)
from splatscope.viewer.figures.tile_values import (
    OVERLAYS,
    WHY_GREY,
    Legend,
    figure_text,
    legend_of,
    needs_recording,
    tile_values,
    unit_of,
)
from splatscope.viewer.messages.scale import HeatScale, labels_with_room
from splatscope.viewer.messages.view import EngineStatus, OverlayName, Picture
from splatscope.viewer.palette import TEXT

BAR_WIDTH = 308  # points
MOST = 1_000_000_000  # largest end of a locked scale


class HeatmapPanel(Panel):
    """Shows the section "Heatmap" of the dock."""

    title = "Heatmap"

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._figures_of: tuple[int, OverlayName, HeatScale] | None = None  # picture, kind and scale of the figures
        self._unit = 1  # recorded units in one unit on the screen, as 1000 ns in 1 µs
        self._frame_top = 10  # end of the newest picture's scale while it is not locked

    def build(self) -> None:
        style, session = self.style, self.session
        self._shown = dpg.add_checkbox(label="Show over the picture (Tab)", callback=lambda: session.heatmap.toggle())
        self._kinds: dict[OverlayName, Item] = {}
        for name, overlay in OVERLAYS.items():
            kind = dpg.add_selectable(
                label=f"{overlay.label}", user_data=name, callback=lambda _, __, name: session.heatmap.show(name)
            )
            dpg.bind_item_theme(kind, style.can_be_grey)
            self._kinds[name] = kind
        self._why = notice(style, 2)
        with label_row(style, "Opacity"):
            self._opacity = self.ui.field(
                dpg.add_slider_float(
                    max_value=1.0, format="%.2f", clamped=True, width=-1, callback=lambda _, value: self._set(value)
                )
            )
        with label_row(style, "Scale"):
            self._log = dpg.add_checkbox(label="log", callback=lambda _, on: self._rescale(log=on))
            lock = dpg.add_checkbox(label="end at", callback=lambda _, on: self._lock(on))
            tooltip(
                style, lock, "Keeps the end of the scale fixed, so that colours mean the same in all views and settings"
            )
            self._locked = lock
            self._end = self.ui.field(
                dpg.add_input_int(
                    width=-1, step=0, min_value=1, min_clamped=True, max_value=MOST, max_clamped=True, on_enter=False,
                    callback=lambda _, end: self._rescale(locked_top=max(1, end) * self._unit),
                )
            )  # fmt: skip
        with inside(dpg.add_group(show=False)) as self._numbers:
            self._build_numbers()
            with inside(dpg.add_group()) as saving:
                self._save_button = button(style, "Save PNG, NPY and CSV", lambda: session.screenshot(heatmap=True))
                dpg.bind_item_theme(self._save_button, style.can_be_grey)
            folder = session.config.screenshot_dir
            tooltip(
                style,
                saving,
                f"Saves the picture, the heatmap with its legend, and the values of all tiles to {folder} (P)",
            )

    def _build_numbers(self) -> None:
        style = self.style
        self._title = small_text(style, "")
        with inside(dpg.add_drawlist(style.px(BAR_WIDTH), style.px(38))):
            dpg.draw_image(ramp_texture(), (0, style.px(4)), (style.px(BAR_WIDTH), style.px(16)))
            self._labels = dpg.add_draw_node()
        self._facts = Facts(style, ("Max", "Mean", "Min", "Empty tiles", "Visible", "Instances"), 2, 84)

    def _set(self, opacity: float) -> None:
        self.session.heatmap.opacity = opacity

    def _rescale(self, **changes: bool | int | None) -> None:
        self.session.heatmap.scale = replace(self.session.heatmap.scale, **changes)  # pyright: ignore[reportArgumentType]

    def _lock(self, locked: bool) -> None:
        self._rescale(locked_top=self._frame_top if locked else None)

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        session = self.session
        dpg.set_value(self._shown, session.heatmap.overlay != "none")
        for name, kind in self._kinds.items():
            dpg.set_value(kind, name == session.heatmap.kind)
            dpg.configure_item(kind, enabled=status.recorded is not None or not OVERLAYS[name].needs_recording)
        waits = bool(status.compiling) and needs_recording(session.heatmap.overlay)
        why = "Compiling kernels that record…" if waits else "" if status.recorded is not None else WHY_GREY
        dpg.set_value(self._why, why)
        dpg.set_value(self._opacity, session.heatmap.opacity)
        scale = session.heatmap.scale
        dpg.set_value(self._log, scale.log)
        dpg.set_value(self._locked, scale.locked_top is not None)
        if picture is not None and self._figures_of != (picture.serial, session.heatmap.kind, scale):
            self._figures_of = picture.serial, session.heatmap.kind, scale
            self._show_figures(picture, session.heatmap.kind, scale)
        if not dpg.is_item_active(self._end):
            end = self._frame_top if scale.locked_top is None else scale.locked_top
            dpg.set_value(self._end, max(1, end // self._unit))

    def _show_figures(self, picture: Picture, kind: OverlayName, scale: HeatScale) -> None:
        """Shows the chosen kind's figures for this picture, also while the heatmap is off; dashes if it has none."""
        dpg.configure_item(self._numbers, show=True)
        frame = picture.frame
        words, values = legend_of(kind, frame, scale), tile_values(kind, frame)
        dpg.configure_item(self._save_button, enabled=words is not None)
        self._draw_labels(words)
        if words is None or values is None:
            dpg.set_value(self._title, f"{OVERLAYS[kind].label}: not recorded in this picture")
        else:
            dpg.set_value(self._title, f"{words.title}; {words.note}" if words.note else words.title)
            self._unit, self._frame_top = unit_of(kind, frame)[1], HeatScale().top(values)
        for name, text in facts(values, self._unit).items():
            self._facts.show(name, text)
        self._facts.show("Visible", count(frame.visible))
        self._facts.show("Instances", count(frame.instances))

    def _draw_labels(self, words: Legend | None) -> None:
        style, width, size = self.style, self.style.px(BAR_WIDTH), self.style.px(SMALL)
        dpg.delete_item(self._labels, children_only=True)
        if words is None:
            return
        wide = [text_width(text, style.small) for text, _ in words.labels]
        places = [
            min(max(width * share, 0.5 * own), width - 0.5 * own)
            for (_, share), own in zip(words.labels, wide, strict=True)
        ]
        for k in labels_with_room(places, wide, style.px(6)):
            at = (places[k] - 0.5 * wide[k], style.px(20))
            item = dpg.draw_text(at, words.labels[k][0], size=size, color=TEXT, parent=self._labels)
            dpg.bind_item_font(item, style.small)


def facts(values: Int32 | None, unit: int) -> dict[str, str]:
    """Returns the figures of tile values [Ty, Tx] as texts, in units of `unit`; empty texts if there are no values."""
    if values is None or not values.size:
        return dict.fromkeys(("Max", "Mean", "Min", "Empty tiles"), "")
    return {
        "Max": figure_text(int(values.max()) / unit),
        "Mean": f"{values.mean() / unit:,.1f}",
        "Min": figure_text(int(values.min()) / unit),
        "Empty tiles": f"{(values == 0).mean():.0%}",
    }
