"""Front-to-back blending of each tile's list, with early stop.

A tile is sixteen blocks of 4x4 pixels and a block is one vector: T, colour and depth of its pixels stay
in registers while the splats that reach it go by. Splats are staged 64 at a time: records copied next to
each other with the mean moved to tile coordinates, and one word of 64 bits per block saying who reaches
it. Workers take tiles from a queue, longest list first. Read `blend_backward.py` next.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from splatscope.kernels.constants import ALPHA_CAP, TILE, TRANSMITTANCE_STOP
from splatscope.kernels.cpu.compile import inline, kernel, parallel_kernel
from splatscope.kernels.cpu.functions import exp2
from splatscope.kernels.cpu.lanes import (
    LANES,
    absolute,
    at,
    first_bit,
    lane_numbers,
    load,
    load_spread,
    mask_bits,
    maximum,
    minimum,
    multiply_add,
    put,
    select,
    spread,
    spread_int,
    store,
    take_number,
    to_floats,
)
from splatscope.kernels.cpu.project import LOG2_ALPHA_MIN
from splatscope.kernels.cpu.records import (
    BLUE,
    CUTOFF,
    DEPTH,
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

F = np.float32
I32 = np.int32
BATCH = 64  # splats staged together: one bit each in a block's word
BLOCK = 4  # pixels along a block
BLOCKS = 16  # of a tile, row by row; as many as there are lanes
CAP, STOP = F(ALPHA_CAP), F(TRANSMITTANCE_STOP)
MASK_SLACK = F(1.001)  # of the cut-off, so that rounding never hides a pixel from a splat that reaches it
# Planes of the pixel state, [BLOCKS * LANES] each.
PLANE = BLOCKS * LANES
LIGHT, LEFT, SUM_RED, SUM_GREEN, SUM_BLUE, SUM_DEPTH = 0, PLANE, 2 * PLANE, 3 * PLANE, 4 * PLANE, 5 * PLANE
STATE = 6 * PLANE
# Float32 scratch of a worker: staged records, then the state. Int32 scratch: splat masks, then last indices.
SCRATCH = BATCH * RECORD + STATE
SCRATCH_INT = BATCH + PLANE


@inline
def block_pixels(block):
    """x and y of a block's pixels from the centre of the tile, in px, as lanes."""
    lanes = lane_numbers()
    x = to_floats(lanes & I32(BLOCK - 1)) + F((block % BLOCK) * BLOCK - TILE // 2 + 0.5)
    y = to_floats(lanes >> I32(2)) + F((block // BLOCK) * BLOCK - TILE // 2 + 0.5)
    return x, y


@inline
def block_hits(staged, base):
    """Bits of the blocks that a staged splat may reach.

    In (u, v) the splat is a disc and a block a parallelogram: tested is the box around that parallelogram.
    """
    lanes = lane_numbers()
    x = to_floats((lanes & I32(3)) << I32(2)) - F(6.0)  # centre of each block from the centre of the tile
    y = to_floats((lanes >> I32(2)) << I32(2)) - F(6.0)
    a, b, c = at(staged, base + A), at(staged, base + B), at(staged, base + C)
    half = F(0.5 * (BLOCK - 1))
    u = multiply_add(x, a, multiply_add(y, b, at(staged, base + OFFSET_U)))
    v = multiply_add(y, c, at(staged, base + OFFSET_V))
    u = maximum(absolute(u) - half * (a + abs(b)), F(0.0))
    v = maximum(absolute(v) - half * c, F(0.0))
    return mask_bits(multiply_add(u, u, v * v) <= at(staged, base + CUTOFF) * MASK_SLACK)


@inline
def stage_splats(records, tile_slots, start, count, center_x, center_y, near, staged, masks):
    """Copies `count` listed records into `staged`, moved to the tile, and their block bits into `masks`."""
    for j in range(count):
        source = np.int64(at(tile_slots, start + j)) * RECORD
        base = j * RECORD
        store(staged, base, load(records, source))
        a, b, c = at(records, source + A), at(records, source + B), at(records, source + C)
        x, y = center_x - at(records, source + MEAN_X), center_y - at(records, source + MEAN_Y)
        put(staged, base + OFFSET_U, a * x + b * y)
        put(staged, base + OFFSET_V, c * y)
        put(staged, base + DEPTH, at(records, source + DEPTH) - near)
        put(masks, j, block_hits(staged, base))


@inline
def block_word(masks, block, count):
    """The masks seen from one block: bit j says that staged splat j may reach it."""
    bit = I32(1) << I32(block)
    word = np.int64(0)
    for part in range(0, count, LANES):
        word |= mask_bits((load(masks, part) & bit) > I32(0)) << part
    if count < BATCH:
        word &= (np.int64(1) << count) - 1
    return word


@inline
def blend_block(staged, word, block, index, state, last):
    """Blends the splats of `word` into one block. Returns whether any pixel goes on.

    T runs on below the stop, so that "T after this splat >= stop" is false for good once it is false;
    what is left for the background is kept apart.
    """
    x, y = block_pixels(block)
    at_block = block * LANES
    light, left = load(state, LIGHT + at_block), load(state, LEFT + at_block)
    red, green = load(state, SUM_RED + at_block), load(state, SUM_GREEN + at_block)
    blue, depth = load(state, SUM_BLUE + at_block), load(state, SUM_DEPTH + at_block)
    ends = load(last, at_block)
    going_on = light >= STOP
    while word != 0:
        j = first_bit(word)
        word &= word - 1
        base = j * RECORD
        u = multiply_add(
            x,
            load_spread(staged, base + A),
            multiply_add(y, load_spread(staged, base + B), load_spread(staged, base + OFFSET_U)),
        )
        v = multiply_add(y, load_spread(staged, base + C), load_spread(staged, base + OFFSET_V))
        power = load_spread(staged, base + POWER) - u * u - v * v
        alpha = select(power >= LOG2_ALPHA_MIN, minimum(exp2(power), CAP), spread(F(0.0)))
        weight = light * alpha
        light = light - weight
        going_on = light >= STOP
        weight = select(going_on, weight, spread(F(0.0)))
        left = select(going_on, light, left)
        ends = select(going_on, spread_int(index + j + 1), ends)
        red = multiply_add(weight, load_spread(staged, base + RED), red)
        green = multiply_add(weight, load_spread(staged, base + GREEN), green)
        blue = multiply_add(weight, load_spread(staged, base + BLUE), blue)
        depth = multiply_add(weight, load_spread(staged, base + DEPTH), depth)
    store(state, LIGHT + at_block, light)
    store(state, LEFT + at_block, left)
    store(state, SUM_RED + at_block, red)
    store(state, SUM_GREEN + at_block, green)
    store(state, SUM_BLUE + at_block, blue)
    store(state, SUM_DEPTH + at_block, depth)
    store(last, at_block, ends)
    return mask_bits(going_on) != 0


@inline
def blocks_on_image(rows, columns):
    """Bits of the blocks with a pixel among the first rows x columns of the tile."""
    lanes = lane_numbers()
    x, y = (lanes & I32(3)) << I32(2), (lanes >> I32(2)) << I32(2)
    return mask_bits((x < I32(columns)) & (y < I32(rows)))


@inline
def blend_tile(records, tile_slots, start, end, center_x, center_y, blocks, scratch, scratch_int):
    """Blends one list into the state planes of `scratch`; `blocks` are those on the image."""
    staged, state = scratch[: BATCH * RECORD], scratch[BATCH * RECORD :]
    masks, last = scratch_int[:BATCH], scratch_int[BATCH:]
    for i in range(0, PLANE, LANES):
        store(state, LIGHT + i, spread(F(1.0)))
        store(state, LEFT + i, spread(F(1.0)))
        for plane in range(SUM_RED, STATE, PLANE):
            store(state, plane + i, spread(F(0.0)))
        store(last, i, spread_int(0))
    near = at(records, np.int64(at(tile_slots, start)) * RECORD + DEPTH)
    for batch in range(start, end, BATCH):
        count = min(BATCH, end - batch)
        stage_splats(records, tile_slots, batch, count, center_x, center_y, near, staged, masks)
        waiting = blocks
        while waiting != 0:
            block = first_bit(waiting)
            waiting &= waiting - 1
            word = block_word(masks, block, count)
            if word != 0 and not blend_block(staged, word, block, batch - start, state, last):
                blocks &= ~(np.int64(1) << block)
        if blocks == 0:
            break
    return near


@inline
def write_tile(state, last, near, background, row0, column0, image, depth, transmittance, last_index):
    """Moves a tile from block order to the image: colour over the background, depth, what is left."""
    height, width = transmittance.shape
    for row in range(row0, min(row0 + TILE, height)):
        for column in range(column0, min(column0 + TILE, width)):
            y, x = row - row0, column - column0
            i = ((y // BLOCK) * BLOCK + x // BLOCK) * LANES + (y % BLOCK) * BLOCK + x % BLOCK
            left = at(state, LEFT + i)
            pixel = row * width + column
            put(image, pixel * 3, at(state, SUM_RED + i) + left * at(background, 0))
            put(image, pixel * 3 + 1, at(state, SUM_GREEN + i) + left * at(background, 1))
            put(image, pixel * 3 + 2, at(state, SUM_BLUE + i) + left * at(background, 2))
            # The weights of a pixel add up to 1 - left; 0 / 0 is the NaN of an empty pixel.
            put(depth, pixel, near + at(state, SUM_DEPTH + i) / (F(1.0) - left))
            put(transmittance, pixel, left)
            put(last_index, pixel, at(last, i))


@inline
def clear_tile(background, row0, column0, image, depth, transmittance, last_index):
    """Fills an empty tile."""
    height, width = transmittance.shape
    for row in range(row0, min(row0 + TILE, height)):
        for pixel in range(row * width + column0, row * width + min(column0 + TILE, width)):
            put(image, pixel * 3, at(background, 0))
            put(image, pixel * 3 + 1, at(background, 1))
            put(image, pixel * 3 + 2, at(background, 2))
            put(depth, pixel, F(np.nan))
            put(transmittance, pixel, F(1.0))
            put(last_index, pixel, 0)


@kernel
def order_tiles(tile_start, histogram, tile_order):
    """Tiles by falling list length, by powers of two: the longest start first so that no worker ends alone."""
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
    """Number of bits of a list length."""
    bits = 0
    while length > 0:
        length >>= 1
        bits += 1
    return bits


@parallel_kernel
def blend(
    records,  # [slots * RECORD]
    tile_start,  # [T + 1]
    tile_slots,  # [I]
    tile_order,  # [T] in which tiles are taken
    background,  # [3]
    workers,
    queue,  # [1] zero at the start
    scratches,  # [workers, SCRATCH]
    scratches_int,  # [workers, SCRATCH_INT]
    image,  # out [H, W, 3]
    depth,  # out [H, W]
    transmittance,  # out [H, W]
    last_index,  # out [H, W] entries of its tile's list a pixel went through; backward starts there
):
    """Blends every tile."""
    height, width = transmittance.shape
    columns = -(-width // TILE)
    for worker in prange(workers):
        scratch, scratch_int = scratches[worker], scratches_int[worker]
        while True:
            turn = take_number(queue)
            if turn >= tile_order.size:
                break
            tile = np.int64(tile_order[turn])
            row0, column0 = (tile // columns) * TILE, (tile % columns) * TILE
            start, end = np.int64(tile_start[tile]), np.int64(tile_start[tile + 1])
            if start == end:
                clear_tile(background, row0, column0, image, depth, transmittance, last_index)
                continue
            blocks = blocks_on_image(height - row0, width - column0)
            center_x, center_y = F(column0 + TILE // 2), F(row0 + TILE // 2)
            near = blend_tile(records, tile_slots, start, end, center_x, center_y, blocks, scratch, scratch_int)
            state, last = scratch[BATCH * RECORD :], scratch_int[BATCH:]
            write_tile(state, last, near, background, row0, column0, image, depth, transmittance, last_index)
