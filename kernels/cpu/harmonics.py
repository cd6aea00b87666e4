"""Evaluates and differentiates colours from spherical harmonics, for sixteen splats at once.

Rows of coefficients are copied for the splats that need them and turned into columns (a vector holds one coefficient of
sixteen splats). The gradients are turned back into rows. Read `project.py` next.
"""

from __future__ import annotations

import numpy as np

from splatscope.kernels.constants import SH_C0, SH_C1, SH_C2, SH_C3
from splatscope.kernels.cpu.compile import inline
from splatscope.kernels.cpu.lane_io import at, load, prefetch, put, store, transpose
from splatscope.kernels.cpu.lanes import LANES, count_bits, first_bit, multiply_add, spread

F = np.float32
ROW = 48  # floats of a row of degree 3: 16 harmonics of RGB
ALL = (1 << LANES) - 1
# Where the parts of the scratch begin, in floats: a row for each splat, a column for each coefficient, the basis with a
# vector for each harmonic.
ROWS, COLUMNS, BASIS = 0, LANES * ROW, 2 * LANES * ROW
SCRATCH = BASIS + LANES * LANES


@inline
def copy_row(source, start, target, to, size):
    """Copies `size` floats, as vectors if there are at least sixteen."""
    if size < LANES:
        for i in range(size):
            put(target, to + i, at(source, start + i))
    else:
        for i in range(0, size - LANES + 1, LANES):
            store(target, to + i, load(source, start + i))
        store(target, to + size - LANES, load(source, start + size - LANES))


@inline
def stage_harmonics(sh, group, wanted, sh_rows, sh_used, scratch):
    """Copies as columns the coefficients of those splats group ... group + 15 whose bit in `wanted` is set."""
    size = 3 * sh_used
    if count_bits(wanted) > LANES // 2:
        # Most splats are wanted here, so the next group will probably need its rows: prefetches them.
        start = (group + LANES) * sh_rows * 3
        for i in range(start, start + LANES * sh_rows * 3, LANES):
            prefetch(sh, i)
    if wanted == ALL and sh_rows * 3 == ROW:
        for i in range(0, size, LANES):
            transpose(sh, group * ROW + i, ROW, scratch, COLUMNS + i * LANES, LANES)
        return
    while wanted != 0:
        lane = first_bit(wanted)
        wanted &= wanted - 1
        copy_row(sh, (group + lane) * sh_rows * 3, scratch, ROWS + lane * ROW, size)
    for i in range(0, size, LANES):
        transpose(scratch, ROWS + i, ROW, scratch, COLUMNS + i * LANES, LANES)


@inline
def evaluate(scratch, sh_used):
    """Returns 0.5 + the harmonics from staged columns and basis: three vectors of lanes, which may be negative."""
    red = multiply_add(load(scratch, COLUMNS), F(SH_C0), F(0.5))
    green = multiply_add(load(scratch, COLUMNS + LANES), F(SH_C0), F(0.5))
    blue = multiply_add(load(scratch, COLUMNS + 2 * LANES), F(SH_C0), F(0.5))
    for k in range(1, sh_used):
        weight, column = load(scratch, BASIS + k * LANES), COLUMNS + 3 * k * LANES
        red = multiply_add(weight, load(scratch, column), red)
        green = multiply_add(weight, load(scratch, column + LANES), green)
        blue = multiply_add(weight, load(scratch, column + 2 * LANES), blue)
    return red, green, blue


@inline
def differentiate(scratch, sh_used, red, green, blue):
    """Replaces the columns by dL/d(coefficient), and the basis by dL/d(basis), each harmonic's `pull`."""
    store(scratch, COLUMNS, red * F(SH_C0))
    store(scratch, COLUMNS + LANES, green * F(SH_C0))
    store(scratch, COLUMNS + 2 * LANES, blue * F(SH_C0))
    for k in range(1, sh_used):
        weight, column = load(scratch, BASIS + k * LANES), COLUMNS + 3 * k * LANES
        pull = red * load(scratch, column)
        pull = multiply_add(green, load(scratch, column + LANES), pull)
        pull = multiply_add(blue, load(scratch, column + 2 * LANES), pull)
        store(scratch, column, red * weight)
        store(scratch, column + LANES, green * weight)
        store(scratch, column + 2 * LANES, blue * weight)
        store(scratch, BASIS + k * LANES, pull)
    for k in range(sh_used, LANES):
        store(scratch, BASIS + k * LANES, spread(F(0.0)))


