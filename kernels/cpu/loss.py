"""Computes L1 + D-SSIM on the CPU: the value and its exact image gradient, and SSIM alone for scores.

Takes two sweeps over the rows:
- The first filters four local moments of (image, target), and computes SSIM and its derivatives by these moments.
- The second filters the derivatives. The window is symmetric and padding is zero, so the filter is its own adjoint.

One thread sums each row, and row sums are added in order, so results do not depend on the number of threads. Formulas:
Wang et al. 2004, equation 13.

Colours stay interleaved: a row is 3 W numbers, and horizontal neighbours are 3 apart. `training.py` offers these
functions to the trainer. Read `adam.py` next.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from splatscope.kernels.cpu.compile import kernel
from splatscope.kernels.cpu.thread_pool import CREW, draw_turn, report_turns
from splatscope.kernels.types import Float32

# Half of the 11-tap Gaussian window, sigma 1.5, normalised: from the outer tap to the centre.
TAPS = tuple(np.float32(t) for t in (0.00102838, 0.00759876, 0.03600077, 0.10936069, 0.21300553, 0.26601172))
T0, T1, T2, T3, T4, T5 = TAPS
WINDOW = np.array((*TAPS, *TAPS[-2::-1]), dtype=np.float32)
RADIUS = 5  # px
MARGIN = 3 * RADIUS  # zeros on each side of a filtered row
ROWS_A_TURN = 8  # rows a worker takes at a time
C1 = np.float32(0.01**2)
C2 = np.float32(0.03**2)
ONE, TWO = np.float32(1), np.float32(2)

# Allows fused multiply-add, and any order of additions in the sum of a row. The vectoriser's order depends only on the
# length of the row, so every run has the same. NaN and infinity keep their meaning. `_nrt`: see `compile.py`.
_FLAGS: dict[str, Any] = {"fastmath": {"contract", "reassoc", "nsz"}, "error_model": "numpy", "_nrt": False}
row_helper = numba.njit(**_FLAGS)


@row_helper
def filter_row(padded, out):
    """Filters a row by the horizontal window: `padded` [3 W + 2 MARGIN] -> `out` [3 W]."""
    p = padded
    for j in range(out.size):
        out[j] = (
            T0 * (p[j] + p[j + 30])
            + T1 * (p[j + 3] + p[j + 27])
            + T2 * (p[j + 6] + p[j + 24])
            + T3 * (p[j + 9] + p[j + 21])
            + T4 * (p[j + 12] + p[j + 18])
            + T5 * p[j + 15]
        )


@row_helper
def moments_of_columns(x, y, row, mean_x, mean_y, squares, product):
    """Filters x, y, x^2 + y^2 and x y by the vertical window around `row`; rows outside the image count as zero."""
    height = x.shape[0]
    mean_x[:] = mean_y[:] = squares[:] = product[:] = np.float32(0)
    for k in range(max(-RADIUS, -row), min(RADIUS + 1, height - row)):
        weight = WINDOW[k + RADIUS]
        xs, ys = x[row + k], y[row + k]
        # Has two loops: with four outputs in one loop, the vectoriser gives up on the aliasing checks.
        for j in range(mean_x.size):
            mean_x[j] += weight * xs[j]
            mean_y[j] += weight * ys[j]
        for j in range(mean_x.size):
            u, v = xs[j], ys[j]
            squares[j] += weight * (u * u + v * v)
            product[j] += weight * (u * v)


@row_helper
def ssim_of_row(mean_x, mean_y, squares, product, by_mean, by_square, by_product):
    """Returns the sum of SSIM over a row; writes dSSIM / d(E[x], E[x^2], E[x y]) at each pixel."""
    total = np.float32(0)
    for j in range(mean_x.size):
        mx, my = mean_x[j], mean_y[j]
        means = mx * mx + my * my
        a = TWO * (mx * my) + C1
        b = TWO * (product[j] - mx * my) + C2
        c = means + C1
        d = squares[j] - means + C2
        inverse_c, inverse_d = ONE / c, ONE / d
        inverse_cd = inverse_c * inverse_d
        ssim = a * b * inverse_cd
        total += ssim
        by_mean[j] = TWO * my * (b - a) * inverse_cd - TWO * mx * ssim * (inverse_c - inverse_d)
        by_square[j] = -ssim * inverse_d
        by_product[j] = TWO * a * inverse_cd
    return total


@row_helper
def absolute_difference(x, y):
    total = np.float32(0)
    for j in range(x.size):
        total += abs(x[j] - y[j])
    return total


@kernel
def ssim_sweep(board, turns, worker, x, y, all_padded, all_filtered, derivatives, ssim_sums, l1_sums):
    """Computes the derivatives [3, H, 3 W] of SSIM of x and y [H, 3 W], and each row's sums of SSIM and of |x - y|."""
    height, width = x.shape
    padded, filtered = all_padded[worker], all_filtered[worker]
    # Takes four slices, not one of two dimensions: numba would not know that the latter is contiguous.
    inner_0, inner_1 = padded[0, MARGIN : MARGIN + width], padded[1, MARGIN : MARGIN + width]
    inner_2, inner_3 = padded[2, MARGIN : MARGIN + width], padded[3, MARGIN : MARGIN + width]
    done = 0
    turn = draw_turn(board)
    while turn < turns:
        for i in range(turn * ROWS_A_TURN, min(height, (turn + 1) * ROWS_A_TURN)):
            moments_of_columns(x, y, i, inner_0, inner_1, inner_2, inner_3)
            for m in range(4):
                filter_row(padded[m], filtered[m])
            ssim_sums[i] = ssim_of_row(
                filtered[0],
                filtered[1],
                filtered[2],
                filtered[3],
                derivatives[0, i],
                derivatives[1, i],
                derivatives[2, i],
            )
            l1_sums[i] = absolute_difference(x[i], y[i])
        done += 1
        turn = draw_turn(board)
    report_turns(board, done)


