"""Plots growing curves, with the value under the mouse. Curves are decimated: software rendering draws lines slowly.

All plots of a run share one range of iterations, so that values above one another belong to the same iteration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import dearpygui.dearpygui as dpg
import numpy as np

from splatscope.viewer.drawing.style import Item, Style, inside
from splatscope.viewer.drawing.widgets import text_width
from splatscope.viewer.messages.run import Curve
from splatscope.viewer.palette import DIM, Color

Shape = Literal["line", "points", "steps"]  # a noisy curve; a few measurements; a number that jumps

BUCKETS = 120  # points drawn of a curve; software rendering takes about 1 ms for 20 points of a noisy line
HEIGHT = 76  # points; three plots fit below a run's figures in a window of 1280 by 720
TICKS, TICKS_BELOW = 3, 5  # numbers next to a plot and below it, at most
NUMBERS_WIDTH = 52  # points that the numbers next to a plot take, so that plots above one another line up
MARGIN = 0.08  # share of the range of values that stays free above and below


class CurvePlot:
    """Plots one curve. A line is the mean over each stretch of x; a band spans least and most."""

    def __init__(self, style: Style, name: str, color: Color, shape: Shape = "line", can_be_log: bool = False) -> None:
        self._style = style
        self._shape: Shape = shape
        self._shown: tuple[Curve, tuple[float, float], bool] | None = None
        self._points = np.zeros(0), np.zeros(0)  # drawn
        self._values = 0.0, 1.0  # range of the axis
        with inside(dpg.add_group(horizontal=True, show=False)) as self._head:
            self._title = dpg.add_text(name, color=DIM)
            self._log = dpg.add_checkbox(label="log", show=can_be_log)
            dpg.bind_item_theme(self._head, style.facts)  # no taller than the text
        self._plot = dpg.add_plot(
            height=style.px(HEIGHT),
            width=-1,
            show=False,
            no_menus=True,
            no_mouse_pos=True,
            no_box_select=True,
        )
        with inside(self._plot):
            self._x = dpg.add_plot_axis(dpg.mvXAxis, no_highlight=True, lock_min=True, lock_max=True)
            self._y = dpg.add_plot_axis(dpg.mvYAxis, no_highlight=True, lock_min=True, lock_max=True)
            self._band = dpg.add_shade_series([], [], y2=[], parent=self._y)
            add = dpg.add_stair_series if shape == "steps" else dpg.add_line_series
            self._line = add([], [], parent=self._y)
            self._marks: Item = dpg.add_scatter_series([], [], parent=self._y) if shape == "points" else 0
        dpg.bind_item_theme(self._plot, style.line(color))
        dpg.bind_item_font(self._plot, style.small)

    def show(self, curve: Curve, title: str, across: tuple[float, float]) -> None:
        """Draws a curve over the range `across` of x; the same curve again costs nothing.

        The title shows the value under the mouse."""
        under = self._under_mouse() if len(curve.x) else ""
        dpg.set_value(self._title, f"{title}   {under}" if under else title)
        is_log = bool(dpg.get_value(self._log))
        if self._shown is not None and self._shown[0] is curve and self._shown[1:] == (across, is_log):
            return
        self._shown = curve, across, is_log
        enough = 1 if self._shape == "points" else 2  # one point is no line
        for item in (self._head, self._plot):
            dpg.configure_item(item, show=len(curve.x) >= enough)
        if len(curve.x) < enough:
            return
        x, mean, low, high = self._reduced(curve, across[1])
        if is_log:  # logarithms are plotted: an axis cannot change its scale, and its own ticks would collide
            mean, low, high = (np.log10(np.maximum(values, np.finfo(float).tiny)) for values in (mean, low, high))
        self._points = x, mean
        dpg.set_value(self._line, [x, mean])
        dpg.set_value(self._band, [x, low, high])
        if self._marks:
            dpg.set_value(self._marks, [x, mean])
        self._values = limits(np.concatenate([low, high]), MARGIN)
        left, right = limits(np.array(across), 0.0)
        dpg.set_axis_limits(self._x, left, right)
        dpg.set_axis_ticks(self._x, ticks(left, right, TICKS_BELOW))
        dpg.set_axis_limits(self._y, *self._values)
        labels = log_ticks(*self._values) if is_log else ticks(*self._values)
        dpg.set_axis_ticks(self._y, tuple((self._padded(label), value) for label, value in labels))

    def _padded(self, label: str) -> str:
        """Returns a label padded with spaces to about NUMBERS_WIDTH."""
        bare = text_width(label, self._style.small)
        space = (
            text_width(f"{20 * ' '}{label}", self._style.small) - bare
        ) / 20  # the width of a single space is rounded
        return " " * round((self._style.px(NUMBERS_WIDTH) - bare) / space) + label if space else label

    def _reduced(self, curve: Curve, end: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns x, mean, least and most, few enough to draw."""
        if self._shape != "steps":
            return decimate(curve, BUCKETS)
        x, y = stairs(curve, BUCKETS)
        x, y = np.append(x, max(end, x[-1])), np.append(y, y[-1])  # the last value holds up to the end
        return x, y, y, y

    def _under_mouse(self) -> str:
        """Returns "0.0312 at 1,204" for the point nearest to the mouse, or for the stair under it."""
        x, y = self._points
        if len(x) == 0 or not dpg.is_item_hovered(self._plot):
            return ""
        across, up = dpg.get_plot_mouse_pos()
        low, high = self._values
        if not low <= up <= high:  # over the numbers next to the plot
            return ""
        if self._shape == "steps":
            index = max(0, int(np.searchsorted(x, across, side="right")) - 1)
        else:
            index = int(np.abs(x - across).argmin())
        value = 10.0 ** float(y[index]) if dpg.get_value(self._log) else float(y[index])
        return f"{value_text(value)} at {x[index]:,.0f}"


