"""The recipe of the next run as a form, drawn from the list of settings the engine gives. It knows none by name.

A field takes effect when it is left or Enter is pressed; what the engine refuses it shows as it was. The main ones are
always there, all the others folded, group by group.
"""

from __future__ import annotations

from collections.abc import Iterable

import dearpygui.dearpygui as dpg

from splatscope.viewer.messages import Recipe, Setting, SettingValue
from splatscope.viewer.style import Item, inside
from splatscope.viewer.widgets import Ui, labelled, tooltip

OWN = "own"  # shown for a recipe that is none of the presets
LABEL_WIDTH = 128  # points
ACRONYMS = {"sh": "SH", "dssim": "DSSIM", "mcmc": "MCMC"}


class RecipeForm:
    """Belongs to the training panel."""

    def __init__(self, ui: Ui) -> None:
        self._ui = ui
        self._recipe: Recipe | None = None
        self._settings: dict[Item, Setting] = {}  # by input
        self.inputs: dict[str, list[Item]] = {}  # by name; a main one stands in both lists, there first

    def build(self) -> None:
        """Adds the empty form."""
        style, session = self._ui.style, self._ui.session
        with inside(dpg.add_group(show=False)) as self._whole:
            with labelled(style, "Recipe", LABEL_WIDTH):
                self._presets = dpg.add_combo([], width=-1, callback=lambda _, name: self._take_preset(name))
                tooltip(style, self._presets, "A whole set of values; the photographs' own settings stay")
            self._main = dpg.add_group()
            with labelled(style, "Folder", LABEL_WIDTH):
                self._out = self._ui.field(dpg.add_input_text(hint="output/<capture>-<date>", width=-1))
                tooltip(style, self._out, "Where the run writes; one that holds a model already is refused")
            self._all = dpg.add_tree_node(label="All settings", default_open=False)
        with inside(dpg.add_item_handler_registry()) as self._handlers:
            dpg.add_item_deactivated_after_edit_handler(callback=lambda _, item: self._take(item))
        with inside(dpg.add_item_handler_registry()) as out_handlers:
            dpg.add_item_deactivated_after_edit_handler(
                callback=lambda: session.set_recipe(out=dpg.get_value(self._out))
            )
        dpg.bind_item_handler_registry(self._out, out_handlers)

    def update(self, recipe: Recipe | None) -> None:
        """Shows the newest recipe, or nothing once the run has begun."""
        if recipe is self._recipe:
            return
        before, self._recipe = self._recipe, recipe
        dpg.configure_item(self._whole, show=recipe is not None)
        if recipe is None:
            return
        if before is None or _shape(before) != _shape(recipe):
            self._build_rows(recipe)
        dpg.configure_item(self._presets, items=recipe.presets)
        dpg.set_value(self._presets, recipe.preset or OWN)
        dpg.set_value(self._out, recipe.out)
        for setting in recipe.settings:
            for item in self.inputs[setting.name]:
                dpg.set_value(item, shown(setting))

    def _build_rows(self, recipe: Recipe) -> None:
        for group in (self._main, self._all):
            dpg.delete_item(group, children_only=True)
        for item in self._settings:
            self._ui.fields.remove(item)
        self._settings, self.inputs = {}, {}
        with inside(self._main):
            self._add_rows(s for s in recipe.settings if s.is_main)
        groups: dict[str, list[Setting]] = {}
        for setting in recipe.settings:
            groups.setdefault(setting.name.rpartition(".")[0], []).append(setting)
        with inside(self._all):
            for name, settings in groups.items():
                if not name:
                    self._add_rows(settings)
                    continue
                with inside(dpg.add_tree_node(label=spoken(name))):
                    self._add_rows(settings)

    def _add_rows(self, settings: Iterable[Setting]) -> None:
        for setting in settings:
            with labelled(self._ui.style, spoken(setting.name), LABEL_WIDTH):
                item = self._add_input(setting)
            self._settings[self._ui.field(item)] = setting
            self.inputs.setdefault(setting.name, []).append(item)
            if setting.help:
                tooltip(self._ui.style, item, setting.help)

    def _add_input(self, setting: Setting) -> Item:
        if setting.kind == "switch":
            return dpg.add_checkbox(callback=lambda item: self._take(item))
        if setting.kind == "choice":
            return dpg.add_combo(setting.choices, width=-1, callback=lambda item: self._take(item))
        numeric = setting.kind in ("whole", "number")
        item = dpg.add_input_text(width=-1, scientific=numeric, hint="none" if setting.optional else "")
        dpg.bind_item_handler_registry(item, self._handlers)
        return item

    def _take(self, item: Item) -> None:
        setting = self._settings.get(item)
        if setting is None:
            return
        text = spelled(setting, dpg.get_value(item))
        if self._differs(setting, text):
            self._ui.session.set_recipe(changes=((setting.name, text),))

    def _differs(self, setting: Setting, text: str) -> bool:
        """True if the newest recipe has another value than the one typed."""
        settings = self._recipe.settings if self._recipe is not None else ()
        newest = next((s for s in settings if s.name == setting.name), setting)
        return text != spelled(newest, shown(newest))

    def _take_preset(self, name: str) -> None:
        self._ui.session.set_recipe(preset=name)


def spoken(name: str) -> str:
    """A setting's or group's name for people: "densify.max_splats" is "Max splats"."""
    words = name.rpartition(".")[2].split("_")
    text = " ".join(ACRONYMS.get(word, word) for word in words)
    return text[:1].upper() + text[1:]


def spelled(setting: Setting, value: SettingValue) -> str:
    """A value as `SetRecipe` takes it."""
    if setting.kind == "switch":
        return "true" if value else "false"
    text = str(value).strip()
    return "null" if setting.optional and not text else text


def shown(setting: Setting) -> SettingValue:
    """A value as its input shows it."""
    if setting.kind == "switch":
        return bool(setting.value)
    if setting.value is None:
        return ""
    if isinstance(setting.value, float):
        short = f"{setting.value:g}"
        return short if float(short) == setting.value else repr(setting.value)
    return str(setting.value)


def _shape(recipe: Recipe) -> tuple[tuple[str, bool], ...]:
    return tuple((setting.name, setting.is_main) for setting in recipe.settings)
