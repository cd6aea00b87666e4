"""Computes exp2 and log2 of lanes.

Polynomials replace libm, so that sixteen splats or pixels are computed at once. Errors are relative, in float32
arithmetic. Read `project.py` next.
"""

from __future__ import annotations

import numpy as np

from splatscope.kernels.cpu.compile import inline
from splatscope.kernels.cpu.lanes import bits_of, from_bits, multiply_add, to_floats

F = np.float32
I32 = np.int32
LOG2_E = F(1.4426950408889634)
LN_2 = F(0.6931471805599453)
ROUND = F(12582912.0)  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits of the sum

# Minimax polynomial of 2^f on [-1/2, 1/2]. Its relative error is 7.5e-8, that of its rounded coefficients 2e-7.
E1, E2, E3, E4, E5 = (
    F(0.6931469440460205),
    F(0.24022120237350464),
    F(0.05550713092088699),
    F(0.009675540961325169),
    F(0.0013276472454890609),
)


@inline
def exp2(x):
    """Returns 2^x for -126 < x < 127. Any other x gives arbitrary bits: callers mask those lanes."""
    shifted = x + ROUND
    f = x - (shifted - ROUND)
    # Computes pairs of terms independently (Estrin): half as long a chain as Horner's rule.
    ff = f * f
    low, middle, high = multiply_add(f, E1, F(1.0)), multiply_add(f, E3, E2), multiply_add(f, E5, E4)
    r = multiply_add(ff, multiply_add(ff, high, middle), low)
    return from_bits(bits_of(r) + (bits_of(shifted) << I32(23)))


@inline
def log2(x):
    """Returns log2(x) for normal positive x: exponent plus the series of atanh about 1 in [1/sqrt 2, sqrt 2)."""
    exponent = (bits_of(x) - I32(0x3F3504F3)) >> I32(23)
    m = from_bits(bits_of(x) - (exponent << I32(23)))
    s = (m - F(1.0)) / (m + F(1.0))
    q = s * s
    r = multiply_add(q, F(2.0 / 9.0), F(2.0 / 7.0))
    r = multiply_add(r, q, F(2.0 / 5.0))
    r = multiply_add(r, q, F(2.0 / 3.0))
    r = multiply_add(r, q, F(2.0))
    return multiply_add(r * s, LOG2_E, to_floats(exponent))
