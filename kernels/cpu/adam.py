"""Takes Adam steps (Kingma and Ba 2015) on the CPU: one pass over parameter, gradient and both moments, in place.

The arithmetic follows torch.optim.Adam without weight decay, so both agree to rounding. All rows are treated alike: an
unseen splat has a zero gradient and still moves by its momentum, as in the 2023 recipe. The trainer chooses the rates
(`training/splats/optimizer.py`).
"""

from __future__ import annotations

import math

import numpy as np

from splatscope.kernels.cpu.compile import kernel
from splatscope.kernels.cpu.thread_pool import CREW, draw_turn, report_turns
from splatscope.kernels.types import Float32

CHUNK = 4096  # numbers in a chunk, for which one array of rates is made; rounded down to whole rows
CHUNKS_A_TURN = 32  # chunks in a worker's turn of 50 microseconds; an array of one turn wakes no helper


@kernel
def adam_sweep(
    board,
    turns,
    worker,
    parameter,
    gradient,
    first,
    second,
    rates,
    first_gain,
    beta2,
    second_gain,
    second_scale,
    epsilon,
):
    """Takes a step of flat arrays. `rates` repeats the rates of a row; its size is the length of a chunk."""
    chunk = rates.size
    done = 0
    turn = draw_turn(board)
    while turn < turns:
        end = min(parameter.size, (turn + 1) * CHUNKS_A_TURN * chunk)
        for low in range(turn * CHUNKS_A_TURN * chunk, end, chunk):
            high = min(end, low + chunk)
            p, g, m, v = parameter[low:high], gradient[low:high], first[low:high], second[low:high]
            for j in range(high - low):
                m_new = m[j] + (g[j] - m[j]) * first_gain
                v_new = beta2 * v[j] + second_gain * (g[j] * g[j])
                m[j] = m_new
                v[j] = v_new
                p[j] -= rates[j] * (m_new / (np.sqrt(v_new) * second_scale + epsilon))
        done += 1
        turn = draw_turn(board)
    report_turns(board, done)


def adam_step(
    parameter: Float32,
    gradient: Float32,
    first: Float32,
    second: Float32,
    rates: Float32,
    step: int,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> None:
    """Takes a step of C-contiguous float32 arrays [N, D] in place. `rates` is [D]; `step` counts from 1."""
    arrays = (parameter, gradient, first, second)
    if any(a.shape != parameter.shape or a.dtype != np.float32 or not a.flags.c_contiguous for a in arrays):
        raise ValueError(f"Adam needs contiguous float32 arrays of one shape, got {[a.shape for a in arrays]}")
    if rates.shape != parameter.shape[1:]:
        raise ValueError(f"Adam needs one rate a column: {parameter.shape[1:]}, got {rates.shape}")
    corrected = np.asarray(rates, np.float64) / (1 - beta1**step)
    pattern = np.tile(corrected.astype(np.float32), max(1, CHUNK // parameter.shape[1]))
    CREW.run(
        adam_sweep,
        -(-parameter.size // (CHUNKS_A_TURN * pattern.size)),
        parameter.reshape(-1),
        gradient.reshape(-1),
        first.reshape(-1),
        second.reshape(-1),
        pattern,
        np.float32(1 - beta1),
        np.float32(beta2),
        np.float32(1 - beta2),
        np.float32(1 / math.sqrt(1 - beta2**step)),
        np.float32(epsilon),
    )
