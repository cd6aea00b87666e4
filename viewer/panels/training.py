"""Shows the run's state and buttons, its recipe until it begins, then its figures and curves.

The parts: `training_buttons.py`, `recipe.py` (the form), `curves.py`, `shares.py` (limits on pictures). Text that comes
and goes has a place of fixed height, so that nothing moves under the mouse.
"""

from __future__ import annotations

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.style import inside
from splatscope.viewer.drawing.widgets import Facts, Note, Panel, count, duration, tooltip, write_on_bar, write_tip
from splatscope.viewer.messages.run import MemoryUse, TrainingStatus
from splatscope.viewer.messages.view import EngineStatus, Picture
from splatscope.viewer.palette import DIM, WARN
from splatscope.viewer.panels.checkup import CheckupNote
from splatscope.viewer.panels.curves import RunCurves
from splatscope.viewer.panels.recipe import RecipeForm
from splatscope.viewer.panels.shares import ViewShares
from splatscope.viewer.panels.training_buttons import RunButtons
from splatscope.viewer.state.run_wording import (
    memory_words,
    phase_words,
    progress_words,
    score_label,
    score_words,
    size_words,
    speed,
    state_word,
    view_price,
)

LABEL_WIDTH = 74  # points
NOTE_LINES = 2
RESUME = "Space resumes the run; N runs one iteration."
HINTS = {
    "none": "Open a capture (photographs with cameras) to train.",
    "ready": "Space starts the run; N runs one iteration. You can change the recipe until then.",
    "resumed": RESUME,
    "running": "Space pauses the run.",
    "paused": RESUME,
    "stopped": RESUME,
    "stopping": "Saving…",
    "finished": "All iterations are done. To continue, set a later iteration and press Run.",
    "error": "The run ended with an error; see the log.",
}


class TrainingPanel(Panel):
    """Shows the section "Training" of the dock."""

    title = "Training"

    def build(self) -> None:
        style = self.style
        with inside(dpg.add_group(horizontal=True)):
            self._word = dpg.add_text("")
            self._beside = dpg.add_text("", color=DIM)
        dpg.bind_item_font(self._word, style.bold)
        self.buttons = RunButtons(self.ui)
        self._note = Note(self.ui, NOTE_LINES)
        self._form = RecipeForm(self.ui)
        self._checkup = CheckupNote(self.ui)
        self._form.build()
        self._progress = dpg.add_progress_bar(width=-1, height=style.px(20), show=False)
        self._memory = dpg.add_progress_bar(width=-1, height=style.px(20), show=False)
        self._memory_tip = tooltip(style, self._memory, "")
        with inside(dpg.add_group(show=False)) as self._figures:
            self._facts = Facts(
                style, ("Loss", "Splats", "Speed", "Time left", "Time spent", "SH degree"), 2, LABEL_WIDTH
            )
            self._score = Facts(style, ("Score", "Photo size"), 1, LABEL_WIDTH)
            self._phase = dpg.add_text("", color=DIM)
            dpg.bind_item_font(self._phase, style.small)
            self._curves = RunCurves(self.ui)
            self._price = Facts(style, ("View cost",), 1)
        tooltip(
            style, self._facts.item("Time spent"), "Time spent on steps, scores and files, without pictures and pauses"
        )
        tooltip(style, self._facts.item("Time left"), "Time until the run pauses or ends")
        tooltip(style, self._score.item("Photo size"), "Size of the photographs that training uses now")
        self._shares = ViewShares(self.ui)

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        training = status.training
        word, color = state_word(status, "nothing to train")
        dpg.set_value(self._word, word)
        dpg.configure_item(self._word, color=color)
        self.buttons.update(training, self.session.run.trouble)
        dpg.set_value(self._beside, self.session.run.pending or training.so_far)
        self._show_note(status)
        self._checkup.show(status.checkup if training.state == "ready" else (), training.iteration > 0)
        self._form.update(status.recipe)
        self._show_memory(training.memory)
        self._shares.show(training.state != "none")
        shown = training.state not in ("none", "ready") or training.iteration > 0
        for item in (self._progress, self._figures):
            dpg.configure_item(item, show=shown)
        if shown:
            self._show_figures(training, status.splat_count)

    def _show_note(self, status: EngineStatus) -> None:
        """Shows the most urgent of: a refused setting, too little memory, news of the run, the keys to use."""
        use = status.training.memory
        if refusal := self._form.refusal:
            self._note.show(refusal, WARN)
        elif use is not None and 0 < use.total < use.needed:
            self._note.show(use.text, WARN)
        else:
            self._note.show(status.training.note or self._hint(status))

    def _hint(self, status: EngineStatus) -> str:
        training = status.training
        if training.state == "none" and status.search is not None:
            return f"Finding the cameras of {status.search.folder.name}, which opens afterwards."
        if training.state == "none" and status.scene is None and status.busy:
            return ""
        return HINTS.get("resumed" if training.state == "ready" and training.iteration else training.state, "")

    def _show_memory(self, use: MemoryUse | None) -> None:
        """Shows the memory in use, the total memory, and the estimated need of the run."""
        is_known = use is not None and use.total > 0
        dpg.configure_item(self._memory, show=is_known)
        if use is None or not is_known:
            return
        write_on_bar(self.style, self._memory, *memory_words(use))
        dpg.set_value(self._memory, min(1.0, use.used / use.total))
        in_use = "The bar shows the memory that all programs use, at the highest point of the last seconds."
        write_tip(self.style, self._memory_tip, f"{in_use} For this run {use.text}")

    def _show_figures(self, training: TrainingStatus, splats: int) -> None:
        facts, phase = self._facts, training.phase
        share = training.iteration / training.iterations if training.iterations else 0.0
        dpg.set_value(self._progress, share)
        write_on_bar(self.style, self._progress, *progress_words(training))
        facts.show("Loss", "" if training.loss is None else f"{training.loss:.4f}")
        facts.show("Splats", count(splats))
        rate = training.iterations_per_second
        facts.show("Speed", speed(rate) if rate else "")
        facts.show("Time left", duration(training.eta_seconds) if training.eta_seconds is not None else "")
        facts.show("Time spent", duration(phase.seconds))
        facts.show("SH degree", f"{phase.sh_degree} of {phase.sh_highest}")
        self._score.rename("Score", score_label(training))
        self._score.show("Score", score_words(training))
        self._score.show("Photo size", size_words(phase))
        dpg.set_value(self._phase, phase_words(phase, training.iteration))
        self._curves.show(training)
        self._price.show("View cost", view_price(training))
