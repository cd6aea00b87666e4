"""One depth sort of the visible splats: stable, so equal depths keep scene order.

A least-significant-digit radix sort of (depth bits, slot) packed in 64 bits. Positive floats order like
their bits; the smallest is subtracted first, so that only digits that differ are sorted.
"""

from __future__ import annotations

import numpy as np

from splatscope.kernels.cpu.compile import kernel
from splatscope.kernels.cpu.memory import at, put

CHUNK = 2048  # as in `bin.py`: slots of a chunk of the scene start at chunk * CHUNK
DIGIT = 11  # bits a pass: 2048 counters stay in the first-level cache
BUCKETS = 1 << DIGIT


@kernel
def sort_by_depth(
    depth_bits,  # [N] uint32 by slot
    chunk_visible,  # [chunks] slots used
    visible,
    pairs,  # scratch [V] int64
    spare,  # scratch [V] int64
    positions,  # scratch [BUCKETS] int64
    order,  # out [V] slots, nearest first
):
    """Sorts the slots in use by depth."""
    low, high = np.int64(0xFFFFFFFF), np.int64(0)
    filled = 0
    for chunk in range(chunk_visible.size):
        for slot in range(chunk * CHUNK, chunk * CHUNK + chunk_visible[chunk]):
            bits = np.int64(at(depth_bits, slot))
            low, high = min(low, bits), max(high, bits)
            put(pairs, filled, (bits << 32) | slot)
            filled += 1

    span, shift = high - low, 0
    while span >> shift > 0:
        positions[:] = 0
        for i in range(visible):
            positions[(((at(pairs, i) >> 32) - low) >> shift) & (BUCKETS - 1)] += 1
        total = 0
        for bucket in range(BUCKETS):
            count = positions[bucket]
            positions[bucket] = total
            total += count
        for i in range(visible):
            pair = at(pairs, i)
            bucket = (((pair >> 32) - low) >> shift) & (BUCKETS - 1)
            put(spare, positions[bucket], pair)
            positions[bucket] += 1
        pairs, spare = spare, pairs
        shift += DIGIT
    for i in range(visible):
        put(order, i, at(pairs, i) & 0xFFFFFFFF)
