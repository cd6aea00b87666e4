"""PSNR and SSIM of one view.

Protocol: the rendered floats are clamped to [0, 1] and not rounded to 8 bits; the photograph is the resized
8-bit image the run uses. PSNR is over all pixels and channels of a view, then averaged over views; SSIM is
the backend's, 11x11 with zero padding. Read `trainer.py` for when views are scored.
"""

from __future__ import annotations

import math

import numpy as np

from splatscope.kernels.api import Backend
from splatscope.kernels.types import Float32

PROTOCOL = "float render clamped to [0, 1], no 8-bit rounding; mean over views; SSIM 11x11 sigma 1.5, zero padding"


def psnr(image: Float32, target: Float32, weights: Float32 | None = None) -> float:
    """10 log10(1 / mean squared error) of two images [H, W, 3] in [0, 1]; at most 100 dB, so that one view of
    nothing but background does not make a mean infinite. `weights` [H, W, 1]: how much each pixel counts."""
    squared = np.square(image.astype(np.float64) - target)
    mean = float(squared.mean() if weights is None else (squared * weights).sum() / max(3 * weights.sum(), 1e-9))
    return -10 * math.log10(max(mean, 1e-10))


def score(image: Float32, target: Float32, backend: Backend, weights: Float32 | None = None) -> tuple[float, float]:
    """(PSNR in dB, SSIM) of a render [H, W, 3] against its photograph. Pixels of weight 0 count for nothing: PSNR
    leaves them out, SSIM takes them to be black in both."""
    clamped = np.clip(image, 0, 1)
    return psnr(clamped, target, weights), backend.ssim(weighted(clamped, weights), weighted(target, weights))


def weighted(image: Float32, weights: Float32 | None) -> Float32:
    """The image [H, W, 3] times `weights` [H, W, 1]: black where a pixel does not count."""
    return image if weights is None else np.multiply(image, weights, dtype=np.float32)
