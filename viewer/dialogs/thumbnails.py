"""Shows all photographs of a capture, a page at a time; a click goes to a photograph's view.

The engine decodes the photographs of the open page. One texture holds the whole page.
"""

from __future__ import annotations

from pathlib import PurePosixPath

import dearpygui.dearpygui as dpg
import numpy as np

from splatscope.viewer.drawing.style import SMALL, Item, inside
from splatscope.viewer.drawing.textures import PictureTexture, make_texture
from splatscope.viewer.drawing.widgets import Panel, Ui, button, count, fit, place_over_picture
from splatscope.viewer.messages import commands
from splatscope.viewer.messages.view import EngineStatus, Picture, SceneInfo
from splatscope.viewer.palette import ACCENT, DIM, FIELD, TEXT, WARN

COLUMNS, ROWS = 5, 4
PAGE = COLUMNS * ROWS
CELL = (112, 84)  # px of a photograph in the texture; the same in points on the screen
LINE, GAP = 18, 8  # points below a photograph for its name, and between two photographs


class ThumbnailWindow(Panel):
    """Shows the page while `session.dialogs.thumbnails_shown` is set."""

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._shown = False
        self._page = 0
        self._asked: object = None
        self._filled: dict[int, int] = {}  # place on the page -> index of its camera
        self._drawn: object = None
        self._sheet = np.zeros((ROWS * CELL[1], COLUMNS * CELL[0], 4), np.uint8)
        self._texture: PictureTexture | None = None
        self._scene: SceneInfo | None = None

    def build(self) -> None:
        style, px = self.style, self.style.px
        self._window = dpg.add_window(
            label="Photographs", show=False, no_collapse=True, no_saved_settings=True, no_resize=True,
            on_close=self._close,
        )  # fmt: skip
        dpg.bind_item_theme(self._window, style.popup)
        self._width = px(COLUMNS * (CELL[0] + GAP))
        with inside(self._window):
            self._canvas = dpg.add_drawlist(self._width, px(ROWS * (CELL[1] + LINE + GAP)))
            with inside(dpg.add_group(horizontal=True)):
                back = dpg.add_button(arrow=True, direction=dpg.mvDir_Left, callback=lambda: self._turn(-1))
                forward = dpg.add_button(arrow=True, direction=dpg.mvDir_Right, callback=lambda: self._turn(1))
                self._place = dpg.add_text("")
                button(style, "Close", self._close)
                self._held_out = dpg.add_text("Orange: held out from training", color=WARN, show=False)
        with inside(dpg.add_item_handler_registry()) as handlers:
            dpg.add_item_clicked_handler(dpg.mvMouseButton_Left, callback=lambda: self._take())
        dpg.bind_item_handler_registry(self._canvas, handlers)
        with inside(dpg.add_handler_registry()) as self.handlers:
            dpg.add_mouse_wheel_handler(callback=lambda _, notches: self._wheel(notches))
        self._arrows: tuple[Item, Item] = (back, forward)

    def connect(self) -> None:
        """Makes the texture; call once the display is shown."""
        self._texture = make_texture()

    def take_over(self, other: ThumbnailWindow) -> None:
        """Takes the texture of a replaced window; call it instead of `connect`."""
        self._texture = other._texture

    def _close(self) -> None:
        self.session.dialogs.thumbnails_shown = False

    def _turn(self, pages: int) -> None:
        self._page += pages

    def _wheel(self, notches: int) -> None:
        if self._shown and dpg.is_item_hovered(self._canvas):
            self._page -= notches

    def _take(self) -> None:
        index = self._under_mouse()
        if index is not None:
            self.session.view.go_to_camera(index)
            self._close()

    def _under_mouse(self) -> int | None:
        if self._scene is None or not dpg.is_item_hovered(self._canvas):
            return None
        mouse, corner, px = dpg.get_mouse_pos(local=False), dpg.get_item_rect_min(self._canvas), self.style.px
        column = int((mouse[0] - corner[0]) // px(CELL[0] + GAP))
        row = int((mouse[1] - corner[1]) // px(CELL[1] + LINE + GAP))
        index = self._page * PAGE + row * COLUMNS + column
        return index if 0 <= column < COLUMNS and 0 <= row < ROWS and index < len(self._scene.cameras) else None

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        session, scene = self.session, status.scene
        if scene is not self._scene:
            if scene is None or self._scene is None or scene.generation != self._scene.generation:
                self._page, self._asked, self._filled = 0, None, {}
            self._scene = scene
        if session.dialogs.thumbnails_shown != self._shown:
            self._shown = session.dialogs.thumbnails_shown
            self._show()
        if not self._shown or scene is None:
            return
        pages = -(-len(scene.cameras) // PAGE)
        self._page = min(max(self._page, 0), pages - 1)
        indices = tuple(range(self._page * PAGE, min((self._page + 1) * PAGE, len(scene.cameras))))
        if (scene.generation, indices) != self._asked:
            self._asked = (scene.generation, indices)
            session.engine.send(commands.LoadThumbnails(indices))
        self._fill(indices, status)
        self._draw(indices, scene)
        dpg.set_value(
            self._place, f"{count(indices[0] + 1)} to {count(indices[-1] + 1)} of {count(len(scene.cameras))}"
        )
        for item, usable in zip(self._arrows, (self._page > 0, self._page < pages - 1), strict=True):
            dpg.configure_item(item, enabled=usable)

    def _show(self) -> None:
        if self._shown:
            self._page = self.session.view.camera_index // PAGE
            width, height = COLUMNS * (CELL[0] + GAP) + 24, ROWS * (CELL[1] + LINE + GAP) + 92
            place_over_picture(self.ui, self._window, width, height)
        dpg.configure_item(self._window, show=self._shown)
        if self._shown:
            dpg.focus_item(self._window)

    def _fill(self, indices: tuple[int, ...], status: EngineStatus) -> None:
        """Copies new thumbnails to the texture."""
        fresh = False
        for place, index in enumerate(indices):
            small = status.thumbnails.get(index)
            if small is None or self._filled.get(place) == index:
                continue
            y, x = place // COLUMNS * CELL[1], place % COLUMNS * CELL[0]
            cell = self._sheet[y : y + CELL[1], x : x + CELL[0]]
            height, width = min(small.shape[0], CELL[1]), min(small.shape[1], CELL[0])
            top, left = (CELL[1] - height) // 2, (CELL[0] - width) // 2
            cell[...] = (*FIELD[:3], 255)
            cell[top : top + height, left : left + width, :3] = small[:height, :width]
            self._filled[place] = index
            fresh = True
        if fresh and self._texture is not None:
            self._texture.upload(self._sheet)
        if self._texture is not None:
            self._texture.tick()

    def _draw(self, indices: tuple[int, ...], scene: SceneInfo) -> None:
        texture = self._texture
        if texture is None:
            return
        session, style, px = self.session, self.style, self.style.px
        here = session.view.camera_index if session.view.at_camera is not None else -1
        there = tuple(place for place, index in enumerate(indices) if self._filled.get(place) == index)
        held_out = tuple(scene.cameras[index].is_test for index in indices)
        dpg.configure_item(self._held_out, show=any(held_out))
        content = (indices, there, here, self._under_mouse(), texture.item, texture.uv_max, scene.generation, held_out)
        if content == self._drawn:
            return
        self._drawn = content
        dpg.delete_item(self._canvas, children_only=True)
        for place, index in enumerate(indices):
            row, column = divmod(place, COLUMNS)
            x, y = column * px(CELL[0] + GAP), row * px(CELL[1] + LINE + GAP)
            low, high = (x, y), (x + px(CELL[0]), y + px(CELL[1]))
            dpg.draw_rectangle(low, high, color=FIELD, fill=FIELD, parent=self._canvas)
            if place in there:
                u, v = texture.uv_max
                uv_min, uv_max = (
                    (u * column / COLUMNS, v * row / ROWS),
                    (u * (column + 1) / COLUMNS, v * (row + 1) / ROWS),
                )
                dpg.draw_image(texture.item, low, high, uv_min=uv_min, uv_max=uv_max, parent=self._canvas)
            camera = scene.cameras[index]
            edge = ACCENT if index == here else TEXT if index == content[3] else WARN if camera.is_test else None
            if edge is not None:
                dpg.draw_rectangle(low, high, color=edge, thickness=px(2), parent=self._canvas)
            name = f"{index + 1}  {PurePosixPath(camera.name).name}"
            label = fit(name, px(CELL[0]), style.small)
            color = WARN if camera.is_test else DIM
            text = dpg.draw_text((x, y + px(CELL[1] + 2)), label, size=px(SMALL), color=color, parent=self._canvas)
            dpg.bind_item_font(text, style.small)
