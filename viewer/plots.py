"""Small plots of curves that grow, with the value under the mouse. Decimated: software rendering is slow with lines."""

from __future__ import annotations

import dearpygui.dearpygui as dpg
import numpy as np

from splatscope.viewer.messages import Curve
from splatscope.viewer.style import DIM, Color, Style, inside

BUCKETS = 120  # points drawn of a curve; a software renderer needs about 1 ms for 20 of a noisy line

HEIGHT = 76  # points; three fit below a run's figures in a window of 1280 by 720


class CurvePlot:
    """A small plot of one curve: its mean, and the band between least and most, in each stretch of x."""

    def __init__(self, style: Style, name: str, color: Color) -> None:
        self._curve: Curve | None = None
        self._points = np.zeros(0), np.zeros(0)  # drawn
        self._title = dpg.add_text(name, color=DIM, show=False)
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
            self._line = dpg.add_line_series([], [], parent=self._y)
        dpg.bind_item_theme(self._plot, style.line(color))
        dpg.bind_item_font(self._plot, style.small)

    def show(self, curve: Curve, title: str) -> None:
        """Draws a new curve; the same one again costs nothing. The title tells the value under the mouse."""
        under = self._under_mouse() if len(curve.x) else ""
        dpg.set_value(self._title, f"{title}   {under}" if under else title)
        if curve is self._curve:
            return
        self._curve = curve
        for item in (self._title, self._plot):
            dpg.configure_item(item, show=len(curve.x) > 1)  # one point is no line
        if len(curve.x) == 0:
            return
        x, mean, low, high = decimate(curve, BUCKETS)
        self._points = x, mean
        dpg.set_value(self._line, [x, mean])
        dpg.set_value(self._band, [x, low, high])
        dpg.set_axis_limits(self._x, *_limits(curve.x, 0.0))
        dpg.set_axis_limits(self._y, *_limits(np.concatenate([low, high]), 0.08))

    def _under_mouse(self) -> str:
        """ "0.0312 at 1,204", of the point nearest to the mouse."""
        x, y = self._points
        if len(x) == 0 or not dpg.is_item_hovered(self._plot):
            return ""
        across, up = dpg.get_plot_mouse_pos()
        low, high = dpg.get_axis_limits(self._y)
        if not low <= up <= high:  # over the numbers beside the plot
            return ""
        nearest = int(np.abs(x - across).argmin())
        return f"{spoken(float(y[nearest]))} at {x[nearest]:,.0f}"


def spoken(value: float) -> str:
    """Four figures, or a whole number with its thousands."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def decimate(curve: Curve, buckets: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(x, mean, least, most) of a curve in at most `buckets` equal runs of points; non-finite points are left out."""
    finite = np.isfinite(curve.y)
    x, y = curve.x[finite], curve.y[finite]
    if len(x) == 0:
        return x, y, y, y
    starts = np.unique(np.linspace(0, len(x), min(buckets, len(x)), endpoint=False).astype(np.intp))
    sizes = np.diff(np.append(starts, len(x)))
    mean_x, mean_y = np.add.reduceat(x, starts) / sizes, np.add.reduceat(y, starts) / sizes
    return mean_x, mean_y, np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)


def _limits(values: np.ndarray, margin: float) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    if len(finite) == 0:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    pad = margin * (high - low) or 0.5 * abs(high) or 0.5
    return (low - pad, high + pad) if margin or low == high else (low, high)
