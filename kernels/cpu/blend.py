"""Blends each tile's list front to back, and stops early.

A tile is sixteen blocks of 4x4 pixels, and a block is one vector. Transmittance T, colour and depth of its pixels stay
in registers while the splats that reach the block are blended. Splats are staged in batches: their records are copied
next to each other, with the mean relative to the tile, and each gets a mask of the blocks that it may reach. Workers
take tiles from a queue, longest list first. Read `blend_backward.py` next.
"""

from __future__ import annotations

import numpy as np

from splatscope.kernels.constants import TILE, TRANSMITTANCE_STOP
from splatscope.kernels.cpu.clock import now_ns
from splatscope.kernels.cpu.compile import inline, kernel
from splatscope.kernels.cpu.functions import exp2
from splatscope.kernels.cpu.lane_io import at, blocks_to_rows, load, load_spread, prefetch, put, store, store_columns
from splatscope.kernels.cpu.lanes import (
    LANES,
    absolute,
    first_bit,
    lane_numbers,
    mask_bits,
    maximum,
    minimum,
    multiply_add,
    negative,
    select,
    spread,
    spread_int,
    to_floats,
)
from splatscope.kernels.cpu.project import LOG2_ALPHA_MIN
from splatscope.kernels.cpu.records import (
    BLUE,
    CUTOFF,
    DEPTH,
    DISK,
    FLAT,
    GREEN,
    MEAN_X,
    MEAN_Y,
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
from splatscope.kernels.cpu.tilted import falloff_tilted, stage_tilted

F = np.float32
I32 = np.int32
BATCH = 128  # splats staged together
WORD = 64  # splats that share a word, one bit each
BLOCK = 4  # pixels along a block
BLOCKS = 16  # blocks of a tile, row by row; as many as there are lanes
STOP = F(TRANSMITTANCE_STOP)
MASK_SLACK = F(1.001)  # factor on the cut-off, so that rounding never hides a pixel that the splat reaches
# Planes of the pixel state, [BLOCKS * LANES] each.
PLANE = BLOCKS * LANES
LIGHT, LEFT, SUM_RED, SUM_GREEN, SUM_BLUE, SUM_DEPTH = 0, PLANE, 2 * PLANE, 3 * PLANE, 4 * PLANE, 5 * PLANE
STATE = 6 * PLANE
STAGED = BATCH * RECORD
LINE = 5 * LANES  # floats in a row of a tile before it is written: red, green, blue, transmittance, depth
# Float32 scratch of a worker: staged records, state, lines. Int32 scratch: splat masks, last indices, lines.
SCRATCH = STAGED + STATE + BLOCK * LINE
SCRATCH_INT = BATCH + PLANE + BLOCK * LANES


@inline
def block_pixels(block):
    """Returns x and y of a block's pixels relative to the tile's centre, in px, as lanes."""
    lanes = lane_numbers()
    x = to_floats(lanes & I32(BLOCK - 1)) + F((block % BLOCK) * BLOCK - TILE // 2 + 0.5)
    y = to_floats(lanes >> I32(2)) + F((block // BLOCK) * BLOCK - TILE // 2 + 0.5)
    return x, y


@inline
def block_hits(a, b, c, offset_u, offset_v, cutoff):
    """Returns bits of the blocks that a splat may reach, from its whitening and its (u, v) at the tile's centre.

    In (u, v) the splat is a disc and a block is a parallelogram. The test takes the box around the parallelogram.
    """
    lanes = lane_numbers()
    x = to_floats((lanes & I32(3)) << I32(2)) - F(6.0)  # centre of each block from the centre of the tile
    y = to_floats((lanes >> I32(2)) << I32(2)) - F(6.0)
    half = F(0.5 * (BLOCK - 1))
    u = multiply_add(x, a, multiply_add(y, b, offset_u))
    v = multiply_add(y, c, offset_v)
    u = maximum(absolute(u) - half * (a + abs(b)), F(0.0))
    v = maximum(absolute(v) - half * c, F(0.0))
    return mask_bits(multiply_add(u, u, v * v) <= cutoff * MASK_SLACK)


@inline
def prefetch_records(records, tile_slots, start, end):
    """Starts to load the records of a stretch of a list, which are scattered in memory."""
    for i in range(start, end):
        prefetch(records, np.int64(at(tile_slots, i)) * RECORD)


@inline
def stage_splats(records, tile_slots, start, count, center_x, center_y, near, rule, staged, masks):
    """Copies `count` listed records to `staged`, relative to the tile, and writes their block bits to `masks`."""
    primitive = at(rule, 2)
    for j in range(count):
        source = np.int64(at(tile_slots, start + j)) * RECORD
        base = j * RECORD
        store(staged, base, load(records, source))
        if primitive != F(FLAT):
            a, b, c, u, v, size = stage_tilted(
                records, source, staged, base, center_x, center_y, LOG2_ALPHA_MIN, primitive == F(DISK), at(rule, 3)
            )
            put(masks, j, block_hits(a, b, c, u, v, size) if size > F(0.0) else np.int64(0xFFFF))
            continue
        a, b, c = at(records, source + A), at(records, source + B), at(records, source + C)
        x, y = center_x - at(records, source + MEAN_X), center_y - at(records, source + MEAN_Y)
        u, v = a * x + b * y, c * y
        put(staged, base + OFFSET_U, u)
        put(staged, base + OFFSET_V, v)
        put(staged, base + DEPTH, at(records, source + DEPTH) - near)
        put(masks, j, block_hits(a, b, c, u, v, at(records, source + CUTOFF)))


@inline
def block_word(masks, block, first, count):
    """Returns a block's bits of the masks: bit j is set if staged splat first + j may reach the block."""
    bit = I32(1) << I32(block)
    word = np.int64(0)
    for part in range(0, min(count - first, WORD), LANES):
        word |= mask_bits((load(masks, first + part) & bit) > I32(0)) << part
    if count - first < WORD:
        word &= (np.int64(1) << (count - first)) - 1
    return word


@inline
def falloff(staged, base, x, y):
    """Returns log2 of a staged splat's alpha before the cap, and its u and v, at pixels (x, y)."""
    u = multiply_add(y, load_spread(staged, base + B), load_spread(staged, base + OFFSET_U))
    u = multiply_add(x, load_spread(staged, base + A), u)
    v = multiply_add(y, load_spread(staged, base + C), load_spread(staged, base + OFFSET_V))
    power = multiply_add(negative(v), v, load_spread(staged, base + POWER))
    return multiply_add(negative(u), u, power), u, v


@inline
def alpha_of(power, cap):
    """Returns alpha from log2 of alpha: capped, and 0 below 1/255."""
    return select(power >= LOG2_ALPHA_MIN, minimum(exp2(power), cap), spread(F(0.0)))


@inline
def blend_over(staged, j, index, alpha, seen_depth, pixels, keeps_last):
    """Blends staged splat j behind the splats in `pixels`; returns the new pixels.

    T falls further after the stop, so that the test "T after this splat >= stop" stays false once it is false. If
    `keeps_last` is 1, T before the splat is tested instead. The transmittance left for the background is kept
    separately.
    """
    light, left, ends, red, green, blue, depth = pixels
    base = j * RECORD
    weight = light * alpha
    light = light - weight
    going_on = multiply_add(weight, keeps_last, light) >= STOP
    weight = select(going_on, weight, spread(F(0.0)))
    return (
        light,
        select(going_on, light, left),
        select(going_on, spread_int(index + j + 1), ends),
        multiply_add(weight, load_spread(staged, base + RED), red),
        multiply_add(weight, load_spread(staged, base + GREEN), green),
        multiply_add(weight, load_spread(staged, base + BLUE), blue),
        multiply_add(weight, seen_depth, depth),
    )


@inline
def blend_block(staged, masks, count, block, index, rule, state, last):
    """Blends into a block the staged splats that reach it. Returns true if any pixel has not stopped."""
    x, y = block_pixels(block)
    at_block, primitive = block * LANES, at(rule, 2)
    light = load(state, LIGHT + at_block)
    pixels = (
        light,
        load(state, LEFT + at_block),
        load(last, at_block),
        load(state, SUM_RED + at_block),
        load(state, SUM_GREEN + at_block),
        load(state, SUM_BLUE + at_block),
        load(state, SUM_DEPTH + at_block),
    )
    for first in range(0, count, WORD):
        word = block_word(masks, block, first, count)
        while word != 0:
            j = first + first_bit(word)
            word &= word - 1
            seen_depth = load_spread(staged, j * RECORD + DEPTH)
            if primitive == F(FLAT):
                power, _, _ = falloff(staged, j * RECORD, x, y)
            else:
                power, _, _, q, inverse, _ = falloff_tilted(staged, j * RECORD, x, y, primitive == F(DISK))
                seen_depth = seen_depth * (q * inverse)
            pixels = blend_over(staged, j, index, alpha_of(power, at(rule, 0)), seen_depth, pixels, at(rule, 1))
        if mask_bits(pixels[0] >= STOP) == 0:
            break
    light, left, ends, red, green, blue, depth = pixels
    store(state, LIGHT + at_block, light)
    store(state, LEFT + at_block, left)
    store(last, at_block, ends)
    store(state, SUM_RED + at_block, red)
    store(state, SUM_GREEN + at_block, green)
    store(state, SUM_BLUE + at_block, blue)
    store(state, SUM_DEPTH + at_block, depth)
    return mask_bits(light >= STOP) != 0


@inline
def blocks_on_image(rows, columns):
    """Returns bits of the blocks that have a pixel in the tile's first `rows` and `columns`."""
    lanes = lane_numbers()
    x, y = (lanes & I32(3)) << I32(2), (lanes >> I32(2)) << I32(2)
    return mask_bits((x < I32(columns)) & (y < I32(rows)))


@inline
def blend_tile(records, tile_slots, start, end, center_x, center_y, blocks, rule, staged, state, masks, last):
    """Blends one list into the planes of the pixel state. `blocks` has bits of the blocks on the image.

    Returns the depth to which sums of depth are relative, and the number of entries visited.
    """
    prefetch_records(records, tile_slots, start, min(start + BATCH, end))
    for i in range(0, PLANE, LANES):
        store(state, LIGHT + i, spread(F(1.0)))
        store(state, LEFT + i, spread(F(1.0)))
        for plane in range(SUM_RED, STATE, PLANE):
            store(state, plane + i, spread(F(0.0)))
        store(last, i, spread_int(0))
    # Depths are summed relative to the nearest splat's, which loses less precision. Disks and rays have no such depth:
    # theirs differs from pixel to pixel.
    near = at(records, np.int64(at(tile_slots, start)) * RECORD + DEPTH) if at(rule, 2) == F(FLAT) else F(0.0)
    walked = np.int64(0)
    for batch in range(start, end, BATCH):
        count = min(BATCH, end - batch)
        walked = batch + count - start
        stage_splats(records, tile_slots, batch, count, center_x, center_y, near, rule, staged, masks)
        prefetch_records(records, tile_slots, batch + count, min(batch + count + BATCH, end))
        waiting = blocks
        while waiting != 0:
            block = first_bit(waiting)
            waiting &= waiting - 1
            if not blend_block(staged, masks, count, block, batch - start, rule, state, last):
                blocks &= ~(np.int64(1) << block)
        if blocks == 0:
            break
    return near, walked


@inline
def put_row(source, start, target, to, columns):
    """Writes one row of a tile: sixteen pixels, or fewer at the right edge of the image."""
    if columns >= LANES:
        store(target, to, load(source, start))
    else:
        for i in range(columns):
            put(target, to + i, at(source, start + i))


@inline
def put_colors(source, start, target, to, columns):
    """Writes three planes of a row as interleaved colours; otherwise as `put_row`."""
    if columns >= LANES:
        store_columns(source, start, 3, target, to * 3)
    else:
        for i in range(columns):
            for channel in range(3):
                put(target, (to + i) * 3 + channel, at(source, start + channel * LANES + i))


@inline
def write_tile(state, last, near, background, row0, column0, lines, lines_int, image, depth, transmittance, last_index):
    """Writes a tile from block order to the image: colour over the background, depth, transmittance."""
    height, width = transmittance.shape
    columns = width - column0
    for strip in range(0, min(TILE, height - row0), BLOCK):
        # A line holds the planes red, green, blue, left and depth of one row.
        for plane, source in enumerate((SUM_RED, SUM_GREEN, SUM_BLUE, LEFT, SUM_DEPTH)):
            blocks_to_rows(state, source + strip * TILE, lines, plane * LANES, LINE)
        blocks_to_rows(last, strip * TILE, lines_int, 0, LANES)
        for row in range(min(BLOCK, height - row0 - strip)):
            line, pixel = row * LINE, (row0 + strip + row) * width + column0
            left = load(lines, line + 3 * LANES)
            for channel in range(3):
                color = multiply_add(left, at(background, channel), load(lines, line + channel * LANES))
                store(lines, line + channel * LANES, color)
            # The weights of a pixel add up to 1 - left. An empty pixel gives 0 / 0: the NaN that `Frame` promises.
            store(lines, line + 4 * LANES, load(lines, line + 4 * LANES) / (F(1.0) - left) + near)
            put_colors(lines, line, image, pixel, columns)
            put_row(lines, line + 3 * LANES, transmittance, pixel, columns)
            put_row(lines, line + 4 * LANES, depth, pixel, columns)
            put_row(lines_int, row * LANES, last_index, pixel, columns)


@inline
def clear_tile(background, row0, column0, lines, lines_int, image, depth, transmittance, last_index):
    """Writes a tile without splats."""
    height, width = transmittance.shape
    for channel in range(3):
        store(lines, channel * LANES, spread(at(background, channel)))
    store(lines, 3 * LANES, spread(F(1.0)))
    store(lines, 4 * LANES, spread(F(np.nan)))
    store(lines_int, 0, spread_int(0))
    for row in range(row0, min(row0 + TILE, height)):
        pixel, columns = row * width + column0, width - column0
        put_colors(lines, 0, image, pixel, columns)
        put_row(lines, 3 * LANES, transmittance, pixel, columns)
        put_row(lines, 4 * LANES, depth, pixel, columns)
        put_row(lines_int, 0, last_index, pixel, columns)


@kernel
def order_tiles(tile_start, histogram, tile_order):
    """Orders tiles by list length in powers of two, longest first, so that no worker ends long after the others."""
    tiles = tile_start.size - 1
    histogram[:] = 0
    for tile in range(tiles):
        histogram[length_class(tile_start[tile + 1] - tile_start[tile])] += 1
    position = 0
    for bin_ in range(histogram.size - 1, -1, -1):
        count = histogram[bin_]
        histogram[bin_] = position
        position += count
    for tile in range(tiles):
        bin_ = length_class(tile_start[tile + 1] - tile_start[tile])
        tile_order[histogram[bin_]] = tile
        histogram[bin_] += 1


@inline
def length_class(length):
    """Returns the number of bits that a list length has."""
    bits = 0
    while length > 0:
        length >>= 1
        bits += 1
    return bits


@kernel
def blend(
    board,  # turns are tiles
    turns,
    worker,
    records,  # [slots * RECORD]
    tile_start,  # [T + 1]
    tile_slots,  # [I]
    tile_order,  # [T] the order in which tiles are taken
    background,  # [3]
    rule,  # [4] the cap on alpha; 1 if the splat that ends a pixel is blended, else 0; the primitive; the near plane
    scratches,  # [workers, SCRATCH]
    scratches_int,  # [workers, SCRATCH_INT]
    image,  # out [H, W, 3]
    depth,  # out [H, W]
    transmittance,  # out [H, W]
    last_index,  # out [H, W] entries of the tile's list that a pixel visited; backward starts there
    units,  # out [T, 4] start and end in ns, worker, entries visited; [0, 4] if not wanted
):
    """Blends every tile."""
    height, width = transmittance.shape
    columns = -(-width // TILE)
    done = 0
    staged, state = scratches[worker, :STAGED], scratches[worker, STAGED : STAGED + STATE]
    lines = scratches[worker, STAGED + STATE :]
    masks, last = scratches_int[worker, :BATCH], scratches_int[worker, BATCH : BATCH + PLANE]
    lines_int = scratches_int[worker, BATCH + PLANE :]
    while True:
        turn = draw_turn(board)
        if turn >= turns:
            break
        done += 1
        tile = np.int64(tile_order[turn])
        row0, column0 = (tile // columns) * TILE, (tile % columns) * TILE
        start, end = np.int64(tile_start[tile]), np.int64(tile_start[tile + 1])
        if units.size > 0:
            units[tile, 0], units[tile, 2] = now_ns(), worker
        if start == end:
            clear_tile(background, row0, column0, lines, lines_int, image, depth, transmittance, last_index)
            if units.size > 0:
                units[tile, 1], units[tile, 3] = now_ns(), 0
            continue
        blocks = blocks_on_image(height - row0, width - column0)
        center_x, center_y = F(column0 + TILE // 2), F(row0 + TILE // 2)
        near, walked = blend_tile(
            records, tile_slots, start, end, center_x, center_y, blocks, rule, staged, state, masks, last
        )
        write_tile(
            state, last, near, background, row0, column0, lines, lines_int, image, depth, transmittance, last_index
        )
        if units.size > 0:
            units[tile, 1], units[tile, 3] = now_ns(), walked
    report_turns(board, done)
