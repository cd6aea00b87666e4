"""The photographs of a run: which are trained on, which are held out, and their pixels in memory.

Pixels are kept as 8-bit RGB at the training size (a quarter of float32, and converting one view costs a
fraction of a step). Transparent photographs are composited over the training background before they are
resized, so that no hidden colour bleeds in at an edge. Reading files is the assets layer's business.
Read `initial.py` next.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from splatscope.assets.capture import Capture, View
from splatscope.assets.images import read_image
from splatscope.assets.json_fields import SIZE_LIMIT
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, Float32
from splatscope.training.config import DataConfig

Color = tuple[float, float, float]
MEMORY_SHARE = 0.7  # of the machine's memory that decoded photographs may take
WIDEST = 1600  # px; what -r -1 allows
FAR_CAMERA = 5  # times the median distance to the centroid; cameras beyond do not set the extent


@dataclass(frozen=True, eq=False)
class Photograph:
    """One view at the training size."""

    name: str
    camera: Camera
    pixels: NDArray[np.uint8]  # [H, W, 3] over the training background

    def target(self) -> Float32:
        """The colours in [0, 1], float32 [H, W, 3]."""
        return np.multiply(self.pixels, np.float32(1 / 255), dtype=np.float32)


class Dataset:
    """The views of a capture, split and, once `load` has run, decoded."""

    def __init__(self, capture: Capture, config: DataConfig) -> None:
        self.training_views, self.held_out_views = split_views(capture, config)
        if not self.training_views:
            raise InputError(
                f"{capture.path} leaves no view to train on: {len(capture.views)} views, "
                f"{len(self.held_out_views)} held out. Train without --eval or add photographs."
            )
        white = config.white_background or capture.white_background
        self.background: Color = (1.0, 1.0, 1.0) if white else (0.0, 0.0, 0.0)
        self.extent = scene_extent([view.camera for view in self.training_views])
        self.label = "held-out PSNR" if self.held_out_views else "training PSNR"
        self.training: list[Photograph] = []
        self.tested: list[Photograph] = []  # what scores are computed on
        self._config = config
        _check_memory((*self.training_views, *self.held_out_views), config.resolution)

    def load(self) -> Iterator[tuple[int, int]]:
        """Decodes every photograph on all cores and yields (done, total) after each; then the lists are full.

        Raises InputError if one cannot be read or has another size than its camera.
        """
        views = (*self.training_views, *self.held_out_views)
        loaded: list[Photograph] = []
        workers = min(len(views), os.cpu_count() or 1)
        with ThreadPoolExecutor(workers, thread_name_prefix="photographs") as pool:
            waiting = [pool.submit(load_photograph, v, self._config.resolution, self.background) for v in views]
            try:
                for future in waiting:
                    loaded.append(future.result())
                    yield len(loaded), len(views)
            finally:
                for future in waiting:
                    future.cancel()
        self.training = loaded[: len(self.training_views)]
        self.tested = loaded[len(self.training_views) :] or spread(self.training, self._config.training_views_tested)


def _check_memory(views: tuple[View, ...], resolution: int) -> None:
    """Raises InputError if the photographs at the size asked for cannot all be held in memory."""
    sizes = [training_size(view.camera.width, view.camera.height, resolution) for view in views]
    wanted = sum(width * height * 3 for width, height in sizes)
    widest = max(max(size) for size in sizes)
    if widest > SIZE_LIMIT:
        raise InputError(f"-r {resolution} makes photographs {widest:,} pixels wide or high; at most {SIZE_LIMIT:,}.")
    try:
        present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # a system that does not say
        return
    if wanted > MEMORY_SHARE * present:
        raise InputError(
            f"{len(views):,} photographs at -r {resolution} take {wanted / 2**30:.1f} GiB of memory, and this machine "
            f"has {present / 2**30:.1f} GiB; use a larger -r to divide their size, such as -r 4."
        )


def split_views(capture: Capture, config: DataConfig) -> tuple[tuple[View, ...], tuple[View, ...]]:
    """(training, held out): the set's own test split if it has one, else with `eval` every 8th by name."""
    views = tuple(sorted(capture.views, key=lambda view: view.name))
    if capture.test_views:
        return views, capture.test_views
    if not config.eval:
        return views, ()
    held_out = views[:: config.holdout_interval]
    return tuple(v for i, v in enumerate(views) if i % config.holdout_interval), held_out


def scene_extent(cameras: list[Camera]) -> float:
    """1.1 times the largest distance of a camera from their centroid, world units; stray cameras are left out.

    A single camera has no extent of its own; the unit stands in.
    """
    centres = np.array([camera.position for camera in cameras])
    distances = np.linalg.norm(centres - centres.mean(axis=0), axis=1)
    near = distances[distances <= FAR_CAMERA * np.median(distances)]
    extent = 1.1 * float(near.max(initial=0))
    return extent if extent > 0 else 1.0


def training_size(width: int, height: int, resolution: int) -> tuple[int, int]:
    """(width, height) in pixels of a photograph under -r, see `DataConfig.resolution`."""
    if resolution in (1, 2, 4, 8):
        return max(1, round(width / resolution)), max(1, round(height / resolution))
    target = min(width, WIDEST) if resolution == -1 else resolution
    return target, max(1, int(height * target / width))


def load_photograph(view: View, resolution: int, background: Color) -> Photograph:
    """Decodes, composites and resizes one view, and scales its camera to the size it got."""
    pixels = read_image(view.image_path)
    height, width = pixels.shape[:2]
    if (width, height) != (view.camera.width, view.camera.height):
        raise InputError(
            f"{view.image_path} is {width}x{height} pixels but its camera says "
            f"{view.camera.width}x{view.camera.height}; use the photographs the cameras were made for."
        )
    rgb = composite(pixels, background)
    size = training_size(width, height, resolution)
    if size != (width, height):
        # Bicubic with antialiasing: what the recipe's published scores were made with.
        rgb = np.asarray(Image.fromarray(rgb).resize(size, Image.Resampling.BICUBIC))
    return Photograph(view.name, view.camera.resized(*size), np.ascontiguousarray(rgb))


def composite(pixels: NDArray[np.uint8], background: Color) -> NDArray[np.uint8]:
    """uint8 [H, W, 3 or 4] -> [H, W, 3]: colour times alpha plus background times what alpha leaves, rounded."""
    if pixels.shape[2] == 3:
        return pixels
    alpha = pixels[..., 3:].astype(np.uint16)
    behind = np.round(np.array(background) * 255).astype(np.uint16)
    mixed = pixels[..., :3] * alpha + behind * (255 - alpha)
    return ((mixed + 127) // 255).astype(np.uint8)


def spread(items: list[Photograph], count: int) -> list[Photograph]:
    """At most `count` items, evenly spaced."""
    if len(items) <= count:
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]