@inline
def write_gradient(scratch, group, count, seen, sh_rows, sh_used, out):
    """Writes the columns as gradient rows of `count` splats from `group` on; zeros for unseen splats."""
    size, row = 3 * sh_used, 3 * sh_rows
    if seen == ALL and row == ROW:
        for i in range(0, size, LANES):
            transpose(scratch, COLUMNS + i * LANES, LANES, out, group * ROW + i, ROW)
        for lane in range(LANES):
            for i in range((group + lane) * ROW + size, (group + lane + 1) * ROW):
                put(out, i, F(0.0))
        return
    for i in range(0, size, LANES):
        transpose(scratch, COLUMNS + i * LANES, LANES, scratch, ROWS + i, ROW)
    for lane in range(count):
        start = (group + lane) * row
        filled = 0
        if (seen >> lane) & 1:
            copy_row(scratch, ROWS + lane * ROW, out, start, size)
            filled = size
        for i in range(start + filled, start + row):
            put(out, i, F(0.0))


@inline
def store_basis(x, y, z, scratch):
    """Stores in the basis the 15 harmonics of degree 1 to 3 at unit direction (x, y, z)."""
    xx, yy, zz = x * x, y * y, z * z
    store(scratch, BASIS + LANES, y * F(-SH_C1))
    store(scratch, BASIS + 2 * LANES, z * F(SH_C1))
    store(scratch, BASIS + 3 * LANES, x * F(-SH_C1))
    store(scratch, BASIS + 4 * LANES, x * y * F(SH_C2[0]))
    store(scratch, BASIS + 5 * LANES, y * z * F(SH_C2[1]))
    store(scratch, BASIS + 6 * LANES, (zz * F(2.0) - xx - yy) * F(SH_C2[2]))
    store(scratch, BASIS + 7 * LANES, x * z * F(SH_C2[3]))
    store(scratch, BASIS + 8 * LANES, (xx - yy) * F(SH_C2[4]))
    ring = zz * F(4.0) - xx - yy
    store(scratch, BASIS + 9 * LANES, y * (xx * F(3.0) - yy) * F(SH_C3[0]))
    store(scratch, BASIS + 10 * LANES, x * y * z * F(SH_C3[1]))
    store(scratch, BASIS + 11 * LANES, y * ring * F(SH_C3[2]))
    store(scratch, BASIS + 12 * LANES, z * (zz * F(2.0) - (xx + yy) * F(3.0)) * F(SH_C3[3]))
    store(scratch, BASIS + 13 * LANES, x * ring * F(SH_C3[4]))
    store(scratch, BASIS + 14 * LANES, z * (xx - yy) * F(SH_C3[5]))
    store(scratch, BASIS + 15 * LANES, x * (xx - yy * F(3.0)) * F(SH_C3[6]))


@inline
def slopes(x, y, z, scratch):
    """Returns d(sum of pull[k] basis[k]) / d(x, y, z), with the pulls that `differentiate` left in the basis."""
    xx, yy, zz, xy, yz, xz = x * x, y * y, z * z, x * y, y * z, x * z
    s1, s2, s3 = pull(scratch, 1), pull(scratch, 2), pull(scratch, 3)
    dx, dy, dz = s3 * F(-SH_C1), s1 * F(-SH_C1), s2 * F(SH_C1)

    s4, s5, s6 = pull(scratch, 4) * F(SH_C2[0]), pull(scratch, 5) * F(SH_C2[1]), pull(scratch, 6) * F(SH_C2[2])
    s7, s8 = pull(scratch, 7) * F(SH_C2[3]), pull(scratch, 8) * F(SH_C2[4])
    dx += s4 * y - s6 * x * F(2.0) + s7 * z + s8 * x * F(2.0)
    dy += s4 * x + s5 * z - s6 * y * F(2.0) - s8 * y * F(2.0)
    dz += s5 * y + s6 * z * F(4.0) + s7 * x

    s9, s10, s11 = pull(scratch, 9) * F(SH_C3[0]), pull(scratch, 10) * F(SH_C3[1]), pull(scratch, 11) * F(SH_C3[2])
    s12, s13 = pull(scratch, 12) * F(SH_C3[3]), pull(scratch, 13) * F(SH_C3[4])
    s14, s15 = pull(scratch, 14) * F(SH_C3[5]), pull(scratch, 15) * F(SH_C3[6])
    dx += s9 * xy * F(6.0) + s10 * yz - s11 * xy * F(2.0) - s12 * xz * F(6.0)
    dx += s13 * (zz * F(4.0) - xx * F(3.0) - yy) + s14 * xz * F(2.0) + s15 * (xx - yy) * F(3.0)
    dy += s9 * (xx - yy) * F(3.0) + s10 * xz + s11 * (zz * F(4.0) - xx - yy * F(3.0)) - s12 * yz * F(6.0)
    dy += s15 * xy * F(-6.0) - s13 * xy * F(2.0) - s14 * yz * F(2.0)
    dz += s10 * xy + s11 * yz * F(8.0) + s12 * (zz * F(2.0) - xx - yy) * F(3.0) + s13 * xz * F(8.0) + s14 * (xx - yy)
    return dx, dy, dz


@inline
def pull(scratch, k):
    """Returns dL/d(basis) of harmonic k, as lanes."""
    return load(scratch, BASIS + k * LANES)
