"""Computes the derivative of blending: one row of sums for every (tile, splat), in list order.

Tiles and batches are as in `blend.py`, but taken back to front. For each pixel, the transmittance T before each splat
is restored by division. `behind` is the light that arrives from behind the splat, multiplied with the image gradient
(Kerbl and Kopanas et al. 2023).

A row holds sums over pixels. With (u, v) of the splat and g = alpha dL/dalpha, it has the sums of
- g, g u, g v, g u^2, g u v, g v^2;
- weight times image gradient, for each colour channel;
- if asked for, the absolute values of each pixel's gradient of the projected mean, along x and y.

`project_backward.py` turns rows into gradients of raw parameters. No two workers write the same row, so results do not
depend on their number.
"""

from __future__ import annotations

import numpy as np

from splatscope.kernels.constants import TILE
from splatscope.kernels.cpu.blend import (
    BATCH,
    BLOCK,
    BLOCKS,
    LINE,
    PLANE,
    STAGED,
    block_pixels,
    prefetch_records,
    stage_splats,
)
from splatscope.kernels.cpu.compile import inline, kernel
from splatscope.kernels.cpu.functions import exp2
from splatscope.kernels.cpu.lane_io import at, load, load_columns, load_spread, put, rows_to_blocks, store
from splatscope.kernels.cpu.lanes import (
    LANES,
    first_bit,
    largest,
    mask_bits,
    minimum,
    multiply_add,
    negative,
    select,
    spread,
    spread_int,
    totals,
)
from splatscope.kernels.cpu.project import LOG2_ALPHA_MIN
from splatscope.kernels.cpu.records import (
    BLUE,
    DISK,
    FLAT,
    GREEN,
    OFFSET_U,
    OFFSET_V,
    POWER,
    RECORD,
    RED,
    A,
    B,
    C,
)
from splatscope.kernels.cpu.thread_pool import draw_turn, report_turns
from splatscope.kernels.cpu.tilted_backward import MORE_SUMS, tilted_sums

F = np.float32
I32 = np.int32
# Fields of a row of sums. A row is one cache line.
ROW = 16
SUM_G, SUM_U, SUM_V, SUM_UU, SUM_UV, SUM_VV, SUM_RED, SUM_GREEN, SUM_BLUE, SUM_ABSOLUTE_X, SUM_ABSOLUTE_Y = range(11)
# Planes of the pixel state: T, light from behind, and the image gradient's three channels.
LEFT, BEHIND, BY_RED, BY_GREEN, BY_BLUE = (PLANE * i for i in range(5))
STATE = 5 * PLANE
# Float32 scratch of a worker: staged records, state, pixel positions x and y, lines.
# Int32 scratch: masks, last indices, the largest last index of each block, lines.
SCRATCH = STAGED + STATE + 2 * PLANE + BLOCK * LINE
SCRATCH_INT = BATCH + PLANE + BLOCKS + BLOCK * LANES


@inline
def take_row(source, start, target, to, width, columns):
    """Reads one row of a tile as `width` planes, filled up with zeros at the right edge of the image."""
    if columns >= LANES:
        if width == 3:
            load_columns(source, start * 3, 3, target, to)
        else:
            store(target, to, load(source, start))
    else:
        for i in range(LANES):
            for k in range(width):
                put(target, to + k * LANES + i, at(source, (start + i) * width + k) if i < columns else 0)


