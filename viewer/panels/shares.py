"""What looking may cost: how smooth motion is to be, and what of a run's time pictures may take."""

from __future__ import annotations

from collections.abc import Callable

import dearpygui.dearpygui as dpg

from splatscope.viewer.style import DIM, Item, inside
from splatscope.viewer.widgets import Ui, labelled, tooltip

MOTION = "Pictures a second aimed at while the view moves; the picture's resolution gives way to it, never the run."
SHARE = (
    "Of the time, at least; pictures of a still view may take the rest, and 60 % while it moves, or that if it is "
    "more. View cost is what they do take."
)
RATE = (
    "Pictures a second, at most, while training and the view moves; ten of a still view, whose splats alone change. "
    "Fewer where the training's share leaves no time for them."
)


class ViewShares:
    """Belongs to the training panel. The limits of a run come first, and only while there is one."""

    def __init__(self, ui: Ui) -> None:
        self._ui, session = ui, ui.session
        with inside(dpg.add_group(show=False)) as self._of_a_run:
            dpg.add_text("While training", color=DIM)
            self._share = self._slider(
                "Training keeps", "%d %% of the time or more", (10, 98), SHARE,
                lambda percent: session.set_view_share(1.0 - 0.01 * percent),
            )  # fmt: skip
            self._rate = self._slider("Pictures", "%d a second at most", (1, 60), RATE, session.set_view_rate)
            dpg.add_text("While the view moves", color=DIM)
        self._fps = self._slider("Aim at", "%d pictures a second", (2, 60), MOTION, session.set_moving_fps)

    def _slider(self, label: str, text: str, ends: tuple[int, int], tip: str, take: Callable[[float], None]) -> Item:
        with inside(dpg.add_group()) as whole, labelled(self._ui.style, label):
            slider = dpg.add_slider_int(
                min_value=ends[0], max_value=ends[1], format=text, clamped=True, width=-1,
                callback=lambda _, value: take(float(value)),
            )  # fmt: skip
        tooltip(self._ui.style, whole, tip)
        return self._ui.field(slider)

    def show(self, is_trainable: bool) -> None:
        """The values as they are."""
        session = self._ui.session
        dpg.set_value(self._fps, round(session.moving_fps))
        dpg.set_value(self._share, round(100 * (1.0 - session.view_share)))
        dpg.set_value(self._rate, round(session.view_rate))
        dpg.configure_item(self._of_a_run, show=is_trainable)