@row_helper
def derivatives_of_columns(derivatives, row, by_mean, by_square, by_product):
    """Filters the three derivative maps by the vertical window around `row`."""
    height = derivatives.shape[1]
    by_mean[:] = by_square[:] = by_product[:] = np.float32(0)
    for k in range(max(-RADIUS, -row), min(RADIUS + 1, height - row)):
        weight = WINDOW[k + RADIUS]
        p, q, r = derivatives[0, row + k], derivatives[1, row + k], derivatives[2, row + k]
        for j in range(by_mean.size):
            by_mean[j] += weight * p[j]
            by_square[j] += weight * q[j]
            by_product[j] += weight * r[j]


@row_helper
def gradient_of_row(x, y, by_mean, by_square, by_product, l1_weight, ssim_weight, out):
    """Writes out = l1_weight sign(x - y) - ssim_weight dSSIM/dx, from the filtered derivatives."""
    for j in range(out.size):
        u, v = x[j], y[j]
        sign = ONE if u > v else (-ONE if u < v else np.float32(0))
        out[j] = l1_weight * sign - ssim_weight * (by_mean[j] + TWO * u * by_square[j] + v * by_product[j])


@kernel
def gradient_sweep(board, turns, worker, x, y, all_padded, all_filtered, derivatives, l1_weight, ssim_weight, out):
    """Computes dL/dx [H, 3 W] from the results of `ssim_sweep`."""
    height, width = x.shape
    padded, filtered = all_padded[worker], all_filtered[worker]
    inner_0, inner_1 = padded[0, MARGIN : MARGIN + width], padded[1, MARGIN : MARGIN + width]
    inner_2 = padded[2, MARGIN : MARGIN + width]
    done = 0
    turn = draw_turn(board)
    while turn < turns:
        for i in range(turn * ROWS_A_TURN, min(height, (turn + 1) * ROWS_A_TURN)):
            derivatives_of_columns(derivatives, i, inner_0, inner_1, inner_2)
            for m in range(3):
                filter_row(padded[m], filtered[m])
            gradient_of_row(x[i], y[i], filtered[0], filtered[1], filtered[2], l1_weight, ssim_weight, out[i])
        done += 1
        turn = draw_turn(board)
    report_turns(board, done)


def loss_and_gradient(image: Float32, target: Float32, dssim_weight: float) -> tuple[float, Float32]:
    """Returns (1 - w) mean |image - target| + w (1 - mean SSIM), and dL/d(image).

    `image` and `target` are float32 [H, W, 3] in [0, 1] (the image may leave that range). The window is zero-padded,
    and the subgradient of |0| is 0. The gradient [H, W, 3] belongs to the caller.
    """
    x, y = _as_rows(image, target)
    rows = _worker_rows(x)
    derivatives, ssim_sums, l1_sums = _sweep(x, y, rows)
    gradient = np.empty(image.shape, np.float32)
    l1_weight, ssim_weight = np.float32((1 - dssim_weight) / x.size), np.float32(dssim_weight / x.size)
    out = gradient.reshape(x.shape)
    CREW.run(gradient_sweep, _turns(x), x, y, *rows, derivatives, l1_weight, ssim_weight, out)
    l1 = float(l1_sums.sum(dtype=np.float64)) / x.size
    ssim = float(ssim_sums.sum(dtype=np.float64)) / x.size
    return (1 - dssim_weight) * l1 + dssim_weight * (1 - ssim), gradient


def mean_ssim(image: Float32, target: Float32) -> float:
    """Returns the mean SSIM over pixels and channels of two float32 images [H, W, 3] in [0, 1]."""
    x, y = _as_rows(image, target)
    return float(_sweep(x, y, _worker_rows(x))[1].sum(dtype=np.float64)) / x.size


def _as_rows(image: Float32, target: Float32) -> tuple[Float32, Float32]:
    if image.shape != target.shape or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"image and target must both be [H, W, 3], got {image.shape} and {target.shape}")
    rows = (image.shape[0], image.shape[1] * 3)
    x = np.ascontiguousarray(image, dtype=np.float32).reshape(rows)
    return x, np.ascontiguousarray(target, dtype=np.float32).reshape(rows)


def _turns(x: Float32) -> int:
    return -(-x.shape[0] // ROWS_A_TURN)


def _worker_rows(x: Float32) -> tuple[Float32, Float32]:
    """Returns each worker's scratch: four rows whose margins stay zero, and four rows for the filtered values."""
    workers, width = numba.get_num_threads(), x.shape[1]
    return np.zeros((workers, 4, width + 2 * MARGIN), np.float32), np.empty((workers, 4, width), np.float32)


def _sweep(x: Float32, y: Float32, rows: tuple[Float32, Float32]) -> tuple[Float32, Float32, Float32]:
    """Runs `ssim_sweep`; returns derivatives, SSIM sums and L1 sums."""
    derivatives = np.empty((3, *x.shape), np.float32)
    ssim_sums, l1_sums = np.empty((2, x.shape[0]), np.float32)
    CREW.run(ssim_sweep, _turns(x), x, y, *rows, derivatives, ssim_sums, l1_sums)
    return derivatives, ssim_sums, l1_sums
