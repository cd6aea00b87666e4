"""Builds the tile lists: which splats each tile blends, nearest first.

Projection finds the tiles of each splat while the splat's numbers are in registers, in scene order. A counting sort
then takes the splats in depth order and appends each to the lists of its tiles. Read `blend.py` next.
"""

from __future__ import annotations

import numpy as np

from splatscope.kernels.constants import TILE
from splatscope.kernels.cpu.compile import inline, kernel
from splatscope.kernels.cpu.lane_io import at, load, put, store
from splatscope.kernels.cpu.lanes import (
    LANES,
    bits_mask,
    ceiling,
    floor,
    lane_numbers,
    largest,
    maximum,
    minimum,
    multiply_add,
    negative,
    select,
    spread_int,
    square_root,
    to_floats,
    to_ints,
)
from splatscope.kernels.cpu.records import CUTOFF, EXTREME, HALF_HEIGHT, HALF_WIDTH, MEAN_X, MEAN_Y, REACH, SLOPE, C
from splatscope.kernels.cpu.thread_pool import draw_turn, report_turns

F = np.float32
I32 = np.int32
CHUNK = 2048  # splats a worker takes at a time
COUNT_BITS = 24  # bits of the count in a span: start << 24 | count, the place of a slot's tiles in `tiles`
COUNT_MASK = (1 << COUNT_BITS) - 1
FIRST_CENTER, LAST_CENTER = F(0.5), F(TILE - 0.5)  # pixel centres of a tile, px from its corner


@inline
def tile_range(low, high, count):
    """Returns as ints the first tile with a pixel centre in [low, high] px, and one past the last; at most `count`."""
    first = ceiling((low - LAST_CENTER) * F(1.0 / TILE))
    end = floor((high - FIRST_CENTER) * F(1.0 / TILE)) + F(1.0)
    return to_ints(minimum(maximum(first, F(0.0)), F(count))), to_ints(minimum(maximum(end, F(0.0)), F(count)))


@inline
def row_edge(fields, height, side):
    """Returns the x of each ellipse's left (side -1) or right (+1) edge at a height; both in px from its mean."""
    v = load(fields, C * LANES) * height
    inside = maximum(load(fields, CUTOFF * LANES) - v * v, F(0.0))
    reach = square_root(inside) * load(fields, REACH * LANES)
    return multiply_add(load(fields, SLOPE * LANES), height, reach * side)


@inline
def span_tiles(fields, seen, rows, columns, row_span, spans):
    """Finds the tiles in which the sixteen splats of `fields` are listed. No other code decides that.

    With `row_span` a tile row lists a splat where the ellipse alpha >= 1/255 meets the row, from its first to its last
    line of pixel centres. The span is widest at the height of the ellipse's extreme point, clamped to these lines.
    Otherwise the span is the box of half width and height.

    Writes the span of each splat's k-th row: its first tile to spans[2 k * 16 ...], its length to spans[(2 k + 1) * 16
    ...]. Returns lanes with the number of rows and of tiles of each splat.
    """
    x, y = load(fields, MEAN_X * LANES), load(fields, MEAN_Y * LANES)
    half_width, half_height = load(fields, HALF_WIDTH * LANES), load(fields, HALF_HEIGHT * LANES)
    extreme = load(fields, EXTREME * LANES)
    none = spread_int(0)
    first_row, end_row = tile_range(y - half_height, y + half_height, rows)
    row_count = select(bits_mask(seen) & (end_row > first_row), end_row - first_row, none)
    first, end = tile_range(x - half_width, x + half_width, columns)
    tile_count = none
    for k in range(largest(row_count)):
        row = first_row + I32(k)
        if row_span:
            top = to_floats(row) * F(TILE) + FIRST_CENTER - y
            low = maximum(top, negative(half_height))
            high = minimum(top + (LAST_CENTER - FIRST_CENTER), half_height)
            left = row_edge(fields, minimum(maximum(negative(extreme), low), high), F(-1.0))
            right = row_edge(fields, minimum(maximum(extreme, low), high), F(1.0))
            first, end = tile_range(x + left, x + right, columns)
        length = select((row_count > I32(k)) & (end > first), end - first, none)
        store(spans, 2 * k * LANES, row * I32(columns) + first)
        store(spans, (2 * k + 1) * LANES, length)
        tile_count = tile_count + length
    return row_count, tile_count


@inline
def list_splat(spans, lane, row_count, tiles, start):
    """Writes the tiles of a splat, from the spans that `span_tiles` wrote, to tiles[start ...].

    Writes sixteen at a time. The next splat overwrites the surplus, or it falls into unused room.
    """
    for k in range(row_count):
        tile, length = at(spans, 2 * k * LANES + lane), np.int64(at(spans, (2 * k + 1) * LANES + lane))
        for i in range(0, length, LANES):
            store(tiles, start + i, lane_numbers() + I32(tile + i))
        start += length


@kernel
def count_tiles(
    board,  # turns are stretches of the depth order
    turns,
    worker,
    spans,  # [V] by depth
    tiles,
    histogram,  # out [turns, T] instances of each tile in each stretch
):
    """Counts the instances that each stretch adds to each tile's list."""
    visible, done = spans.size, 0
    while True:
        turn = draw_turn(board)
        if turn >= turns:
            break
        done += 1
        histogram[turn, :] = 0
        offset = turn * histogram.shape[1]
        for i in range(turn * visible // turns, (turn + 1) * visible // turns):
            span = at(spans, i)
            start = span >> COUNT_BITS
            for k in range(start, start + (span & COUNT_MASK)):
                place = offset + at(tiles, k)
                put(histogram, place, at(histogram, place) + 1)
    report_turns(board, done)


@kernel
def place_tiles(histogram, tile_start):
    """Turns counts [parts, T] into the position of each part's first instance, and fills tile_start [T + 1]."""
    position = 0
    for tile in range(histogram.shape[1]):
        tile_start[tile] = position
        for part in range(histogram.shape[0]):
            count = histogram[part, tile]
            histogram[part, tile] = position
            position += count
    tile_start[histogram.shape[1]] = position


@kernel
def fill_tiles(
    board,  # turns as in `count_tiles`
    turns,
    worker,
    order,  # [V] slots by depth
    spans,  # [V] by depth
    tiles,
    histogram,  # [turns, T] where each stretch starts in each list; advanced while writing
    tile_slots,  # out [I] the lists: by tile, then by depth
    places,  # out, unless it is empty: position in `tile_slots` of each entry of `tiles`
):
    """Writes the tile lists."""
    visible, done = spans.size, 0
    while True:
        turn = draw_turn(board)
        if turn >= turns:
            break
        done += 1
        offset = turn * histogram.shape[1]
        for i in range(turn * visible // turns, (turn + 1) * visible // turns):
            slot, span = at(order, i), at(spans, i)
            start = span >> COUNT_BITS
            for k in range(start, start + (span & COUNT_MASK)):
                cursor = offset + at(tiles, k)
                place = np.int64(at(histogram, cursor))
                put(histogram, cursor, place + 1)
                put(tile_slots, place, slot)
                if places.size != 0:
                    put(places, k, place)
    report_turns(board, done)
