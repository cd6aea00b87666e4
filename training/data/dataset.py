"""Holds the photographs of a run: decides which are trained on and which are held out, and keeps their pixels.

- Pixels are kept as 8-bit RGB at the training size: a quarter of float32, and converting one view costs a fraction of
  a step.
- Transparent photographs are composited over the training background before they are resized, so that no hidden
  colour bleeds in at an edge. If the background changes with every step, alpha is kept next to the pixels.
- Pixels that a mask leaves out stay with weight 0, and are not mixed into others.

The assets layer reads the files. Read `initial.py` next.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from splatscope.assets.capture import Capture, View
from splatscope.assets.files.json_fields import SIZE_LIMIT
from splatscope.assets.geometry.extent import depth_from_one_place, scene_extent
from splatscope.assets.photographs.find import Unreadable, left_out, refuse_if_too_few
from splatscope.assets.photographs.view_pixels import MaskUse, read_view
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, Float32
from splatscope.kernels.wording import counted
from splatscope.training.config import DIVISORS, DataConfig

Color = tuple[float, float, float]
BLACK: Color = (0.0, 0.0, 0.0)
MEMORY_SHARE = 0.7  # share of the machine's memory that decoded photographs may take
WIDEST = 1600  # px; what -r -1 allows


@dataclass(frozen=True, eq=False)
class Photograph:
    """Holds one view at the training size."""

    name: str
    camera: Camera
    pixels: NDArray[np.uint8]  # [H, W, 3] over the training background, or over black if `coverage` is there
    coverage: NDArray[np.uint8] | None = None  # [H, W] alpha, where the background is chosen step by step
    weight: NDArray[np.uint8] | None = None  # [H, W] how much each pixel counts, of 255; None: all alike
    is_blank: bool = field(default=False, kw_only=True)  # it is transparent, or masked, everywhere
    is_masked: bool = field(default=False, kw_only=True)  # a mask next to it is used
    mask_problem: str = field(default="", kw_only=True)  # why the mask next to it is not used, a sentence

    @property
    def counts(self) -> bool:
        """Returns True if any pixel counts: without one there is no score."""
        return self.weight is None or bool(self.weight.any())

    @property
    def counted_share(self) -> float:
        """Returns the share of its pixels that count, in [0, 1]."""
        return 1.0 if self.weight is None else float(self.weight.mean(dtype=np.float64)) / 255

    def target(self, background: Color = BLACK) -> Float32:
        """Returns the colours in [0, 1], float32 [H, W, 3]; `background` shows only through `coverage`."""
        colors = np.multiply(self.pixels, np.float32(1 / 255), dtype=np.float32)
        if self.coverage is not None:
            behind = np.float32(1) - self.coverage[..., None] * np.float32(1 / 255)
            colors += behind * np.array(background, np.float32)
        return colors

    def weights(self) -> Float32 | None:
        """Returns how much each pixel counts, float32 [H, W, 1] in [0, 1]; None if all count alike."""
        return None if self.weight is None else self.weight[..., None] * np.float32(1 / 255)

    def reduced(self, divisor: int) -> Photograph:
        """Returns the view with width and height divided; each pixel is the mean of the pixels it covers."""
        size = max(1, round(self.camera.width / divisor)), max(1, round(self.camera.height / divisor))

        def smaller(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
            return _resized_seen(pixels, self.weight, size, Image.Resampling.BOX)

        coverage = None if self.coverage is None else smaller(self.coverage)
        weight = None if self.weight is None else _resized(self.weight, size, Image.Resampling.BOX)
        return Photograph(self.name, self.camera.resized(*size), smaller(self.pixels), coverage, weight)


class Dataset:
    """Holds the views of a capture, split into training and held-out views; `load` decodes them."""

    def __init__(self, capture: Capture, config: DataConfig) -> None:
        self.training_views, self.held_out_views = split_views(capture, config)
        if not self.training_views:
            raise InputError(
                f"{capture.path} leaves no view to train on: {counted(len(capture.views), 'view')}, "
                f"{len(self.held_out_views)} held out. Train without --eval or add photographs."
            )
        self.background = fixed_background(capture, config)
        cameras = [view.camera for view in self.training_views]
        self.extent = scene_extent(cameras, capture.points)
        self._from_one_place = len(cameras) > 2 and depth_from_one_place(cameras, capture.points) is not None
        self.label = "held-out PSNR" if self.held_out_views else "training PSNR"
        self.training: list[Photograph] = []
        self.tested: list[Photograph] = []  # the views that scores are computed on
        self.warnings: tuple[str, ...] = ()  # sentences about what was noticed while decoding
        self.masked = ""  # a sentence on what masks leave out; empty if there are none
        self._config = config
        self._reduced: tuple[int, list[Photograph]] = (0, [])  # divisor, training views at that size
        self._coming: tuple[int, list[Future[Photograph]]] = (0, [])  # divisor, training views that threads are making
        _check_memory((*self.training_views, *self.held_out_views), config.resolution)

    def load(self) -> Iterator[tuple[int, int]]:
        """Decodes every photograph on all cores and yields (done, total) after each; then the lists are full.

        A photograph that cannot be read, or no longer has the size of its camera, is left out and named in `warnings`.
        Raises InputError if too few are left.
        """
        views = (*self.training_views, *self.held_out_views)
        loaded: list[Photograph | None] = []
        unreadable: list[Unreadable] = []
        workers = min(len(views), os.cpu_count() or 1)
        with ThreadPoolExecutor(workers, thread_name_prefix="photographs") as pool:
            waiting = [pool.submit(load_photograph, view, self._config, self.background) for view in views]
            try:
                for view, future in zip(views, waiting, strict=True):
                    try:
                        loaded.append(future.result())
                    except InputError as error:
                        loaded.append(None)
                        unreadable.append((view.name, str(error)))
                    yield len(loaded), len(views)
            finally:
                for future in waiting:
                    future.cancel()
        self.training = [photograph for photograph in loaded[: len(self.training_views)] if photograph]
        held_out = [photograph for photograph in loaded[len(self.training_views) :] if photograph]
        refuse_if_too_few(unreadable, len(views) if self.training else len(unreadable))
        refuse_if_nothing_counts(self.training, self._config.masks)
        scored = [photograph for photograph in held_out if photograph.counts]
        seen = [photograph for photograph in self.training if photograph.counts]
        self.tested = scored or spread(seen, self._config.training_views_tested)
        self.label = "held-out PSNR" if scored else "training PSNR"
        present = *self.training, *held_out
        told = [left_out(unreadable) if unreadable else "", _blank(present), *mask_warnings(present)]
        if self._from_one_place:
            told.append(
                f"All photographs were taken from nearly one place, so depths cannot be told: the result looks right "
                f"from there alone. The scene is taken to be as large as the nearer points are far, {self.extent:.3g} "
                f"units."
            )
        if self.held_out_views and not scored:
            views_held_out = counted(len(self.held_out_views), "view")
            told.append(
                f"Nothing can be scored on the {views_held_out} held out, so scores are those of training views."
            )
        self.warnings = tuple(filter(None, told))
        self.masked = masks_in_words(present, views, self._config)

    def training_at(self, divisor: int) -> list[Photograph]:
        """Returns the training views with sides divided, and keeps them until another divisor is asked for."""
        if divisor == 1:
            return self.training
        if self._reduced[0] != divisor:
            self.reduce_ahead(divisor)
            self._reduced, self._coming = (divisor, [future.result() for future in self._coming[1]]), (0, [])
        return self._reduced[1]

    def reduce_ahead(self, divisor: int) -> None:
        """Has threads make the views that `training_at` returns for `divisor`, so that it need not wait."""
        if divisor not in (1, self._coming[0]):
            pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="photographs")
            self._coming = divisor, [pool.submit(view.reduced, divisor) for view in self.training]
            pool.shutdown(wait=False)  # its threads end once the views are made


def _blank(photographs: Sequence[Photograph]) -> str:
    """Returns the sentence about photographs that show nothing; empty if there are none."""
    names, total = [p.name for p in photographs if p.is_blank and not p.is_masked], len(photographs)
    if not names:
        return ""
    which = "all photographs" if len(names) == total else f"{len(names)} of {counted(total, 'photograph')}"
    return (
        f"Nothing of the scene shows in {which}, for example {names[0]}: transparent everywhere. Export them with the "
        f"scene opaque, or train with --alpha ignore if their colours are whole."
    )


def refuse_if_nothing_counts(photographs: Sequence[Photograph], masks: MaskUse) -> None:
    """Raises InputError if masks, or transparency with `alpha` = mask, leave nothing to train on."""
    if any(photograph.counts for photograph in photographs):
        return
    every = f"every pixel of {counted(len(photographs), 'photograph')}, so there is nothing to train on"
    if all(photograph.is_masked for photograph in photographs):
        inverted = masks == "invert"
        kept, other = ("black", "use") if inverted else ("white", "invert")
        raise InputError(
            f"Masks{', inverted,' * inverted} leave out {every}: nothing in them is {kept}. If they are meant the "
            f"other way round, train with --masks {other}; --masks ignore trains without them."
        )
    raise InputError(
        f"--alpha mask leaves out {every}: they are transparent everywhere. Export them with the scene opaque, or "
        f"train with --alpha ignore if their colours are whole."
    )


def mask_warnings(photographs: Sequence[Photograph]) -> Iterator[str]:
    """Yields sentences about masks that cannot be read whole, and about masks that leave nothing."""
    problems = [photograph.mask_problem for photograph in photographs if photograph.mask_problem]
    if problems:
        yield f"Trained whole, without their masks: {counted(len(problems), 'photograph')}. {problems[0]}"
    nothing = [photograph.name for photograph in photographs if photograph.is_masked and not photograph.counts]
    if nothing:
        yield (
            f"Masked everywhere, so nothing is learned from them: {counted(len(nothing), 'photograph')}, for example "
            f"{nothing[0]}. If that is not meant, make those masks again, or remove them to train whole photographs."
        )


def masks_in_words(photographs: Sequence[Photograph], views: Sequence[View], config: DataConfig) -> str:
    """Returns one sentence on what masks leave out; empty if there are none."""
    if config.masks == "ignore":
        count = sum(view.mask is not None for view in views)
        return f"The masks of {counted(count, 'photograph')} are not used (data.masks = ignore)." if count else ""
    masked = [photograph for photograph in photographs if photograph.is_masked]
    if not masked:
        return ""
    pixels = [p.camera.width * p.camera.height for p in masked]
    left = np.dot([p.counted_share for p in masked], pixels)
    lost = f"{1 - left / sum(pixels):.1%} of the pixels"
    lost = f"all but {round(left):,} of the pixels" if lost.startswith("100.0%") else lost
    inverted = ", inverted," if config.masks == "invert" else ""
    whole = len(photographs) - len(masked)
    rest = f"; {whole} without a mask {'counts' if whole == 1 else 'count'} whole" if whole else ""
    return f"Masks{inverted} leave out {lost} of {counted(len(masked), 'photograph')}{rest}."


def fixed_background(capture: Capture, config: DataConfig) -> Color:
    """Returns the background of rendered pictures, and of training unless `random_background` is set."""
    if config.background:
        red, green, blue = config.background
        return red, green, blue
    cut_out = capture.white_background and config.alpha == "background"
    return (1.0, 1.0, 1.0) if config.white_background or cut_out else BLACK


def _check_memory(views: tuple[View, ...], resolution: int) -> None:
    """Raises InputError if photographs cannot have the size asked for, or do not fit in memory together."""
    sizes = [training_size(view.camera.width, view.camera.height, resolution) for view in views]
    channels = (3 + (view.mask is not None) for view in views)
    wanted = sum(width * height * count for (width, height), count in zip(sizes, channels, strict=True))
    try:
        present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # a system that does not say
        return
    if wanted > MEMORY_SHARE * present:
        raise InputError(
            f"{counted(len(views), 'photograph')} at -r {resolution} would take {wanted / 2**30:.1f} GiB of memory, "
            f"and this machine has {present / 2**30:.1f} GiB; use a larger -r to divide their size, such as -r 4."
        )


def split_views(capture: Capture, config: DataConfig) -> tuple[tuple[View, ...], tuple[View, ...]]:
    """Returns (training, held out): the set's own test split if it has one, else with `eval` every Nth by name."""
    views = tuple(sorted(capture.views, key=lambda view: view.name))
    if capture.test_views:
        return views, capture.test_views
    if not config.eval:
        return views, ()
    held_out = views[:: config.holdout_interval]
    return tuple(v for i, v in enumerate(views) if i % config.holdout_interval), held_out


