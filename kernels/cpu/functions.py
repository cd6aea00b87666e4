"""Elementary functions on lanes: exp2, log2, sigmoid parts, and the spherical harmonics.

Polynomials replace libm so that sixteen splats or pixels are computed at once. Errors are relative, in
float32. Nothing here touches memory. Read `project.py` next.
"""

from __future__ import annotations

import numpy as np

from splatscope.kernels.constants import SH_C0, SH_C1, SH_C2, SH_C3
from splatscope.kernels.cpu.compile import inline
from splatscope.kernels.cpu.lanes import (
    LANES,
    bits_of,
    from_bits,
    load,
    multiply_add,
    store,
    to_floats,
)

F = np.float32
I32 = np.int32
LOG2_E = F(1.4426950408889634)
LN_2 = F(0.6931471805599453)
ROUND = F(12582912.0)  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits of the sum

# Minimax of 2^f on [-1/2, 1/2], relative error 7.5e-8 (that of the rounding of the coefficients 2e-7).
E1, E2, E3, E4, E5 = (
    F(0.6931469440460205),
    F(0.24022120237350464),
    F(0.05550713092088699),
    F(0.009675540961325169),
    F(0.0013276472454890609),
)


@inline
def exp2(x):
    """2^x for -126 < x < 127; any bits outside, so mask them."""
    shifted = x + ROUND
    fraction = x - (shifted - ROUND)
    r = multiply_add(fraction, E5, E4)
    r = multiply_add(r, fraction, E3)
    r = multiply_add(r, fraction, E2)
    r = multiply_add(r, fraction, E1)
    r = multiply_add(r, fraction, F(1.0))
    return from_bits(bits_of(r) + (bits_of(shifted) << I32(23)))


@inline
def log2(x):
    """log2(x) for normal positive x: exponent plus the series of atanh about 1 in [1/sqrt 2, sqrt 2)."""
    exponent = (bits_of(x) - I32(0x3F3504F3)) >> I32(23)
    m = from_bits(bits_of(x) - (exponent << I32(23)))
    s = (m - F(1.0)) / (m + F(1.0))
    q = s * s
    r = multiply_add(q, F(2.0 / 9.0), F(2.0 / 7.0))
    r = multiply_add(r, q, F(2.0 / 5.0))
    r = multiply_add(r, q, F(2.0 / 3.0))
    r = multiply_add(r, q, F(2.0))
    return multiply_add(r * s, LOG2_E, to_floats(exponent))


@inline
def store_sh_basis(x, y, z, basis, start):
    """The 15 harmonics of degree 1 to 3 at unit direction (x, y, z); harmonic k at start + k * 16."""
    xx, yy, zz = x * x, y * y, z * z
    store(basis, start + LANES, y * F(-SH_C1))
    store(basis, start + 2 * LANES, z * F(SH_C1))
    store(basis, start + 3 * LANES, x * F(-SH_C1))
    store(basis, start + 4 * LANES, x * y * F(SH_C2[0]))
    store(basis, start + 5 * LANES, y * z * F(SH_C2[1]))
    store(basis, start + 6 * LANES, (zz * F(2.0) - xx - yy) * F(SH_C2[2]))
    store(basis, start + 7 * LANES, x * z * F(SH_C2[3]))
    store(basis, start + 8 * LANES, (xx - yy) * F(SH_C2[4]))
    ring = zz * F(4.0) - xx - yy
    store(basis, start + 9 * LANES, y * (xx * F(3.0) - yy) * F(SH_C3[0]))
    store(basis, start + 10 * LANES, x * y * z * F(SH_C3[1]))
    store(basis, start + 11 * LANES, y * ring * F(SH_C3[2]))
    store(basis, start + 12 * LANES, z * (zz * F(2.0) - (xx + yy) * F(3.0)) * F(SH_C3[3]))
    store(basis, start + 13 * LANES, x * ring * F(SH_C3[4]))
    store(basis, start + 14 * LANES, z * (xx - yy) * F(SH_C3[5]))
    store(basis, start + 15 * LANES, x * (xx - yy * F(3.0)) * F(SH_C3[6]))


@inline
def sh_slopes(x, y, z, sums, start):
    """d(sum of s[k] basis[k]) / d(x, y, z), where s[k] are the lanes at start + k * 16 of `sums`."""
    xx, yy, zz, xy, yz, xz = x * x, y * y, z * z, x * y, y * z, x * z
    s1, s2, s3 = load(sums, start + LANES), load(sums, start + 2 * LANES), load(sums, start + 3 * LANES)
    dx, dy, dz = s3 * F(-SH_C1), s1 * F(-SH_C1), s2 * F(SH_C1)

    s4, s5, s6 = (
        load(sums, start + 4 * LANES) * F(SH_C2[0]),
        load(sums, start + 5 * LANES) * F(SH_C2[1]),
        load(sums, start + 6 * LANES) * F(SH_C2[2]),
    )
    s7, s8 = load(sums, start + 7 * LANES) * F(SH_C2[3]), load(sums, start + 8 * LANES) * F(SH_C2[4])
    dx += s4 * y - s6 * x * F(2.0) + s7 * z + s8 * x * F(2.0)
    dy += s4 * x + s5 * z - s6 * y * F(2.0) - s8 * y * F(2.0)
    dz += s5 * y + s6 * z * F(4.0) + s7 * x

    s9, s10, s11 = (
        load(sums, start + 9 * LANES) * F(SH_C3[0]),
        load(sums, start + 10 * LANES) * F(SH_C3[1]),
        load(sums, start + 11 * LANES) * F(SH_C3[2]),
    )
    s12, s13 = load(sums, start + 12 * LANES) * F(SH_C3[3]), load(sums, start + 13 * LANES) * F(SH_C3[4])
    s14, s15 = load(sums, start + 14 * LANES) * F(SH_C3[5]), load(sums, start + 15 * LANES) * F(SH_C3[6])
    dx += s9 * xy * F(6.0) + s10 * yz - s11 * xy * F(2.0) - s12 * xz * F(6.0)
    dx += s13 * (zz * F(4.0) - xx * F(3.0) - yy) + s14 * xz * F(2.0) + s15 * (xx - yy) * F(3.0)
    dy += s9 * (xx - yy) * F(3.0) + s10 * xz + s11 * (zz * F(4.0) - xx - yy * F(3.0)) - s12 * yz * F(6.0)
    dy += s15 * xy * F(-6.0) - s13 * xy * F(2.0) - s14 * yz * F(2.0)
    dz += s10 * xy + s11 * yz * F(8.0) + s12 * (zz * F(2.0) - xx - yy) * F(3.0) + s13 * xz * F(8.0) + s14 * (xx - yy)
    return dx, dy, dz
