"""The pixels of a view: its photograph decoded, turned, undistorted, and its transparency put to use.

Nothing is composited or resized here; `training/dataset.py` does that. `undistort.py` warps and caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.capture import View
from splatscope.assets.images import read_image
from splatscope.assets.undistort import seen, undistorted
from splatscope.kernels.errors import InputError

AlphaUse = Literal["background", "mask", "ignore"]
ALPHA_USES: tuple[str, ...] = get_args(AlphaUse)
_OPAQUE = 128  # of 255; with alpha as a mask, what is less opaque is left out


@dataclass(frozen=True, eq=False)
class ViewImage:
    """A photograph as the view's pinhole camera would have taken it."""

    pixels: NDArray[np.uint8]  # [H, W, 3], or [H, W, 4] with straight alpha where alpha means background
    mask: NDArray[np.bool_] | None  # [H, W], True where the photograph tells of the scene; None: everywhere


def read_view(view: View, alpha: AlphaUse = "background") -> ViewImage:
    """Decodes one view at its camera's size.

    Transparency is kept as a fourth channel for compositing over a background ("background"), or leaves
    pixels out of what is compared ("mask"), or is thrown away ("ignore"). Raises InputError if the
    photograph is damaged or no longer has its size.
    """
    if alpha not in ALPHA_USES:
        raise InputError(f"alpha must be one of {', '.join(ALPHA_USES)}, got {alpha!r}.")

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
    return ViewImage(pixels, None if mask is None or mask.all() else mask)


def _rgb(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(pixels[..., :3])
