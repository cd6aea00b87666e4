"""Defines the loss, SSIM and the optimiser step in float64. `picture.py` defines the picture itself.

`kernels/cpu/training.py` has the same three functions as compiled CPU kernels.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from splatscope.kernels.types import Float32

# Wang et al. 2004: an 11x11 Gaussian window, sigma 1.5, and constants for values in [0, 1].
WINDOW, SIGMA = 11, 1.5
C1, C2 = 0.01**2, 0.03**2


def loss(image: Float32, target: Float32, dssim_weight: float = 0.2) -> tuple[float, Float32]:
    """Returns (1 - w) L1 + w (1 - SSIM), both means over [H, W, 3], and its gradient with respect to `image`."""
    with torch.enable_grad():
        picture = torch.tensor(image, dtype=torch.float64, requires_grad=True)
        photograph = torch.tensor(target, dtype=torch.float64)
        l1 = (picture - photograph).abs().mean()
        value = (1 - dssim_weight) * l1 + dssim_weight * (1 - ssim_map(picture, photograph).mean())
        (gradient,) = torch.autograd.grad(value, picture)
    return float(value.detach()), gradient.numpy().astype(np.float32)


def ssim(image: Float32, target: Float32) -> float:
    """Returns the mean SSIM of two images [H, W, 3]."""
    pair = (torch.tensor(a, dtype=torch.float64) for a in (image, target))
    return float(ssim_map(*pair).mean())


def ssim_map(a: Tensor, b: Tensor) -> Tensor:
    """Returns SSIM at each pixel and channel of two images [H, W, 3], as [3, 1, H, W]. Pixels outside count as 0."""
    offsets = torch.arange(WINDOW, dtype=torch.float64) - WINDOW // 2
    bell = torch.exp(-0.5 * (offsets / SIGMA) ** 2)
    bell = bell / bell.sum()
    kernel = torch.outer(bell, bell)[None, None]

    def local_mean(values: Tensor) -> Tensor:
        return conv2d(values, kernel, padding=WINDOW // 2)

    a, b = (image.permute(2, 0, 1)[:, None] for image in (a, b))
    mean_a, mean_b = local_mean(a), local_mean(b)
    variance_a = local_mean(a * a) - mean_a * mean_a
    variance_b = local_mean(b * b) - mean_b * mean_b
    covariance = local_mean(a * b) - mean_a * mean_b
    luminance = (2 * mean_a * mean_b + C1) / (mean_a * mean_a + mean_b * mean_b + C1)
    return luminance * (2 * covariance + C2) / (variance_a + variance_b + C2)


def adam(
    parameter: Float32,
    gradient: Float32,
    first: Float32,
    second: Float32,
    rates: Float32,
    step: int,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-15,
) -> None:
    """Takes one Adam step (Kingma and Ba 2015) in place on [N, D] arrays. `rates` [D] holds a learning rate for each
    column; `step` counts from 1."""
    wide = gradient.astype(np.float64)
    first[...] = betas[0] * first.astype(np.float64) + (1 - betas[0]) * wide
    second[...] = betas[1] * second.astype(np.float64) + (1 - betas[1]) * wide * wide
    mean = first.astype(np.float64) / (1 - betas[0] ** step)
    variance = second.astype(np.float64) / (1 - betas[1] ** step)
    parameter[...] = parameter - rates.astype(np.float64) * mean / (np.sqrt(variance) + epsilon)
