"""Sorts the visible splats by depth; the sort is stable, so equal depths keep scene order.

Uses a radix sort, least significant digit first, of (depth bits, slot) packed in 64 bits. Positive floats order like
their bits. The smallest depth is subtracted first, so that only digits that differ are sorted. Several workers count
and move stretches of the array. The places of each stretch's pairs are fixed between counting and moving, so the order
does not depend on which worker takes which stretch. Read `bin.py` next.
"""

from __future__ import annotations

import numpy as np

from splatscope.kernels.cpu.bin import CHUNK
from splatscope.kernels.cpu.compile import inline, kernel
from splatscope.kernels.cpu.lane_io import at, put
from splatscope.kernels.cpu.thread_pool import draw_turn, report_turns

DIGIT = 11  # most bits that a pass sorts by: 2048 counters stay in the first-level cache
STRETCH = 8192  # least number of pairs in a turn


@kernel
def collect_pairs(
    board,  # turns are chunks of the scene
    turns,
    worker,
    depth_bits,  # [N] uint32 by slot
    chunk_visible,  # [chunks] slots used
    chunk_start,  # [chunks] number of visible splats in earlier chunks
    pairs,  # out [V] int64: depth bits << 32 | slot
    bounds,  # out [2, chunks] smallest and largest depth bits
):
    """Packs the slots in use, chunk after chunk."""
    done = 0
    while True:
        chunk = draw_turn(board)
        if chunk >= turns:
            break
        done += 1
        low, high = np.int64(0xFFFFFFFF), np.int64(0)
        place = np.int64(chunk_start[chunk])
        for slot in range(chunk * CHUNK, chunk * CHUNK + chunk_visible[chunk]):
            bits = np.int64(at(depth_bits, slot))
            low, high = min(low, bits), max(high, bits)
            put(pairs, place, (bits << 32) | slot)
            place += 1
        bounds[0, chunk], bounds[1, chunk] = low, high
    report_turns(board, done)


@inline
def digit_of(pair, low, shift, buckets):
    """Returns the digit that this pass sorts by."""
    return (((pair >> 32) - low) >> shift) & (buckets - 1)


@kernel
def count_digits(board, turns, worker, pairs, low, shift, histogram):
    """Counts the digits of each of `turns` stretches of pairs [V] into its row of histogram [turns, buckets]."""
    buckets, done = histogram.shape[1], 0
    while True:
        turn = draw_turn(board)
        if turn >= turns:
            break
        done += 1
        histogram[turn, :] = 0
        offset = turn * buckets
        for i in range(turn * pairs.size // turns, (turn + 1) * pairs.size // turns):
            counter = offset + digit_of(at(pairs, i), low, shift, buckets)
            put(histogram, counter, at(histogram, counter) + 1)
    report_turns(board, done)


@kernel
def place_digits(histogram):
    """Replaces each count by the place of the stretch's first pair with that digit."""
    place = 0
    for bucket in range(histogram.shape[1]):
        for turn in range(histogram.shape[0]):
            count = histogram[turn, bucket]
            histogram[turn, bucket] = place
            place += count


@kernel
def move_pairs(
    board,  # turns as in `count_digits`
    turns,
    worker,
    pairs,  # [V]
    low,
    shift,
    histogram,  # [turns, buckets] places; advanced while moving
    moved,  # out [V], empty in the last pass
    spans,  # [N] by slot
    order,  # out in the last pass [V]: slots
    ordered_spans,  # out in the last pass [V]
):
    """Moves each stretch of pairs to its places. The last pass also unpacks the slots and moves their spans."""
    buckets, done = histogram.shape[1], 0
    while True:
        turn = draw_turn(board)
        if turn >= turns:
            break
        done += 1
        offset = turn * buckets
        for i in range(turn * pairs.size // turns, (turn + 1) * pairs.size // turns):
            pair = at(pairs, i)
            counter = offset + digit_of(pair, low, shift, buckets)
            place = at(histogram, counter)
            put(histogram, counter, place + 1)
            if moved.size != 0:
                put(moved, place, pair)
            else:
                slot = pair & 0xFFFFFFFF
                put(order, place, slot)
                put(ordered_spans, place, at(spans, slot))
    report_turns(board, done)
