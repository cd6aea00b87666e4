"""Toggles panel: one choice for every toggle the backend honours, with its sentence; works while running.

Generated from `kernels.policy.toggle_table()`: a new toggle needs nothing here.
"""

from __future__ import annotations

import dearpygui.dearpygui as dpg

from splatscope.kernels.policy import Toggle, toggle_table
from splatscope.viewer.messages import EngineStatus, Picture
from splatscope.viewer.style import DIM, WARN, Item, inside
from splatscope.viewer.widgets import Panel, Ui, labelled

IDENTITY = {
    "B": "The image is the same bit for bit.",
    "R": "The image differs by rounding only.",
    "Q": "The image changes a little.",
}


class TogglesPanel(Panel):
    """See the module's text."""

    title = "Toggles"

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._backend: str | None = None
        self._choices: dict[Toggle, Item] = {}

    def build(self) -> None:
        self._problem = dpg.add_text("", color=WARN, wrap=0, show=False)
        self._rows = dpg.add_group()

    def _build_rows(self, backend: str) -> None:
        self._backend = backend
        self._choices.clear()
        dpg.delete_item(self._rows, children_only=True)
        stage = ""
        with inside(self._rows):
            for toggle in toggle_table(backend):
                if toggle.stage != stage:
                    stage = toggle.stage
                    dpg.bind_item_font(dpg.add_text(stage.replace("_", " ")), self.style.bold)
                self._build_toggle(toggle)
            if not self._choices:
                dpg.add_text("This backend has nothing to choose.", color=DIM)

    def _build_toggle(self, toggle: Toggle) -> None:
        with labelled(self.style, toggle.name.replace("_", " ")):
            self._choices[toggle] = dpg.add_combo(
                toggle.values, width=-1, callback=lambda _, value: self._choose(toggle, value)
            )
        text = dpg.add_text(f"{toggle.sentence} {IDENTITY[toggle.identity]}", color=DIM, wrap=0)
        dpg.bind_item_font(text, self.style.small)

    def _choose(self, toggle: Toggle, value: str) -> None:
        """Takes the choice, or says which other toggle stands in its way."""
        policy = self.session.policy.with_value(toggle.stage, toggle.name, value)
        problems = policy.problems(self._backend or "cpu")
        dpg.set_value(self._problem, " ".join(problems))
        dpg.configure_item(self._problem, show=bool(problems))
        if not problems:
            self.session.policy = policy

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        if status.backend and status.backend != self._backend:
            self._build_rows(status.backend)
        for toggle, item in self._choices.items():
            dpg.set_value(item, self.session.policy.value(toggle.stage, toggle.name))
