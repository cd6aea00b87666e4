"""Views panel: what each photograph's view costs and how well it fits, worst first; a click goes there."""

from __future__ import annotations

from pathlib import PurePosixPath

import dearpygui.dearpygui as dpg

from splatscope.viewer.messages import EngineStatus, NamedCamera, Picture, ViewFigures
from splatscope.viewer.style import DIM, WARN, Item, inside
from splatscope.viewer.widgets import Panel, Ui, button, count, fit

ROWS = 100  # listed
ORDERS = ("slowest", "most pairs", "lowest PSNR")
NAME_WIDTH = 128  # points


class ViewsPanel(Panel):
    """See the module's text."""

    title = "Slow views"
    open_at_start = False

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._listed: object = None
        self._rows: dict[Item, int] = {}  # camera by row

    def build(self) -> None:
        style, session, px = self.style, self.session, self.style.px
        self._none = dpg.add_text("No cameras are known to look from.", color=DIM, wrap=0)
        with inside(dpg.add_group(show=False)) as self._tools:
            with inside(dpg.add_group(horizontal=True)):
                button(style, "Measure", session.survey_views, tip="Draws every view once; training waits meanwhile")
                self._order = dpg.add_combo(ORDERS, default_value=ORDERS[0], width=px(120))
                self._done = dpg.add_text("", color=DIM)
            with inside(dpg.add_child_window(height=px(190), border=False, show=False)) as self._list:
                self._table = dpg.add_table(policy=dpg.mvTable_SizingStretchProp, no_pad_outerX=True)
                dpg.bind_item_theme(self._table, style.facts)
                for label in ("view", "ms", "pairs", "PSNR"):
                    dpg.add_table_column(label=label, parent=self._table)

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        scene, figures = status.scene, status.views
        cameras = scene.cameras if scene else ()
        dpg.configure_item(self._tools, show=bool(cameras))
        dpg.configure_item(self._none, show=not cameras)
        is_whole = len(figures) == len(cameras)
        dpg.set_value(self._done, "" if is_whole or not figures else f"{count(len(figures))} of {count(len(cameras))}")
        dpg.configure_item(self._list, show=bool(figures))
        order = dpg.get_value(self._order)
        if not figures or len(figures) > len(cameras) or self._listed == (id(figures), order):
            return
        self._listed = (id(figures), order)
        self._fill(sorted(figures, key=lambda view: _badness(view, order), reverse=True)[:ROWS], cameras)

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
        self.session.go_to_camera(self._rows[row])


def _badness(view: ViewFigures, order: str) -> float:
    if order == ORDERS[2]:
        return float("-inf") if view.psnr is None else -view.psnr
    return view.ms if order == ORDERS[0] else float(view.instances)
