"""Limits on what pictures cost: the frame rate while the view moves, and the share of a run's time."""

from __future__ import annotations

from collections.abc import Callable

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.style import Item, inside
from splatscope.viewer.drawing.widgets import Ui, labelled, tooltip

LABEL_WIDTH = 128  # points
MOTION = (
    "Frame rate to aim at while the view moves. The picture's resolution is lowered to reach it; the run is not slowed."
)
SHARE = (
    "Share of the time that is kept for training while the view is still. While the view moves, pictures may take up "
    "to 60% of the time, or the rest if that is more. View cost shows what they take."
)
RATE = (
    "Highest frame rate while training and the view moves; a still view gets at most 10 fps. The rate is lower where "
    "the training share leaves less time."
)


class ViewShares:
    """The sliders at the end of the training panel. Those about a run are shown while there is one."""

    def __init__(self, ui: Ui) -> None:
        self._ui, session = ui, ui.session
        with inside(dpg.add_group(show=False)) as self._of_a_run:
            self._share = self._slider(
                "Training share", "at least %d%%", (10, 98), SHARE,
                lambda percent: session.set_view_share(1.0 - 0.01 * percent),
            )  # fmt: skip
            self._rate = self._slider("View rate", "at most %d fps", (1, 60), RATE, session.set_view_rate)
        self._fps = self._slider("Target while moving", "%d fps", (2, 60), MOTION, session.set_moving_fps)

    def _slider(self, label: str, text: str, ends: tuple[int, int], tip: str, take: Callable[[float], None]) -> Item:
        with inside(dpg.add_group()) as whole, labelled(self._ui.style, label, LABEL_WIDTH):
            slider = dpg.add_slider_int(
                min_value=ends[0], max_value=ends[1], format=text, clamped=True, width=-1,
                callback=lambda _, value: take(float(value)),
            )  # fmt: skip
        tooltip(self._ui.style, whole, tip)
        return self._ui.field(slider)

    def show(self, is_trainable: bool) -> None:
        """Shows the present values."""
        session = self._ui.session
        dpg.set_value(self._fps, round(session.moving_fps))
        dpg.set_value(self._share, round(100 * (1.0 - session.view_share)))
        dpg.set_value(self._rate, round(session.view_rate))
        dpg.configure_item(self._of_a_run, show=is_trainable)
