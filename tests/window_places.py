"""Where a window's controls are, for tests that click on them from outside.

A program that opens the window calls `tell_places` first and prints `PLACES` now and then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SHOWN: dict[str, object] = {}  # what the toggles panel shows: the preset, and the value of each toggle
PLACES: dict[str, list[int]] = {}  # of controls: left, top, width, height in pixels of the window; empty if unseen


def tell_places() -> None:
    """From now on, panels tell where their controls are."""
    import dearpygui.dearpygui as dpg

    from splatscope.viewer.panels.close import CloseWindow
    from splatscope.viewer.panels.heatmap import HeatmapPanel
    from splatscope.viewer.panels.schedule import SchedulePanel
    from splatscope.viewer.panels.stages import StagesPanel
    from splatscope.viewer.panels.toggles import TogglesPanel
    from splatscope.viewer.panels.training import TrainingPanel

    def place(item: Any) -> list[int]:
        seen = item and dpg.get_item_state(item).get("visible", False)
        return [*map(int, dpg.get_item_rect_min(item)), *map(int, dpg.get_item_rect_size(item))] if seen else []

    def telling(panel: Any, items: Callable[[Any], dict[str, Any]]) -> None:
        update = panel.update

        def update_and_tell(self: Any, *arguments: Any) -> None:
            update(self, *arguments)
            PLACES.update({name: place(item) for name, item in items(self).items()})

        panel.update = update_and_tell

    telling(CloseWindow, lambda window: {"save and close": window.yes, "go on": window.no})
    names = ("choice", "start", "save", "record")
    telling(StagesPanel, lambda panel: {name: getattr(panel, f"_{name}") for name in names})
    telling(HeatmapPanel, lambda panel: {str(name): item for name, item in panel._kinds.items()})
    telling(
        SchedulePanel,
        lambda panel: {
            "record frame": panel._record,
            "save frame": panel._save,
            "source": panel._source,
            "gantt": panel._gantt.item,
        },
    )

    def toggles(panel: Any) -> dict[str, Any]:
        if not panel._rows:
            return {}
        controls = {"preset": panel._preset} | {row.key: items.control for row, items in panel._rows.items()}
        SHOWN.update({name: dpg.get_value(item) for name, item in controls.items()})
        return controls

    telling(TogglesPanel, toggles)
    telling(
        TrainingPanel,
        lambda panel: (
            {name: 0 for _, name in panel._button}
            | {name: item for (state, name), item in panel._button.items() if state == panel._state}
            | {"back": panel._back, "keep": panel._keep}
            | {"loss plot": panel._loss_plot._plot, "splats plot": panel._count_plot._plot}
            | {"until": panel._until, "run": panel._run, "throw": panel._throw, "folder": panel._form._out}
            | {name: items[0] for name, items in panel._form.inputs.items()}
        ),
    )
