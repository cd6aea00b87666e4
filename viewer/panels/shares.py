"""Sets limits on pictures: the frame rate while the view moves, and their share of a run's time."""

from __future__ import annotations

from collections.abc import Callable

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.style import Item, inside
from splatscope.viewer.drawing.widgets import Ui, label_row, tooltip

LABEL_WIDTH = 128  # points
MOTION = "Lowers the picture's resolution to reach this frame rate while the view moves. Training is not slowed."
SHARE = (
    "Share of the time kept for training while the view is still. While the view moves, pictures can take up to 60% "
    "of the time, or the rest if that is more. View cost shows how much pictures take now."
)
RATE = (
    "Highest frame rate during training while the view moves; a still view gets at most 10 fps. The rate drops further "
    "if the training share leaves less time."
)


class ViewShares:
    """Shows the sliders at the end of the training panel; two of them only while there is a run."""

    def __init__(self, ui: Ui) -> None:
        self._ui, session = ui, ui.session
        with inside(dpg.add_group(show=False)) as self._of_a_run:
            self._share = self._slider(
                "Training share", "at least %d%%", (10, 98), SHARE,
                lambda percent: session.settings.set_view_share(1.0 - 0.01 * percent),
            )  # fmt: skip
            self._rate = self._slider("View rate", "at most %d fps", (1, 60), RATE, session.settings.set_view_rate)
        self._fps = self._slider("Rate while moving", "%d fps", (2, 60), MOTION, session.settings.set_moving_fps)

    def _slider(self, label: str, text: str, ends: tuple[int, int], tip: str, take: Callable[[float], None]) -> Item:
        with inside(dpg.add_group()) as whole, label_row(self._ui.style, label, LABEL_WIDTH):
            slider = dpg.add_slider_int(
                min_value=ends[0], max_value=ends[1], format=text, clamped=True, width=-1,
                callback=lambda _, value: take(float(value)),
            )  # fmt: skip
        tooltip(self._ui.style, whole, tip)
        return self._ui.field(slider)

    def show(self, is_trainable: bool) -> None:
        """Sets the sliders to the present values."""
        session = self._ui.session
        dpg.set_value(self._fps, round(session.settings.moving_fps))
        dpg.set_value(self._share, round(100 * (1.0 - session.settings.view_share)))
        dpg.set_value(self._rate, round(session.settings.view_rate))
        dpg.configure_item(self._of_a_run, show=is_trainable)
