"""Training panel: the run's state in a word, the buttons that state allows, figures, loss and PSNR curves."""

from __future__ import annotations

import dearpygui.dearpygui as dpg
import numpy as np

from splatscope.viewer.messages import Curve, EngineStatus, Picture, TrainingStatus
from splatscope.viewer.style import ACCENT, DIM, GOOD, STATE_COLORS, Color, Style, inside
from splatscope.viewer.widgets import Facts, Panel, Ui, button, count, duration

BUCKETS = 160  # points drawn of a curve; a software renderer needs about 1 ms for 20 of a noisy line
BUTTONS: dict[str, tuple[str, ...]] = {
    "ready": ("start", "step"),
    "running": ("pause", "stop"),
    "paused": ("resume", "step", "stop"),
}
HINTS = {
    "none": "Open a capture (photographs with cameras) to train.",
    "ready": "Space starts, N does one iteration.",
    "stopping": "Saving…",
    "error": "The run ended with an error; see the log.",
}


class TrainingPanel(Panel):
    """See the module's text."""

    title = "Training"

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._state = ""

    def build(self) -> None:
        style, session = self.style, self.session
        with inside(dpg.add_group(horizontal=True)) as self._head:
            self._word = dpg.add_text("")
            dpg.bind_item_font(self._word, style.bold)
        self._note = dpg.add_text("", color=DIM, wrap=0)
        with inside(dpg.add_group(horizontal=True)) as self._buttons:
            toggle, step, stop = session.toggle_training, session.step_training, session.stop_training
            self._button = {
                "start": button(style, "Start", toggle, 74, primary=True, tip="Begin training (Space)"),
                "resume": button(style, "Resume", toggle, 74, primary=True, tip="Go on (Space)"),
                "pause": button(style, "Pause", toggle, 74, primary=True, tip="Pause after this iteration (Space)"),
                "step": button(style, "Step", step, 74, tip="One iteration (N)"),
                "stop": button(style, "Stop", stop, 74, tip="Save and end the run"),
            }
        with inside(dpg.add_group(show=False)) as self._figures:
            self._progress = dpg.add_progress_bar(width=-1, height=style.px(20))
            self._facts = Facts(style, ("Loss", "Splats", "PSNR", "SSIM", "Speed", "Left", "View cost"), 2, 74)
            self._loss_plot = CurvePlot(style, "loss", ACCENT)
            self._psnr_plot = CurvePlot(style, "PSNR", GOOD)

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        training = status.training
        if training.state != self._state:
            self._show_state(training.state)
        note = training.note or HINTS.get(training.state, "")
        dpg.set_value(self._note, note)
        dpg.configure_item(self._note, show=bool(note))
        shown = training.state not in ("none", "ready") or training.iteration > 0
        dpg.configure_item(self._figures, show=shown)
        if shown:
            self._show_figures(training, status.splat_count)

    def _show_state(self, state: str) -> None:
        self._state = state
        dpg.set_value(self._word, "nothing to train" if state == "none" else state)
        dpg.configure_item(self._word, color=STATE_COLORS[state])
        allowed = BUTTONS.get(state, ())
        for name, item in self._button.items():
            dpg.configure_item(item, show=name in allowed)
        dpg.configure_item(self._buttons, show=bool(allowed))

    def _show_figures(self, training: TrainingStatus, splats: int) -> None:
        facts = self._facts
        share = training.iteration / training.iterations if training.iterations else 0.0
        dpg.set_value(self._progress, share)
        dpg.configure_item(self._progress, overlay=f"{count(training.iteration)} / {count(training.iterations)}")
        facts.show("Loss", "" if training.loss is None else f"{training.loss:.4f}")
        facts.show("Splats", count(splats))
        facts.show("PSNR", "" if training.psnr is None else f"{training.psnr:.2f} dB")
        facts.show("SSIM", "" if training.ssim is None else f"{training.ssim:.4f}")
        rate = training.iterations_per_second
        facts.show("Speed", speed(rate) if rate else "")
        facts.show("Left", duration(training.eta_seconds) if training.eta_seconds is not None else "")
        facts.show("View cost", f"{training.view_cost:.0%}" if training.view_cost else "")
        self._loss_plot.show(training.loss_curve, "loss")
        self._psnr_plot.show(training.psnr_curve, f"{training.psnr_label}, dB")


def speed(iterations_per_second: float) -> str:
    """it/s, or s/it when that reads better."""
    if iterations_per_second >= 1.0:
        return f"{iterations_per_second:.1f} it/s"
    return f"{1.0 / iterations_per_second:.1f} s/it"


class CurvePlot:
    """A small plot of one curve: its mean, and the band between least and most, in each stretch of x."""

    def __init__(self, style: Style, name: str, color: Color) -> None:
        self._curve: Curve | None = None
        self._title = dpg.add_text(name, color=DIM, show=False)
        self._plot = dpg.add_plot(
            height=style.px(112),
            width=-1,
            show=False,
            no_menus=True,
            no_mouse_pos=True,
            no_box_select=True,
            no_inputs=True,
        )
        with inside(self._plot):
            self._x = dpg.add_plot_axis(dpg.mvXAxis, no_highlight=True)
            self._y = dpg.add_plot_axis(dpg.mvYAxis, no_highlight=True)
            self._band = dpg.add_shade_series([], [], y2=[], parent=self._y)
            self._line = dpg.add_line_series([], [], parent=self._y)
        dpg.bind_item_theme(self._plot, style.line(color))
        dpg.bind_item_font(self._plot, style.small)

    def show(self, curve: Curve, title: str) -> None:
        """Draws a new curve; the same one again costs nothing."""
        if curve is self._curve:
            return
        self._curve = curve
        dpg.set_value(self._title, title)
        for item in (self._title, self._plot):
            dpg.configure_item(item, show=len(curve.x) > 0)
        if len(curve.x) == 0:
            return
        x, mean, low, high = decimate(curve, BUCKETS)
        dpg.set_value(self._line, [x, mean])
        dpg.set_value(self._band, [x, low, high])
        dpg.set_axis_limits(self._x, *_limits(curve.x, 0.0))
        dpg.set_axis_limits(self._y, *_limits(np.concatenate([low, high]), 0.08))


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
