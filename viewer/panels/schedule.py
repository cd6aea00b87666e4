"""Shows how uneven the tiles of this view are, the simulated speed of each schedule, and when each tile was blended.

Live figures come from the newest picture's tile counts, simulated on the chosen machine. The Gantt chart shows the
simulated or the recorded frame. `figures/schedule.py` analyses on a thread, `figures/schedule_plots.py` makes the
images, and the engine records frames (app/engine/schedule_view.py).
"""

from __future__ import annotations

import dearpygui.dearpygui as dpg

from splatscope.kernels.wording import counted
from splatscope.viewer.drawing.image_plots import History, ImagePlot
from splatscope.viewer.drawing.style import Item, inside
from splatscope.viewer.drawing.widgets import Facts, Panel, Ui, button, count, label_row, small_text, tooltip
from splatscope.viewer.figures.schedule import (
    CUSTOM,
    EXPLAINED,
    HERE,
    VARIANTS,
    WHAT_IF,
    Analyst,
    FrameFigures,
    checks_text,
    prediction_text,
    ratio_of,
    ratio_text,
    recording_text,
    simulator_error,
    variant_of,
    what_if,
    where,
)
from splatscope.viewer.figures.schedule_plots import (
    Spans,
    gantt_image,
    height_of,
    place_of_rank,
    powers,
    ranked_image,
    ranked_top,
    short,
)
from splatscope.viewer.messages.view import BlendMachine, EngineStatus, Picture, RecordedFrame
from splatscope.viewer.palette import DIM, GOOD, TEXT, WARN

RANKED_HEIGHT, GANTT_HEIGHT, HISTORY_HEIGHT = 92, 150, 44  # points
NUMBER_WIDTH = 52
MOST = (1024, 32)  # most multiprocessors, and most blocks on each, of a custom machine
PREDICTED, RECORDED = "simulated", "recorded"
SPEED_UP = "The speed-up is simulated, relative to grid order. Click to show this schedule below."


