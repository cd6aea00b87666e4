"""Toggles panel: one choice for every field of the policy, with its sentence; works while running.

Generated from `kernels.policy.toggle_table()`: a new toggle needs nothing here.
"""

from __future__ import annotations

import dearpygui.dearpygui as dpg

from splatscope.kernels.policy import Toggle, toggle_table
from splatscope.viewer.messages import EngineStatus, Picture
from splatscope.viewer.style import DIM, Item
from splatscope.viewer.widgets import Panel, labelled

IDENTITY = {
    "B": "The image is the same bit for bit.",
    "R": "The image differs by rounding only.",
    "Q": "The image changes a little.",
}


class TogglesPanel(Panel):
    """See the module's text."""

    title = "Toggles"

    def build(self) -> None:
        self._choices: dict[tuple[str, str], Item] = {}
        for toggle in toggle_table():
            self._build_toggle(toggle)

    def _build_toggle(self, toggle: Toggle) -> None:
        with labelled(self.style, f"{toggle.stage}.{toggle.name}"):
            item = dpg.add_combo(toggle.values, width=-1, callback=lambda _, value: self._choose(toggle, value))
        self.ui.field(item)
        self._choices[toggle.stage, toggle.name] = item
        text = dpg.add_text(f"{toggle.sentence} {IDENTITY[toggle.identity]}", color=DIM, wrap=0)
        dpg.bind_item_font(text, self.style.small)
        dpg.add_spacer(height=self.style.px(2))

    def _choose(self, toggle: Toggle, value: str) -> None:
        self.session.policy = self.session.policy.with_value(toggle.stage, toggle.name, value)

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        for (stage, name), item in self._choices.items():
            dpg.set_value(item, getattr(getattr(self.session.policy, stage), name))
