"""Reads a capture's photographs on a thread, resamples them to a picture's pixels and compares them with it.

The newest wish goes first; older wishes that nobody waits for any more are dropped. The memory for decoded photographs
is bounded. Pixels come from `assets/photographs/view_pixels.py`; the window draws what `compare` returns
(`viewer/state/photographs.py`).
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from splatscope.assets.capture import View
from splatscope.assets.photographs.images import read_small
from splatscope.assets.photographs.view_pixels import AlphaUse, MaskUse, read_view
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera
from splatscope.training.data.dataset import Color, composite
from splatscope.viewer.figures.overlays import TURBO
from splatscope.viewer.messages.view import PhotographShown, PhotographWish

KEPT_BYTES = 256 << 20  # most bytes of decoded photographs; the newest is kept whatever its size
HALF = 128  # level of 255 from which a pixel counts
DIMMED = 4  # what a mask leaves out is shown at 1 / DIMMED of its brightness
THUMBNAILS = 400  # kept
THUMBNAIL = (112, 84)  # px, at most

Rgb = NDArray[np.uint8]  # [H, W, 3]


class PhotographCache:
    """Keeps the photographs of one capture. Everything but the decoding happens on the engine's thread."""

    def __init__(
        self,
        views: Sequence[View],
        background: Color,
        alpha: AlphaUse,
        masks: MaskUse,
        on_news: Callable[[], None],
    ) -> None:
        self._views = views
        self._background = background
        self._alpha: AlphaUse = alpha
        self._masks: MaskUse = masks
        self._on_news = on_news
        self._wishes = threading.Condition()  # guards the fields below, up to `_closed`
        self._wanted: int | None = None  # the photograph to decode next
        self._small_wanted: deque[int] = deque()
        self._photographs: OrderedDict[int, Rgb | str] = OrderedDict()  # by last use; a sentence if it cannot be read
        self._counted: dict[int, NDArray[np.bool_]] = {}  # for photographs with a mask: where pixels count
        self._small: OrderedDict[int, Rgb] = OrderedDict()
        self._closed = False
        # The newest resampling: (photograph and camera), left, top, pixels, and which of them count.
        self._resampled: tuple[object, int, int, NDArray[np.uint8], NDArray[np.uint8] | None] | None = None
        self.version = 0  # grows with every photograph decoded
        self._thread = threading.Thread(target=self._run, name="photographs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Lets the thread end after what it is decoding."""
        with self._wishes:
            self._closed = True
            self._wishes.notify_all()

    def photograph(self, index: int) -> Rgb | str | None:
        """Returns a view's pixels, uint8 [H, W, 3] at its camera's size; a sentence if they cannot be read.

        None until it is decoded, which this asks for.
        """
        if not 0 <= index < len(self._views):
            return "There is no photograph for this camera."
        with self._wishes:
            found = self._photographs.get(index)
            if found is None:
                self._wanted = index
                self._wishes.notify_all()
            else:
                self._photographs.move_to_end(index)
            return found

    def want_small(self, indices: Iterable[int]) -> None:
        """Asks for thumbnails that are looked at; forgets earlier wishes that are not decoded yet."""
        with self._wishes:
            wanted = [index for index in indices if 0 <= index < len(self._views)]
            for index in wanted:
                if index in self._small:
                    self._small.move_to_end(index)
            self._small_wanted = deque(index for index in wanted if index not in self._small)
            self._wishes.notify_all()

    def thumbnails(self) -> Mapping[int, Rgb]:
        """Returns the thumbnails that are decoded, by index."""
        with self._wishes:
            return MappingProxyType(dict(self._small))

    def compare(self, wish: PhotographWish, rgba: NDArray[np.uint8], camera: Camera) -> PhotographShown:
        """Compares the wanted photograph with a picture [H, W, 4] that `camera` took, on the picture's pixels."""
        found = self.photograph(wish.index)
        if isinstance(found, str):
            return PhotographShown(wish.index, note=found)
        if found is None:
            return PhotographShown(wish.index, note="reading the photograph…")
        key = (wish.index, camera)
        if self._resampled is None or self._resampled[0] != key:
            taken_by, mask = self._views[wish.index].camera, self._counted.get(wish.index)
            left, top, rgb = resample(found, taken_by, camera)
            counts = None if mask is None else resample_mask(mask, taken_by, camera)
            self._resampled = key, left, top, add_alpha(rgb), counts
        _, left, top, photograph, counts = self._resampled
        height, width = photograph.shape[:2]
        if height == 0 or width == 0:
            return PhotographShown(wish.index, note="the picture is too small")
        part, rgb = rgba[top : top + height, left : left + width, :3], photograph[..., :3]
        errors = None if wish.error_top is None else map_errors(part, rgb, wish.error_top, counts)
        magnified = camera.fx / self._views[wish.index].camera.fx
        small, small_photograph = undo_magnification(part, magnified), undo_magnification(rgb, magnified)
        size = small.shape[1], small.shape[0]
        score = psnr(small, small_photograph, None if counts is None else undo_magnification(counts, magnified))
        return PhotographShown(wish.index, left, top, photograph, errors, score, size)

    # The thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (job := self._next()) is not None:
            index, is_small = job
            if is_small:
                made = self._read_small(index)
                with self._wishes:
                    self._small[index] = made
                    while len(self._small) > THUMBNAILS:
                        self._small.popitem(last=False)
            else:
                read, counts = self._read(index)
                with self._wishes:
                    self._photographs[index] = read
                    if counts is not None:
                        self._counted[index] = counts
                    self._forget_oldest()
                    self.version += 1
            self._on_news()

    def _next(self) -> tuple[int, bool] | None:
        """Waits for the next wish and returns (index, is it a thumbnail); None at the end."""
        with self._wishes:
            while not self._closed:
                if self._wanted is not None:
                    index, self._wanted = self._wanted, None
                    return index, False
                if self._small_wanted:
                    return self._small_wanted.popleft(), True
                self._wishes.wait()
            return None

    def _forget_oldest(self) -> None:
        def count_bytes() -> int:
            arrays = (*self._photographs.values(), *self._counted.values())
            return sum(kept.nbytes for kept in arrays if not isinstance(kept, str))

        while len(self._photographs) > 1 and count_bytes() > KEPT_BYTES:
            index, _ = self._photographs.popitem(last=False)
            self._counted.pop(index, None)

    def _read(self, index: int) -> tuple[Rgb | str, NDArray[np.bool_] | None]:
        try:
            image = read_view(self._views[index], self._alpha, self._masks)
            pixels = composite(image.pixels, self._background)
            if image.mask is None:
                return pixels, None
            return np.where(image.mask[..., None], pixels, pixels // DIMMED), image.mask
        except (InputError, MemoryError) as error:
            return str(error), None

    def _read_small(self, index: int) -> Rgb:
        """Reads a thumbnail as large as fits; dark red if it cannot be read."""
        view = self._views[index]
        try:
            return composite(read_small(view.image_path, *THUMBNAIL, view.turned), self._background)
        except (InputError, MemoryError):
            return np.full((THUMBNAIL[1], THUMBNAIL[0], 3), (70, 24, 28), np.uint8)


def resample(photograph: Rgb, taken_by: Camera, camera: Camera) -> tuple[int, int, Rgb]:
    """Resamples a photograph to the pixels of a picture from the same place; returns (left, top, pixels).

    `camera` is `taken_by` on another canvas: the same lens at another scale, shifted. Pixels that the photograph
    covers only in part are left out.
    """
    scale_x, scale_y = camera.fx / taken_by.fx, camera.fy / taken_by.fy
    left, top = camera.cx - taken_by.cx * scale_x, camera.cy - taken_by.cy * scale_y
    dust = 1e-6  # a border that falls on a pixel's edge must not lose that pixel to rounding
    x0, y0 = max(0, math.ceil(left - dust)), max(0, math.ceil(top - dust))
    x1 = min(camera.width, math.floor(left + taken_by.width * scale_x + dust))
    y1 = min(camera.height, math.floor(top + taken_by.height * scale_y + dust))
    if x1 <= x0 or y1 <= y0:
        return x0, y0, np.zeros((0, 0, 3), np.uint8)
    box = (
        max(0.0, (x0 - left) / scale_x),
        max(0.0, (y0 - top) / scale_y),
        min(float(photograph.shape[1]), (x1 - left) / scale_x),
        min(float(photograph.shape[0]), (y1 - top) / scale_y),
    )
    resized = Image.fromarray(photograph).resize((x1 - x0, y1 - y0), Image.Resampling.BICUBIC, box=box)
    return x0, y0, np.array(resized)


def resample_mask(mask: NDArray[np.bool_], taken_by: Camera, camera: Camera) -> NDArray[np.uint8]:
    """Resamples `mask` [H, W] as `resample` does its photograph; returns 255 where a pixel counts, else 0."""
    levels = resample((mask * np.uint8(255))[..., None].repeat(3, axis=2), taken_by, camera)[2][..., 0]
    return np.where(levels >= HALF, np.uint8(255), np.uint8(0))


def undo_magnification(rgb: Rgb, magnified: float) -> Rgb:
    """Shrinks pixels [H, W, 3] that show a photograph magnified back to its own size.

    Details that the photograph's pixels cannot hold are no error of the picture.
    """
    height, width = (max(1, round(side / max(1.0, magnified))) for side in rgb.shape[:2])
    return rgb if magnified <= 1.0 else np.array(Image.fromarray(rgb).resize((width, height), Image.Resampling.BOX))


def psnr(a: NDArray[np.uint8], b: NDArray[np.uint8], counts: NDArray[np.uint8] | None = None) -> float:
    """Returns the PSNR of pictures [H, W, 3] in dB, of peak 255; infinite if they are the same.

    `counts` [H, W] is the weight of each pixel, of 255.
    """
    difference = a.astype(np.int32) - b
    squared = difference * difference
    if counts is None:
        error = float(np.mean(squared))
    else:
        error = float((squared.sum(axis=2) * (counts / 255.0)).sum()) / max(3.0 * float(counts.sum()) / 255.0, 1e-9)
    return math.inf if error == 0.0 else 10.0 * math.log10(255.0**2 / error)


def map_errors(
    a: NDArray[np.uint8], b: NDArray[np.uint8], top: float, counts: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """Draws the mean over the channels of |a - b| as uint8 [H, W, 4], in turbo colours from 0 to `top` (of 1).

    A pixel that does not count gets the colour of 0.
    """
    total = np.abs(a.astype(np.int16) - b).sum(axis=2)  # [H, W], up to 765
    if counts is not None:
        total[counts < HALF] = 0
    colors = np.full((766, 4), 255, np.uint8)
    shares = np.clip(np.arange(766) / (765.0 * max(top, 1e-3)), 0.0, 1.0)
    colors[:, :3] = TURBO[(255.0 * shares).astype(np.uint8)]
    return colors[total]


def add_alpha(rgb: Rgb) -> NDArray[np.uint8]:
    """Returns pixels [H, W, 3] as [H, W, 4] with alpha 255."""
    rgba = np.full((*rgb.shape[:2], 4), 255, np.uint8)
    rgba[..., :3] = rgb
    return rgba