def training_size(width: int, height: int, resolution: int) -> tuple[int, int]:
    """Returns (width, height) in pixels of a photograph under -r, see `DataConfig.resolution`. Raises InputError."""
    if resolution in DIVISORS:
        return max(1, round(width / resolution)), max(1, round(height / resolution))
    target = min(width, WIDEST) if resolution == -1 else resolution
    size = target, max(1, int(height * target / width))
    if max(size) > SIZE_LIMIT:
        raise InputError(
            f"-r {resolution} makes photographs {max(size):,} pixels wide or high; at most {SIZE_LIMIT:,}."
        )
    return size


def load_photograph(view: View, config: DataConfig, background: Color) -> Photograph:
    """Decodes, composites and resizes one view, and scales its camera to the size it got."""
    image = read_view(view, config.alpha, config.masks)
    size = training_size(view.camera.width, view.camera.height, config.resolution)
    keeps_alpha = config.random_background and image.pixels.shape[2] == 4
    # Bicubic with antialiasing: what the recipe's published scores were made with.
    solid = composite(image.pixels, BLACK if keeps_alpha else background)
    levels = None if image.mask is None else image.mask * np.uint8(255)
    rgb = _resized_seen(solid, levels, size, Image.Resampling.BICUBIC)
    coverage = _resized_seen(image.pixels[..., 3], levels, size, Image.Resampling.BICUBIC) if keeps_alpha else None
    weight = None if levels is None else _resized(levels, size, Image.Resampling.BOX)
    shown = image.pixels[..., 3] if image.pixels.shape[2] == 4 else image.mask
    return Photograph(
        view.name,
        view.camera.resized(*size),
        rgb,
        coverage,
        weight,
        is_blank=shown is not None and not shown.any(),
        is_masked=view.mask is not None and config.masks != "ignore" and not image.mask_problem,
        mask_problem=image.mask_problem,
    )


