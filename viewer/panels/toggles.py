"""Sets the toggles that the backend honours, all at once by a preset or one by one, also during a run.

Generated from `kernels.policy.toggle_table()`: a new toggle needs nothing here. `state/toggles.py` and
`state/presets.py` decide which other toggles a click sets. Pictures keep the old setting until the new one is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import dearpygui.dearpygui as dpg

from splatscope.kernels.ladder import STEPS
from splatscope.kernels.policy import Policy, Toggle, toggle_table
from splatscope.kernels.primitive import Primitive
from splatscope.viewer.drawing.style import Item, Style, inside
from splatscope.viewer.drawing.widgets import Panel, Ui, label_row, notice, small_text, tooltip
from splatscope.viewer.messages.view import EngineStatus, Picture
from splatscope.viewer.palette import ACCENT, DIM, WARN
from splatscope.viewer.state.presets import preset_of, presets

CUSTOM = "custom"
TAG_WIDTH, NAME_WIDTH, LINE_HEIGHT = 72, 94, 23  # points
NOTE_LINES = 3  # room for a note or a preset's sentence
LEGEND = (
    "s01b: added by this rung of the ladder; own: not in the ladder\n"
    "B: identical picture; R: picture differs by rounding\n"
    "B/R: gradients differ by rounding; Q: picture changes"
)  # explains the tags in front of the toggles


@dataclass
class Row:
    """Holds the items of one toggle."""

    control: Item
    reason: Item | None  # a word next to a switch that tells why it is grey
    tip: Item


class TogglesPanel(Panel):
    """Shows the section "Toggles" of the dock."""

    title = "Toggles"

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._backend: str | None = None
        self._shown: object = None  # the present content of the items: they are set again only if it changes
        self._rows: dict[Toggle, Row] = {}
        self._stages: dict[str, Item] = {}  # "compiling…" next to each stage's name

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
                dpg.add_text("This backend has no toggles.", color=DIM)
                return
            with inside(dpg.add_group()) as whole, label_row(style, "Preset", NAME_WIDTH):
                names = [*presets(backend), CUSTOM]
                self._preset = dpg.add_combo(
                    names,
                    width=-1,
                    height_mode=dpg.mvComboHeight_Largest,
                    callback=lambda _, name: self._take_preset(name),
                )
            every = "\n".join(f"{preset.name}: {preset.sentence}" for preset in presets(backend).values())
            tooltip(style, whole, every)
            self._note = notice(style, NOTE_LINES, WARN)
            with inside(dpg.get_item_parent(self._note) or 0):
                self._sentence = small_text(style, "")
            small_text(style, LEGEND)
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
        with inside(dpg.add_group()) as whole, inside(dpg.add_group(horizontal=True)):
            tag = label(style, f"{toggle.step}  {toggle.identity}", TAG_WIDTH)
            dpg.bind_item_font(tag, style.small)
            label(style, toggle.name.replace("_", " "), NAME_WIDTH)
            control = self._build_control(toggle)
            reason = label(style, "", 0) if toggle.is_switch else None
            if reason is not None:
                dpg.bind_item_font(reason, style.small)
        self._rows[toggle] = Row(control, reason, tooltip(style, whole, ""))

    def _build_control(self, toggle: Toggle) -> Item:
        session = self.session
        if toggle.is_switch:
            item = dpg.add_checkbox(callback=lambda _, on: session.toggles.set(toggle, "on" if on else "off"))
        else:
            item = dpg.add_combo(toggle.values, width=-1, callback=lambda _, value: session.toggles.set(toggle, value))
        dpg.bind_item_theme(item, self.style.can_be_grey)
        return item

    def _take_preset(self, name: str) -> None:
        if name in STEPS:
            self.session.toggles.set_preset(name)
        self._shown = None  # "custom" cannot be chosen: the combo returns to the value before

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        if status.backend and status.backend != self._backend:
            self._build_rows(status.backend)
        policy, note, drawn = self.session.toggles.policy, self.session.toggles.note, self.session.request().policy
        scene = self.session.engine.scene
        primitive: Primitive = "3dgs" if scene is None else scene.primitive
        content = (drawn, policy, note, status.compiling, primitive)
        if not self._rows or self._shown == content:
            return
        self._shown = content
        name = preset_of(policy, self._backend or "")
        dpg.set_value(self._preset, name or CUSTOM)
        dpg.set_value(self._sentence, STEPS[name].sentence if name else "These toggles match no preset.")
        dpg.set_value(self._note, note)
        dpg.configure_item(self._note, show=bool(note))
        for stage, item in self._stages.items():
            dpg.configure_item(item, show=stage in status.compiling)
        for toggle, row in self._rows.items():
            self._show_toggle(policy, drawn, toggle, row, toggle.idle(primitive))

    def _show_toggle(self, policy: Policy, drawn: Policy, toggle: Toggle, row: Row, idle: str) -> None:
        """Shows a toggle; `drawn` is the policy of pictures: `policy` and the recording that a heatmap needs. `idle`
        tells why the toggle means nothing for the scene's splats."""
        value = drawn.value(toggle.stage, toggle.name)
        is_added = value != policy.value(toggle.stage, toggle.name)
        possible = [choice for choice in toggle.values if choice == value or policy.unmet(toggle, choice) is None]
        dpg.configure_item(row.control, enabled=len(possible) > 1 and not is_added and not idle)
        if toggle.is_switch:
            dpg.set_value(row.control, value == "on")
        else:
            dpg.configure_item(row.control, items=possible)
            dpg.set_value(row.control, value)
        missing = [choice for choice in toggle.values if choice not in possible]
        if row.reason is not None:
            words = f"only {', '.join(toggle.primitives)}" if idle else short_reason(toggle, missing)
            dpg.configure_item(row.reason, label="set by heatmap" if is_added else words)
        sentences = [policy.unmet(toggle, choice) or "" for choice in missing]
        sentences += ["The heatmap over the picture needs this recording, so it is on."] * is_added + [idle] * bool(
            idle
        )
        dpg.set_value(row.tip, "\n".join([toggle.sentence, origin(toggle), toggle.class_sentence, *sentences]))


def label(style: Style, text: str, width: float) -> Item:
    """Adds a word aligned with the field next to it."""
    item = dpg.add_button(label=text, width=style.px(width), height=style.px(LINE_HEIGHT))
    dpg.bind_item_theme(item, style.label)
    return item


def origin(toggle: Toggle) -> str:
    """Returns the long form of a toggle's tag: the rung of the ladder that added the toggle."""
    if toggle.step == "own":
        return "own: not in the ladder."
    return f"{toggle.step}: added by this rung of the ladder."


def short_reason(toggle: Toggle, missing: Sequence[str]) -> str:
    """Returns "needs compaction" for a switch that cannot be set; its tooltip gives the reason."""
    names = [need.name.replace("_", " ") for need in toggle.needs if need.value in missing]
    return f"needs {', '.join(dict.fromkeys(names))}" if names else ""
