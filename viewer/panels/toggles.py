"""Toggles panel: a preset for all, one checkbox or choice for each toggle the backend honours; works while running.

Generated from `kernels.policy.toggle_table()`: a new toggle needs nothing here. What a click entails is decided in
`session.py` and `presets.py`; pictures go on with the old setting until the new one is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import dearpygui.dearpygui as dpg

from splatscope.kernels.policy import Policy, Toggle, toggle_table
from splatscope.kernels.steps import STEPS
from splatscope.viewer.messages import EngineStatus, Picture
from splatscope.viewer.presets import preset_of, presets
from splatscope.viewer.style import ACCENT, DIM, WARN, Item, Style, inside
from splatscope.viewer.widgets import Panel, Ui, labelled, tooltip

CUSTOM = "custom"
TAG_WIDTH, NAME_WIDTH, LINE_HEIGHT = 72, 94, 23  # points


@dataclass
class Row:
    """The items of one toggle."""

    control: Item
    reason: Item
    tip: Item


class TogglesPanel(Panel):
    """See the module's text."""

    title = "Toggles"

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._backend: str | None = None
        self._shown: object = None  # what the items say, so that they are set anew only if that changed
        self._rows: dict[Toggle, Row] = {}
        self._stages: dict[str, Item] = {}  # "compiling…" beside each

    def build(self) -> None:
        self._body = dpg.add_group()

    def _build_rows(self, backend: str) -> None:
        self._backend, self._shown = backend, None
        self._rows.clear()
        self._stages.clear()
        dpg.delete_item(self._body, children_only=True)
        style = self.style
        with inside(self._body):
            if not any(toggle_table(backend)):
                dpg.add_text("This backend has nothing to choose.", color=DIM)
                return
            with inside(dpg.add_group()) as whole, labelled(style, "Preset", NAME_WIDTH):
                names = [*presets(backend), CUSTOM]
                self._preset = dpg.add_combo(
                    names,
                    width=-1,
                    height_mode=dpg.mvComboHeight_Largest,
                    callback=lambda _, name: self._take_preset(name),
                )
            every = "\n".join(f"{step.name}: {step.sentence}" for step in presets(backend).values())
            tooltip(style, whole, every)
            self._sentence = self._small("")
            self._note = self._small("", WARN)
            for toggle in toggle_table(backend):
                if toggle.stage not in self._stages:
                    self._build_stage(toggle.stage)
                self._build_toggle(toggle)

    def _build_stage(self, stage: str) -> None:
        dpg.add_spacer(height=self.style.px(2))
        with inside(dpg.add_group(horizontal=True)):
            dpg.bind_item_font(dpg.add_text(stage.replace("_", " ")), self.style.bold)
            self._stages[stage] = dpg.add_text("compiling…", color=ACCENT, show=False)

    def _build_toggle(self, toggle: Toggle) -> None:
        style = self.style
        with inside(dpg.add_group()) as whole:
            with inside(dpg.add_group(horizontal=True)):
                tag = label(style, f"{toggle.step}  {toggle.identity}", TAG_WIDTH)
                dpg.bind_item_font(tag, style.small)
                label(style, toggle.name.replace("_", " "), NAME_WIDTH)
                control = self._build_control(toggle)
            reason = self._small("", show=False)
        tip = tooltip(style, whole, "")
        self._rows[toggle] = Row(control, reason, tip)

    def _build_control(self, toggle: Toggle) -> Item:
        session = self.session
        if toggle.is_switch:
            item = dpg.add_checkbox(callback=lambda _, on: session.set_toggle(toggle, "on" if on else "off"))
        else:
            item = dpg.add_combo(toggle.values, width=-1, callback=lambda _, value: session.set_toggle(toggle, value))
        dpg.bind_item_theme(item, self.style.can_be_grey)
        return item

    def _small(self, text: str, color: tuple[int, ...] = DIM, show: bool = True) -> Item:
        item = dpg.add_text(text, color=color, wrap=0, show=show)
        dpg.bind_item_font(item, self.style.small)
        return item

    def _take_preset(self, name: str) -> None:
        if name in STEPS:
            self.session.set_preset(name)
        self._shown = None  # "custom" is nothing to choose: the combo goes back

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        if status.backend and status.backend != self._backend:
            self._build_rows(status.backend)
        policy, note = self.session.policy, self.session.note
        if not self._rows or self._shown == (policy, note, status.compiling):
            return
        self._shown = (policy, note, status.compiling)
        name = preset_of(policy, self._backend or "")
        dpg.set_value(self._preset, name or CUSTOM)
        dpg.set_value(self._sentence, STEPS[name].sentence if name else "Not one of the presets.")
        dpg.set_value(self._note, note)
        dpg.configure_item(self._note, show=bool(note))
        for stage, item in self._stages.items():
            dpg.configure_item(item, show=stage in status.compiling)
        for toggle, row in self._rows.items():
            self._show_toggle(policy, toggle, row)

    def _show_toggle(self, policy: Policy, toggle: Toggle, row: Row) -> None:
        value = policy.value(toggle.stage, toggle.name)
        possible = [choice for choice in toggle.values if choice == value or policy.unmet(toggle, choice) is None]
        dpg.configure_item(row.control, enabled=len(possible) > 1)
        if toggle.is_switch:
            dpg.set_value(row.control, value == "on")
        else:
            dpg.configure_item(row.control, items=possible)
            dpg.set_value(row.control, value)
        missing = [choice for choice in toggle.values if choice not in possible]
        reasons = reasons_in_words(toggle, missing)
        dpg.set_value(row.reason, "\n".join(reasons))
        dpg.configure_item(row.reason, show=bool(reasons))
        sentences = [policy.unmet(toggle, choice) or "" for choice in missing]
        step = "Our own." if toggle.step == "own" else f"From step {toggle.step}."
        dpg.set_value(row.tip, "\n".join([toggle.sentence, f"{step} {toggle.class_sentence}", *sentences]))


def label(style: Style, text: str, width: float) -> Item:
    """A word that stands level with the field beside it."""
    item = dpg.add_button(label=text, width=style.px(width), height=style.px(LINE_HEIGHT))
    dpg.bind_item_theme(item, style.label)
    return item


def reasons_in_words(toggle: Toggle, missing: Sequence[str]) -> list[str]:
    """What the values that are not to be had need, a line each; values with the same need share it."""
    values: dict[str, list[str]] = {}
    for need in toggle.needs:
        if need.value in missing:
            allowed = " or ".join(need.allowed)
            values.setdefault(f"{need.name.replace('_', ' ')} = {allowed}: {need.reason}", []).append(need.value)
    if toggle.is_switch:
        return [f"needs {what}" for what in values]
    return [f"{' and '.join(names)} {'need' if len(names) > 1 else 'needs'} {what}" for what, names in values.items()]
