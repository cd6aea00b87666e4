"""Shows the recipe of the next run as a form, made from the list of settings that the engine gives.

- A field takes effect when the user leaves it or presses Enter.
- A value that the engine refuses is replaced by the one before. The label turns orange and the panel shows the reason.
- Main settings are in sight, common ones one click away, the rest in groups. Settings that the strategy does not read
  are left out.
- A changed setting has a blue label, and an arrow that undoes the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.style import Item, inside
from splatscope.viewer.drawing.widgets import Ui, tooltip, write_tip
from splatscope.viewer.messages.view import Recipe, Setting, SettingValue

LABEL_WIDTH = 128  # points
BACK_WIDTH = 31  # points of the arrow and the space before it
OFTEN, REST = "Common settings", "All other settings"
FOLDER = "out"  # the folder's name in `Recipe.refused`


@dataclass(frozen=True)
class Row:
    """Holds the items of one setting."""

    setting: Setting
    whole: Item
    label: Item
    input: Item
    back: Item
    tip: Item


@dataclass(frozen=True)
class Heading:
    """Holds a collapsible heading and its rows."""

    text: str
    node: Item
    rows: Sequence[Row]


class RecipeForm:
    """Builds and updates the form. A part of the training panel."""

    def __init__(self, ui: Ui) -> None:
        self._ui = ui
        self._recipe: Recipe | None = None
        self._names: tuple[str, ...] = ()  # names of the settings that have rows
        self._rows: dict[str, Row] = {}
        self._headings: list[Heading] = []
        self._by_input: dict[Item, str] = {}

    @property
    def inputs(self) -> dict[str, Item]:
        """Returns the input item of each setting, by the setting's name."""
        return {name: row.input for name, row in self._rows.items()}

    def build(self) -> None:
        """Adds the empty form."""
        style, session = self._ui.style, self._ui.session
        with inside(dpg.add_group(show=False)) as self._whole:
            with inside(dpg.add_group(horizontal=True)):
                self._label("Recipe")
                width = -style.px(BACK_WIDTH)
                self._presets = dpg.add_combo(
                    [], width=width, callback=lambda _, name: session.run.set_recipe(preset=name)
                )
                tooltip(style, self._presets, "Sets all values to a preset, except those about photographs")
            self._main = dpg.add_group()
            with inside(dpg.add_group(horizontal=True)):
                self._out_label = self._label("Folder")
                self._out = self._ui.field(dpg.add_input_text(hint="output/<capture>-<date>", width=width))
                tooltip(style, self._out, "Folder for the run's files; it must not contain another model")
            self._often = dpg.add_tree_node(label=OFTEN, default_open=False)
            self._rest = dpg.add_tree_node(label=REST, default_open=False)
        with inside(dpg.add_item_handler_registry()) as self._handlers:
            dpg.add_item_deactivated_after_edit_handler(callback=lambda _, item: self._take(item))
        with inside(dpg.add_item_handler_registry()) as out_handlers:
            dpg.add_item_deactivated_after_edit_handler(
                callback=lambda: session.run.set_recipe(out=dpg.get_value(self._out))
            )
        dpg.bind_item_handler_registry(self._out, out_handlers)

    def update(self, recipe: Recipe | None) -> None:
        """Shows the newest recipe, or nothing once the run has begun."""
        if recipe is self._recipe:
            return
        style = self._ui.style
        self._recipe = recipe
        dpg.configure_item(self._whole, show=recipe is not None)
        if recipe is None:
            return
        if tuple(setting.name for setting in recipe.settings) != self._names:
            self._build_rows(recipe.settings)
        dpg.configure_item(self._presets, items=recipe.presets)
        dpg.set_value(self._presets, recipe.preset or f"{recipe.base}, changed")
        dpg.set_value(self._out, recipe.out)
        refused = recipe.refused[0] if recipe.refused else ()
        dpg.bind_item_theme(self._out_label, style.refused_label if FOLDER in refused else style.label)
        for setting in recipe.settings:
            self._show(setting, setting.name in refused)
        differing = {setting.name for setting in recipe.settings if setting.counts and differs(setting)}
        for heading in self._headings:
            names = {row.setting.name for row in heading.rows}
            changed = len(names & differing)
            label = f"{heading.text} ({changed} changed)" if changed else heading.text
            used = any(setting.counts for setting in recipe.settings if setting.name in names)
            dpg.configure_item(heading.node, label=f"{label}###{heading.text}", show=used)

    @property
    def refusal(self) -> str:
        """Returns the reason why the newest change was refused, in the form's labels; empty if it was accepted."""
        if self._recipe is None or self._recipe.refused is None:
            return ""
        names, reason = self._recipe.refused
        for setting in self._recipe.settings:
            if setting.name in names:
                reason = reason.replace(setting.name, setting.label)
        return reason

    def _show(self, setting: Setting, is_refused: bool) -> None:
        row, style, changed = self._rows[setting.name], self._ui.style, differs(setting)
        dpg.configure_item(row.whole, show=setting.counts)
        dpg.set_value(row.input, input_value(setting))
        label = style.refused_label if is_refused else style.marked_label if changed else style.label
        dpg.bind_item_theme(row.label, label)
        dpg.configure_item(row.back, show=changed)
        about = f"{setting.help}\nName in settings files: {setting.name}".lstrip()
        usual = value_text(setting, setting.usual) or setting.hint
        write_tip(style, row.tip, f"{about}\nThe arrow restores: {usual}" if changed else about)

    def _build_rows(self, settings: Sequence[Setting]) -> None:
        for group in (self._main, self._often, self._rest):
            dpg.delete_item(group, children_only=True)
        for item in self._by_input:
            self._ui.fields.remove(item)
        self._names = tuple(setting.name for setting in settings)
        self._rows, self._headings, self._by_input = {}, [], {}
        self._add_rows(self._main, [s for s in settings if s.rank == "main"])
        often = self._add_rows(self._often, [s for s in settings if s.rank == "often"])
        groups: dict[str, list[Setting]] = {}
        for setting in settings:
            if setting.rank == "rest":
                groups.setdefault(setting.group, []).append(setting)
        rest = []
        for name, members in groups.items():
            with inside(self._rest):
                node = dpg.add_tree_node(label=name)
            rows = self._add_rows(node, members)
            self._headings.append(Heading(name, node, rows))
            rest += rows
        self._headings += [Heading(OFTEN, self._often, often), Heading(REST, self._rest, rest)]

    def _add_rows(self, parent: Item, settings: Sequence[Setting]) -> list[Row]:
        with inside(parent):
            rows = [self._make_row(setting) for setting in settings]
        self._rows |= {row.setting.name: row for row in rows}
        self._by_input |= {row.input: row.setting.name for row in rows}
        return rows

    def _make_row(self, setting: Setting) -> Row:
        style = self._ui.style
        with inside(dpg.add_group(horizontal=True)) as whole:
            label = self._label(setting.label)
            field = self._ui.field(self._make_input(setting))
            back = dpg.add_button(arrow=True, direction=dpg.mvDir_Left, callback=lambda: self._go_back(setting))
        return Row(setting, whole, label, field, back, tooltip(style, whole, ""))

    def _label(self, text: str) -> Item:
        label = dpg.add_button(label=text, width=self._ui.style.px(LABEL_WIDTH))
        dpg.bind_item_theme(label, self._ui.style.label)
        return label

    def _make_input(self, setting: Setting) -> Item:
        width = -self._ui.style.px(BACK_WIDTH)  # room for the arrow, so that it never appears under the mouse
        if setting.kind == "switch":
            return dpg.add_checkbox(label=setting.hint, callback=lambda item: self._take(item))
        if setting.kind == "choice":
            return dpg.add_combo(setting.choices, width=width, callback=lambda item: self._take(item))
        numeric = setting.kind in ("whole", "number")
        item = dpg.add_input_text(width=width, scientific=numeric, hint=setting.hint)
        dpg.bind_item_handler_registry(item, self._handlers)
        return item

    def _newest(self, name: str) -> Setting | None:
        settings = self._recipe.settings if self._recipe is not None else ()
        return next((setting for setting in settings if setting.name == name), None)

    def _take(self, item: Item) -> None:
        setting = self._newest(self._by_input.get(item, ""))
        if setting is None:
            return
        text = command_text(setting, dpg.get_value(item))
        if text != command_text(setting, input_value(setting)):
            self._ui.session.run.set_recipe(changes=((setting.name, text),))

    def _go_back(self, setting: Setting) -> None:
        newest = self._newest(setting.name)
        if newest is not None:
            self._ui.session.run.set_recipe(
                changes=((newest.name, command_text(newest, value_text(newest, newest.usual))),)
            )


def differs(setting: Setting) -> bool:
    """Returns True if a setting differs from the preset."""
    return setting.value != setting.usual


def command_text(setting: Setting, value: SettingValue) -> str:
    """Returns a value as `SetRecipe` takes it."""
    if setting.kind == "switch":
        return "true" if value in (True, "on") else "false"
    text = str(value).strip()
    if setting.kind == "list":
        return f"[{text.strip('[]() ,')}]"
    return setting.empty if not text and setting.empty is not None else text


def input_value(setting: Setting) -> SettingValue:
    """Returns a value as its input shows it."""
    return bool(setting.value) if setting.kind == "switch" else value_text(setting, setting.value)


def value_text(setting: Setting, value: SettingValue) -> str:
    """Returns a value in words: "on" and "off" for a switch."""
    if setting.kind == "switch":
        return "on" if value else "off"
    if value is None:
        return ""
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)
