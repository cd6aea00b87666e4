"""Draws the cameras of the photographs over the picture, and the photograph of the camera under the mouse."""

from __future__ import annotations

import math
from pathlib import PurePosixPath

import dearpygui.dearpygui as dpg
import numpy as np

from splatscope.viewer.drawing.layer import Layer
from splatscope.viewer.drawing.style import SMALL
from splatscope.viewer.drawing.thumbnail import Thumbnail
from splatscope.viewer.drawing.widgets import text_width
from splatscope.viewer.figures.frustums import apexes, depth_for, frustums
from splatscope.viewer.messages.view import EngineStatus, Picture, SceneInfo
from splatscope.viewer.palette import ACCENT, TEXT, WARN
from splatscope.viewer.state.session import Session

REACH = 12  # points around a drawn camera's eye in which a click is meant for it


class FrustumLayer:
    """Draws the cameras on one layer, and name and photograph of the one under the mouse on another."""

    def __init__(self, session: Session, cameras: Layer, hovered: Layer) -> None:
        self._session, self._cameras, self._hovered = session, cameras, hovered
        self._canvas, self._style = cameras.canvas, cameras.style
        self._depth = (-1, 0.0)  # generation of a scene, and the depth of its cameras' pyramids
        self.thumbnail: Thumbnail

    def connect(self) -> None:
        """Makes the texture of the photograph; call once the display is shown."""
        self.thumbnail = Thumbnail()

    def camera_at(self, x: float, y: float) -> int | None:
        """Returns the index of the drawn camera whose eye is near a place of the viewport."""
        eyes = self._eyes()
        away = {index: math.hypot(u - x, v - y) for index, (u, v) in eyes.items()}
        nearest = min(away, key=lambda index: away[index], default=None)
        return nearest if nearest is not None and away[nearest] < self._style.px(REACH) else None

    def draw(self, status: EngineStatus, picture: Picture | None) -> None:
        """Draws what has changed on both layers."""
        self._draw_cameras(picture)
        self._draw_hovered(status)

    def _draw_cameras(self, picture: Picture | None) -> None:
        """Draws the pyramids of all cameras but the one that the view is at."""
        session = self._session
        scene = session.engine.scene if session.photographs.cameras_shown else None
        camera = picture.request.camera if picture is not None and scene is not None else None
        here = session.view.camera_index if session.view.at_camera is not None else -1
        held_out = tuple(named.is_test for named in scene.cameras) if scene else ()
        size = session.photographs.camera_size
        if not self._cameras.is_stale((camera, here, scene.generation if scene else None, held_out, size)):
            return
        if picture is None or camera is None or scene is None:
            return
        left, top, right, bottom = self._canvas.box_of(picture)
        for index, outline in frustums(scene.cameras, camera, self._depth_of(scene)):
            if index == here:
                continue
            x = left + outline[:, 0] * ((right - left) / camera.width)
            y = top + outline[:, 1] * ((bottom - top) / camera.height)
            color = WARN if scene.cameras[index].is_test else ACCENT
            points = np.stack([x, y], 1).tolist()
            dpg.draw_polyline(points, color=(*color[:3], 190), thickness=self._style.scale, parent=self._cameras.node)

    def _draw_hovered(self, status: EngineStatus) -> None:
        """Draws the name and the photograph of the camera under the mouse next to its eye."""
        scene, texture, eye = status.scene, None, (0.0, 0.0)
        # While the page of photographs is open, another request would hold up its loading.
        looks = self._canvas.mouse is not None and not self._session.dialogs.thumbnails_shown
        index = self.camera_at(*self._canvas.mouse) if looks and self._canvas.mouse is not None else None
        if index is not None:
            texture, eye = self.thumbnail.of(index, status, self._session.engine.client), self._eyes()[index]
        layer = self._hovered
        if not layer.is_stale((index, eye, texture and (texture.item, texture.uv_max))):
            return
        if index is None or scene is None:
            return
        style, px, camera, size = self._style, self._style.px, scene.cameras[index], self._canvas.size
        name = f"{index + 1}  {PurePosixPath(camera.name).name}{', held out' if camera.is_test else ''}"
        wide, high = (px(side) for side in self.thumbnail.size)
        width = max(wide, text_width(name, style.small)) + px(16)
        height = high + px(SMALL + 16)
        left = eye[0] + px(REACH) if eye[0] + px(REACH) + width < size[0] else max(0, eye[0] - px(REACH) - width)
        top = min(max(0, eye[1] - height / 2), size[1] - height)
        dpg.draw_circle(eye, px(4), color=TEXT, fill=TEXT, parent=layer.node)
        layer.ground(left, top, left + width, top + height)
        if texture is not None:
            low = (left + px(8), top + px(7))
            corner = (low[0] + wide, low[1] + high)
            dpg.draw_image(texture.item, low, corner, uv_max=texture.uv_max, parent=layer.node)
        layer.text(left + px(8), top + height - px(SMALL + 6), name, style.small, SMALL, TEXT)

    def _eyes(self) -> dict[int, tuple[float, float]]:
        """Returns where the eyes of drawn cameras lie in the viewport, by index."""
        picture, scene = self._session.engine.picture, self._session.engine.scene
        if not self._session.photographs.cameras_shown or picture is None or scene is None:
            return {}
        left, top, right, bottom = self._canvas.box_of(picture)
        camera = picture.request.camera
        x, y = (right - left) / camera.width, (bottom - top) / camera.height
        eyes = apexes(scene.cameras, camera, self._depth_of(scene))
        return {index: (left + u * x, top + v * y) for index, (u, v) in eyes.items()}

    def _depth_of(self, scene: SceneInfo) -> float:
        """Returns the depth of the pyramids in world units, measured once for a scene."""
        if self._depth[0] != scene.generation:
            self._depth = scene.generation, depth_for(scene.cameras, scene.extent)
        return self._depth[1] * self._session.photographs.camera_size
