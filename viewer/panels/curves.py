"""The curves of a run: loss, PSNR, splats and time over the same iterations, and saving them as a table."""

from __future__ import annotations

from pathlib import Path

import dearpygui.dearpygui as dpg

from splatscope.kernels.errors import InputError
from splatscope.viewer.plots import CurvePlot, common_range
from splatscope.viewer.run_status import TrainingStatus
from splatscope.viewer.style import ACCENT, DIM, GOOD, TEXT, WARN, inside
from splatscope.viewer.tables import curve_rows, write_table
from splatscope.viewer.widgets import Ui, button

FILE = "curves.csv"  # in the folder of the run


class RunCurves:
    """Belongs to the training panel."""

    def __init__(self, ui: Ui) -> None:
        style = ui.style
        self._training: TrainingStatus | None = None
        self._saved: tuple[Path | None, int] | None = None  # folder and iteration of the table
        self.loss = CurvePlot(style, "loss", ACCENT, can_be_log=True)
        self.psnr = CurvePlot(style, "PSNR", GOOD, "points")
        self.count = CurvePlot(style, "splats", WARN, "steps")
        self.step = CurvePlot(style, "ms a step", TEXT)
        with inside(dpg.add_group(horizontal=True, show=False)) as self._files:
            tip = f"As {FILE} in the folder of the run; of a long one, means of neighbouring iterations"
            button(style, "Save CSV", self._save, 82, tip=tip)
            self._note = dpg.add_text("", color=DIM, wrap=0)

    def show(self, training: TrainingStatus) -> None:
        """The newest of a run."""
        if self._saved and (training.out_dir != self._saved[0] or training.iteration < self._saved[1]):
            self._saved = None  # of another run
            dpg.set_value(self._note, "")
        self._training = training
        dpg.configure_item(self._files, show=len(training.loss_curve.x) > 1)
        across = common_range(
            [training.loss_curve, training.psnr_curve, training.count_curve, training.step_curve]
        )  # from where any begins: a resumed run knows its losses from the start, its steps from where it went on
        self.loss.show(training.loss_curve, "loss", across)
        self.psnr.show(training.psnr_curve, f"{training.psnr_label}, dB", across)
        self.count.show(training.count_curve, "splats", across)
        self.step.show(training.step_curve, "ms a step", across)

    def _save(self) -> None:
        training = self._training
        if training is None or training.out_dir is None:
            return
        try:
            path = write_table(training.out_dir / FILE, *curve_rows(training))
        except InputError as error:
            dpg.set_value(self._note, str(error))
        else:
            dpg.set_value(self._note, f"{path.name}, up to iteration {training.iteration:,}")
            self._saved = training.out_dir, training.iteration
