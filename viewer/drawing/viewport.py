"""The picture and what is drawn on it: a photograph's frame, stage times, the heatmap's legend, hints.

The picture is asked for at the viewport's size (or a share of it while moving) and always fills it; only while
the window changes its size is an older picture fitted in. `textures.py` brings the pixels to the screen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import PurePosixPath

import dearpygui.dearpygui as dpg
import numpy as np

from splatscope.viewer.drawing.photo_layer import PhotoLayer, error_labels
from splatscope.viewer.drawing.style import BODY, LARGE, MONO, SMALL, Item
from splatscope.viewer.drawing.textures import PictureTexture, make_texture, ramp_texture
from splatscope.viewer.drawing.thumbnail import Thumbnail
from splatscope.viewer.drawing.widgets import Ui, count, fit, milliseconds, text_width
from splatscope.viewer.figures.frustums import apexes, depth_for, frustums
from splatscope.viewer.figures.schedule import ratio_of, ratio_text
from splatscope.viewer.figures.tile_hover import tile_at, tile_box, tile_rows
from splatscope.viewer.figures.tile_values import Legend, legend_of
from splatscope.viewer.messages.scale import apart
from splatscope.viewer.messages.view import EngineStatus, Picture, SceneInfo
from splatscope.viewer.palette import ACCENT, DIM, SHADE, TEXT, WARN, Color
from splatscope.viewer.state.photograph_mode import GRIP, spoken_psnr

MARGIN = 12  # points between the viewport's edge and what is drawn on the picture
REACH = 12  # points around a drawn camera's eye in which a click is meant for it
NEARLY = 0.02  # a picture whose aspect is off by less than this was meant for this viewport: it fills it


class Viewport:
    """Draws; reads nothing but what it is given. Pixels of the window throughout."""

    def __init__(self, ui: Ui) -> None:
        self.session = ui.session
        self.style = ui.style
        self.texture: PictureTexture | None = None
        self._origin = (0, 0)
        self._size = (1, 1)
        self._depth = (-1, 0.0)  # generation of a scene, and how deep its cameras are drawn
        self.inset = 0  # px at the top that something else lies over
        self._words: tuple[Picture, Legend | None] | None = None  # of the newest picture's overlay
        self._drawn: dict[str, object] = {}  # layer -> what it shows, so that it is drawn anew only if that changed

    def build(self) -> None:
        """Adds the window; call before the display is shown."""
        self._window = dpg.add_window(
            no_title_bar=True, no_move=True, no_resize=True, no_scrollbar=True, no_scroll_with_mouse=True,
            no_bring_to_front_on_focus=True, no_saved_settings=True, min_size=(1, 1),
        )  # fmt: skip
        dpg.bind_item_theme(self._window, self.style.canvas)
        self._canvas = dpg.add_drawlist(1, 1, parent=self._window)
        names = ("picture", "photograph", "frustums", "camera", "tile", "frame", "stats", "legend", "hint")
        self._layers = {name: dpg.add_draw_node(parent=self._canvas) for name in names}

    def connect(self) -> None:
        """Makes the texture; call once the display is shown."""
        self.texture = make_texture()
        self._photo = PhotoLayer()
        self._small = Thumbnail()
        self._ramp = ramp_texture()

    def take_over(self, other: Viewport) -> None:
        """Instead of `connect`: the textures of one that is no more, with what is on them."""
        self.texture, self._photo, self._small, self._ramp = other.texture, other._photo, other._small, other._ramp

    def place(self, x: int, y: int, width: int, height: int) -> None:
        """Where the viewport lies."""
        self._origin, self._size = (x, y), (max(1, width), max(1, height))
        dpg.configure_item(self._window, pos=(x, y), width=self._size[0], height=self._size[1])
        dpg.configure_item(self._canvas, width=self._size[0], height=self._size[1])

    @property
    def hovered(self) -> bool:
        """True if the mouse is over the picture and nothing lies on top of it there."""
        return bool(dpg.is_item_hovered(self._canvas))

    def local(self, mouse: Sequence[float]) -> tuple[float, float]:
        """A position of the window in pixels of the viewport."""
        return mouse[0] - self._origin[0], mouse[1] - self._origin[1]

    def focus(self) -> None:
        """Takes the keyboard from whatever field has it."""
        dpg.focus_item(self._window)

    # Each frame --------------------------------------------------------------------------------------

    def upload(self, picture: Picture) -> None:
        """Brings a new picture to the screen, and the photograph that came with it."""
        if self.texture is not None:
            self.texture.upload(picture.rgba)
            self._photo.upload(picture, self.session.photo)

    @property
    def frames_pending(self) -> int:
        """Frames still to be drawn before everything that was uploaded is on the screen."""
        return 0 if self.texture is None else max(self.texture.frames_pending, self._photo.texture.frames_pending)

    def tick(self) -> None:
        """Called after every frame drawn."""
        if self.texture is not None:
            self.texture.tick()
            self._photo.texture.tick()

    def camera_at(self, x: float, y: float) -> int | None:
        """Index of the drawn camera whose eye is near a place of the viewport."""
        eyes = self._drawn_eyes()
        away = {index: math.hypot(u - x, v - y) for index, (u, v) in eyes.items()}
        nearest = min(away, key=lambda index: away[index], default=None)
        return nearest if nearest is not None and away[nearest] < self.style.px(REACH) else None

    def _drawn_eyes(self) -> dict[int, tuple[float, float]]:
        """Where the eyes of drawn cameras lie in the viewport, by index."""
        picture, scene = self.session.picture, self.session.status.scene
        if not self.session.frustums_shown or picture is None or scene is None:
            return {}
        left, top, right, bottom = self._box_of(picture)
        camera = picture.request.camera
        x, y = (right - left) / camera.width, (bottom - top) / camera.height
        eyes = apexes(scene.cameras, camera, self._depth_of(scene))
        return {index: (left + u * x, top + v * y) for index, (u, v) in eyes.items()}

    def on_line(self, x: float) -> bool:
        """True if a place of the viewport lies on the line between photograph and picture."""
        photo = self.session.photo
        is_near = abs(x - photo.line * self._size[0]) < self.style.px(GRIP)
        return photo.mode == "wipe" and self.session.at_camera is not None and is_near

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        """Draws what has changed."""
        self._draw_picture(picture)
        self._draw_photograph(picture)
        self._draw_frustums(picture)
        self._draw_camera(status)
        self._draw_tile(status, picture)
        self._draw_frame(picture)
        self._draw_stats(status, picture)
        self._draw_legend(picture)
        self._draw_hint(status, picture)

    def _changed(self, layer: str, content: object) -> Item | None:
        """The emptied layer if it must be drawn anew."""
        content = (content, self._size)
        if self._drawn.get(layer) == content:
            return None
        self._drawn[layer] = content
        dpg.delete_item(self._layers[layer], children_only=True)
        return self._layers[layer]

    def _box_of(self, picture: Picture) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of a picture in the viewport."""
        height, width = picture.rgba.shape[:2]
        full_width, full_height = self._size
        if abs(width * full_height / (height * full_width) - 1.0) < NEARLY:
            return 0.0, 0.0, float(full_width), float(full_height)
        scale = min(full_width / width, full_height / height)
        left, top = (full_width - scale * width) / 2, (full_height - scale * height) / 2
        return left, top, left + scale * width, top + scale * height

    def _draw_picture(self, picture: Picture | None) -> None:
        if picture is None or self.texture is None:
            return
        height, width = picture.rgba.shape[:2]
        layer = self._changed("picture", (self.texture.item, self.texture.uv_max, width, height))
        if layer is None:
            return
        left, top, right, bottom = self._box_of(picture)
        dpg.draw_image(self.texture.item, (left, top), (right, bottom), uv_max=self.texture.uv_max, parent=layer)

    def _draw_photograph(self, picture: Picture | None) -> None:
        if picture is None or self.texture is None:
            return
        photo, box = self.session.photo, self._box_of(picture)
        is_here = self.session.at_camera is not None and picture.photograph is not None
        content = self._photo.content(picture.photograph, photo, box) if is_here else None
        layer = self._changed("photograph", (content, self.inset) if content is not None else None)
        if layer is None or content is None:
            return
        self._photo.draw(layer, picture, photo, box, self.style.px(2))
        if photo.mode == "wipe":
            line, away, top = box[0] + photo.line * (box[2] - box[0]), self.style.px(10), self.inset + self.style.px(8)
            wide = text_width("photograph", self.style.small) + 2 * self.style.px(9)  # of `_box`
            for word, left in (("photograph", line - away - wide), ("picture", line + away)):
                if box[0] <= left <= box[2] - wide:  # else there is hardly anything of it to see
                    self._box(layer, [(word, "")], left, top, self.style.small, SMALL)

    def _draw_frustums(self, picture: Picture | None) -> None:
        """Where the photographs were taken, as the picture's camera sees it; that of the view itself is left out."""
        session = self.session
        scene = session.status.scene if session.frustums_shown else None
        camera = picture.request.camera if picture is not None and scene is not None else None
        here = session.camera_index if session.at_camera is not None else -1
        held_out = tuple(named.is_test for named in scene.cameras) if scene else ()
        size = session.frustum_size
        layer = self._changed("frustums", (camera, here, scene.generation if scene else None, held_out, size))
        if layer is None or picture is None or camera is None or scene is None:
            return
        left, top, right, bottom = self._box_of(picture)
        for index, outline in frustums(scene.cameras, camera, self._depth_of(scene)):
            if index == here:
                continue
            x = left + outline[:, 0] * ((right - left) / camera.width)
            y = top + outline[:, 1] * ((bottom - top) / camera.height)
            color = WARN if scene.cameras[index].is_test else ACCENT
            points = np.stack([x, y], 1).tolist()
            dpg.draw_polyline(points, color=(*color[:3], 190), thickness=self.style.scale, parent=layer)

    def _draw_camera(self, status: EngineStatus) -> None:
        """The photograph and the name of the drawn camera under the mouse, beside it."""
        scene, texture, eye = status.scene, None, (0.0, 0.0)
        looks = self.hovered and not self.session.thumbnails_shown  # whose page is not to be kept from loading
        index = self.camera_at(*self.local(dpg.get_mouse_pos(local=False))) if looks else None
        if index is not None:
            texture, eye = self._small.of(index, status, self.session.client), self._drawn_eyes()[index]
        layer = self._changed("camera", (index, eye, texture and (texture.item, texture.uv_max)))
        if layer is None or index is None or scene is None:
            return
        style, px, camera = self.style, self.style.px, scene.cameras[index]
        name = f"{index + 1}  {PurePosixPath(camera.name).name}{', held out' if camera.is_test else ''}"
        wide, high = (px(side) for side in self._small.size)
        width = max(wide, text_width(name, style.small)) + px(16)
        height = high + px(SMALL + 16)
        left = eye[0] + px(REACH) if eye[0] + px(REACH) + width < self._size[0] else max(0, eye[0] - px(REACH) - width)
        top = min(max(0, eye[1] - height / 2), self._size[1] - height)
        dpg.draw_circle(eye, px(4), color=TEXT, fill=TEXT, parent=layer)
        self._shade(layer, left, top, left + width, top + height)
        if texture is not None:
            low = (left + px(8), top + px(7))
            dpg.draw_image(texture.item, low, (low[0] + wide, low[1] + high), uv_max=texture.uv_max, parent=layer)
        self._text(layer, left + px(8), top + height - px(SMALL + 6), name, style.small, SMALL, TEXT)

    def _depth_of(self, scene: SceneInfo) -> float:
        """How deep its cameras are drawn; measured once for a scene."""
        if self._depth[0] != scene.generation:
            self._depth = scene.generation, depth_for(scene.cameras, scene.extent)
        return self._depth[1] * self.session.frustum_size

    def _draw_frame(self, picture: Picture | None) -> None:
        """The edge of the photograph whose camera the view stands at, its name, and how well the picture fits it."""
        session = self.session
        camera, lens = session.at_camera, session.nav.lens
        shown = picture.photograph if picture is not None else None
        is_this = shown is not None and shown.index == session.camera_index and session.photo.active
        fit_text = spoken_psnr(shown) if is_this else ""
        away = session.photo.active and camera is None
        mode = session.photo.mode if is_this else "off"
        named = (camera.name, camera.is_test) if camera else None
        layer = self._changed("frame", (named, lens, fit_text, away, mode))
        if layer is None:
            return
        if away:
            self._box(
                layer,
                [("The view has left the photograph; Left or Right goes back to one.", "")],
                self.style.px(MARGIN), self._size[1] - self.style.px(MARGIN), self.style.small, SMALL, from_bottom=True,
            )  # fmt: skip
        if camera is None:
            return
        style, (width, height) = self.style, self._size
        inner_width, inner_height = lens.inner_size(width, height)
        left, top = (width - inner_width) / 2, (height - inner_height) / 2
        corner = (left + inner_width, top + inner_height)
        dpg.draw_rectangle((left, top), corner, color=(255, 255, 255, 70), thickness=1, parent=layer)
        scene = self.session.status.scene
        total = len(scene.cameras) if scene else 0
        name = f"{self.session.camera_index + 1} / {total}   {camera.name}{'   held out' if camera.is_test else ''}"
        name += f"   {fit_text}" if fit_text else ""
        label = fit(name, inner_width - style.px(40), style.small)
        x = corner[0] - text_width(label, style.small) - style.px(26)
        self._box(layer, [(label, "")], x, corner[1] - style.px(8), style.small, SMALL, from_bottom=True)

    def _draw_tile(self, status: EngineStatus, picture: Picture | None) -> None:
        """Which tile is under the mouse, and its figures, while a heatmap lies over the picture."""
        session, tile = self.session, None
        if picture is not None and picture.request.overlay != "none" and self.hovered:
            box = self._box_of(picture)
            tile = tile_at(picture, box, self.local(dpg.get_mouse_pos(local=False)))
        session.hovered_tile = tile
        content = None if tile is None or picture is None else (tile, picture.serial, status.recorded)
        layer = self._changed("tile", content)
        if layer is None or tile is None or picture is None:
            return
        left, top, right, bottom = tile_box(picture, self._box_of(picture), tile)
        dpg.draw_rectangle((left, top), (right, bottom), color=TEXT, thickness=self.style.scale, parent=layer)
        rows, px = tile_rows(picture, status.recorded, tile), self.style.px
        room = px(190)
        x = right + px(8) if right + room < self._size[0] else max(0, left - room)
        self._box(layer, rows, x, min(top, self._size[1] - px(20) * (len(rows) + 1)), self.style.small, SMALL)

    def _draw_stats(self, status: EngineStatus, picture: Picture | None) -> None:
        rows = self._stats(status, picture) if self.session.stats_shown and picture is not None else ()
        layer = self._changed("stats", (rows, self.inset))
        if layer is not None and rows:
            top = self.inset + self.style.px(MARGIN)
            self._box(layer, rows, self.style.px(MARGIN), top, self.style.mono, MONO)

    def _stats(self, status: EngineStatus, picture: Picture) -> tuple[tuple[str, str], ...]:
        frame = picture.frame
        height, width = picture.rgba.shape[:2]
        rate = 1e3 / picture.render_ms if picture.render_ms > 0 else 0.0
        rows = [
            ("picture", f"{milliseconds(picture.render_ms)}  {rate:5.1f} fps"),
            *((f"  {stage.replace('_', ' ')}", f"{ms:.2f} ms") for stage, ms in frame.stage_ms.items()),
            ("splats", count(status.splat_count)),
            ("visible", count(frame.visible)),
            ("instances", count(frame.instances)),
            *((("imbalance", ratio_text(ratio_of(frame.tile_counts, on.machine))),) if (on := status.blending) else ()),
            ("resolution", f"{width} x {height}  {self.session.shown_share:4.0%}"),
            ("UI", f"{self.session.pace.ms:.1f} ms per frame"),
            ("backend", f"{status.backend}, {status.device}" if status.device else status.backend),
        ]
        if frame.skipped:
            rows.append(("unusable", count(frame.skipped)))
        return tuple(rows)

    def _draw_legend(self, picture: Picture | None) -> None:
        content = self._legend(picture) if picture is not None else None
        layer = self._changed("legend", content)
        if layer is None or content is None:
            return
        style, px = self.style, self.style.px
        head = [content.title] + [content.note] * bool(content.note)
        widths = [text_width(text, style.small) for text in head]
        wide = max(*widths, px(26) + max(text_width(text, style.small) for text, _ in content.labels))
        line = px(20)
        bar_height = min(px(170), self._size[1] - px(90))
        if bar_height < px(40):
            return
        left, bottom = px(MARGIN), self._size[1] - px(MARGIN)
        upper = bottom - bar_height - line * len(head) - px(24)
        self._shade(layer, left, upper, left + wide + px(20), bottom)
        for k, text in enumerate(head):
            self._text(layer, left + px(10), upper + px(7) + k * line, text, style.small, SMALL, DIM)
        x, y0, y1 = left + px(10), bottom - px(12), bottom - px(12) - bar_height
        dpg.draw_image_quad(
            self._ramp, (x, y0), (x, y1), (x + px(14), y1), (x + px(14), y0),
            uv1=(0, 0), uv2=(1, 0), uv3=(1, 1), uv4=(0, 1), parent=layer,
        )  # fmt: skip
        places = [bar_height * share for _, share in content.labels]
        for k in apart(places, [px(SMALL)] * len(places)):
            y = y0 - places[k]
            dpg.draw_line((x + px(14), y), (x + px(18), y), color=DIM, parent=layer)
            self._text(layer, x + px(24), y - px(7), content.labels[k][0], style.small, SMALL, TEXT)

    def _legend(self, picture: Picture) -> Legend | None:
        """The words on the colours over the picture."""
        request, shown = picture.request, picture.photograph
        if shown is not None and shown.errors is not None and self.session.photo.mode == "error":
            labels = error_labels(self.session.photo.error_top)
            return Legend("difference, of 255", tuple((t, k / (len(labels) - 1)) for k, t in enumerate(labels)))
        if self._words is None or self._words[0] is not picture:
            self._words = picture, legend_of(request.overlay, picture.frame, request.scale)
        return self._words[1]

    def _draw_hint(self, status: EngineStatus, picture: Picture | None) -> None:
        """What is going on while there is nothing to see, or while the picture waits for something."""
        if status.busy:
            lines = ((status.busy, ACCENT),)
        elif status.scene is None and status.search is None:
            lines = (
                ("Open a scene", TEXT),
                ("Ctrl + O finds a .ply file, a trained model or a capture.", DIM),
                ("F1 lists all keys.", DIM),
            )
        else:
            lines = ()
        layer = self._changed("hint", (lines, picture is None))
        if layer is None or not lines:
            return
        style, px = self.style, self.style.px
        if picture is not None:  # out of the way of the picture
            text = fit(lines[0][0], self._size[0] - px(60), style.body)
            left = (self._size[0] - text_width(text, style.body)) / 2 - px(10)
            self._box(layer, [(text, "")], left, self._size[1] - px(MARGIN), style.body, BODY, from_bottom=True)
            return
        y = self._size[1] / 2 - px(30)
        for k, (text, color) in enumerate(lines):
            font, points = (style.large, LARGE) if k == 0 else (style.body, BODY)
            text = fit(text, self._size[0] - px(30), font)
            self._text(layer, (self._size[0] - text_width(text, font)) / 2, y, text, font, points, color)
            y += px(40 if k == 0 else 26)

    # Drawing -----------------------------------------------------------------------------------------

    def _box(
        self,
        layer: Item,
        rows: Sequence[tuple[str, str]],
        left: float,
        edge: float,
        font: Item,
        points: int,
        from_bottom: bool = False,
    ) -> None:
        """Rows of name and value on a dark ground; `edge` is its top, or its bottom."""
        px = self.style.px
        line, pad = px(points + 5), px(9)
        names = max(text_width(name, font) for name, _ in rows)
        values = max(text_width(value, font) for _, value in rows)
        width = names + (px(18) + values if values else 0) + 2 * pad
        height = len(rows) * line + 2 * pad - px(5)
        top = edge - height if from_bottom else edge
        self._shade(layer, left, top, left + width, top + height)
        for k, (name, value) in enumerate(rows):
            y = top + pad + k * line
            self._text(layer, left + pad, y, name, font, points, DIM if values else TEXT)
            self._text(layer, left + width - pad - text_width(value, font), y, value, font, points, TEXT)

    def _shade(self, layer: Item, left: float, top: float, right: float, bottom: float) -> None:
        round_by = self.style.px(5)
        dpg.draw_rectangle((left, top), (right, bottom), color=SHADE, fill=SHADE, rounding=round_by, parent=layer)

    def _text(self, layer: Item, x: float, y: float, text: str, font: Item, points: int, color: Color) -> None:
        if text:
            at = (round(x), round(y))  # whole pixels keep the glyphs sharp
            item = dpg.draw_text(at, text, size=self.style.px(points), color=color, parent=layer)
            dpg.bind_item_font(item, font)