def _resized_seen(
    pixels: NDArray[np.uint8], weight: NDArray[np.uint8] | None, size: tuple[int, int], how: Image.Resampling
) -> NDArray[np.uint8]:
    """Returns pixels [H, W] or [H, W, 3] at `size`, each a mean of the pixels it covers by their `weight` [H, W].

    A pixel that covers none with a weight is the mean of all it covers: it is shown, but does not count.
    """
    resized = _resized(pixels, size, how)
    if weight is None or size == (pixels.shape[1], pixels.shape[0]):
        return resized
    hidden = _resized(weight, size, Image.Resampling.BOX) == 0
    share, share_before = _resized(weight, size, how).astype(np.uint16), weight.astype(np.uint16)
    if pixels.ndim == 3:
        hidden, share, share_before = hidden[..., None], share[..., None], share_before[..., None]
    seen = _resized(((pixels * share_before + 127) // 255).astype(np.uint8), size, how)
    straight = np.minimum((seen * np.uint16(255) + share // 2) // np.maximum(share, 1), 255).astype(np.uint8)
    return np.where(hidden, resized, straight)


def _resized(pixels: NDArray[np.uint8], size: tuple[int, int], how: Image.Resampling) -> NDArray[np.uint8]:
    """Returns uint8 [H, W] or [H, W, 3] at `size` (width, height), contiguous."""
    if size != (pixels.shape[1], pixels.shape[0]):
        pixels = np.asarray(Image.fromarray(pixels).resize(size, how))
    return np.ascontiguousarray(pixels)


def composite(pixels: NDArray[np.uint8], background: Color) -> NDArray[np.uint8]:
    """Composites uint8 [H, W, 3 or 4] into [H, W, 3]: colour times alpha plus background times (1 - alpha), rounded."""
    if pixels.shape[2] == 3:
        return pixels
    alpha = pixels[..., 3:].astype(np.uint16)
    behind = np.round(np.array(background) * 255).astype(np.uint16)
    mixed = pixels[..., :3] * alpha + behind * (255 - alpha)
    return ((mixed + 127) // 255).astype(np.uint8)


def spread(items: list[Photograph], count: int) -> list[Photograph]:
    """Returns at most `count` items, evenly spaced."""
    if len(items) <= count:
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]
