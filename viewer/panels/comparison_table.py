"""How far a measurement of two settings is, and what it found stage by stage: the result in the stages panel."""

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
LONGEST = 7  # letters of a name above its column; a longer one is called what it is to the other
BAR_HEIGHT = 20
MEANING = (
    "Times are medians. The ratio is that of the two medians, below 1 if the current setting is faster. Below it is "
    "the difference of the medians with its 95% interval, found by drawing the pairs again at random. A change whose "
    "interval has 0 in it is within noise."
)


class ComparisonTable:
    """Two lines a stage: both times and their ratio, then the change and how sure it is."""

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
            self._bar_place = dpg.add_spacer(height=style.px(BAR_HEIGHT), show=False)  # what is below stays there

    def show(self, result: Comparison | None) -> None:
        """Shows the newest state of a measurement."""
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
        """A table of one row, so that the line below it may be as long as the panel is wide."""
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
    """Returns the names of both settings where they fit above a column."""
    names = (result.before, "other"), (result.after, "current")
    before, after = (name if len(name) <= LONGEST else role for name, role in names)
    return before, after


def color_of(change: StageChange) -> Color:
    """Returns green if faster, red if slower, dim if that may be noise."""
    if change.is_noise:
        return DIM
    return GOOD if change.change_ms < 0 else BAD


def change_in_words(change: StageChange) -> str:
    """Returns the change, its interval and what follows: "-0.265 ms (-0.310 to -0.121): faster"."""
    if not math.isfinite(change.low_ms):
        return f"{signed(change.change_ms)} ms, too few pairs to tell"
    verdict = "within noise" if change.is_noise else "faster" if change.change_ms < 0 else "slower"
    return f"{signed(change.change_ms)} ms ({signed(change.low_ms)} to {signed(change.high_ms)}): {verdict}"


def signed(ms: float) -> str:
    """Returns a difference with its sign and as many digits as `figure` gives."""
    return ("-" if ms < 0 else "+") + figure(abs(ms)).strip()


def in_words(result: Comparison) -> str:
    """Returns how much was measured, and what became of the picture."""
    pairs = f"{counted(result.done, 'pair')}, in turns." if result.done else ""
    if result.max_difference is None or result.psnr is None:
        return pairs
    if result.max_difference == 0.0:
        return f"{pairs} The pictures are the same bit for bit.".strip()
    most = f"{result.max_difference:.2g} at most ({255 * result.max_difference:.2g} of 255)"
    return f"{pairs} The pictures differ by {most}, PSNR {result.psnr:.1f} dB.".strip()
