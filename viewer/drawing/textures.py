"""Brings uint8 pictures to the screen through Dear PyGui, which itself takes only float textures.

On Linux the pixels are replaced through OpenGL: a quarter of the bytes, only when the picture has changed, visible in
the next frame, and in any size without a new Dear PyGui item. Elsewhere (Windows draws with Direct3D), or if OpenGL is
not reachable, a float texture is used. Main thread only: the OpenGL context is current there. `viewport.py` draws the
texture.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Protocol

import dearpygui.dearpygui as dpg
import numpy as np
from numpy.typing import NDArray

from splatscope.viewer.drawing.style import Item
from splatscope.viewer.figures.overlays import TURBO

GL_TEXTURE_2D, GL_TEXTURE_WIDTH, GL_TEXTURE_HEIGHT = 0x0DE1, 0x1000, 0x1001
GL_RGBA, GL_RGBA8, GL_UNSIGNED_BYTE = 0x1908, 0x8058, 0x1401
GL_UNPACK_ALIGNMENT, GL_UNPACK_ROW_LENGTH = 0x0CF5, 0x0CF2
GL_PIXEL_UNPACK_BUFFER = 0x88EC
PROBE_WIDTH, PROBE_HEIGHT = 37, 23  # px; no other texture has this size, nor a font atlas
NAMES_SEARCHED = 512
BUCKET = 64  # px; sizes of float textures are multiples of it, so that few pictures need a new texture
FRAMES_TO_SETTLE = 3  # a float texture shows the buffer of the frame before, and nothing on its second frame


class PictureTexture(Protocol):
    """Holds the newest picture for the screen."""

    item: Item  # Dear PyGui's texture; `tick` may replace it
    uv_max: tuple[float, float]  # lower right corner of the picture inside the texture
    frames_pending: int  # frames still to be drawn before the newest picture is on the screen

    def upload(self, rgba: NDArray[np.uint8]) -> None:
        """Uploads a picture [H, W, 4], C-contiguous."""
        ...

    def tick(self) -> None:
        """Counts a drawn frame; call it after every frame."""
        ...


def make_texture() -> PictureTexture:
    """Makes the fastest texture that works here. Call it once the window is shown; it draws one frame."""
    if sys.platform.startswith("linux"):
        try:
            return GlTexture()
        except (OSError, LookupError):
            pass
    return FloatTexture()


def ramp_texture() -> Item:
    """Makes a texture of the heatmap's colours: 256 x 1 pixels, lowest value left."""
    pixels = [channel / 255.0 for color in TURBO for channel in (*color.tolist(), 255)]
    return dpg.add_static_texture(256, 1, pixels, parent=dpg.add_texture_registry())


