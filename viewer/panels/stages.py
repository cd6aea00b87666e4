"""Stages panel: milliseconds of every stage of pictures and training steps, and what a setting changes in them.

The tables show the newest, the mean and the 99th percentile of recent ones. A measurement draws the very same frame
under two settings by turns; the engine does it (`app/compare.py`), and its result stays until the next.
"""

from __future__ import annotations

from collections import deque

import dearpygui.dearpygui as dpg
import numpy as np

from splatscope.kernels.policy import Policy
from splatscope.kernels.words import counted
from splatscope.viewer.messages import Comparison, EngineStatus, Picture, StageChange
from splatscope.viewer.presets import presets
from splatscope.viewer.session import PREVIOUS
from splatscope.viewer.style import ACCENT, BAD, DIM, FIELD, GOOD, SMALL, TEXT, Color, Item, Style, inside
from splatscope.viewer.widgets import Panel, Ui, button, labelled, tooltip, write_on_bar

RECENT = 240  # pictures or training steps the mean and the percentile are taken over
PLOTTED = 120  # of them in the small plot
NUMBER_WIDTH = 47  # points
NAME_WIDTH = 60
PLOT_WIDTH, PLOT_HEIGHT, SCALE_WIDTH = 308, 40, 66  # the last: of the numbers at its left


class StagesPanel(Panel):
    """See the module's text."""

    title = "Stages"

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._serial = -1
        self._iteration = -1
        self._generation: int | None = None
        self._policy: Policy | None = None
        self._against: list[str] = []
        self._comparison: Comparison | None = None

    def build(self) -> None:
        self._nothing = dpg.add_text("No picture yet.", color=DIM)
        self._picture = StageTable(self.style, "Picture")
        self._training = StageTable(self.style, "Training step")
        with inside(dpg.add_group(show=False)) as self._tools:
            self._pace = dpg.add_text("", color=DIM)
            tooltip(
                self.style,
                self._pace,
                "What the window takes of its own thread: input, panels, upload and drawing. Pictures are not in it.",
            )
            self._build_tools()

    def _build_tools(self) -> None:
        style, session, px = self.style, self.session, self.style.px
        dpg.add_spacer(height=px(2))
        with labelled(style, "Against", NAME_WIDTH):
            self._choice = dpg.add_combo([], width=-px(90))
            self._start = button(style, "Measure", self._measure, width=82)
        tooltip(
            style,
            self._choice,
            "What the present setting is measured against: both draw this very view by turns. Training waits.",
        )
        self._result = ComparisonTable(style)
        with inside(dpg.add_group(horizontal=True)):  # what may be hidden comes last, or the row loses its place
            self._record = button(
                style,
                "Record a second",
                session.record_trace,
                tip="What the engine and the stages do in one second, as a file for chrome://tracing or Perfetto",
            )
            self._save = button(style, "Save JSON", session.save_comparison, tip="Every time taken, as a file")

    def _measure(self) -> None:
        against = dpg.get_value(self._choice)
        if against in self._against:
            self.session.compare(against)

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        if self.session.generation != self._generation:
            self._generation = self.session.generation
            for table in (self._picture, self._training):
                table.forget()
        if picture is not None and picture.serial != self._serial:
            self._serial = picture.serial
            if picture.request.policy != self._policy:
                self._policy = picture.request.policy
                self._picture.forget()
            self._picture.add(picture.frame.stage_ms)
            dpg.configure_item(self._nothing, show=False)
            dpg.configure_item(self._tools, show=True)
        training = status.training
        if training.iteration != self._iteration and training.stage_ms:
            self._iteration = training.iteration
            self._training.add(training.stage_ms)
        self._update_tools(status)

    def _update_tools(self, status: EngineStatus) -> None:
        dpg.set_value(self._pace, str(self.session.pace))
        against = list(presets(status.backend))
        if self.session.previous_policy is not None:
            against.insert(0, PREVIOUS)
        if against != self._against:
            self._against = against
            dpg.configure_item(self._choice, items=against)
            dpg.set_value(self._choice, against[0])
        dpg.configure_item(self._record, label="Recording…" if status.recording else "Record a second")
        if status.comparison is not self._comparison:
            self._comparison = status.comparison
            self._result.show(status.comparison)
        result = status.comparison
        dpg.configure_item(self._save, show=result is not None and result.done == result.pairs)


