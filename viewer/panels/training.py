"""Training panel: the run's state in a word, the buttons that state allows, the recipe until it begins, curves.

Also what looking on may cost the run. The form is in `recipe.py`, the curves are in `plots.py`.
"""

from __future__ import annotations

import dearpygui.dearpygui as dpg

from splatscope.viewer.messages import EngineStatus, MemoryUse, Picture, TrainingStatus, Trouble
from splatscope.viewer.panels.recipe import RecipeForm
from splatscope.viewer.plots import CurvePlot
from splatscope.viewer.style import ACCENT, DIM, GOOD, STATE_COLORS, TEXT, WARN, Item, inside
from splatscope.viewer.training_verbs import CAN_START
from splatscope.viewer.widgets import Facts, Panel, Ui, button, count, duration, labelled, tooltip

GIB = 2**30
BUTTON = 74  # points wide
ROUND = 1000  # iterations; "run to" offers the next multiple
# Each verb has its place, left empty where the state does not allow it: a second click on Step is never one on Stop.
BUTTONS: dict[str, tuple[str, ...]] = {
    "ready": ("start", "step"),
    "running": ("pause", "", "stop"),
    "paused": ("resume", "step", "stop", "reset"),
    "stopped": ("resume", "step", "", "reset"),
    "finished": ("reset",),
    "error": ("reset",),
}
HINTS = {
    "none": "Open a capture (photographs with cameras) to train.",
    "ready": "Space starts, N does one iteration. The recipe can be changed until then.",
    "resumed": "Space goes on, N does one iteration.",
    "stopping": "Saving…",
    "error": "The run ended with an error; see the log.",
}


