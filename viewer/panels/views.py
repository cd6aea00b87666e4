"""Lists the time and PSNR of each photograph's view, worst first; a click goes to the view."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import PurePosixPath

import dearpygui.dearpygui as dpg

from splatscope.kernels.errors import InputError
from splatscope.viewer.drawing.style import Item, inside
from splatscope.viewer.drawing.widgets import Note, Panel, Ui, button, count, fit, write
from splatscope.viewer.figures.tables import view_rows, write_table
from splatscope.viewer.messages.view import EngineStatus, NamedCamera, Picture, ViewFigures
from splatscope.viewer.palette import DIM, TEXT, WARN

ROWS = 100  # views listed at most
ORDERS = ("slowest", "most instances", "lowest PSNR")
NAME_WIDTH = 112  # points
NOTE_LINES = 3
WHAT = "Measure draws every view several times and lists its median time. Training waits meanwhile."


class ViewsPanel(Panel):
    """Shows the section "Slow views" of the dock."""

    title = "Slow views"
    open_at_start = False

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._listed: object = None
        self._rows: dict[Item, int] = {}  # camera by row
        self._figures: tuple[ViewFigures, ...] = ()
        self._cameras: tuple[NamedCamera, ...] = ()

    def build(self) -> None:
        style, session, px = self.style, self.session, self.style.px
        self._none = dpg.add_text("The scene has no cameras to measure.", color=DIM)
        with inside(dpg.add_group(show=False)) as self._tools:
            with inside(dpg.add_group(horizontal=True)):
                button(style, "Measure", session.measurements.survey_views, width=74)
                self._order = dpg.add_combo(ORDERS, default_value=ORDERS[0], width=px(128))
                self._save = button(style, "Save CSV", self._save_table, width=82)
                dpg.bind_item_theme(self._save, style.can_be_grey)
            with inside(dpg.add_child_window(height=px(190), border=False)):
                self._what = dpg.add_text("", color=DIM)
                self._table = dpg.add_table(policy=dpg.mvTable_SizingStretchProp, no_pad_outerX=True, show=False)
                dpg.bind_item_theme(self._table, style.facts)
                for label in ("view", "ms", "instances", "PSNR"):
                    dpg.add_table_column(label=label, parent=self._table)
            self._legend = dpg.add_text("Orange: held out from training", color=WARN, show=False)
            self._sum = Note(self.ui, NOTE_LINES)

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        scene, figures = status.scene, status.views
        cameras = scene.cameras if scene else ()
        dpg.configure_item(self._tools, show=bool(cameras))
        dpg.configure_item(self._none, show=not cameras)
        is_whole = len(figures) == len(cameras)
        shown = bool(figures) and len(figures) <= len(cameras)
        dpg.configure_item(self._what, show=not shown)
        dpg.configure_item(self._table, show=shown)
        dpg.configure_item(self._save, enabled=shown and is_whole)
        dpg.configure_item(self._legend, show=any(camera.is_test for camera in cameras))
        if not shown:
            self._listed = None
            write(self.ui, self._what, WHAT)
            self._sum.show("")
            return
        order = dpg.get_value(self._order)
        if self._listed == (id(figures), id(cameras), order):
            return
        self._listed = (id(figures), id(cameras), order)
        self._figures, self._cameras = figures, cameras
        self._fill(sorted(figures, key=lambda view: _badness(view, order), reverse=True)[:ROWS], cameras)
        so_far = f"{count(len(figures))} of {count(len(cameras))} views"
        self._sum.show(in_words(figures, cameras) if is_whole else so_far, TEXT)

    def _fill(self, figures: list[ViewFigures], cameras: tuple[NamedCamera, ...]) -> None:
        dpg.delete_item(self._table, children_only=True, slot=1)
        self._rows = {}
        for view in figures:
            camera = cameras[view.index]
            name = f"{view.index + 1}  {PurePosixPath(camera.name).name}"
            with inside(dpg.add_table_row(parent=self._table)):
                row = dpg.add_selectable(
                    label=fit(name, self.style.px(NAME_WIDTH), self.style.body), span_columns=True,
                    callback=lambda item: self._go(item),
                )  # fmt: skip
                self._rows[row] = view.index
                dpg.add_text(f"{view.ms:.2f}" if view.ms < 100 else f"{view.ms:.0f}")
                dpg.add_text(count(view.instances))
                dpg.add_text("–" if view.psnr is None else f"{view.psnr:.2f}", color=WARN if camera.is_test else DIM)

    def _go(self, row: Item) -> None:
        dpg.set_value(row, False)
        self.session.view.go_to_camera(self._rows[row])

    def _save_table(self) -> None:
        scene = self.session.engine.status.scene
        if scene is None:
            return
        name = f"{scene.path.stem}-views-{datetime.now():%Y%m%d-%H%M%S}.csv"
        try:
            path = write_table(self.session.config.measurement_dir / name, *view_rows(self._figures, self._cameras))
        except InputError as error:
            self._sum.show(str(error), WARN)
        else:
            self._sum.show(f"Saved {path.name} in {path.parent.resolve()}.")


def in_words(figures: Sequence[ViewFigures], cameras: Sequence[NamedCamera]) -> str:
    """Returns the means of all views, and the size they were drawn at."""
    ms, instances = (sum(values) / len(figures) for values in zip(*((v.ms, v.instances) for v in figures), strict=True))
    text = f"Mean {ms:.2f} ms, {count(round(instances))} instances"
    for words, is_test in (("PSNR", False), ("held out", True)):
        fits = [v.psnr for v in figures if v.psnr is not None and cameras[v.index].is_test == is_test]
        text += f", {words} {sum(fits) / len(fits):.2f} dB" if fits else ""
    sizes = sorted({view.size for view in figures})
    drawn = " x ".join(map(str, sizes[-1])) + (f" and {count(len(sizes) - 1)} other sizes" if len(sizes) > 1 else "")
    return f"{text}. Drawn at {drawn}."


def _badness(view: ViewFigures, order: str) -> float:
    if order == ORDERS[2]:
        return float("-inf") if view.psnr is None else -view.psnr
    return view.ms if order == ORDERS[0] else float(view.instances)
