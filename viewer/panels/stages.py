"""Shows the milliseconds of every stage of pictures and training steps, and measures what a setting changes.

`figures/stage_times.py` decides which pictures count. For a measurement the engine draws the same frame under two
settings in turns (`app/engine/ab_measurement.py`). Items that grow are below the buttons, so that no button moves under
the mouse.
"""

from __future__ import annotations

import time

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.style import inside
from splatscope.viewer.drawing.widgets import Panel, Ui, button, label_row, tooltip
from splatscope.viewer.messages.commands import DrawAgain
from splatscope.viewer.messages.view import Comparison, EngineStatus, Picture
from splatscope.viewer.palette import DIM
from splatscope.viewer.panels.comparison_table import ComparisonTable
from splatscope.viewer.panels.stage_table import StageTable
from splatscope.viewer.state.measurements import PREVIOUS
from splatscope.viewer.state.presets import presets

NAME_WIDTH, RECORD_WIDTH, SAVE_WIDTH = 84, 136, 126  # points


class StagesPanel(Panel):
    """Shows the section "Stages" of the dock."""

    title = "Stages"

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._serial = -1
        self._arrived = 0.0  # when the newest picture was first seen
        self._asked_after = -1  # serial of the picture after which the same view was asked for again
        self._iteration = -1
        self._generation: int | None = None
        self._against: list[str] = []
        self._comparison: Comparison | None = None

    def build(self) -> None:
        self._nothing = dpg.add_text("No picture yet.", color=DIM)
        self._picture = StageTable(self.style, "Picture", "frame")
        with inside(dpg.add_group(show=False)) as self._tools:
            self._build_tools()
        self._training = StageTable(self.style, "Training step", "step")
        self._pace = dpg.add_text("", color=DIM, show=False)
        tooltip(
            self.style,
            self._pace,
            "Time that the window itself takes: input, panels, upload and drawing. Rendering is not included.",
        )

    def _build_tools(self) -> None:
        style, session, px = self.style, self.session, self.style.px
        dpg.add_spacer(height=px(2))
        with label_row(style, "Compare to", NAME_WIDTH):
            self._choice = dpg.add_combo([], width=-px(90))
            self._start = button(style, "Measure", self._measure, width=82)
        tooltip(
            style,
            self._choice,
            "The setting to compare the present one with. Both draw this view in turns; training waits.",
        )
        folder = f"in {session.config.measurement_dir}"
        with inside(dpg.add_group(horizontal=True)):
            self._record = button(
                style, "Record a second", session.measurements.record_trace, RECORD_WIDTH,
                tip=f"Records one second of the engine and its stages as a file for chrome://tracing or Perfetto, "
                f"{folder}",
            )  # fmt: skip
            self._save = button(
                style, "Save all times", session.measurements.save_comparison, SAVE_WIDTH,
                tip=f"Saves every time of the last measurement, and both settings, as JSON {folder}",
            )  # fmt: skip
            dpg.bind_item_theme(self._save, style.can_be_grey)
        self._result = ComparisonTable(style)

    def _measure(self) -> None:
        against = dpg.get_value(self._choice)
        if against in self._against:
            self.session.measurements.compare(against)

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        if self.session.generation != self._generation:
            self._generation = self.session.generation
            for table in (self._picture, self._training):
                table.forget()
        if picture is not None and picture.serial != self._serial:
            self._serial, self._arrived = picture.serial, time.perf_counter()
            request = picture.request
            self._picture.add(picture.frame.stage_ms, request.policy, (request.camera, request.settings))
            dpg.configure_item(self._nothing, show=False)
            for item in (self._tools, self._pace):
                dpg.configure_item(item, show=True)
        training = status.training
        if training.iteration != self._iteration and training.stage_ms:
            self._iteration = training.iteration
            self._training.add(training.stage_ms)
        self._resample(status, picture)
        self._update_tools(status)

    def _resample(self, status: EngineStatus, picture: Picture | None) -> None:
        """Asks for more pictures of a still view while its table is on the screen, until there are enough for figures.
        A run that trains gives new pictures anyway."""
        result = status.comparison
        is_measuring = result is not None and result.done < result.pairs and not result.problem
        is_at_work = status.training.state == "running" or is_measuring or status.recording or bool(status.compiling)
        if picture is None or picture.serial == self._asked_after or is_at_work or self.session.view.moving:
            return
        rest = time.perf_counter() - self._arrived
        if self._picture.in_sight and self._picture.times.wants_more(rest, picture.render_ms):
            self._asked_after = picture.serial
            self.session.engine.send(DrawAgain())

    def _update_tools(self, status: EngineStatus) -> None:
        dpg.set_value(self._pace, str(self.session.frame_rate))
        against = list(presets(status.backend))
        if self.session.toggles.previous is not None:
            against.insert(0, PREVIOUS)
        if against != self._against:
            self._against = against
            dpg.configure_item(self._choice, items=against)
            dpg.set_value(self._choice, against[0])
        dpg.configure_item(self._record, label="Recording…" if status.recording else "Record a second")
        if status.comparison is not self._comparison:
            self._comparison = status.comparison
            self._result.show(status.comparison)
        result = status.comparison
        dpg.configure_item(self._save, enabled=result is not None and result.done == result.pairs)