class TrainingPanel(Panel):
    """See the module's text."""

    title = "Training"

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._state, self._troubled = "", False  # shown
        self._form = RecipeForm(ui)

    def build(self) -> None:
        style = self.style
        self._word = dpg.add_text("")
        dpg.bind_item_font(self._word, style.bold)
        self._rows: dict[str, Item] = {}  # of buttons, by state: a row that begins with a hidden one loses its place
        self._button: dict[tuple[str, str], Item] = {}  # by state and name
        for state, names in BUTTONS.items():
            with inside(dpg.add_group(horizontal=True, show=False)) as self._rows[state]:
                for name in names:
                    if name:
                        self._button[state, name] = self._make_button(name, state)
                    else:
                        dpg.add_spacer(width=style.px(BUTTON))
        with inside(dpg.add_group(show=False)) as self._until_row, labelled(style, "Run to", 74):
            self._until = self.ui.field(
                dpg.add_input_int(width=style.px(110), step=0, min_value=1, min_clamped=True, default_value=1000)
            )
            self._run = button(style, "Run", self._run_until, 62, tip="Pause after that iteration")
        with inside(dpg.add_group(show=False)) as self._question:
            self._question_text = dpg.add_text("", wrap=0)
            with inside(dpg.add_group(horizontal=True)):
                self._throw = button(style, "Throw it away", self._reset, 120)
                button(style, "Keep it", lambda: self._ask(False), 90, primary=True)
        self._note = dpg.add_text("", color=DIM, wrap=0)  # comes and goes, so below what is clicked on
        self._build_trouble()
        self._form.build()
        self._progress = dpg.add_progress_bar(width=-1, height=style.px(20), show=False)
        self._memory = dpg.add_progress_bar(width=-1, height=style.px(20), show=False)
        self._memory_tip = tooltip(style, self._memory, "")
        self._memory_note = dpg.add_text("", color=WARN, wrap=0, show=False)
        with inside(dpg.add_group(show=False)) as self._figures:
            self._facts = Facts(style, ("Loss", "Splats", "PSNR", "SSIM", "Speed", "Left"), 2, 74)
            self._price = Facts(style, ("View cost",), 1, 74)
            self._loss_plot = CurvePlot(style, "loss", ACCENT)
            self._psnr_plot = CurvePlot(style, "PSNR", GOOD)
            self._count_plot = CurvePlot(style, "splats", WARN)
            self._step_plot = CurvePlot(style, "ms a step", TEXT)
        self._build_shares()

    def _make_button(self, name: str, state: str) -> Item:
        style, session = self.style, self.session
        toggle, step, stop = session.toggle_training, session.step_training, session.stop_training
        match name:
            case "start":
                return button(style, "Start", toggle, BUTTON, primary=True, tip="Begin training (Space)")
            case "resume":
                label = "Go on" if state == "stopped" else "Resume"
                return button(style, label, toggle, BUTTON, primary=True, tip="Train on from here (Space)")
            case "pause":
                return button(style, "Pause", toggle, BUTTON, primary=True, tip="Pause after this iteration (Space)")
            case "step":
                return button(style, "Step", step, BUTTON, tip="One iteration (N)")
            case "stop":
                return button(style, "Stop", stop, BUTTON, tip="Save and stop; the run can go on later")
            case _:
                return button(style, "Reset…", lambda: self._ask(True), BUTTON, tip="Throw the run away and begin anew")

    def _build_trouble(self) -> None:
        """What is offered when a run has paused by itself."""
        style = self.style
        with inside(dpg.add_group(show=False)) as self._trouble:
            self._trouble_text = dpg.add_text("", wrap=0, color=WARN)
            self._back = button(style, "Go back", self.session.go_back, 230, primary=True)
            tooltip(style, self._back, "The newest checkpoint before; what came after it is trained again")
            with inside(dpg.add_group(horizontal=True)):
                self._keep = button(
                    style, "Keep paused", self.session.keep_paused, 112, tip="Look around first; all stays as it is"
                )
                button(style, "Stop", self.session.stop_training, 112, tip="Save and stop; the run can go on later")
            dpg.add_spacer(height=style.px(4))

    def _build_shares(self) -> None:
        style, session = self.style, self.session
        with labelled(style, "While moving"):
            self._fps = self.ui.field(
                dpg.add_slider_int(
                    min_value=2, max_value=60, format="%d pictures a second", clamped=True, width=-1,
                    callback=lambda _, fps: session.set_moving_fps(float(fps)),
                )
            )  # fmt: skip
            tooltip(style, self._fps, "What is aimed at while the view moves; the picture's resolution gives way.")
        with inside(dpg.add_group(show=False)) as self._share_row:
            with labelled(style, "Training keeps"):
                self._share = self.ui.field(
                    dpg.add_slider_int(
                        min_value=10, max_value=98, format="at least %d %% of the time", clamped=True, width=-1,
                        callback=lambda _, percent: session.set_view_share(1.0 - 0.01 * percent),
                    )
                )  # fmt: skip
                tooltip(
                    style,
                    self._share,
                    "The rest is what pictures of a still view may take; 60 % while it moves, or that if it is more. "
                    "View cost is what they do take.",
                )
            with labelled(style, "Pictures"):
                self._rate = self.ui.field(
                    dpg.add_slider_int(
                        min_value=1, max_value=60, format="at most %d a second", clamped=True, width=-1,
                        callback=lambda _, rate: session.set_view_rate(float(rate)),
                    )
                )  # fmt: skip
                tooltip(
                    style,
                    self._rate,
                    "While training and the view moves; ten of a still view, whose splats alone change. As far as the "
                    "share of the time allows.",
                )

    def _run_until(self) -> None:
        self.session.train_until(dpg.get_value(self._until))

    def _ask(self, ask: bool) -> None:
        dpg.configure_item(self._question, show=ask)

    def _reset(self) -> None:
        self._ask(False)
        self.session.reset_training()

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        training, trouble = status.training, self.session.trouble
        if (training.state, trouble is not None) != (self._state, self._troubled):
            self._show_state(training.state, trouble)
        hint = "resumed" if training.state == "ready" and training.iteration else training.state
        note = self.session.pending or training.note or HINTS.get(hint, "")
        dpg.set_value(self._note, note)
        dpg.configure_item(self._note, show=bool(note))
        self._form.update(status.recipe)
        self._show_memory(training.memory)
        dpg.set_value(self._fps, round(self.session.moving_fps))
        dpg.set_value(self._share, round(100 * (1.0 - self.session.view_share)))
        dpg.set_value(self._rate, round(self.session.view_rate))
        dpg.configure_item(self._share_row, show=training.state != "none")
        where = f"Iteration {count(training.iteration)} is reached. What is saved in {training.out_dir} stays there."
        dpg.set_value(self._question_text, where)
        shown = training.state not in ("none", "ready") or training.iteration > 0
        for item in (self._progress, self._figures):
            dpg.configure_item(item, show=shown)
        if shown:
            self._show_figures(training, status.splat_count)

    def _show_state(self, state: str, trouble: Trouble | None) -> None:
        self._state, self._troubled = state, trouble is not None
        dpg.set_value(self._word, "nothing to train" if state == "none" else state)
        dpg.configure_item(self._word, color=STATE_COLORS[state])
        for of, row in self._rows.items():
            dpg.configure_item(row, show=of == state and trouble is None)
        dpg.configure_item(self._until_row, show=state in CAN_START and trouble is None)
        if state in CAN_START and dpg.get_value(self._until) <= self.session.status.training.iteration:
            dpg.set_value(self._until, (self.session.status.training.iteration // ROUND + 1) * ROUND)
        dpg.configure_item(self._trouble, show=trouble is not None)
        if trouble is not None:
            dpg.set_value(self._trouble_text, trouble.text)
            dpg.configure_item(self._back, label=trouble.back_label)
        self._ask(False)

    def _show_memory(self, use: MemoryUse | None) -> None:
        """In use now, and what the run is foreseen to need."""
        if use is None or use.total == 0:
            for item in (self._memory, self._memory_note):
                dpg.configure_item(item, show=False)
            return
        dpg.configure_item(self._memory, show=True)
        dpg.configure_item(self._memory_note, show=use.needed > use.total)
        share, needed, total = use.used / use.total, use.needed / GIB, use.total / GIB
        dpg.set_value(self._memory, min(1.0, share))
        ahead = f"{needed:.1f} foreseen" if use.ends else f"up to {needed:.1f} likely"
        shown = f"{use.name} {use.used / GIB:.1f} of {total:.1f} GiB, {ahead}"
        dpg.configure_item(self._memory, overlay=shown)
        dpg.set_value(self._memory_tip, f"In use by everything on this machine. For this run {use.text}")
        dpg.set_value(self._memory_note, use.text)

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
        self._price.show("View cost", view_price(training))
        self._loss_plot.show(training.loss_curve, "loss")
        self._psnr_plot.show(training.psnr_curve, f"{training.psnr_label}, dB")
        self._count_plot.show(training.count_curve, "splats")
        self._step_plot.show(training.step_curve, "ms a step")


def view_price(training: TrainingStatus) -> str:
    """What pictures take from the run: "3.1 of 24.0 it/s"."""
    rate, share = training.iterations_per_second, training.view_cost
    if not rate or not 0.0 < share < 1.0:
        return ""
    alone = rate / (1.0 - share)
    return f"{alone - rate:.1f} of {alone:.1f} it/s" if alone >= 10 else f"{share:.0%} of {speed(alone)}"


def speed(iterations_per_second: float) -> str:
    """it/s, or s/it when that reads better."""
    if iterations_per_second >= 1.0:
        return f"{iterations_per_second:.1f} it/s"
    return f"{1.0 / iterations_per_second:.1f} s/it"
