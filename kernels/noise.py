"""Draws normal numbers that depend on nothing but seed, step and splat.

Philox (Salmon et al. 2011) turns a counter and a key into four random words, so no state is kept between steps. A run
resumed from a checkpoint draws the same numbers as an uninterrupted run, and the GPU the same as the host
(cuda/source/noise.cuh).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splatscope.kernels.types import Float32

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class Noise:
    """Holds the settings of the random move that a training step gives every mean.

    The move is covariance times a normal triple, times `amount`, times sigmoid(-steepness (opacity - centre)).
    """

    amount: float
    centre: float
    steepness: float
    seed: int  # the run's seed, below 2^64
    iteration: int


def philox(counter: tuple[NDArray[np.uint64], ...], key: tuple[int, int]) -> tuple[NDArray[np.uint64], ...]:
    """Returns four random words for each counter of four words: uint64 arrays of one shape, holding 32 bits each."""
    a, b, c, d = counter
    for number in range(ROUNDS):
        left, right = (np.uint64((k + number * step) & WORD) for k, step in zip(key, KEY_STEPS, strict=True))
        first, second = a * np.uint64(MULTIPLIERS[0]), c * np.uint64(MULTIPLIERS[1])
        a, b = (second >> np.uint64(32)) ^ b ^ left, second & np.uint64(WORD)
        c, d = (first >> np.uint64(32)) ^ d ^ right, first & np.uint64(WORD)
    return a, b, c, d


def normal_numbers(seed: int, iteration: int, count: int) -> Float32:
    """Returns the standard normal numbers [N, 3] of one step, by the method of Box and Muller."""
    zeros = np.zeros(count, np.uint64)
    counter = (np.arange(count, dtype=np.uint64), np.full(count, iteration, np.uint64), zeros, zeros)
    words = philox(counter, (seed & WORD, seed >> 32 & WORD))
    # Uniform numbers in (0, 1]: above 0, so that the logarithm is finite.
    uniform = [w.astype(np.uint32).astype(np.float32) * np.float32(2**-32) + np.float32(2**-33) for w in words]
    length, other_length = (np.sqrt(np.float32(-2) * np.log(u)) for u in uniform[::2])
    angle, other_angle = (np.float32(2 * np.pi) * u for u in uniform[1::2])
    return np.stack((length * np.cos(angle), length * np.sin(angle), other_length * np.cos(other_angle)), 1)
