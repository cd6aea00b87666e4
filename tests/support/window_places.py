"""Records where a window's controls are, for tests that click on them from outside.

A program that opens the window calls `tell_places` first and prints `PLACES` now and then; also `moment()`, if it has
called `count_frames`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

SHOWN: dict[str, object] = {}  # the preset, the value of each toggle, and some other things that panels say
PLACES: dict[str, list[int]] = {}  # of controls: left, top, width, height in pixels of the window; empty if unseen
REPORT_SECONDS = 0.05  # between two lines that a program prints; tests wait for the next one after all they do
_FRAMES = {"frames": 0}


def count_frames() -> None:
    """Makes the window count its frames, and draw more of them while nothing happens: tests wait for the next few."""
    from splatscope.viewer import window
    from splatscope.viewer.window import Window

    window.IDLE_HZ = 30.0
    update, numbers = Window._update, itertools.count(1)

    def update_and_count(self: Window) -> None:
        update(self)
        _FRAMES["frames"] = next(numbers)

    Window._update = update_and_count


def moment() -> dict[str, float]:
    """Returns the time on the clock that all processes share, and how many frames were begun."""
    now = time.monotonic()
    return {"now": now, **_FRAMES}


def place(item: Any) -> list[int]:
    """Returns left, top, width and height of an item; none if it cannot be seen."""
    import dearpygui.dearpygui as dpg  # only a program with a window has it

    seen = item and dpg.get_item_state(item).get("visible", False)
    if seen and "rect_min" not in dpg.get_item_state(item):  # a tooltip: wherever the mouse is
        return [0, 0, 0, 0]
    return [*map(int, dpg.get_item_rect_min(item)), *map(int, dpg.get_item_rect_size(item))] if seen else []


def report_items(panel: Any, items: Callable[[Any], dict[str, Any]]) -> None:
    """Lets the panel's class note the places of its items after each update."""
    update = panel.update

    def update_and_note(self: Any, *arguments: Any) -> None:
        update(self, *arguments)
        PLACES.update({name: place(item) for name, item in items(self).items()})

    panel.update = update_and_note


def tell_places() -> None:
    """Lets panels note where their controls are."""
    # Imported here: Dear PyGui loads only in programs that open a window.
    from splatscope.viewer.dialogs.close import CloseWindow
    from splatscope.viewer.dialogs.reset import ResetWindow
    from splatscope.viewer.panels.heatmap import HeatmapPanel
    from splatscope.viewer.panels.log import LogPanel
    from splatscope.viewer.panels.schedule import SchedulePanel
    from splatscope.viewer.panels.stages import StagesPanel
    from splatscope.viewer.panels.toggles import TogglesPanel
    from splatscope.viewer.panels.training import TrainingPanel
    from splatscope.viewer.window import Window

    update_panels = Window._update_panels

    def update_and_note_sections(self: Window, status: Any, picture: Any) -> None:
        update_panels(self, status, picture)
        note_sections(self)

    Window._update_panels = update_and_note_sections
    report_items(CloseWindow, close_items)
    report_items(ResetWindow, lambda window: {"throw": window.throw})
    report_items(LogPanel, log_items)
    report_items(StagesPanel, stages_items)
    report_items(HeatmapPanel, lambda panel: {str(name): item for name, item in panel._kinds.items()})
    report_items(SchedulePanel, schedule_items)
    report_items(TogglesPanel, toggles_items)
    report_items(TrainingPanel, training_items)


def note_sections(window: Any) -> None:
    """Notes the headers of the dock, which of them are open, and how far the dock is scrolled."""
    import dearpygui.dearpygui as dpg  # only a program with a window has it

    PLACES.update({panel.title: place(header) for panel, header in window._sections})
    SHOWN["open"] = [panel.title for panel, header in window._sections if dpg.get_value(header)]
    SHOWN["dock"] = dpg.get_y_scroll(window._dock)
    SHOWN["scale"] = window.style.scale


def close_items(window: Any) -> dict[str, Any]:
    return {"save and close": window.yes, "close unsaved": window.unsaved, "cancel": window.no}


def log_items(panel: Any) -> dict[str, Any]:
    import dearpygui.dearpygui as dpg  # only a program with a window has it

    SHOWN["log"] = [dpg.get_y_scroll(panel._lines), dpg.get_y_scroll_max(panel._lines)]
    return {}


def stages_items(panel: Any) -> dict[str, Any]:
    import dearpygui.dearpygui as dpg  # only a program with a window has it

    tables = {"pictures": panel._picture, "steps": panel._training}
    for name, table in tables.items():
        SHOWN[name] = len(table.times.table) if dpg.is_item_shown(table.whole) else None
    result = panel._comparison
    SHOWN["measured"] = result is not None and result.done == result.pairs
    return {name: getattr(panel, f"_{name}") for name in ("choice", "start", "save", "record")}


def schedule_items(panel: Any) -> dict[str, Any]:
    return {
        "record frame": panel._record,
        "save frame": panel._save,
        "machine": panel._machine,
        "source": panel._source,
        "gantt": panel._gantt.item,
    }


def toggles_items(panel: Any) -> dict[str, Any]:
    import dearpygui.dearpygui as dpg  # only a program with a window has it

    if not panel._rows:
        return {}
    controls = {"preset": panel._preset} | {row.key: items.control for row, items in panel._rows.items()}
    SHOWN.update({name: dpg.get_value(item) for name, item in controls.items()})
    return controls


def training_items(panel: Any) -> dict[str, Any]:
    import dearpygui.dearpygui as dpg  # only a program with a window has it

    SHOWN.update({"until": dpg.get_value(panel.buttons.until), "note": dpg.get_value(panel._note._text)})
    SHOWN.update({"memory": dpg.get_item_configuration(panel._memory)["overlay"]})
    return (
        button_items(panel.buttons)
        | {"back": panel.buttons.back, "keep": panel.buttons.keep}
        | {"loss plot": panel._curves.loss._plot, "splats plot": panel._curves.count._plot}
        | {"reset tip": tip_of(panel.buttons.items["reset"])}
        | {"until": panel.buttons.until, "folder": panel._form._out, "recipe": panel._form._presets}
        | {"odd": panel._checkup._odd, "how long": panel._checkup._ask}
        | panel._form.inputs
        | {f"{part} {name}": getattr(row, part) for name, row in panel._form._rows.items() for part in ("back",)}
    )


def button_items(row: Any) -> dict[str, Any]:
    """Returns the run's buttons by what they do; 0 for those that cannot be pressed."""
    verbs = {"ready": "start", "running": "pause", "paused": "resume", "stopped": "resume"}
    allowed = {verbs.get(row._state, "start") if name == "go" else name: name for name in row.items}
    there = {verb: row.items[name] for verb, name in allowed.items() if row.allowed(name)}
    return dict.fromkeys((*verbs.values(), *allowed), 0) | there


def tip_of(item: Any) -> Any:
    """Returns the tooltip of an item, which is alone in its group: the group's next sibling."""
    import dearpygui.dearpygui as dpg  # only a program with a window has it

    group: Any = dpg.get_item_parent(item)
    siblings: Any = dpg.get_item_children(dpg.get_item_parent(group) or 0, 1)
    return siblings[siblings.index(group) + 1]
