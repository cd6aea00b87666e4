"""Plots a run's loss, PSNR, splats and time over the same iterations, and saves the curves as CSV."""

from __future__ import annotations

from pathlib import Path

import dearpygui.dearpygui as dpg

from splatscope.kernels.errors import InputError
from splatscope.viewer.drawing.plots import CurvePlot, common_range
from splatscope.viewer.drawing.style import inside
from splatscope.viewer.drawing.widgets import Ui, button, fit
from splatscope.viewer.figures.tables import curve_rows, write_table
from splatscope.viewer.messages.run import TrainingStatus
from splatscope.viewer.palette import ACCENT, DIM, GOOD, TEXT, WARN

FILE = "curves.csv"  # file in the run's folder


class RunCurves:
    """Shows four plots below the run's figures. A part of the training panel."""

    def __init__(self, ui: Ui) -> None:
        style = ui.style
        self._ui = ui
        self._training: TrainingStatus | None = None
        self._saved: tuple[Path | None, int] | None = None  # folder and iteration of the saved table
        self.loss = CurvePlot(style, "loss", ACCENT, can_be_log=True)
        self.psnr = CurvePlot(style, "PSNR", GOOD, "points")
        self.count = CurvePlot(style, "splats", WARN, "steps")
        self.step = CurvePlot(style, "ms per step", TEXT)
        with inside(dpg.add_group(horizontal=True)):
            tip = f"Writes {FILE} to the run's folder. Long curves are averaged over neighbouring iterations."
            self._button = button(style, "Save CSV", self._save, 82, tip=tip)
            dpg.bind_item_theme(self._button, style.can_be_grey)
            self._note = dpg.add_text("", color=DIM)

    def show(self, training: TrainingStatus) -> None:
        """Shows the newest curves of a run."""
        if self._saved and (training.out_dir != self._saved[0] or training.iteration < self._saved[1]):
            self._saved = None  # the saved table is of another run, or the run went back
            self._say("")
        self._training = training
        dpg.configure_item(self._button, enabled=len(training.loss_curve.x) > 1)
        across = common_range(
            [training.loss_curve, training.psnr_curve, training.count_curve, training.step_curve]
        )  # from the first x of any curve: a resumed run knows all losses, but step times only since it was resumed
        self.loss.show(training.loss_curve, "loss", across)
        self.psnr.show(training.psnr_curve, f"{training.psnr_label}, dB", across)
        self.count.show(training.count_curve, "splats", across)
        self.step.show(training.step_curve, "ms per step", across)

    def _save(self) -> None:
        training = self._training
        if training is None or training.out_dir is None:
            return
        try:
            path = write_table(training.out_dir / FILE, *curve_rows(training))
        except InputError as error:
            self._say(str(error))
        else:
            self._say(f"{path.name}, up to iteration {training.iteration:,}")
            self._saved = training.out_dir, training.iteration

    def _say(self, text: str) -> None:
        style = self._ui.style
        dpg.set_value(self._note, fit(text, self._ui.room - style.px(90), style.body))