class StageTable:
    """One row a stage: name, a bar for its share, the newest time, mean and 99th percentile; and a plot of the sum."""

    def __init__(self, style: Style, title: str) -> None:
        self._style = style
        self._recent: deque[dict[str, float]] = deque(maxlen=RECENT)
        self._rows: dict[str, tuple[Item, list[Item]]] = {}
        self._stages: tuple[str, ...] = ()
        with inside(dpg.add_group(show=False)) as self._whole:
            with inside(dpg.add_table(policy=dpg.mvTable_SizingStretchProp, no_pad_outerX=True)) as self._table:
                dpg.bind_item_theme(self._table, style.facts)
                dpg.add_table_column(label=title, init_width_or_weight=1.5)
                dpg.add_table_column(label="", init_width_or_weight=0.6)
                for label in ("ms", "mean", "p99"):
                    dpg.add_table_column(label=label, width_fixed=True, init_width_or_weight=style.px(NUMBER_WIDTH))
            width, height = style.px(PLOT_WIDTH), style.px(PLOT_HEIGHT)
            with inside(dpg.add_group()) as plot, inside(dpg.add_drawlist(width, height)):
                dpg.draw_rectangle((0, 0), (width, height), color=FIELD, fill=FIELD, rounding=style.px(4))
                self._curve = dpg.draw_polyline([], color=ACCENT, thickness=1.5 * style.scale)
                self._top, self._zero = (self._label(y) for y in (0, height - style.px(SMALL + 1)))
            tooltip(style, plot, f"All stages together, the last {PLOTTED}, the newest at the right; ms from 0 up.")

    def forget(self) -> None:
        """What follows is not to be mixed with what came before, which is not shown any longer."""
        self._recent.clear()
        dpg.configure_item(self._whole, show=False)

    def add(self, stage_ms: dict[str, float]) -> None:
        """Takes in the stages of one picture or step, in order."""
        if not stage_ms:  # their times are not known yet
            return
        if tuple(stage_ms) != self._stages:
            self._stages = tuple(stage_ms)
            self._recent.clear()
            self._build_rows()
        self._recent.append(stage_ms)
        dpg.configure_item(self._whole, show=True)
        times = np.array([list(stages.values()) for stages in self._recent])  # [pictures, stages] ms
        sums = times.sum(axis=1)
        for k, stage in enumerate(self._stages):
            self._show(stage, times[:, k])
            share = times[:, k].mean() / sums.mean() if sums.any() else 0.0
            dpg.set_value(self._rows[stage][0], float(share))
        self._show("", sums)
        self._draw(sums[-PLOTTED:])

    def _label(self, y: float) -> Item:
        text = dpg.draw_text((self._style.px(4), y), "", size=self._style.px(SMALL), color=DIM)
        dpg.bind_item_font(text, self._style.small)
        return text

    def _draw(self, sums: np.ndarray) -> None:
        """The curve from 0 to its highest, the newest at the right of the numbers."""
        top = max(float(sums.max()), 1e-6)
        for item, text in ((self._top, f"{figure(top).strip()} ms"), (self._zero, "0")):
            dpg.configure_item(item, text=text)
        left, width, height = (self._style.px(points) for points in (SCALE_WIDTH, PLOT_WIDTH, PLOT_HEIGHT))
        x = left + (width - left) * (np.arange(len(sums)) + PLOTTED - len(sums)) / (PLOTTED - 1)
        y = 2 + (height - 4) * (1.0 - sums / top)
        dpg.configure_item(self._curve, points=np.stack([x, y], axis=1).tolist())

    def _show(self, stage: str, times: np.ndarray) -> None:
        values = times[-1], times.mean(), np.percentile(times, 99)
        for item, value in zip(self._rows[stage][1], values, strict=True):
            dpg.set_value(item, figure(float(value)))

    def _build_rows(self) -> None:
        dpg.delete_item(self._table, children_only=True, slot=1)
        self._rows.clear()
        style = self._style
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


