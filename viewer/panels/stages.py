"""Stages panel: milliseconds of every stage of the newest picture, the mean of recent ones, and of training."""

from __future__ import annotations

from collections import deque

import dearpygui.dearpygui as dpg

from splatscope.viewer.messages import EngineStatus, Picture
from splatscope.viewer.style import DIM, Item, Style, inside
from splatscope.viewer.widgets import Panel, Ui

RECENT = 60  # pictures or training steps the mean is taken over


class StagesPanel(Panel):
    """See the module's text."""

    title = "Stages"

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._serial = -1
        self._iteration = -1

    def build(self) -> None:
        self._nothing = dpg.add_text("No picture yet.", color=DIM)
        self._picture = StageTable(self.style, "Picture")
        self._training = StageTable(self.style, "Training step")

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        if picture is not None and picture.serial != self._serial:
            self._serial = picture.serial
            self._picture.add(picture.frame.stage_ms)
            dpg.configure_item(self._nothing, show=False)
        training = status.training
        if training.iteration != self._iteration and training.stage_ms:
            self._iteration = training.iteration
            self._training.add(training.stage_ms)


class StageTable:
    """One row a stage: its name, a bar for its share, the newest time, the mean of recent times."""

    def __init__(self, style: Style, title: str) -> None:
        self._style = style
        self._recent: deque[dict[str, float]] = deque(maxlen=RECENT)
        self._rows: dict[str, tuple[Item, Item, Item]] = {}
        self._stages: tuple[str, ...] = ()
        with inside(dpg.add_table(policy=dpg.mvTable_SizingStretchProp, show=False, no_pad_outerX=True)) as self._table:
            dpg.bind_item_theme(self._table, style.facts)
            dpg.add_table_column(label=title, init_width_or_weight=1.15)
            dpg.add_table_column(label="", init_width_or_weight=1.0)
            dpg.add_table_column(label="ms", width_fixed=True, init_width_or_weight=style.px(58))
            dpg.add_table_column(label="mean", width_fixed=True, init_width_or_weight=style.px(58))

    def add(self, stage_ms: dict[str, float]) -> None:
        """Takes in the stages of one picture or step, in order."""
        if tuple(stage_ms) != self._stages:
            self._stages = tuple(stage_ms)
            self._recent.clear()
            self._build_rows()
        self._recent.append(stage_ms)
        means = {stage: sum(times[stage] for times in self._recent) / len(self._recent) for stage in self._stages}
        total, mean_total = sum(stage_ms.values()), sum(means.values())
        for stage in self._stages:
            bar, newest, mean = self._rows[stage]
            dpg.set_value(bar, means[stage] / mean_total if mean_total > 0 else 0.0)
            dpg.set_value(newest, f"{stage_ms[stage]:7.2f}")
            dpg.set_value(mean, f"{means[stage]:7.2f}")
        _, newest, mean = self._rows[""]
        dpg.set_value(newest, f"{total:7.2f}")
        dpg.set_value(mean, f"{mean_total:7.2f}")

    def _build_rows(self) -> None:
        dpg.delete_item(self._table, children_only=True, slot=1)
        self._rows.clear()
        style = self._style
        for stage in (*self._stages, ""):
            with inside(dpg.add_table_row(parent=self._table)):
                name = dpg.add_text(stage.replace("_", " ") or "all stages")
                bar = dpg.add_progress_bar(width=-1, height=style.px(15)) if stage else dpg.add_spacer()
                newest, mean = dpg.add_text(""), dpg.add_text("", color=DIM)
                for item in (newest, mean):
                    dpg.bind_item_font(item, style.mono)
                if not stage:
                    dpg.bind_item_font(name, style.bold)
                self._rows[stage] = (bar, newest, mean)
        dpg.configure_item(self._table, show=bool(self._stages))