class SchedulePanel(Panel):
    """Shows the section "Schedule" of the dock."""

    title = "Schedule"
    open_at_start = False

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._analyst = Analyst()
        self._shown = "length"
        self._choice, self._custom = HERE, [132, 6]
        self._sizes: list[Item] = []  # fields of multiprocessors and blocks on each
        self._serial = -1
        self._recorded: RecordedFrame | None = None

    def build(self) -> None:
        self._nothing = dpg.add_text("No picture yet.", color=DIM)
        with inside(dpg.add_group(show=False)) as self._whole:
            self._build_buttons()
            recorded = ("Activity", "Simulator error", "Live activity")
            self._recording = self._build_facts("On this device, recorded", recorded, 100)
            self._of_view = self._build_facts("This view", ("Heaviest tile", "Max / mean", "Gini", "Empty tiles"), 84)
            self._build_machine()
            labels = ("Concurrent blocks", "Fair share per block", "Imbalance", "Idle area", "Activity")
            self._simulated = self._build_facts("", labels, 150, 1)
            self._explain()
            self._history = History(self.style, HISTORY_HEIGHT, ("imbalance", "activity, simulated"))
            small_text(self.style, "Splats per tile, heaviest tiles first")
            self._ranks = ImagePlot(self.style, RANKED_HEIGHT)
            self._build_variants()
            self._build_gantt()

    def _build_facts(self, heading: str, labels: tuple[str, ...], label_width: float, columns: int = 2) -> Facts:
        """Adds figures below a heading; the heading of simulated figures changes with the machine."""
        with inside(dpg.add_group()) as group:
            dpg.bind_item_theme(group, self.style.lines)
            self._where = small_text(self.style, heading)
            facts = Facts(self.style, labels, columns, label_width)
        for label in labels:
            facts.show(label, "")
        return facts

    def _build_buttons(self) -> None:
        style, session = self.style, self.session
        with inside(dpg.add_group(horizontal=True)):
            self._record = button(
                style, "Record this frame", session.measurements.record_frame, primary=True,
                tip="Draws this view a few times and records where and when each tile was blended",
            )  # fmt: skip
            with inside(dpg.add_group()) as saving:
                self._save = button(style, "Save", session.measurements.save_recorded_frame)
                dpg.bind_item_theme(self._save, style.can_be_grey)
            folder = session.config.measurement_dir
            tip = f"Saves the recorded frame as a Chrome trace, CSV, JSON and two pictures to {folder}"
            tooltip(style, saving, tip)

    def _build_machine(self) -> None:
        style = self.style
        dpg.add_spacer(height=style.px(2))
        with label_row(style, "Simulate on", 84):
            self._machine = dpg.add_combo(
                WHAT_IF, default_value=HERE, width=-1, callback=lambda _, name: self._choose(name)
            )
        tooltip(style, self._machine, "The machine for simulated figures. Recordings are always of this device.")
        with label_row(style, "SMs, blocks", 84):
            for k, most in enumerate(MOST):
                field = dpg.add_input_int(
                    default_value=self._custom[k], min_value=1, max_value=most, min_clamped=True, max_clamped=True,
                    width=style.px(100), user_data=k, callback=lambda _, value, k: self._set_custom(k, value),
                )  # fmt: skip
                dpg.bind_item_theme(field, style.can_be_grey)
                self._sizes.append(self.ui.field(field))

    def _explain(self) -> None:
        activity = "Share of the time in which a multiprocessor has a block to run, averaged over all of them: "
        tips = (
            (self._of_view, "Heaviest tile", "Number of splats in the tile with most splats."),
            (
                self._of_view,
                "Gini",
                "How unevenly splats are spread over tiles: 0 means evenly, 1 means all in one tile.",
            ),
            (
                self._simulated,
                "Concurrent blocks",
                "K, the number of blocks that run at the same time: multiprocessors times blocks on each.",
            ),
            (
                self._simulated,
                "Fair share per block",
                "The splats of all tiles, divided by the number of concurrent blocks.",
            ),
            (
                self._simulated,
                "Imbalance",
                "Splats of the heaviest tile divided by the fair share. Above 1, the heaviest tile ends last unless "
                "it is split.",
            ),
            (
                self._simulated,
                "Idle area",
                "Share of the machine's time spent waiting for the heaviest tile, for any order of tiles.",
            ),
            (self._simulated, "Activity", f"{activity}simulated for the present schedule."),
            (self._recording, "Activity", f"{activity}in the recorded frame."),
            (self._recording, "Live activity", f"{activity}in this picture, while a heatmap records it."),
            (
                self._recording,
                "Simulator error",
                "How much longer the simulated frame takes than the recorded one. The simulator gets only the splats "
                "per tile.",
            ),
        )
        for facts, label, text in tips:
            tooltip(self.style, facts.item(label), text)

    def _build_variants(self) -> None:
        style = self.style
        with inside(dpg.add_table(policy=dpg.mvTable_SizingStretchProp, no_pad_outerX=True)) as table:
            dpg.bind_item_theme(table, style.facts)
            dpg.add_table_column(label="schedule", init_width_or_weight=1.0)
            for label, wide in (("speed-up", 62), ("active", NUMBER_WIDTH), ("chunks", NUMBER_WIDTH)):
                dpg.add_table_column(label=label, width_fixed=True, init_width_or_weight=style.px(wide))
            self._rows: dict[str, tuple[Item, list[Item]]] = {}
            for name, label in VARIANTS.items():
                with inside(dpg.add_table_row()):
                    with inside(dpg.add_group()):
                        chosen = dpg.add_selectable(
                            label=label, user_data=name, callback=lambda _, __, n: self._show(n)
                        )
                        tooltip(style, chosen, f"{EXPLAINED[name]} {SPEED_UP}")
                    numbers = [dpg.add_text("") for _ in range(3)]
                    self._rows[name] = (chosen, numbers)

    def _build_gantt(self) -> None:
        style = self.style
        self._source = dpg.add_radio_button((PREDICTED, RECORDED), default_value=PREDICTED, horizontal=True)
        self._gantt = ImagePlot(style, GANTT_HEIGHT)
        self._gantt_text = small_text(style, "", TEXT)
        self._check_text = small_text(style, "")

    # What a person chooses ----------------------------------------------------------------------------

    def _choose(self, name: str) -> None:
        self._choice = name
        self._history.forget()

    def _set_custom(self, place: int, value: int) -> None:
        self._custom[place] = min(max(value, 1), MOST[place])
        self._history.forget()

    def _show(self, name: str) -> None:
        self._shown = name
        dpg.set_value(self._source, PREDICTED)

    # Each frame --------------------------------------------------------------------------------------

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        here = status.blending
        dpg.configure_item(self._save, enabled=status.recorded is not None)
        dpg.configure_item(self._nothing, show=picture is None or here is None)
        dpg.configure_item(self._whole, show=picture is not None and here is not None)
        if picture is None or here is None:
            return
        on, counts = what_if(here, self._choice, *self._custom), picture.frame.tile_counts
        self._show_machine(on)
        is_new = self._analyst.ask(picture.serial, counts, on, self._shown)
        if picture.serial != self._serial or (self._recorded is not status.recorded):
            self._show_recorded(status.recorded)
            live = picture.frame.recording
            self._recording.show("Live activity", f"{live.activity:.1%}" if live else "")
            self._serial = picture.serial
            self._history.add(0, ratio_of(counts, on.machine))
        figures = self._analyst.newest
        if figures is not None and is_new:
            self._show_figures(figures, picture)
        for name, (chosen, _) in self._rows.items():
            dpg.set_value(chosen, name == self._shown)
        if figures is not None:
            self._draw_ranks(figures)
            self._draw_gantt(figures)

    def _show_recorded(self, recorded: RecordedFrame | None) -> None:
        if recorded is self._recorded:
            return
        self._recorded = recorded
        dpg.set_value(self._source, PREDICTED if recorded is None else RECORDED)
        dpg.set_value(self._check_text, "" if recorded is None else checks_text(recorded))
        error = None if recorded is None else simulator_error(recorded)
        self._recording.show("Activity", "" if recorded is None else f"{recorded.recording.activity:.1%}")
        self._recording.show("Simulator error", "" if error is None else f"{error:+.1%}")

    def _show_machine(self, on: BlendMachine) -> None:
        dpg.set_value(self._where, where(on, self._choice))
        for k, field in enumerate(self._sizes):
            dpg.configure_item(field, enabled=self._choice == CUSTOM)
            if self._choice != CUSTOM:
                dpg.set_value(field, (on.machine.multiprocessors, on.machine.blocks_each)[k])
            elif not dpg.is_item_active(field):
                dpg.set_value(field, self._custom[k])

    def _show_figures(self, figures: FrameFigures, picture: Picture) -> None:
        even, grid = figures.even, figures.of("grid")
        now = figures.of(variant_of(picture.request.policy.schedule))
        machine = figures.on.machine
        self._of_view.show("Heaviest tile", count(even.heaviest))
        self._of_view.show("Max / mean", f"{even.max_over_mean:.1f}")
        self._of_view.show("Gini", f"{even.gini:.2f}")
        self._of_view.show("Empty tiles", f"{(figures.counts == 0).mean():.0%}")
        self._simulated.show("Concurrent blocks", f"{machine.workers:,}")
        self._simulated.show("Fair share per block", counted(round(even.share), "splat"))
        self._simulated.show("Imbalance", ratio_text(even.ratio))
        self._simulated.show("Idle area", f"{even.idle_area:.0%}")
        self._simulated.show("Activity", f"{now.activity:.1%}")
        self._history.add(1, now.activity)
        for variant in figures.variants:
            gain = grid.makespan / variant.makespan if variant.makespan else 1.0
            texts = f"{gain:.2f} x", f"{variant.activity:.0%}", f"{variant.chunks:,}" if variant.chunks else "–"
            colors = (GOOD if gain > 1.01 else WARN if gain < 0.99 else TEXT, TEXT, DIM)
            for item, text, color in zip(self._rows[variant.name][1], texts, colors, strict=True):
                dpg.set_value(item, text)
                dpg.configure_item(item, color=color)

    def _draw_ranks(self, figures: FrameFigures) -> None:
        counts, parts = figures.counts, figures.parts
        if not self._ranks.wants(figures):
            return
        width, height = self._ranks.size
        top = ranked_top(counts)
        self._ranks.show(ranked_image(counts, parts, figures.even.share, width, height))
        split = int((parts > 1).sum())
        below = [(place_of_rank(rank, counts.size), short(rank)) for rank in powers(counts.size)]
        self._ranks.label(
            below,
            [(1 - float(height_of(value, top)), short(value)) for value in powers(top)[1::2]],
            f"{split} split" if split else "none split",
        )

    def _draw_gantt(self, figures: FrameFigures) -> None:
        if self._recorded is None:
            dpg.set_value(self._source, PREDICTED)
        recorded = self._recorded if dpg.get_value(self._source) == RECORDED else None
        hovered, shape = self.session.heatmap.hovered_tile, figures.counts.shape
        is_this = recorded is None or recorded.counts.shape == shape  # otherwise the recording has other tiles
        marked = hovered[0] * shape[1] + hovered[1] if hovered is not None and is_this else None
        if not self._gantt.wants((figures if recorded is None else recorded, marked)):
            return
        if recorded is None:
            spans = Spans.of_prediction(figures.timeline, figures.units.tile, figures.parts)
            end, text = f"{spans.makespan:,.0f} splats", prediction_text(figures)
        else:
            spans = Spans.of_recording(recorded.recording)
            end, text = f"{spans.makespan / 1e6:.3f} ms", recording_text(recorded)
        self._gantt.show(gantt_image(spans, *self._gantt.size, marked))
        name = "SM" if spans.machine.blocks_each > 1 else "thread"
        self._gantt.label([(0.0, f"{name} 0 (top) to {spans.machine.multiprocessors - 1}")], [], end)
        dpg.set_value(self._gantt_text, text)
