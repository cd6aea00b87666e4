"""Shows a measurement of two settings in the stages panel: its progress, and the result stage by stage."""

from __future__ import annotations

import math

import dearpygui.dearpygui as dpg

from splatscope.kernels.wording import counted
from splatscope.viewer.drawing.style import Item, Style, inside
from splatscope.viewer.drawing.widgets import tooltip, write_on_bar
from splatscope.viewer.figures.stage_times import figure
from splatscope.viewer.messages.view import Comparison, StageChange
from splatscope.viewer.palette import BAD, DIM, GOOD, TEXT, Color

COLUMN_WIDTH = 54  # points
LONGEST = 7  # letters of a name above its column; a longer name is replaced by "other" or "current"
BAR_HEIGHT = 20
MEANING = (
    "The times are medians. A ratio below 1 means that the current setting is faster. The line below each stage gives "
    "the difference of the medians and its 95% interval, from resampling the pairs. If the interval includes 0, the "
    "change is within noise."
)


class ComparisonTable:
    """Shows two lines for each stage: both times and their ratio, then the change and its interval."""

    def __init__(self, style: Style) -> None:
        self._style = style
        with inside(dpg.add_group(show=False)) as self._whole:
            self._names = dpg.add_text("", wrap=0)
            self._rows = dpg.add_group()
            dpg.bind_item_theme(self._rows, style.lines)
            tooltip(style, self._rows, MEANING)
            self._words = dpg.add_text("", color=DIM, wrap=0)
            dpg.bind_item_font(self._words, style.small)
            with inside(dpg.add_group()):
                self._progress = dpg.add_progress_bar(width=-1, height=style.px(BAR_HEIGHT))
            self._bar_place = dpg.add_spacer(height=style.px(BAR_HEIGHT), show=False)  # keeps the items below in place

    def show(self, result: Comparison | None) -> None:
        """Shows the newest state of a measurement, or nothing."""
        dpg.configure_item(self._whole, show=result is not None)
        if result is None:
            return
        dpg.set_value(self._names, f"Current ({result.after}) vs {result.before}")
        measuring = result.done < result.pairs and not result.problem
        dpg.configure_item(self._progress, show=measuring)
        dpg.configure_item(self._bar_place, show=not measuring)
        dpg.set_value(self._progress, result.done / result.pairs)
        waiting = f"compiling {', '.join(result.waiting)}…".replace("_", " ")
        overlay = waiting if result.waiting else f"{result.done} of {counted(result.pairs, 'pair')}"
        write_on_bar(self._style, self._progress, overlay)
        dpg.set_value(self._words, result.problem or in_words(result))
        dpg.delete_item(self._rows, children_only=True)
        if result.stages:
            with inside(self._rows):
                self._build(result)

    def _build(self, result: Comparison) -> None:
        before, after = column_names(result)
        self._add_row("median ms", [f"{name:>{LONGEST}}" for name in (before, after, "ratio")], [DIM] * 3, DIM)
        for change in result.stages:
            ratio = "–" if change.ratio is None else f"{change.ratio:.2f}×"
            numbers = [figure(change.before_ms), figure(change.after_ms), f"{ratio:>{LONGEST}}"]
            name = change.stage.replace("_", " ") or "all stages"
            item = self._add_row(name, numbers, [TEXT, TEXT, color_of(change)], TEXT)
            if not change.stage:
                dpg.bind_item_font(item, self._style.bold)
            dpg.bind_item_font(dpg.add_text(change_in_words(change), color=color_of(change)), self._style.small)

    def _add_row(self, name: str, numbers: list[str], colors: list[Color], color: Color) -> Item:
        """Adds a table of one row, so that the line below it can use the whole width."""
        style = self._style
        with inside(dpg.add_table(header_row=False, policy=dpg.mvTable_SizingStretchProp, no_pad_outerX=True)) as table:
            dpg.bind_item_theme(table, style.facts)
            dpg.add_table_column(init_width_or_weight=1.0)
            for _ in numbers:
                dpg.add_table_column(width_fixed=True, init_width_or_weight=style.px(COLUMN_WIDTH))
            with inside(dpg.add_table_row()):
                item = dpg.add_text(name, color=color)
                for text, own in zip(numbers, colors, strict=True):
                    dpg.bind_item_font(dpg.add_text(text, color=own), style.figures)
        return item


def column_names(result: Comparison) -> tuple[str, str]:
    """Returns the headings of both columns: the settings' names where they fit."""
    names = (result.before, "other"), (result.after, "current")
    before, after = (name if len(name) <= LONGEST else role for name, role in names)
    return before, after


def color_of(change: StageChange) -> Color:
    """Returns green for faster, red for slower, dim for a change that may be noise."""
    if change.is_noise:
        return DIM
    return GOOD if change.change_ms < 0 else BAD


def change_in_words(change: StageChange) -> str:
    """Returns the change, its interval and the verdict: "-0.265 ms (-0.310 to -0.121): faster"."""
    if not math.isfinite(change.low_ms):
        return f"{with_sign(change.change_ms)} ms, too few pairs to tell"
    verdict = "within noise" if change.is_noise else "faster" if change.change_ms < 0 else "slower"
    return f"{with_sign(change.change_ms)} ms ({with_sign(change.low_ms)} to {with_sign(change.high_ms)}): {verdict}"


def with_sign(ms: float) -> str:
    """Returns a difference with its sign and as many digits as `figure` gives."""
    return ("-" if ms < 0 else "+") + figure(abs(ms)).strip()


def in_words(result: Comparison) -> str:
    """Returns how many pairs were measured, and how far the pictures differ."""
    pairs = f"{counted(result.done, 'pair')}, measured in turns." if result.done else ""
    if result.max_difference is None or result.psnr is None:
        return pairs
    if result.max_difference == 0.0:
        return f"{pairs} The pictures are identical.".strip()
    most = f"{result.max_difference:.2g} at most ({255 * result.max_difference:.2g} of 255)"
    return f"{pairs} The pictures differ by {most}, PSNR {result.psnr:.1f} dB.".strip()