@inline
def load_pixels(
    row0, column0, image_gradient, transmittance, last_index, background, lines, lines_int, state, last, block_last
):
    """Reads a tile into block order. Pixels outside the image get no gradient."""
    height, width = transmittance.shape
    columns = width - column0
    for strip in range(0, TILE, BLOCK):
        for row in range(BLOCK):
            line = row * LINE
            if row0 + strip + row < height:
                pixel = (row0 + strip + row) * width + column0
                take_row(image_gradient, pixel, lines, line, 3, columns)
                take_row(transmittance, pixel, lines, line + 3 * LANES, 1, columns)
                take_row(last_index, pixel, lines_int, row * LANES, 1, columns)
            else:
                for i in range(line, line + LINE, LANES):
                    store(lines, i, spread(F(0.0)))
                store(lines_int, row * LANES, spread_int(0))
            behind = load(lines, line) * at(background, 0)
            behind = multiply_add(load(lines, line + LANES), at(background, 1), behind)
            behind = multiply_add(load(lines, line + 2 * LANES), at(background, 2), behind)
            store(lines, line + 4 * LANES, behind)
        for plane, target in enumerate((BY_RED, BY_GREEN, BY_BLUE, LEFT, BEHIND)):
            rows_to_blocks(lines, plane * LANES, LINE, state, target + strip * TILE)
        rows_to_blocks(lines_int, 0, LANES, last, strip * TILE)
    for block in range(BLOCKS):
        put(block_last, block, largest(load(last, block * LANES)))


@inline
def splat_sums(staged, base, blocks, index, cap, positions, state, last, absolute):
    """Walks the `blocks` that a splat reaches; returns its row of sums, and updates T and light from behind of their
    pixels to the values in front of the splat.

    Also returns lanes that begin with the sums of absolute values, if asked for.
    """
    a, b, c = load_spread(staged, base + A), load_spread(staged, base + B), load_spread(staged, base + C)
    offset_u, offset_v = load_spread(staged, base + OFFSET_U), load_spread(staged, base + OFFSET_V)
    red, green, blue = (
        load_spread(staged, base + RED),
        load_spread(staged, base + GREEN),
        load_spread(staged, base + BLUE),
    )
    top = load_spread(staged, base + POWER)
    zero = spread(F(0.0))
    g, gu, gv, guu, guv, gvv = zero, zero, zero, zero, zero, zero
    to_red, to_green, to_blue = zero, zero, zero
    absolute_x, absolute_y = zero, zero
    while blocks != 0:
        at_block = first_bit(blocks) * LANES
        blocks &= blocks - 1
        x, y = load(positions, at_block), load(positions, PLANE + at_block)
        u = multiply_add(x, a, multiply_add(y, b, offset_u))
        v = multiply_add(y, c, offset_v)
        power = multiply_add(negative(u), u, multiply_add(negative(v), v, top))
        blended = (power >= LOG2_ALPHA_MIN) & (load(last, at_block) > I32(index))
        uncapped = select(blended, exp2(power), zero)
        alpha = minimum(uncapped, cap)
        light = load(state, LEFT + at_block) / (F(1.0) - alpha)
        store(state, LEFT + at_block, light)
        by_red, by_green = load(state, BY_RED + at_block), load(state, BY_GREEN + at_block)
        by_blue, behind = load(state, BY_BLUE + at_block), load(state, BEHIND + at_block)
        gain = multiply_add(red, by_red, multiply_add(green, by_green, blue * by_blue)) - behind
        store(state, BEHIND + at_block, multiply_add(alpha, gain, behind))
        weight = alpha * light
        to_red = multiply_add(weight, by_red, to_red)
        to_green = multiply_add(weight, by_green, to_green)
        to_blue = multiply_add(weight, by_blue, to_blue)
        here = uncapped * light * gain
        here_u, here_v = here * u, here * v
        g += here
        gu += here_u
        gv += here_v
        guu = multiply_add(here_u, u, guu)
        guv = multiply_add(here_u, v, guv)
        gvv = multiply_add(here_v, v, gvv)
        if absolute:
            by_x, by_y = a * here_u, multiply_add(b, here_u, c * here_v)
            absolute_x += select(by_x >= F(0.0), by_x, negative(by_x))
            absolute_y += select(by_y >= F(0.0), by_y, negative(by_y))
    sums = totals(g, gu, gv, guu, guv, gvv, to_red, to_green, to_blue)
    return sums, totals(absolute_x, absolute_y, zero, zero, zero, zero, zero, zero, zero) if absolute else zero


