"""Shows the run's state and figures, a picture's time and size, and at the right the newest message."""

from __future__ import annotations

import time

import dearpygui.dearpygui as dpg

from splatscope.kernels.wording import counted
from splatscope.viewer.drawing.widgets import Panel, Ui, count, fit, milliseconds, text_width
from splatscope.viewer.messages.view import EngineStatus, Picture
from splatscope.viewer.palette import ACCENT, BAD, DIM, TEXT, WARN, Color
from splatscope.viewer.state.run_wording import speed, state_word
from splatscope.viewer.state.status_message import StatusMessage

HEIGHT = 29  # points
GAP = 22  # points between two figures
MESSAGE_WIDTH = 240  # points kept free at the right
MESSAGE_COLORS: dict[str, Color] = {"info": DIM, "warning": WARN, "error": BAD}


class StatusBar(Panel):
    """Shows the state and as many figures as fit. Each figure keeps its widest place, so that no text jitters."""

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._width = 0
        self._news = StatusMessage()
        self._places: dict[str, float] = {}

    def build(self) -> None:
        self._window = dpg.add_window(
            no_title_bar=True, no_move=True, no_resize=True, no_scrollbar=True, no_bring_to_front_on_focus=True,
            no_scroll_with_mouse=True, no_saved_settings=True,
        )  # fmt: skip
        dpg.bind_item_theme(self._window, self.style.bar)
        names = ("state", "iteration", "speed", "loss", "psnr", "splats", "skipped", "picture", "size")
        self._items = {name: dpg.add_text("", parent=self._window) for name in names}
        self._message = dpg.add_text("", parent=self._window)
        dpg.bind_item_font(self._items["state"], self.style.bold)

    def place(self, x: int, y: int, width: int, height: int) -> None:
        """Sets the bar's place and size, in pixels of the window."""
        dpg.configure_item(self._window, pos=(x, y), width=width, height=height)
        self._width = width

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        style = self.style
        texts = self._texts(status, picture)
        right = self._width - style.px(12 + MESSAGE_WIDTH)
        x, y = float(style.px(12)), style.px(5)
        for name, item in self._items.items():
            font = style.bold if name == "state" else style.body
            text = texts.get(name, "")
            wide = text_width(text, font)
            kept = 0.0 if name == "state" else self._places.get(name, 0.0)
            self._places[name] = max(wide, kept) if text else 0.0
            shown = bool(text) and x + wide <= right
            dpg.configure_item(item, show=shown, pos=(x, y), color=self._color(name, status))
            dpg.set_value(item, text)
            if shown:
                x += self._places[name] + style.px(GAP)
        self._show_message(status, x, y)

    def _texts(self, status: EngineStatus, picture: Picture | None) -> dict[str, str]:
        training = status.training
        texts = {"state": state_word(status, "viewing" if status.scene is not None else "no scene")[0]}
        if status.scene is None:
            return texts
        if training.iteration:
            texts["iteration"] = f"{count(training.iteration)} / {count(training.iterations)}"
            texts["loss"] = "" if training.loss is None else f"loss {training.loss:.4f}"
            texts["psnr"] = "" if training.psnr is None else f"{training.psnr_label} {training.psnr:.2f} dB"
            rate = training.iterations_per_second
            texts["speed"] = speed(rate) if rate else ""
        texts["splats"] = counted(status.splat_count, "splat")
        if picture is not None:
            height, width = picture.rgba.shape[:2]
            texts["picture"] = f"picture {milliseconds(picture.render_ms)}"
            texts["skipped"] = f"{counted(picture.frame.skipped, 'splat')} skipped" if picture.frame.skipped else ""
            share = self.session.picture_share
            texts["size"] = f"{width} x {height}" + ("" if share > 0.99 else f" ({share:.0%})")
        return texts

    def _color(self, name: str, status: EngineStatus) -> Color:
        if name == "state":
            return state_word(status, "")[1]
        if name == "skipped":
            return WARN
        return TEXT if name in ("iteration", "speed", "loss", "psnr") else DIM

    def _show_message(self, status: EngineStatus, left: float, y: int) -> None:
        moves = status.training.iterations_per_second is not None
        line = self._news.newest(self.session.log.newest, moves, time.perf_counter())
        text, color = status.busy, ACCENT
        if not text and line is not None and self.session.log.error is None:  # an error has its own bar
            text, color = line.text.partition("\n")[0], MESSAGE_COLORS[line.level]
        room = self._width - self.style.px(12) - left
        text = fit(text, room, self.style.body)
        dpg.set_value(self._message, text)
        x = self._width - self.style.px(12) - text_width(text, self.style.body)
        dpg.configure_item(self._message, color=color, pos=(x, y))