def value_text(value: float) -> str:
    """Returns four significant digits, or a whole number with thousands separators."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def common_range(curves: Sequence[Curve]) -> tuple[float, float]:
    """Returns the least and the greatest x of all curves."""
    there = [curve.x for curve in curves if len(curve.x)]
    return (min(float(x[0]) for x in there), max(float(x[-1]) for x in there)) if there else (0.0, 1.0)


def decimate(curve: Curve, buckets: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns (x, mean, least, most) of a curve in at most `buckets` equal groups of its finite points."""
    finite = np.isfinite(curve.y)
    x, y = curve.x[finite], curve.y[finite]
    if len(x) == 0:
        return x, y, y, y
    starts = np.unique(np.linspace(0, len(x), min(buckets, len(x)), endpoint=False).astype(np.intp))
    sizes = np.diff(np.append(starts, len(x)))
    mean_x, mean_y = np.add.reduceat(x, starts) / sizes, np.add.reduceat(y, starts) / sizes
    return mean_x, mean_y, np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)


def stairs(curve: Curve, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (x, y) of the first point and of the points where the value changes; at most `most`, evenly chosen."""
    kept = np.flatnonzero(np.append(True, np.diff(curve.y) != 0))
    kept = kept[np.unique(np.linspace(0, len(kept) - 1, min(most, len(kept))).astype(np.intp))]
    return curve.x[kept], curve.y[kept]


def ticks(low: float, high: float, most: int = TICKS) -> tuple[tuple[str, float], ...]:
    """Returns (label, value) of at most `most` round values in a range."""
    powers = range(math.floor(math.log10(high - low)) - 1, 400)
    steps = (digit * 10.0**power for power in powers for digit in (1, 2, 2.5, 4, 5))
    step = next(step for step in steps if math.floor(high / step) - math.ceil(low / step) < most)
    values = (step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1))
    return tuple((value_text(value) if abs(value) < 1e6 else f"{value / 1e6:.4g}M", value) for value in values)


def log_ticks(low: float, high: float) -> tuple[tuple[str, float], ...]:
    """Returns (label, logarithm) of the powers of ten in a range of decimal logarithms.

    If fewer than two lie in the range, 2 and 5 times the powers are labelled too, else round values."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    for digits in ((1,), (1, 2, 5)):
        places = [power + math.log10(digit) for power in powers for digit in digits]
        places = [place for place in places if low <= place <= high]
        if len(places) > 1:
            return tuple((value_text(10.0**place), place) for place in places[:: -(-len(places) // TICKS)])
    between = ticks(10.0**low, 10.0**high)  # in such a short range, logarithms are nearly linear
    return tuple((label, math.log10(value)) for label, value in between if value > 0)


def limits(values: np.ndarray, margin: float) -> tuple[float, float]:
    """Returns least and most of the finite values with a margin; the range is never empty."""
    finite = values[np.isfinite(values)]
    if len(finite) == 0:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    pad = margin * (high - low) or 0.5 * abs(high) or 0.5
    return (low - pad, high + pad) if margin or low == high else (low, high)