class ComparisonTable:
    """How far a measurement is, and what it found stage by stage."""

    def __init__(self, style: Style) -> None:
        self._style = style
        with inside(dpg.add_group(show=False)) as self._whole:
            self._names = dpg.add_text("", wrap=0)
            self._progress = dpg.add_progress_bar(width=-1, height=style.px(20))
            with inside(dpg.add_table(policy=dpg.mvTable_SizingStretchProp, no_pad_outerX=True)) as self._table:
                dpg.bind_item_theme(self._table, style.facts)
                dpg.add_table_column(label="median ms", init_width_or_weight=1.0)
                for label, width in (("before", NUMBER_WIDTH), ("now", NUMBER_WIDTH), ("change", 100)):
                    dpg.add_table_column(label=label, width_fixed=True, init_width_or_weight=style.px(width))
            self._pictures = dpg.add_text("", color=DIM, wrap=0)
            dpg.bind_item_font(self._pictures, style.small)

    def show(self, result: Comparison | None) -> None:
        """Shows the newest state of a measurement."""
        dpg.configure_item(self._whole, show=result is not None)
        if result is None:
            return
        dpg.set_value(self._names, f"{result.after}  against  {result.before}")
        measuring = result.done < result.pairs and not result.problem
        dpg.configure_item(self._progress, show=measuring)
        dpg.set_value(self._progress, result.done / result.pairs)
        waiting = f"compiling {', '.join(result.waiting)}…".replace("_", " ")
        overlay = waiting if result.waiting else f"{result.done} of {counted(result.pairs, 'pair')}"
        write_on_bar(self._style, self._progress, overlay)
        dpg.set_value(self._pictures, result.problem or in_words(result))
        dpg.configure_item(self._table, show=bool(result.stages))
        dpg.delete_item(self._table, children_only=True, slot=1)
        for change in result.stages:
            self._add_row(change)

    def _add_row(self, change: StageChange) -> None:
        with inside(dpg.add_table_row(parent=self._table)):
            name = dpg.add_text(change.stage.replace("_", " ") or "all stages")
            if not change.stage:
                dpg.bind_item_font(name, self._style.bold)
            difference = f"{change.change_ms:+6.3f} ±{change.spread_ms:.3f}"
            for text, color in (
                (figure(change.before_ms), DIM),
                (figure(change.after_ms), TEXT),
                (difference, color_of(change)),
            ):
                dpg.bind_item_font(dpg.add_text(text, color=color), self._style.figures)


def color_of(change: StageChange) -> Color:
    """Green if faster, red if slower, by more than the spread; else dim."""
    if abs(change.change_ms) <= change.spread_ms:
        return DIM
    return GOOD if change.change_ms < 0 else BAD


def in_words(result: Comparison) -> str:
    """What became of the picture."""
    if result.max_difference is None or result.psnr is None:
        return ""
    if result.max_difference == 0.0:
        return "The pictures are the same bit for bit."
    most = f"{result.max_difference:.2g} at most ({255 * result.max_difference:.2g} of 255)"
    return f"The pictures differ by {most}, PSNR {result.psnr:.1f} dB."


def figure(ms: float) -> str:
    """Five digits, right-aligned."""
    digits = 3 if ms < 9.9995 else 2 if ms < 99.995 else 1
    return f"{ms:6.{digits}f}"
