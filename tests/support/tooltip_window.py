"""Opens three buttons with tooltips, the second hidden, the third disabled; prints which tooltips are seen."""

from __future__ import annotations

import itertools
import json
import time

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.style import Style, inside
from splatscope.viewer.drawing.widgets import tooltip

NAMES = ("shown", "hidden", "disabled")


def main() -> None:
    """Draws until it is ended."""
    dpg.create_context()
    dpg.create_viewport(title="splatscope", width=400, height=200)
    style = Style(1.0)
    style.apply()
    with inside(dpg.add_window(width=400, height=200)), inside(dpg.add_group(horizontal=True)):
        items = {name: dpg.add_button(label=name, show=name != "hidden", enabled=name != "disabled") for name in NAMES}
        words = {name: tooltip(style, item, name) for name, item in items.items()}
    dpg.setup_dearpygui()
    dpg.show_viewport()
    for frames in itertools.count(1):
        dpg.render_dearpygui_frame()
        seen = [name for name, item in words.items() if dpg.get_item_state(item).get("visible")]
        places = {name: dpg.get_item_rect_min(item) for name, item in items.items()}
        print(json.dumps({"now": time.monotonic(), "frames": frames, "seen": seen, "places": places}), flush=True)
        time.sleep(0.03)


if __name__ == "__main__":
    main()