class GlTexture:
    """Replaces the pixels of a static texture through OpenGL."""

    def __init__(self) -> None:
        """Raises OSError if there is no OpenGL library, LookupError if the texture is not found in it."""
        self._gl = ctypes.CDLL("libGL.so.1")
        self._gl.glIsTexture.restype = ctypes.c_ubyte
        before = self._names()
        pixels = [0.0] * (4 * PROBE_WIDTH * PROBE_HEIGHT)
        self.item = dpg.add_static_texture(PROBE_WIDTH, PROBE_HEIGHT, pixels, parent=dpg.add_texture_registry())
        dpg.render_dearpygui_frame()  # Dear PyGui makes the texture while it draws a frame
        found = [name for name in self._names() - before if self._size(name) == (PROBE_WIDTH, PROBE_HEIGHT)]
        if len(found) != 1:
            dpg.delete_item(self.item)
            raise LookupError("the texture is not among OpenGL's")
        self._name = found[0]
        self._allocated = (PROBE_WIDTH, PROBE_HEIGHT)
        self.uv_max = (1.0, 1.0)
        self.frames_pending = 0

    def upload(self, rgba: NDArray[np.uint8]) -> None:
        height, width = rgba.shape[:2]
        gl, pixels = self._gl, ctypes.c_void_p(rgba.ctypes.data)
        gl.glBindBuffer(GL_PIXEL_UNPACK_BUFFER, 0)
        gl.glPixelStorei(GL_UNPACK_ALIGNMENT, 4)
        gl.glPixelStorei(GL_UNPACK_ROW_LENGTH, 0)
        gl.glBindTexture(GL_TEXTURE_2D, self._name)
        if self._allocated == (width, height):
            gl.glTexSubImage2D(GL_TEXTURE_2D, 0, 0, 0, width, height, GL_RGBA, GL_UNSIGNED_BYTE, pixels)
        else:
            gl.glTexImage2D(GL_TEXTURE_2D, 0, GL_RGBA8, width, height, 0, GL_RGBA, GL_UNSIGNED_BYTE, pixels)
            self._allocated = (width, height)
        gl.glBindTexture(GL_TEXTURE_2D, 0)

    def tick(self) -> None:
        pass

    def _names(self) -> set[int]:
        return {name for name in range(1, NAMES_SEARCHED) if self._gl.glIsTexture(name)}

    def _size(self, name: int) -> tuple[int, int]:
        width, height = ctypes.c_int(), ctypes.c_int()
        self._gl.glBindTexture(GL_TEXTURE_2D, name)
        self._gl.glGetTexLevelParameteriv(GL_TEXTURE_2D, 0, GL_TEXTURE_WIDTH, ctypes.byref(width))
        self._gl.glGetTexLevelParameteriv(GL_TEXTURE_2D, 0, GL_TEXTURE_HEIGHT, ctypes.byref(height))
        self._gl.glBindTexture(GL_TEXTURE_2D, 0)
        return width.value, height.value


class FloatTexture:
    """Shows pictures on a raw float texture, larger than the picture; Dear PyGui reads its buffer for every frame."""

    def __init__(self) -> None:
        self._registry = dpg.add_texture_registry()
        self._buffer = np.zeros((BUCKET, BUCKET, 4), np.float32)
        self.item = self._make()
        self.uv_max = (1.0, 1.0)
        self.frames_pending = 0
        self._next: tuple[Item, NDArray[np.float32], tuple[float, float]] | None = None  # made, not yet drawn
        self._retired: list[tuple[Item, int]] = []  # no longer drawn; frames until it may be deleted

    def upload(self, rgba: NDArray[np.uint8]) -> None:
        height, width = rgba.shape[:2]
        rows, columns = (-(-side // BUCKET) * BUCKET for side in (height, width))
        if self._next is not None:  # an unfinished texture is out of date
            self._retired.append((self._next[0], FRAMES_TO_SETTLE))
            self._next = None
        fits = self._buffer.shape[:2] == (rows, columns)
        buffer = self._buffer if fits else np.zeros((rows, columns, 4), np.float32)
        np.multiply(rgba, np.float32(1.0 / 255.0), out=buffer[:height, :width])
        buffer[height : height + 1, :width] = buffer[
            height - 1, :width
        ]  # the filter reads half a pixel beyond the edge
        buffer[: height + 1, width : width + 1] = buffer[: height + 1, width - 1 : width]
        uv_max = (width / columns, height / rows)
        if fits:
            self.uv_max = uv_max
        else:
            self._next = (self._make(buffer), buffer, uv_max)
        self.frames_pending = FRAMES_TO_SETTLE

    def tick(self) -> None:
        self.frames_pending = max(0, self.frames_pending - 1)
        if self._next is not None and self.frames_pending == 0:
            self._retired.append((self.item, FRAMES_TO_SETTLE))
            self.item, self._buffer, self.uv_max = self._next
            self._next = None
            self.frames_pending = 1
        for item, frames in self._retired:
            if frames == 0:
                dpg.delete_item(item)
        self._retired = [(item, frames - 1) for item, frames in self._retired if frames > 0]

    def _make(self, buffer: NDArray[np.float32] | None = None) -> Item:
        pixels = self._buffer if buffer is None else buffer
        rows, columns = pixels.shape[:2]
        # The array itself is handed over: Dear PyGui keeps a pointer into it, so it must stay alive.
        return dpg.add_raw_texture(
            columns,
            rows,
            pixels,  # pyright: ignore[reportArgumentType]
            format=dpg.mvFormat_Float_rgba,
            parent=self._registry,
        )
