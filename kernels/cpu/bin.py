"""Tile lists: which splats each tile blends, nearest first.

`list_tiles` is the one place that decides where a splat is listed; projection calls it to count and
`emit_tiles` to write, so the two cannot disagree. Splats are listed in memory order first (records are
read in sequence), then a stable counting sort by tile takes them in depth order. Read `blend.py` next.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from splatscope.kernels.constants import TILE
from splatscope.kernels.cpu.compile import inline, kernel, parallel_kernel
from splatscope.kernels.cpu.lanes import at, put
from splatscope.kernels.cpu.records import (
    C,
    CUTOFF,
    EXTREME,
    HALF_HEIGHT,
    HALF_WIDTH,
    MEAN_X,
    MEAN_Y,
    REACH,
    RECORD,
    SLOPE,
)

F = np.float32
CHUNK = 2048  # splats a worker takes at a time
FIRST_CENTER, LAST_CENTER = F(0.5), F(TILE - 0.5)  # pixel centres of a tile, px from its corner


@inline
def tile_range(low, high, count):
    """First and one past the last of `count` tiles with a pixel centre in [low, high] px."""
    limit = F(count)
    first = min(max(np.ceil((low - LAST_CENTER) * F(1.0 / TILE)), F(0.0)), limit)
    end = min(max(np.floor((high - FIRST_CENTER) * F(1.0 / TILE)) + F(1.0), F(0.0)), limit)
    return np.int64(first), np.int64(end)


@inline
def row_edge(records, base, height, side):
    """Left (side -1) or right (+1) edge of the ellipse at `height` px from the mean, px from the mean."""
    v = at(records, base + C) * height
    inside = max(F(0.0), at(records, base + CUTOFF) - v * v)
    return at(records, base + SLOPE) * height + side * np.sqrt(inside) * at(records, base + REACH)


@inline
def list_tiles(records, base, tile_rows, tile_columns, row_span, tiles, start):
    """Counts the tiles of the record at `base`; with start >= 0 also writes their numbers from there on.

    With `row_span` a tile row lists what the ellipse alpha >= 1/255 covers between its first and its last
    pixel-centre row: the span is widest at the ellipse's extreme height clamped to that slab. Without, the
    box of the half width and height.
    """
    x, y = at(records, base + MEAN_X), at(records, base + MEAN_Y)
    half_width, half_height = at(records, base + HALF_WIDTH), at(records, base + HALF_HEIGHT)
    extreme = at(records, base + EXTREME)
    first_row, end_row = tile_range(y - half_height, y + half_height, tile_rows)
    first, end = tile_range(x - half_width, x + half_width, tile_columns)
    count = 0
    for row in range(first_row, end_row):
        if row_span:
            top = F(row * TILE) + FIRST_CENTER - y
            bottom = top + (LAST_CENTER - FIRST_CENTER)
            top, bottom = max(top, -half_height), min(bottom, half_height)
            left = row_edge(records, base, min(max(-extreme, top), bottom), F(-1.0))
            right = row_edge(records, base, min(max(extreme, top), bottom), F(1.0))
            first, end = tile_range(x + left, x + right, tile_columns)
        if start >= 0:
            for column in range(first, end):
                put(tiles, start + count + column - first, row * tile_columns + column)
        count += max(0, end - first)
    return count


@kernel
def place_chunks(chunk_visible, chunk_instances, visible_start, instance_start):
    """Exclusive sums over the chunks of projection. Returns (visible, instances)."""
    visible, instances = 0, 0
    for chunk in range(chunk_visible.size):
        visible_start[chunk], instance_start[chunk] = visible, instances
        visible += chunk_visible[chunk]
        instances += chunk_instances[chunk]
    return visible, instances


@parallel_kernel
def emit_tiles(
    records,  # [N * RECORD]
    tile_counts,  # [N] tiles of each slot
    chunk_visible,  # [chunks]
    instance_start,  # [chunks]
    tile_rows,
    tile_columns,
    row_span,
    slot_start,  # out [N] first instance of each slot, in memory order
    tiles,  # out [I] tile of each instance, in memory order
):
    """Lists the tiles of every visible splat in memory order."""
    for chunk in prange(chunk_visible.size):
        start = np.int64(instance_start[chunk])
        first = chunk * CHUNK
        for slot in range(first, first + chunk_visible[chunk]):
            put(slot_start, slot, start)
            list_tiles(records, slot * RECORD, tile_rows, tile_columns, row_span, tiles, start)
            start += at(tile_counts, slot)


@parallel_kernel
def count_tiles(order, visible, tile_counts, slot_start, tiles, parts, histogram):
    """Instances of each tile among each of `parts` stretches of the depth order, into histogram [parts, T]."""
    for part in prange(parts):
        histogram[part, :] = 0
        for i in range(part * visible // parts, (part + 1) * visible // parts):
            slot = np.int64(at(order, i))
            start = np.int64(at(slot_start, slot))
            for k in range(start, start + at(tile_counts, slot)):
                histogram[part, at(tiles, k)] += 1


@kernel
def place_tiles(histogram, tile_start):
    """Turns counts [parts, T] into the position of each part's first instance; tile_start [T + 1]."""
    position = 0
    for tile in range(histogram.shape[1]):
        tile_start[tile] = position
        for part in range(histogram.shape[0]):
            count = histogram[part, tile]
            histogram[part, tile] = position
            position += count
    tile_start[histogram.shape[1]] = position


@parallel_kernel
def fill_tiles(order, visible, tile_counts, slot_start, tiles, parts, histogram, tile_slots, places):
    """Writes the lists: tile_slots [I] by tile then depth, places [I] where each memory-order instance went."""
    for part in prange(parts):
        for i in range(part * visible // parts, (part + 1) * visible // parts):
            slot = np.int64(at(order, i))
            start = np.int64(at(slot_start, slot))
            for k in range(start, start + at(tile_counts, slot)):
                tile = at(tiles, k)
                place = np.int64(histogram[part, tile])
                histogram[part, tile] = place + 1
                put(tile_slots, place, slot)
                put(places, k, place)
