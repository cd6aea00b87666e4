"""Computes PSNR and SSIM of one view.

Protocol: the rendered floats are clamped to [0, 1] and not rounded to 8 bits; the photograph is the resized
8-bit image the run uses. PSNR is over all pixels and channels of a view, then averaged over views. SSIM has an 11x11
window and zero padding; for arrays of the host it is that of `HostMath`. `score_tensors` scores a picture that lies on
a GPU there, by the same formulas in torch. Read `scores/scorer.py` for which views are scored.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from splatscope.kernels.backend import HostMath
from splatscope.kernels.types import Float32

PROTOCOL = "float render clamped to [0, 1], no 8-bit rounding; mean over views; SSIM 11x11 sigma 1.5, zero padding"


def psnr(image: Float32, target: Float32, weights: Float32 | None = None) -> float:
    """Returns 10 log10(1 / mean squared error) of two images [H, W, 3] in [0, 1], in dB.

    At most 100, so that one view of nothing but background does not make a mean infinite. `weights` [H, W, 1] say how
    much each pixel counts.
    """
    squared = np.square(np.subtract(image, target, dtype=np.float32))
    if weights is None:
        return decibels(float(squared.mean(dtype=np.float64)))
    return decibels(
        float((squared * weights).sum(dtype=np.float64)) / max(3 * float(weights.sum(dtype=np.float64)), 1e-9)
    )


def decibels(mean_square: float) -> float:
    """Returns the PSNR in dB of a mean squared error of colours in [0, 1]."""
    return -10 * math.log10(max(mean_square, 1e-10))


def score(image: Float32, target: Float32, host: HostMath, weights: Float32 | None = None) -> tuple[float, float]:
    """Returns (PSNR in dB, SSIM) of a render [H, W, 3] against its photograph.

    Pixels of weight 0 count for nothing: PSNR leaves them out, SSIM takes them to be black in both.
    """
    clamped = np.clip(image, 0, 1)
    return psnr(clamped, target, weights), host.ssim(weighted(clamped, weights), weighted(target, weights))


def weighted(image: Float32, weights: Float32 | None) -> Float32:
    """Returns the image [H, W, 3] times `weights` [H, W, 1]: black where a pixel does not count."""
    return image if weights is None else np.multiply(image, weights, dtype=np.float32)


def score_tensors(image: Tensor, target: Tensor, weights: Tensor | None = None) -> tuple[float, float]:
    """Returns `score` of float32 tensors [H, W, 3] on one device, computed there; `weights` [H, W, 1]. Waits for the
    device."""
    image = image.clamp(0, 1)
    squared = (image - target).square()
    if weights is None:
        mean_square = squared.mean(dtype=torch.float64)
    else:
        total = 3 * weights.sum(dtype=torch.float64)
        mean_square = (squared * weights).sum(dtype=torch.float64) / total.clamp(min=1e-9)
        image, target = image * weights, target * weights
    similarity = torch.stack([_similarity(image[..., c], target[..., c]) for c in range(3)]).mean()
    mean_square, similarity = torch.stack((mean_square, similarity)).tolist()
    return decibels(mean_square), similarity


SSIM_RADIUS, SSIM_SIGMA = 5, 1.5
SSIM_C1, SSIM_C2 = 0.01**2, 0.03**2


@cache
def _window() -> list[float]:
    weights = np.exp(-0.5 * (np.arange(-SSIM_RADIUS, SSIM_RADIUS + 1) / SSIM_SIGMA) ** 2)
    return (weights / weights.sum()).tolist()


def _similarity(x: Tensor, y: Tensor) -> Tensor:
    """Returns the mean SSIM of one channel [H, W], float64 []. It sums shifted rows, because torch may round
    convolutions to TF32."""
    moments = torch.stack((x, y, x * x, y * y, x * y))  # [5, H, W]
    for axis in (1, 2):
        size = moments.shape[axis]
        pads = (0, 0, SSIM_RADIUS, SSIM_RADIUS) if axis == 1 else (SSIM_RADIUS, SSIM_RADIUS)
        padded, moments = torch.nn.functional.pad(moments, pads), torch.zeros_like(moments)
        for shift, weight in enumerate(_window()):
            moments.add_(padded.narrow(axis, shift, size), alpha=weight)
    mean_x, mean_y, xx, yy, xy = moments
    variances = xx - mean_x**2 + yy - mean_y**2
    covariance = xy - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + SSIM_C1) / (mean_x**2 + mean_y**2 + SSIM_C1)
    return (luminance * (2 * covariance + SSIM_C2) / (variances + SSIM_C2)).mean(dtype=torch.float64)
