"""Makes pictures of frames: conversion to uint8, the heatmap of tiles, its legend. Pure arrays, no GUI.

The engine makes pictures and screenshots with these functions. On the screen, `drawing/legend_layer.py` draws the
legend, from `TURBO` and the same `HeatScale`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from importlib.resources import files
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from splatscope.kernels.constants import TILE
from splatscope.kernels.policy import toggle_table
from splatscope.kernels.types import Float32, Frame, Int32
from splatscope.kernels.wording import counted
from splatscope.viewer.figures.tile_values import Legend, figure_text, legend_of, tile_values, title_of, unit_of
from splatscope.viewer.messages.scale import LINEAR, HeatScale, labels_with_room
from splatscope.viewer.messages.view import ViewRequest

Rgba = NDArray[np.uint8]  # [H, W, 4]

BLOCK_VALUES = 192 * 1024  # floats converted at a time, so that the block stays in the cache between passes
OPAQUE = -(1 << 24)  # alpha 255 as the high byte of a little-endian int32
PACK = np.array([1.0, 256.0, 65536.0], np.float32)  # r + 256 g + 65536 b is exact below 2^24

# Polynomial fit of the turbo colour map (Mikhailov 2019), rows R, G, B, rising powers of the position.
TURBO_FIT = (
    (0.13572138, 4.61539260, -42.66032258, 132.13108234, -152.94239396, 59.28637943),
    (0.09140261, 2.19418839, 4.84296658, -14.18503333, 4.27729857, 2.82956604),
    (0.10667330, 12.64194608, -60.58204836, 110.36276771, -89.90310912, 27.34824973),
)
FONT = "SourceSansPro-Regular.ttf"
PAPER, INK, FAINT = (20, 22, 27, 255), (232, 235, 240, 255), (150, 156, 168, 255)


def _turbo() -> NDArray[np.uint8]:
    x = np.linspace(0.0, 1.0, 256)
    powers = np.stack([x**k for k in range(6)])
    return np.rint(np.clip(np.array(TURBO_FIT) @ powers, 0.0, 1.0) * 255.0).T.astype(np.uint8)


TURBO = _turbo()  # [256, 3]


def picture_rgba(image: Float32) -> Rgba:
    """Converts a float picture [H, W, 3] to uint8 [H, W, 4]: clamped to [0, 1], rounded, opaque. NaN becomes black."""
    height, width, _ = image.shape
    packed = np.empty((height, width), np.int32)
    rows = max(1, BLOCK_VALUES // max(1, 3 * width))
    block = np.empty((rows, width, 3), np.float32)
    sums = np.empty((rows, width), np.float32)
    with np.errstate(invalid="ignore"):  # the cast of NaN gives 0 or the sign bit; alpha covers both
        for y in range(0, height, rows):
            part = image[y : y + rows]
            values, total, out = block[: len(part)], sums[: len(part)], packed[y : y + rows]
            np.clip(part, 0.0, 1.0, out=values)
            np.multiply(values, 255.0, out=values)
            np.rint(values, out=values)
            np.matmul(values, PACK, out=total)
            np.copyto(out, total, casting="unsafe")
            np.bitwise_or(out, OPAQUE, out=out)
    return packed.view(np.uint8).reshape(height, width, 4)


def tile_colors(tile_counts: Int32, top: int, scale: HeatScale = LINEAR) -> NDArray[np.uint8]:
    """Returns the turbo colours [Ty, Tx, 3] of counts on a scale that ends at `top`."""
    return TURBO[(scale.place(tile_counts, top) * 255.0).astype(np.uint8)]


def blend_tile_heatmap(rgba: Rgba, tile_counts: Int32, opacity: float, scale: HeatScale = LINEAR) -> None:
    """Blends flat tile colours over a picture, in place."""
    height, width = rgba.shape[:2]
    weight = round(256 * min(max(opacity, 0.0), 1.0))
    share = np.full((*tile_counts.shape, 4), 255 * weight, np.uint16)  # weights of 65536; alpha stays 255
    colors = tile_colors(tile_counts, scale.top(tile_counts), scale)
    np.multiply(colors, weight, out=share[..., :3], casting="unsafe", dtype=np.uint16)
    for row in range(tile_counts.shape[0]):
        strip = np.repeat(share[row], TILE, axis=0)[:width]  # [W, 4]
        part = rgba[row * TILE : min((row + 1) * TILE, height)]
        mixed = part * np.uint16(256 - weight)
        mixed += strip
        mixed >>= 8
        part[...] = mixed


def legend(words: Legend, height: int, size: float = 1.0) -> Rgba:
    """Draws a vertical colour bar with its numbers on a dark ground, as wide as its text needs at `size`."""
    font, pad, bar = sheet_font(round(16 * size)), round(10 * size), round(18 * size)
    head = [words.title] + [words.note] * bool(words.note)
    widest = max(math.ceil(font.getlength(text)) for text, _ in words.labels)
    line = _line_height(font)
    width = pad + max(bar + pad + widest, *(math.ceil(font.getlength(text)) for text in head)) + pad
    paper = Image.new("RGBA", (width, height), PAPER)
    draw = ImageDraw.Draw(paper)
    for k, text in enumerate(head):
        draw.text((pad, pad + 1.5 * k * line), text, fill=FAINT if k else INK, font=font)
    first = round(pad + (0.5 + 1.5 * len(head)) * line)
    last = max(first + 1, height - pad - line // 2)
    ramp = TURBO[np.linspace(255, 0, last - first + 1).astype(int)]
    paper.paste(Image.fromarray(np.repeat(ramp[:, None], bar, axis=1)), (pad, first))
    places = [(last - first) * share for _, share in words.labels]
    for k in labels_with_room(places, [line] * len(places)):
        y = last - places[k]
        draw.line([(pad + bar, y), (pad + bar + pad // 2, y)], fill=FAINT)
        draw.text((pad + bar + pad, y), words.labels[k][0], fill=INK, font=font, anchor="lm")
    return np.array(paper)


def heatmap_picture(frame: Frame, request: ViewRequest, backend: str, caption: str = "") -> Rgba:
    """Makes a screenshot that explains itself: picture with heatmap, legend at the right, facts below.

    The picture is at the top left with its exact pixels. The facts are the caption, the picture's size, the figures,
    and the backend's toggles that are not at their default. The frame must have the values of the request's overlay.
    """
    words = legend_of(request.overlay, frame, request.scale)
    values = tile_values(request.overlay, frame)
    assert words is not None
    assert values is not None
    rgba = picture_rgba(frame.image)
    blend_tile_heatmap(rgba, values, request.overlay_opacity, request.scale)
    height, width = rgba.shape[:2]
    size = min(max(height / 720.0, 1.0), 3.0)
    side = legend(words, max(height, round(180 * size)), size)
    total_width = width + side.shape[1]
    footer = _text_block(_facts(frame, request, values, backend, caption), total_width, size)
    sheet = np.empty((side.shape[0] + footer.shape[0], total_width, 4), np.uint8)
    sheet[:] = PAPER
    sheet[:height, :width] = rgba
    sheet[: side.shape[0], width:] = side
    sheet[side.shape[0] :] = footer
    return sheet


def _facts(frame: Frame, request: ViewRequest, values: Int32, backend: str, caption: str) -> list[str]:
    (height, width), unit = frame.image.shape[:2], unit_of(request.overlay, frame)[1]
    set_to = ((row, request.policy.value(row.stage, row.name)) for row in toggle_table(backend))
    choices = [f"{row.key} = {value}" for row, value in set_to if value != row.default]
    most, mean = int(values.max(initial=0)) / unit, float(values.mean()) / unit if values.size else 0.0
    parts = [
        caption,
        f"{width} x {height} px, {values.shape[1]} x {values.shape[0]} tiles of {TILE} px",
        f"{title_of(request.overlay, frame)}: max {figure_text(most)}, mean {mean:,.1f}",
        f"{counted(frame.visible, 'splat')} visible, {counted(frame.instances, 'instance')}",
        f"heatmap opacity {request.overlay_opacity:.2f}",
        *(choices or ["toggles at their defaults"]),
    ]
    return [part for part in parts if part]


def _text_block(parts: list[str], width: int, scale: float) -> Rgba:
    """Draws parts one after the other; a full line breaks between two parts."""
    font, pad = sheet_font(round(15 * scale)), round(10 * scale)
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]}   |   {part}" if lines[-1] else part
        if lines[-1] and font.getlength(longer) > width - 2 * pad:
            lines.append(part)
        else:
            lines[-1] = longer
    step = _line_height(font) + round(3 * scale)
    paper = Image.new("RGBA", (width, 2 * pad + step * len(lines)), PAPER)
    draw = ImageDraw.Draw(paper)
    for k, text in enumerate(lines):
        draw.text((pad, pad + k * step), text, fill=INK, font=font)
    return np.array(paper)


@lru_cache(maxsize=8)
def sheet_font(size: int) -> ImageFont.FreeTypeFont:
    """Loads the window's font, so that files look the same on every machine and show all characters of the window."""
    return ImageFont.truetype(BytesIO((files("splatscope.assets") / "fonts" / FONT).read_bytes()), size)


def _line_height(font: ImageFont.FreeTypeFont) -> int:
    box = font.getbbox("Ag|")
    return math.ceil(box[3] - box[1])
