"""Undistorts photographs with pycolmap, and keeps the results in the user's cache.

A file in the cache is named by a hash of the photograph's identity (path, size, time of change) and of all that its
pixels depend on. A cache that cannot be read or written costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.lens import Lens, as_colmap, colmap_library, straightened
from splatscope.assets.photographs.images import read_image, write_png
from splatscope.kernels.caches import cache_folder
from splatscope.kernels.errors import InputError

CACHE_LIMIT = 10 << 30  # bytes; at the start of a run the oldest files are removed until the rest fits
_ROWS = 64  # rows of a picture that are processed at once
_MASK_STEP = 4  # px between points at which the edge of the lens's view is sampled
_SEEN_TOLERANCE = 0.75  # px


def undistorted(path: Path, lens: Lens, read: Callable[[], NDArray[np.uint8]], variant: str) -> NDArray[np.uint8]:
    """Returns the photograph at `path` as seen through a pinhole, uint8 [h, w, 3 or 4], from the cache or newly warped.

    `read` returns its pixels [H, W, 3 or 4], or those of a mask [H, W], at the size of the lens. `variant` names any
    choice made in reading. Raises InputError if the photograph cannot be read or has changed its size.
    """
    cached = _cache_path(path, lens, variant)
    if cached is not None and cached.is_file():
        with suppress(InputError, OSError):
            pixels = read_image(cached)
            os.utime(cached)  # those unused for longest are removed first
            return pixels
    pixels = warp(read(), lens)
    if cached is not None:
        with suppress(InputError):
            write_png(cached, pixels, compress_level=1)
    return pixels


def warp(pixels: NDArray[np.uint8], lens: Lens) -> NDArray[np.uint8]:
    """Warps uint8 [H, W, 3 or 4] or [H, W] as the lens saw it to [h, w] as its `straightened` pinhole would see it.

    Black where the lens saw nothing.
    """
    if pixels.shape[:2] != (lens.height, lens.width):
        raise InputError(
            f"A photograph is {pixels.shape[1]} x {pixels.shape[0]} pixels where {lens.width} x {lens.height} were "
            "expected; it has changed since the capture was opened. Open the capture again."
        )
    if pixels.ndim == 2 or pixels.shape[2] == 3:
        return _warp_channels(pixels, lens)
    # Weights colours by alpha. Otherwise colours hidden in transparent parts would bleed in.
    weighted = np.empty((*pixels.shape[:2], 3), np.uint8)
    for rows in _strips(weighted):
        alpha = pixels[rows, :, 3:].astype(np.uint16)
        weighted[rows] = (pixels[rows, :, :3] * alpha + 127) // 255
    warped = np.dstack((_warp_channels(weighted, lens), _warp_channels(pixels[..., 3], lens)))
    for rows in _strips(warped):
        divisor = np.maximum(warped[rows, :, 3:], 1).astype(np.uint16)
        warped[rows, :, :3] = np.minimum((warped[rows, :, :3] * np.uint16(255) + divisor // 2) // divisor, 255)
    return warped


def _strips(pixels: NDArray[np.uint8]) -> Iterator[slice]:
    """Yields some rows at a time: 16-bit sums of the whole picture would take several times its memory."""
    return (slice(start, start + _ROWS) for start in range(0, len(pixels), _ROWS))


@lru_cache(maxsize=8)
def seen(lens: Lens) -> NDArray[np.bool_] | None:
    """Returns [h, w], False where the undistorted picture shows nothing that the lens saw; None if there is no such
    pixel.
    """
    straight = straightened(lens)
    xs, ys = np.arange(0.5, straight.width), np.arange(0.5, straight.height)
    border = np.concatenate(
        [_grid(xs, ys[[0, -1]]).reshape(-1, 2), _grid(xs[[0, -1]], ys).reshape(-1, 2)]  # a lens is continuous
    )
    if _is_seen(border, lens, straight).all():
        return None
    coarse = _grid(np.append(xs[::_MASK_STEP], xs[-1]), np.append(ys[::_MASK_STEP], ys[-1]))
    known = _is_seen(coarse.reshape(-1, 2), lens, straight).reshape(coarse.shape[:2])
    blocks: NDArray[np.bool_] = known[:-1, :-1] & known[1:, :-1] & known[:-1, 1:] & known[1:, 1:]
    mask = blocks.repeat(_MASK_STEP, 0).repeat(_MASK_STEP, 1)[: straight.height, : straight.width]
    return None if mask.all() else np.ascontiguousarray(mask)


def _grid(xs: NDArray[np.float64], ys: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.stack(np.meshgrid(xs, ys), axis=-1)  # [len(ys), len(xs), 2]


def _is_seen(pixels: NDArray[np.float64], lens: Lens, straight: Lens) -> NDArray[np.bool_]:
    """Returns which pixels [P, 2] of the undistorted picture are inside the stored one: their ray must come back."""
    fx, fy, cx, cy = straight.params[:4]
    rays = np.column_stack(((pixels[:, 0] - cx) / fx, (pixels[:, 1] - cy) / fy, np.ones(len(pixels))))
    camera = as_colmap(lens)
    stored = np.asarray(camera.img_from_cam(rays), np.float64)
    low, high = -_SEEN_TOLERANCE, np.array([lens.width, lens.height]) + _SEEN_TOLERANCE
    with np.errstate(invalid="ignore"):
        inside = np.all((stored >= low) & (stored <= high), axis=1)
        back = np.asarray(camera.cam_from_img(np.where(inside.reshape(-1, 1), stored, 0.0)))
        # Beyond its fold a polynomial maps rays onto pixels of other rays.
        return inside & (np.abs((back - rays[:, :2]) * (fx, fy)).max(axis=1) < 1.0)


def _warp_channels(pixels: NDArray[np.uint8], lens: Lens) -> NDArray[np.uint8]:
    pycolmap = colmap_library()
    bitmap = pycolmap.Bitmap.from_array(np.ascontiguousarray(pixels))
    warped, _ = pycolmap.undistort_image(pycolmap.UndistortCameraOptions(), bitmap, as_colmap(lens))
    return warped.to_array()


def _cache_path(path: Path, lens: Lens, variant: str) -> Path | None:
    folder = _cache_folder()
    if folder is None:
        return None
    try:
        stat = path.stat()
    except OSError:
        return None
    version = colmap_library().__version__
    identity = (os.path.abspath(path), stat.st_size, stat.st_mtime_ns, lens, variant, version)
    return folder / f"{hashlib.sha256(repr(identity).encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.png"


@lru_cache(maxsize=1)
def _cache_folder() -> Path | None:
    """Returns the folder, emptied down to its limit once a process; None if it cannot be made."""
    try:
        folder = cache_folder("undistorted")
        remove_oldest(folder, CACHE_LIMIT)
    except OSError:
        return None
    return folder


def remove_oldest(folder: Path, limit: int) -> None:
    """Removes the files unused for longest until the others take at most `limit` bytes."""
    files = []
    for path in folder.iterdir():
        with suppress(OSError):  # another process may have removed it
            stat = path.stat()
            files.append((stat.st_mtime_ns, stat.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= limit:
            return
        with suppress(OSError):
            path.unlink()
            total -= size
