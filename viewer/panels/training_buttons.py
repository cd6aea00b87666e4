"""Shows a run's buttons, each in a fixed place; a button that the state does not allow is grey.

Only the first button changes its meaning. A press within SETTLES after such a change does not count: it was meant for
the former meaning, like the second half of a double click.
"""

from __future__ import annotations

import time

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.style import Item, inside
from splatscope.viewer.drawing.widgets import Ui, button, hide_tooltip, label_row, tooltip, write, write_tip
from splatscope.viewer.messages.run import CAN_START, TrainingStatus, Trouble
from splatscope.viewer.palette import WARN

BUTTON = 74  # points wide
ROUND = 1000  # iterations; "run to" offers the next multiple
SETTLES = 0.4  # seconds after a change of meaning in which a press does not count
STEPS = {  # the first button, by state
    "ready": ("Start", "Starts training (Space)"),
    "running": ("Pause", "Pauses after this iteration (Space)"),
    "paused": ("Resume", "Resumes training (Space)"),
    "stopped": ("Resume", "Resumes training (Space)"),
    "finished": ("Resume", "The run is complete. To make it longer, set a later iteration and press Run."),
}
ALLOWED = {
    "ready": ("go", "step", "run"),
    "running": ("go", "stop", "run"),
    "paused": ("go", "step", "stop", "reset", "run"),
    "stopped": ("go", "step", "reset", "run"),
    "finished": ("reset", "run"),
    "error": ("reset",),
}
RUN_TIP = (
    "Trains up to this iteration and pauses. You can change it during the run. An iteration past the end makes the run "
    "longer; learning rates and densification stay as planned."
)
SCORE_TIP = (
    "Measures PSNR and SSIM now, on the held-out views, or on some training views if none are held out. The run's "
    "result does not change."
)


class RunButtons:
    """Builds the buttons and enables those that the state allows. A part of the training panel."""

    def __init__(self, ui: Ui) -> None:
        self._ui, self._session, self._style = ui, ui.session, ui.style
        session, style = ui.session, ui.style
        self._state, self._changed, self._target = "", 0.0, 0  # as the buttons show them
        self._wished = 0  # the iteration that the user last asked for
        self._generation: int | None = None  # generation of the scene whose run it is
        self._enabled: dict[str, bool] = {}
        with inside(dpg.add_group(show=False)) as self._rows:
            with inside(dpg.add_group(horizontal=True)):
                go = button(style, "Start", self._go, BUTTON, primary=True)
                self._go_tip = tooltip(style, go, "")
                step = button(style, "Step", session.run.step, BUTTON, tip="Runs one iteration (N)")
                stop = button(
                    style, "Stop", session.run.stop, BUTTON, tip="Saves and stops the run; you can resume it later"
                )
                reset = button(style, "Reset…", session.run.ask_reset, BUTTON, tip="Asks, then starts the run over")
            with label_row(style, "Run to", 44):
                self.until = ui.field(
                    dpg.add_input_int(width=style.px(98), step=0, min_value=1, min_clamped=True, default_value=ROUND)
                )
                run = button(style, "Run", self._run_until, 54, tip=RUN_TIP)
                score = button(style, "Score now", session.run.score_now, 92, tip=SCORE_TIP)
        self.items: dict[str, Item] = {
            "go": go, "step": step, "stop": stop, "reset": reset, "run": run, "score": score,
        }  # fmt: skip
        for name in ("step", "stop", "reset", "run", "score"):
            dpg.bind_item_theme(self.items[name], style.can_be_grey)
        self._build_trouble(ui)

    def _build_trouble(self, ui: Ui) -> None:
        """Adds the buttons for a run that has paused because of a fault."""
        style, session = ui.style, ui.session
        with inside(dpg.add_group(show=False)) as self._trouble:
            self._trouble_text = dpg.add_text("", color=WARN)
            self.back = button(
                style, "Go back", session.run.go_back, 230, primary=True,
                tip="Returns to the newest checkpoint before the fault and trains from there",
            )  # fmt: skip
            with inside(dpg.add_group(horizontal=True)):
                tip = "Leaves the run paused, so that you can look around"
                self.keep = button(style, "Keep paused", session.run.keep_paused, 112, tip=tip)
                tip = "Saves and stops the run; you can resume it later"
                button(style, "Stop", session.run.stop, 112, tip=tip)
            dpg.add_spacer(height=style.px(4))

    def allowed(self, name: str) -> bool:
        """Returns True if a button can be pressed."""
        return self._enabled.get(name, False)

    def _go(self) -> None:
        hide_tooltip(self._style, self.items["go"], self._go_tip)
        is_meant = self._state == self._session.engine.status.training.state
        if is_meant and time.perf_counter() - self._changed > SETTLES:
            self._session.run.toggle()

    def _run_until(self) -> None:
        self._wished = dpg.get_value(self.until)
        self._session.run.train_until(self._wished)

    def update(self, training: TrainingStatus, trouble: Trouble | None) -> None:
        """Enables the buttons that the state allows. A run that paused because of a fault has other buttons."""
        if self._session.generation != self._generation:
            self._generation = self._session.generation
            self._state, self._wished = "", 0
            dpg.set_value(self.until, ROUND)
        if training.state != self._state:
            self._show_state(training)
        allowed = ALLOWED.get(training.state, ()) if trouble is None else ()
        for name, item in self.items.items():
            may = training.can_be_scored and trouble is None if name == "score" else name in allowed
            if self._enabled.get(name) != may:
                self._enabled[name] = may
                dpg.configure_item(item, enabled=may)
                if name == "go":
                    dpg.bind_item_theme(item, self._style.primary_button if may else self._style.can_be_grey)
        dpg.configure_item(self._trouble, show=trouble is not None)
        if trouble is not None:
            write(self._ui, self._trouble_text, trouble.text)
            dpg.configure_item(self.back, label=trouble.back_label)
        target = training.until or training.iterations
        if training.state == "running" and target != self._target:  # the target of the run in progress
            self._target = target
            dpg.set_value(self.until, target)

    def _show_state(self, training: TrainingStatus) -> None:
        if self.allowed("go"):  # a press may have been meant for the former label
            self._changed = time.perf_counter()
        self._state, self._target = training.state, 0
        dpg.configure_item(self._rows, show=training.state != "none")
        if training.state in STEPS:
            label, tip = STEPS[training.state]
            dpg.configure_item(self.items["go"], label=label)
            write_tip(self._style, self._go_tip, tip)
        wanted, reached = dpg.get_value(self.until), training.iteration
        is_end = wanted == training.iterations != self._wished  # the user did not ask for the run's end
        if training.state in (*CAN_START, "finished") and (wanted <= reached or is_end):
            dpg.set_value(self.until, (reached // ROUND + 1) * ROUND)