@inline
def write_row(staged, base, blocks, index, cap, primitive, absolute, positions, state, last, lines, rows, row):
    """Writes the row of sums of a staged splat. Has a call for each case, so that flags are constant in inner loops."""
    planes = LEFT, BEHIND, BY_RED, BY_GREEN, BY_BLUE
    if primitive == F(FLAT) and not absolute:
        sums, _ = splat_sums(staged, base, blocks, index, cap, positions, state, last, False)
        store(rows, row, sums)
        return
    first = SUM_ABSOLUTE_X
    if primitive == F(FLAT):
        sums, more = splat_sums(staged, base, blocks, index, cap, positions, state, last, True)
    elif primitive == F(DISK):
        sums, more = tilted_sums(staged, base, blocks, index, cap, LOG2_ALPHA_MIN, True, positions, state, planes, last)
    else:
        sums, more = tilted_sums(
            staged, base, blocks, index, cap, LOG2_ALPHA_MIN, False, positions, state, planes, last
        )
    store(rows, row, sums)
    store(lines, 0, more)
    for i in range(MORE_SUMS):  # flattened Gaussians have two more sums; the others are zero
        put(rows, row + first + i, at(lines, i))


@kernel
def blend_backward(
    board,  # turns are tiles
    turns,
    worker,
    records,  # [slots * RECORD]
    tile_start,  # [T + 1]
    tile_slots,  # [I]
    tile_order,  # [T]
    background,  # [3]
    rule,  # [4] of the forward pass
    absolute,  # true if the sums of absolute values are wanted
    image_gradient,  # [H, W, 3] dL/d(image)
    transmittance,  # [H, W] of the forward pass
    last_index,  # [H, W] of the forward pass
    scratches,  # [workers, SCRATCH]
    scratches_int,  # [workers, SCRATCH_INT]
    rows,  # out [I * ROW] in list order
):
    """Writes the rows of sums of every tile."""
    columns, primitive = -(-transmittance.shape[1] // TILE), at(rule, 2)
    done = 0
    staged, state = scratches[worker, :STAGED], scratches[worker, STAGED : STAGED + STATE]
    positions = scratches[worker, STAGED + STATE : STAGED + STATE + 2 * PLANE]
    lines = scratches[worker, STAGED + STATE + 2 * PLANE :]
    masks, last = scratches_int[worker, :BATCH], scratches_int[worker, BATCH : BATCH + PLANE]
    block_last = scratches_int[worker, BATCH + PLANE : BATCH + PLANE + BLOCKS]
    lines_int = scratches_int[worker, BATCH + PLANE + BLOCKS :]
    for block in range(BLOCKS):
        x, y = block_pixels(block)
        store(positions, block * LANES, x)
        store(positions, PLANE + block * LANES, y)
    while True:
        turn = draw_turn(board)
        if turn >= turns:
            break
        done += 1
        tile = np.int64(tile_order[turn])
        start, end = np.int64(tile_start[tile]), np.int64(tile_start[tile + 1])
        if start == end:
            continue
        batch = start + (end - start - 1) // BATCH * BATCH
        prefetch_records(records, tile_slots, batch, end)
        row0, column0 = (tile // columns) * TILE, (tile % columns) * TILE
        load_pixels(
            row0,
            column0,
            image_gradient,
            transmittance,
            last_index,
            background,
            lines,
            lines_int,
            state,
            last,
            block_last,
        )
        ends = load(block_last, 0)
        center_x, center_y = F(column0 + TILE // 2), F(row0 + TILE // 2)
        while batch >= start:
            count = min(BATCH, end - batch)
            stage_splats(records, tile_slots, batch, count, center_x, center_y, F(0.0), rule, staged, masks)
            prefetch_records(records, tile_slots, max(batch - BATCH, start), batch)
            for j in range(count - 1, -1, -1):
                index = batch - start + j
                blocks = np.int64(at(masks, j)) & mask_bits(ends > I32(index))
                base, row, cap = j * RECORD, (batch + j) * ROW, at(rule, 0)
                write_row(
                    staged, base, blocks, index, cap, primitive, absolute, positions, state, last, lines, rows, row
                )
            batch -= BATCH
    report_turns(board, done)
