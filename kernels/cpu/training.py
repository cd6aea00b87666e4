"""Computes the loss, SSIM and Adam steps on arrays of the host, with the numba kernels of `loss.py` and `adam.py`.

`kernels/reference/training.py` defines the same three functions in float64. The first call of each compiles its kernels
or loads them from the cache.
"""

from __future__ import annotations

from splatscope.kernels.cpu.adam import adam_step
from splatscope.kernels.cpu.loss import loss_and_gradient, mean_ssim
from splatscope.kernels.cpu.thread_pool import CREW_LOCK
from splatscope.kernels.types import Float32


def loss(image: Float32, target: Float32, dssim_weight: float = 0.2) -> tuple[float, Float32]:
    """Returns (1 - w) L1 + w (1 - SSIM), both means over [H, W, 3], and its gradient with respect to `image`."""
    with CREW_LOCK:
        return loss_and_gradient(image, target, dssim_weight)


def ssim(image: Float32, target: Float32) -> float:
    """Returns the mean SSIM of two images [H, W, 3]: 11x11 Gaussian window, sigma 1.5, zero padding."""
    with CREW_LOCK:
        return mean_ssim(image, target)


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
    """Takes one Adam step in place on [N, D] arrays. `rates` [D] holds a learning rate for each column; `step` counts
    from 1."""
    with CREW_LOCK:
        adam_step(parameter, gradient, first, second, rates, step, *betas, epsilon)
