"""The buttons of a run, each in a place of its own: those that the state does not allow are grey, and nothing moves.

Only the first button changes its meaning. A press within SETTLES of such a change does not count: it was meant for the
button as it was, like the second half of a double click.
"""

from __future__ import annotations

import time

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.style import Item, inside
from splatscope.viewer.drawing.widgets import Ui, button, hush, labelled, tooltip, write, write_tip
from splatscope.viewer.messages.run import CAN_START, TrainingStatus, Trouble
from splatscope.viewer.palette import WARN

BUTTON = 74  # points wide
ROUND = 1000  # iterations; "run to" offers the next multiple
SETTLES = 0.4  # seconds after a change of meaning in which a press does not count
STEPS = {  # the first button, by state
    "ready": ("Start", "Begin training (Space)"),
    "running": ("Pause", "Pause after this iteration (Space)"),
    "paused": ("Resume", "Resume training (Space)"),
    "stopped": ("Resume", "Resume training (Space)"),
    "finished": ("Resume", "The run is complete; Run to a later iteration makes it longer"),
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
    "Trains up to this iteration and pauses; it can be changed while the run is on its way. An iteration past the end "
    "makes the run longer and leaves the constants of its schedules as they are."
)
SCORE_TIP = (
    "Measures PSNR and SSIM now, on the held-out views, or on some training views if none are held out. The run itself "
    "is not changed."
)


class RunButtons:
    """Belongs to the training panel."""

    def __init__(self, ui: Ui) -> None:
        self._ui, self._session, self._style = ui, ui.session, ui.style
        session, style = ui.session, ui.style
        self._state, self._changed, self._target = "", 0.0, 0  # shown
        self._wished = 0  # the iteration that somebody last asked for
        self._generation: int | None = None  # of the scene whose run that was
        self._enabled: dict[str, bool] = {}
        with inside(dpg.add_group(show=False)) as self._rows:
            with inside(dpg.add_group(horizontal=True)):
                go = button(style, "Start", self._go, BUTTON, primary=True)
                self._go_tip = tooltip(style, go, "")
                step = button(style, "Step", session.step_training, BUTTON, tip="Run one iteration (N)")
                stop = button(
                    style, "Stop", session.stop_training, BUTTON, tip="Save and stop; the run can be resumed later"
                )
                reset = button(style, "Reset…", session.ask_reset, BUTTON, tip="Start over; this asks first")
            with labelled(style, "Run to", 44):
                self.until = ui.field(
                    dpg.add_input_int(width=style.px(98), step=0, min_value=1, min_clamped=True, default_value=ROUND)
                )
                run = button(style, "Run", self._run_until, 54, tip=RUN_TIP)
                score = button(style, "Score now", session.score_now, 92, tip=SCORE_TIP)
        self.items: dict[str, Item] = {
            "go": go, "step": step, "stop": stop, "reset": reset, "run": run, "score": score,
        }  # fmt: skip
        for name in ("step", "stop", "reset", "run", "score"):
            dpg.bind_item_theme(self.items[name], style.can_be_grey)
        self._build_trouble(ui)

    def _build_trouble(self, ui: Ui) -> None:
        """What is offered when a run has paused by itself."""
        style, session = ui.style, ui.session
        with inside(dpg.add_group(show=False)) as self._trouble:
            self._trouble_text = dpg.add_text("", color=WARN)
            self.back = button(
                style, "Go back", session.go_back, 230, primary=True,
                tip="Return to the newest checkpoint before the fault and train again from there",
            )  # fmt: skip
            with inside(dpg.add_group(horizontal=True)):
                tip = "Leave the run as it is and look around"
                self.keep = button(style, "Keep paused", session.keep_paused, 112, tip=tip)
                tip = "Save and stop; the run can be resumed later"
                button(style, "Stop", session.stop_training, 112, tip=tip)
            dpg.add_spacer(height=style.px(4))

    def allowed(self, name: str) -> bool:
        """True if a button can be pressed."""
        return self._enabled.get(name, False)

    def _go(self) -> None:
        hush(self._style, self.items["go"], self._go_tip)
        is_meant = self._state == self._session.status.training.state
        if is_meant and time.perf_counter() - self._changed > SETTLES:
            self._session.toggle_training()

    def _run_until(self) -> None:
        self._wished = dpg.get_value(self.until)
        self._session.train_until(self._wished)

    def update(self, training: TrainingStatus, trouble: Trouble | None) -> None:
        """Enables what can be asked now; a run that paused because of a fault offers its own buttons instead."""
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
        if training.state == "running" and target != self._target:  # what it is on its way to
            self._target = target
            dpg.set_value(self.until, target)

    def _show_state(self, training: TrainingStatus) -> None:
        if self.allowed("go"):  # and was pressed for what it was
            self._changed = time.perf_counter()
        self._state, self._target = training.state, 0
        dpg.configure_item(self._rows, show=training.state != "none")
        if training.state in STEPS:
            label, tip = STEPS[training.state]
            dpg.configure_item(self.items["go"], label=label)
            write_tip(self._style, self._go_tip, tip)
        wanted, reached = dpg.get_value(self.until), training.iteration
        is_end = wanted == training.iterations != self._wished  # which is not what somebody asked for
        if training.state in (*CAN_START, "finished") and (wanted <= reached or is_end):
            dpg.set_value(self.until, (reached // ROUND + 1) * ROUND)
