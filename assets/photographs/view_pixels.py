"""Reads the pixels of a view: decodes its photograph, turns and undistorts it, applies transparency and mask.

Composites and resizes nothing; `training/data/dataset.py` does. `undistort.py` warps and caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from splatscope.assets.capture import Mask, View
from splatscope.assets.choices import AlphaUse, MaskUse
from splatscope.assets.lens import Lens
from splatscope.assets.photographs.images import read_image
from splatscope.assets.photographs.masks import kept_by
from splatscope.assets.photographs.undistort import seen, undistorted
from splatscope.kernels.errors import InputError

ALPHA_USES: tuple[str, ...] = get_args(AlphaUse)
MASK_USES: tuple[MaskUse, ...] = get_args(MaskUse)
_OPAQUE = 128  # of 255; with alpha as a mask, less opaque pixels are left out


@dataclass(frozen=True, eq=False)
class ViewImage:
    """Holds a photograph as the view's pinhole camera would have taken it."""

    pixels: NDArray[np.uint8]  # [H, W, 3], or [H, W, 4] with straight alpha where alpha means background
    mask: NDArray[np.bool_] | None  # [H, W], True where the photograph shows the scene; None: everywhere
    mask_problem: str = ""  # a sentence on why its mask is not used; empty if it has none, or it is used


def read_view(view: View, alpha: AlphaUse = "background", masks: MaskUse = "use") -> ViewImage:
    """Decodes one view at its camera's size.

    - Transparency: kept as a fourth channel for compositing over a background ("background"), leaves pixels out of
      comparisons ("mask"), or is dropped ("ignore").
    - Mask: black pixels are left out ("use"), the others are ("invert"), or none ("ignore").

    Raises InputError if the photograph is damaged or no longer has its size. A damaged mask is not used.
    """
    for name, value, known in (("alpha", alpha, ALPHA_USES), ("masks", masks, MASK_USES)):
        if value not in known:
            raise InputError(f"{name} must be one of {', '.join(known)}, got {value!r}.")

    def stored() -> NDArray[np.uint8]:
        pixels = read_image(view.image_path, view.turned)
        return _rgb(pixels) if alpha == "ignore" else pixels

    if view.lens is None:
        pixels, mask = stored(), None
    else:
        variant = "rgb" if alpha == "ignore" else "all"
        pixels = undistorted(view.image_path, view.lens, stored, f"{variant}, turned {view.turned}")
        mask = seen(view.lens)
    expected = (view.camera.height, view.camera.width)
    if pixels.shape[:2] != expected:
        raise InputError(
            f"{view.image_path} is {pixels.shape[1]}x{pixels.shape[0]} pixels but its camera says "
            f"{expected[1]}x{expected[0]}; use the photographs the cameras were made for."
        )
    if pixels.shape[2] == 4 and alpha != "background":
        opaque = pixels[..., 3] >= _OPAQUE
        if alpha == "mask":
            mask = opaque if mask is None else mask & opaque
        pixels = _rgb(pixels)
    problem = ""
    if view.mask is not None and masks != "ignore":
        try:
            own = _read_mask(view.mask, view.lens, expected, masks == "invert")
            mask = own if mask is None else mask & own
        except InputError as error:
            problem = str(error)
    return ViewImage(pixels, None if mask is None or mask.all() else mask, problem)


def _read_mask(mask: Mask, lens: Lens | None, size: tuple[int, int], inverted: bool) -> NDArray[np.bool_]:
    """Returns [h, w] of the view, True where the photograph counts; False where its lens saw nothing."""
    height, width = size if lens is None else (lens.height, lens.width)

    def stored() -> NDArray[np.uint8]:
        levels = np.where(kept_by(mask, inverted), np.uint8(255), np.uint8(0))
        if levels.shape == (height, width):
            return levels
        return np.asarray(Image.fromarray(levels).resize((width, height), Image.Resampling.BOX))

    if lens is None:
        return stored() >= _OPAQUE
    kind = f"{'inverted ' if inverted else ''}{'dynamic ' if mask.is_dynamic else ''}mask"
    levels = undistorted(mask.path, lens, stored, f"{kind}, turned {mask.orientation}")
    return (levels if levels.ndim == 2 else levels[..., 0]) >= _OPAQUE  # the cache returns colours


def _rgb(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(pixels[..., :3])
