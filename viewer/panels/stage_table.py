"""Shows stage times as a table in the stages panel, with a small plot of their sum."""

from __future__ import annotations

import dearpygui.dearpygui as dpg
import numpy as np

from splatscope.viewer.drawing.style import SMALL, Item, Style, inside
from splatscope.viewer.drawing.widgets import tooltip
from splatscope.viewer.figures.stage_times import ENOUGH_FOR_MEAN, ENOUGH_FOR_P99, WANTED, StageTimes, figure, figures
from splatscope.viewer.palette import ACCENT, DIM, FIELD, TEXT

PLOTTED = 120  # pictures or steps in the plot, at most
NUMBER_WIDTH = 47  # points
PLOT_WIDTH, PLOT_HEIGHT, SCALE_WIDTH = 308, 40, 66  # points; the last is the width of the numbers at the plot's left
COUNTING = (
    "The number of {one}s behind the figures. The first {one} after a change is a warm-up and does not count. The mean "
    f"needs {ENOUGH_FOR_MEAN} of them, the 99th percentile {ENOUGH_FOR_P99}."
)
RESAMPLING = f" A still view is drawn again up to {WANTED} times for this, for two seconds at most."


class StageTable:
    """Shows one row a stage: name, a bar for its share, newest time, mean, 99th percentile; and a plot of the sum."""

    def __init__(self, style: Style, title: str, one: str) -> None:
        self._style, self._title, self._one = style, title, one
        self.times = StageTimes()
        self._stages: tuple[str, ...] = ()  # stages that have rows
        self._rows: dict[str, tuple[Item, list[Item]]] = {}
        with inside(dpg.add_group(show=False)) as self.whole:
            with inside(
                dpg.add_table(header_row=False, policy=dpg.mvTable_SizingStretchProp, no_pad_outerX=True)
            ) as self._table:
                dpg.bind_item_theme(self._table, style.facts)
                dpg.add_table_column(init_width_or_weight=1.5)
                dpg.add_table_column(init_width_or_weight=0.6)
                for _ in range(3):
                    dpg.add_table_column(width_fixed=True, init_width_or_weight=style.px(NUMBER_WIDTH))
            width, height = style.px(PLOT_WIDTH), style.px(PLOT_HEIGHT)
            with inside(dpg.add_group()) as plot, inside(dpg.add_drawlist(width, height)):
                dpg.draw_rectangle((0, 0), (width, height), color=FIELD, fill=FIELD, rounding=style.px(4))
                self._curve = dpg.draw_polyline([], color=ACCENT, thickness=1.5 * style.scale)
                self._top, self._zero = (self._label(y) for y in (0, height - style.px(SMALL + 1)))
            tooltip(style, plot, f"Sum of all stages in ms, for the last {PLOTTED} {one}s; the newest is at the right.")
            self._count = dpg.add_text("", color=DIM)
            dpg.bind_item_font(self._count, style.small)
            about = COUNTING.format(one=one) + (RESAMPLING if one == "frame" else "")
            tooltip(style, self._count, about)

    @property
    def in_sight(self) -> bool:
        """Returns True if some of the table's figures are on the screen."""
        return any(dpg.is_item_visible(numbers[0]) for _, numbers in self._rows.values())

    def forget(self) -> None:
        """Drops all times, as for another scene; hides the table until there are new ones."""
        self.times.forget()
        dpg.configure_item(self.whole, show=False)

    def add(self, stage_ms: dict[str, float], setting: object = None, view: object = None) -> None:
        """Takes in the stages of one picture or step, in order, and shows the figures."""
        if not stage_ms:
            return
        self.times.add(stage_ms, setting, view)
        if self.times.stages != self._stages:
            self._stages = self.times.stages
            self._build_rows()
        dpg.configure_item(self.whole, show=True)
        times = self.times.table
        sums = times.sum(axis=1)
        for k, stage in enumerate(self._stages):
            self._show(stage, times[:, k])
            share = times[:, k].mean() / sums.mean() if sums.any() else 0.0
            dpg.set_value(self._rows[stage][0], float(share))
        self._show("", sums)
        self._draw(sums[-PLOTTED:])
        dpg.set_value(self._count, self.times.in_words(self._one))

    def _label(self, y: float) -> Item:
        text = dpg.draw_text((self._style.px(4), y), "", size=self._style.px(SMALL), color=DIM)
        dpg.bind_item_font(text, self._style.small)
        return text

    def _draw(self, sums: np.ndarray) -> None:
        """Draws the curve from 0 to its highest value."""
        top = max(float(sums.max()), 1e-6)
        for item, text in ((self._top, f"{figure(top).strip()} ms"), (self._zero, "0")):
            dpg.configure_item(item, text=text)
        left, width, height = (self._style.px(points) for points in (SCALE_WIDTH, PLOT_WIDTH, PLOT_HEIGHT))
        x = left + (width - left) * (np.arange(len(sums)) + PLOTTED - len(sums)) / (PLOTTED - 1)
        y = 2 + (height - 4) * (1.0 - sums / top)
        dpg.configure_item(self._curve, points=np.stack([x, y], axis=1).tolist() if len(sums) > 1 else [])

    def _show(self, stage: str, times: np.ndarray) -> None:
        found = figures(times)
        for item, value in zip(self._rows[stage][1], (found.newest, found.mean, found.p99), strict=True):
            dpg.set_value(item, figure(value))

    def _build_rows(self) -> None:
        dpg.delete_item(self._table, children_only=True, slot=1)
        self._rows.clear()
        style = self._style
        with inside(dpg.add_table_row(parent=self._table)):
            dpg.add_text(self._title, color=DIM)
            dpg.add_spacer()
            for label in ("ms", "mean", "p99"):
                dpg.bind_item_font(dpg.add_text(f"{label:>6}", color=DIM), style.figures)
        for stage in (*self._stages, ""):
            with inside(dpg.add_table_row(parent=self._table)):
                name = dpg.add_text(stage.replace("_", " ") or "all stages")
                bar = dpg.add_progress_bar(width=-1, height=style.px(17)) if stage else dpg.add_spacer()
                numbers = [dpg.add_text("", color=color) for color in (TEXT, DIM, DIM)]
                for item in numbers:
                    dpg.bind_item_font(item, style.figures)
                if not stage:
                    dpg.bind_item_font(name, style.bold)
                self._rows[stage] = (bar, numbers)
