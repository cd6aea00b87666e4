"""Shows the picture and the layers on it: photograph, cameras, tile, frame, stage times, legend, hint.

The picture is asked for at the viewport's size, or a share of that while the view moves. `textures.py` brings the
pixels to the screen. Each layer is a file of this folder.
"""

from __future__ import annotations

from collections.abc import Sequence

import dearpygui.dearpygui as dpg

from splatscope.viewer.drawing.frame_layer import FrameLayer
from splatscope.viewer.drawing.frustum_layer import FrustumLayer
from splatscope.viewer.drawing.hint_layer import HintLayer
from splatscope.viewer.drawing.layer import Canvas, Layer
from splatscope.viewer.drawing.legend_layer import LegendLayer
from splatscope.viewer.drawing.photo_layer import PhotoLayer
from splatscope.viewer.drawing.stats_layer import StatsLayer
from splatscope.viewer.drawing.textures import PictureTexture, make_texture
from splatscope.viewer.drawing.tile_layer import TileLayer
from splatscope.viewer.drawing.widgets import Ui
from splatscope.viewer.messages.view import EngineStatus, Picture


class Viewport:
    """Owns the viewport's window, its texture and its layers. All lengths are pixels of the window."""

    def __init__(self, ui: Ui) -> None:
        self.session = ui.session
        self.canvas = Canvas(ui.style)
        self.texture: PictureTexture | None = None
        self._origin = (0, 0)

    def build(self) -> None:
        """Adds the window; call before the display is shown."""
        session, style = self.session, self.canvas.style
        self._window = dpg.add_window(
            no_title_bar=True, no_move=True, no_resize=True, no_scrollbar=True, no_scroll_with_mouse=True,
            no_bring_to_front_on_focus=True, no_saved_settings=True, min_size=(1, 1),
        )  # fmt: skip
        dpg.bind_item_theme(self._window, style.canvas)
        self._list = dpg.add_drawlist(1, 1, parent=self._window)

        def layer() -> Layer:
            return Layer(self.canvas, self._list)

        # Later layers lie over earlier ones.
        self._picture = layer()
        self.photo = PhotoLayer(session, layer())
        self.frustums = FrustumLayer(session, layer(), layer())
        self._tile = TileLayer(session.heatmap, layer())
        self._frame = FrameLayer(session, layer())
        self._stats = StatsLayer(session, layer())
        self._legend = LegendLayer(session.photographs, layer())
        self._hint = HintLayer(layer())

    def connect(self) -> None:
        """Makes the textures; call once the display is shown."""
        self.texture = make_texture()
        self.photo.connect()
        self.frustums.connect()
        self._legend.connect()

    def take_over(self, other: Viewport) -> None:
        """Takes the textures of a replaced viewport with their pixels; call it instead of `connect`."""
        self.texture = other.texture
        self.photo.take_over(other.photo)
        self.frustums.thumbnail, self._legend.ramp = other.frustums.thumbnail, other._legend.ramp

    def place(self, x: int, y: int, width: int, height: int) -> None:
        """Sets the viewport's place and size."""
        self._origin, self.canvas.size = (x, y), (max(1, width), max(1, height))
        width, height = self.canvas.size
        dpg.configure_item(self._window, pos=(x, y), width=width, height=height)
        dpg.configure_item(self._list, width=width, height=height)

    @property
    def hovered(self) -> bool:
        """Returns True if the mouse is over the picture and nothing lies on top of it there."""
        return bool(dpg.is_item_hovered(self._list))

    def local(self, mouse: Sequence[float]) -> tuple[float, float]:
        """Converts a position in the window to pixels of the viewport."""
        return mouse[0] - self._origin[0], mouse[1] - self._origin[1]

    def focus(self) -> None:
        """Takes the keyboard from the field that has it."""
        dpg.focus_item(self._window)

    # Each frame --------------------------------------------------------------------------------------

    def upload(self, picture: Picture) -> None:
        """Brings a new picture to the screen, and the photograph that came with it."""
        if self.texture is not None:
            self.texture.upload(picture.rgba)
            self.photo.upload(picture)

    @property
    def frames_pending(self) -> int:
        """Returns the number of frames to draw before all uploads are on the screen."""
        return 0 if self.texture is None else max(self.texture.frames_pending, self.photo.texture.frames_pending)

    def tick(self) -> None:
        """Counts a drawn frame."""
        if self.texture is not None:
            self.texture.tick()
            self.photo.texture.tick()

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        """Draws what has changed."""
        self.canvas.mouse = self.local(dpg.get_mouse_pos(local=False)) if self.hovered else None
        if picture is not None and self.texture is not None:
            self._draw_picture(picture, self.texture)
            self.photo.draw(picture)
        self.frustums.draw(status, picture)
        self._tile.draw(status, picture)
        self._frame.draw(picture)
        self._stats.draw(status, picture)
        self._legend.draw(picture)
        self._hint.draw(status, picture)

    def _draw_picture(self, picture: Picture, texture: PictureTexture) -> None:
        height, width = picture.rgba.shape[:2]
        if self._picture.is_stale((texture.item, texture.uv_max, width, height)):
            left, top, right, bottom = self.canvas.box_of(picture)
            node = self._picture.node
            dpg.draw_image(texture.item, (left, top), (right, bottom), uv_max=texture.uv_max, parent=node)
