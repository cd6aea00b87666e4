"""Holds the small photograph of the drawn camera under the mouse on a texture. Main thread only.

The engine decodes it; `frustum_layer.py` chooses the camera and draws the photograph.
"""

from __future__ import annotations

import numpy as np

from splatscope.viewer.drawing.textures import PictureTexture, make_texture
from splatscope.viewer.messages import commands
from splatscope.viewer.messages.client import EngineClient
from splatscope.viewer.messages.view import EngineStatus


class Thumbnail:
    """Asks the engine for one photograph at a time, and uploads it."""

    def __init__(self) -> None:
        self._texture: PictureTexture | None = None
        self._of = (-1, -1)  # generation of the scene, and index of the wanted camera
        self.size = (0, 0)  # width and height px of the wanted photograph; (0, 0) until it is on the texture

    def of(self, index: int, status: EngineStatus, client: EngineClient) -> PictureTexture | None:
        """Returns the texture with a camera's photograph; None until it is decoded, or if there is none. Call it in
        each frame, because the texture may need it."""
        wanted = status.scene.generation if status.scene else -1, index
        if wanted != self._of:
            self._of, self.size = wanted, (0, 0)
            client.send(commands.LoadThumbnails((index,)))
        small = status.thumbnails.get(index)
        if small is not None and self.size == (0, 0):
            self._texture = self._texture or make_texture()
            rgba = np.full((*small.shape[:2], 4), 255, np.uint8)
            rgba[..., :3] = small
            self._texture.upload(rgba)
            self.size = small.shape[1], small.shape[0]
        if self._texture is not None:
            self._texture.tick()
        return self._texture if self.size != (0, 0) else None
