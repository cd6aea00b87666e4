// From splats in depth order to the list of each tile.
//
// `emit` gives every (splat, tile) pair a place, splat after splat in depth order, and writes its tile as sort key
// and the splat's slot as payload. 256 threads a block; blocks take parts of 256 splats by ticket until none is
// left. Counts were made by project.cuh with the same function (tiles.cuh); their sums across blocks come by
// look-back (scan.cuh). A warp writes the pairs of its 32 splats side by side: small splats a lane each, through
// shared memory; where there are large ones, a lane a tile row and then a lane a pair, so that a splat of thousands of
// tiles keeps all lanes busy. Its blocks also count the digits of the keys, so that the sort (sort.cuh) needs no
// histogram of its own. Shared: 12 KB, and 1 KB a byte of the key.
// `ranges` finds where each tile begins among the sorted keys: a thread a key, 256 a block; shared: none.
//
// At most 2^27 tiles. Where the pairs do not fit the capacity, the flag is set, the frame has 0 pairs and the wanted
// number stands in it.
//
// Policy: bounds, as in project.cuh; key_bytes, 2 up to 65,536 tiles, 4 beyond, 8 for keys tile << 32 | depth bits
// of splats that were not sorted before (`order` is then null: slot order).
#pragma once
#include "frame.cuh"
#include "sort.cuh"
#include "tiles.cuh"

constexpr unsigned EMIT_THREADS = 256, EMIT_WARPS = EMIT_THREADS / 32;
constexpr unsigned STAGED = 384;  // pairs of a warp that go through shared memory; with more it has large splats
constexpr unsigned RANGES_THREADS = 256;

struct EmitPolicy {
    Bounds bounds = Bounds::row_span;
    int key_bytes = 2;
};

struct EmitArgs {
    Frame* frame;
    const Extent* __restrict__ extents;       // [V] by slot
    const unsigned* __restrict__ order;       // [V] slots, nearest first
    const unsigned* __restrict__ depth_bits;  // [V] by slot; for key_bytes 8 only
    void* keys;                               // out [instance_capacity]
    unsigned* slots;                          // out [instance_capacity]
    unsigned* bins;                           // [passes][256] zero when allocated; left zero
    unsigned* bin_starts;                     // out [passes][256] for the sort
    unsigned long long* look_back;            // [ceil(visible_capacity / 256)]
    unsigned passes;                          // digits of the sort, at most key_bytes
    unsigned ticket, finished_ticket;         // which of Frame::tickets count parts, and blocks that have finished
};

// Where a warp writes, and what it counts.
template <EmitPolicy P>
struct Outlet {
    using Key = typename KeyOf<P.key_bytes>::type;
    Key* keys;         // of the warp's first pair
    unsigned* slots;   // likewise
    unsigned room;     // pairs that fit from there on
    unsigned passes;
    unsigned* bins;    // shared, the block's

    // The whole warp calls, each lane with the pair at `place` from the warp's first.
    __device__ __forceinline__ void put(unsigned place, bool exists, unsigned tile, unsigned slot,
                                        unsigned depth) const {
        Key key = static_cast<Key>(tile);
        if constexpr (P.key_bytes == 8) key = key << 32 | depth;
        if (!exists || place >= room) return;
        keys[place] = key;
        slots[place] = slot;
#pragma unroll
        for (unsigned pass = 0; pass < P.key_bytes; pass++)
            if (pass < passes) atomicAdd(&bins[pass * BINS + digit_at(key, DIGIT_BITS * pass)], 1u);
    }
};

// A lane's splat and what goes with its pairs.
struct Listed {
    Extent extent;
    unsigned slot, depth;
};

// The way of warps with few pairs: each lane writes those of its splat to shared memory, from `begin` on, as tile and
// lane; then the warp takes them side by side.
template <EmitPolicy P>
__device__ __forceinline__ void emit_small(const Listed& mine, unsigned begin, unsigned total, int tile_columns,
                                           unsigned* staged, const Outlet<P>& outlet) {
    int row = first_of(mine.extent.rows);
    for (unsigned rows = length_of(mine.extent.rows); rows; rows--, row++) {
        const unsigned columns =
            P.bounds == Bounds::row_span ? row_span(mine.extent, row, tile_columns) : mine.extent.tiles;
        unsigned word = static_cast<unsigned>(row * tile_columns + first_of(columns)) << 5 | lane_index();
        for (unsigned left = length_of(columns); left; left--, word += 32) staged[begin++] = word;
    }
    __syncwarp();
#pragma unroll 1
    for (unsigned first = 0; first < total; first += 32) {
        const unsigned pair = first + lane_index(), word = staged[min(pair, total - 1)];
        const int lane = static_cast<int>(word & 31u);
        const unsigned slot = __shfl_sync(FULL_WARP, mine.slot, lane);
        const unsigned depth = P.key_bytes == 8 ? __shfl_sync(FULL_WARP, mine.depth, lane) : 0;
        outlet.put(pair, pair < total, word >> 5, slot, depth);
    }
}

// The way of all others: a lane a tile row, then a lane a pair.
template <EmitPolicy P>
__device__ __forceinline__ void emit_large(const Listed& mine, int tile_columns, const Outlet<P>& outlet) {
    unsigned written = 0;
    const unsigned row_count = length_of(mine.extent.rows), rows_end = inclusive_warp_sum(row_count);
    const auto visit = [&](unsigned, unsigned owner, int row, unsigned columns) {
        const unsigned pairs = length_of(columns), pairs_end = inclusive_warp_sum(pairs);
        const unsigned total = __shfl_sync(FULL_WARP, pairs_end, 31);
        const unsigned first_tile = static_cast<unsigned>(row * tile_columns + first_of(columns));
        const unsigned its_slot = __shfl_sync(FULL_WARP, mine.slot, static_cast<int>(owner));
        const unsigned its_depth = P.key_bytes == 8 ? __shfl_sync(FULL_WARP, mine.depth, static_cast<int>(owner)) : 0;
#pragma unroll 1
        for (unsigned first = 0; first < total; first += 32) {
            const unsigned pair = first + lane_index();
            const int source = static_cast<int>(lanes_before(pairs_end, pair));
            const unsigned tile = __shfl_sync(FULL_WARP, first_tile - (pairs_end - pairs), source) + pair;
            const unsigned slot = __shfl_sync(FULL_WARP, its_slot, source);
            const unsigned depth = P.key_bytes == 8 ? __shfl_sync(FULL_WARP, its_depth, source) : 0;
            outlet.put(written + pair, pair < total, tile, slot, depth);
        }
        written += total;
    };
    visit_rows<P.bounds>(mine.extent, rows_end, row_count, tile_columns, visit);
}

// For the thread that knows the number of all pairs.
__device__ __forceinline__ void finish_count(Frame& frame, unsigned long long wanted) {
    const bool fits = wanted <= frame.instance_capacity;
    frame.instances_wanted = wanted;
    frame.instances = fits ? static_cast<unsigned>(wanted) : 0;
    if (!fits) atomicOr(&frame.overflow, OVERFLOW_INSTANCES);
}

template <EmitPolicy P>
__global__ void __launch_bounds__(EMIT_THREADS) emit(EmitArgs args) {
    __shared__ unsigned shared_bins[P.key_bytes * BINS], staged[EMIT_WARPS][STAGED], warp_sums[EMIT_WARPS];
    __shared__ unsigned shared_part;
    __shared__ unsigned long long shared_before;
    Frame& frame = *args.frame;
    const unsigned visible = frame.visible, capacity = frame.instance_capacity, parts = ceil_div(visible, EMIT_THREADS);
    const int tile_columns = frame.tile_columns;
    for (unsigned i = threadIdx.x; i < args.passes * BINS; i += EMIT_THREADS) shared_bins[i] = 0;
    while (true) {
        if (threadIdx.x == 0) shared_part = atomicAdd(&frame.tickets[args.ticket], 1u);
        __syncthreads();
        const unsigned part = shared_part, i = part * EMIT_THREADS + threadIdx.x;
        if (part >= parts) break;
        Listed mine{};
        if (i < visible) {
            mine.slot = args.order ? args.order[i] : i;
            mine.extent = load_extent(args.extents, mine.slot);
            if constexpr (P.key_bytes == 8) mine.depth = args.depth_bits[mine.slot];
        }
        unsigned tiles = mine.extent.tiles;
        if constexpr (P.bounds != Bounds::row_span) tiles = length_of(mine.extent.rows) * length_of(mine.extent.tiles);
        unsigned total;
        const unsigned in_block = exclusive_block_sum<EMIT_WARPS>(tiles, warp_sums, total);
        const unsigned warp_begin = __shfl_sync(FULL_WARP, in_block, 0), in_warp = warp_sums[warp_index()];
        if (warp_index() == 0) {
            const unsigned long long before = look_back(args.look_back, part, total, look_back_tag(frame.epoch, 0));
            if (lane_index() == 0) {
                shared_before = before;
                if (part == parts - 1) finish_count(frame, before + total);
            }
        }
        __syncthreads();
        const unsigned long long place = shared_before + warp_begin;
        if (place >= capacity) continue;
        const Outlet<P> outlet{static_cast<typename Outlet<P>::Key*>(args.keys) + place, args.slots + place,
                               capacity - static_cast<unsigned>(place), args.passes, shared_bins};
        if (in_warp <= STAGED)
            emit_small<P>(mine, in_block - warp_begin, in_warp, tile_columns, staged[warp_index()], outlet);
        else
            emit_large<P>(mine, tile_columns, outlet);
    }
    publish_bins(shared_bins, args.bins, args.bin_starts, args.passes, &frame.tickets[args.finished_ticket], warp_sums);
}

// ---- Where each tile begins ----------------------------------------------------------------------------------------

struct RangesPolicy {
    int key_bytes = 2;
};

struct RangesArgs {
    const Frame* frame;
    const void* __restrict__ keys;  // [I] sorted
    unsigned* tile_starts;          // out [T + 1] first pair of each tile; [T] is I
};

// Key i, and the one before it, bound a run of tiles that begin at pair i: those after the one before, up to its own.
// After the last key come those up to T. A long run of empty tiles is written by the whole warp.
template <RangesPolicy P>
__global__ void __launch_bounds__(RANGES_THREADS) ranges(RangesArgs args) {
    using Key = typename KeyOf<P.key_bytes>::type;
    constexpr unsigned TILE_SHIFT = P.key_bytes == 8 ? 32 : 0, LONG = 8;
    const Key* keys = static_cast<const Key*>(args.keys);
    const unsigned count = args.frame->instances, i = blockIdx.x * RANGES_THREADS + threadIdx.x;
    const unsigned tiles = static_cast<unsigned>(args.frame->tile_columns * args.frame->tile_rows);
    if (blockIdx.x * RANGES_THREADS > count) return;
    // Pair `count`, which does not exist, stands for the end.
    const auto tile_of = [&](unsigned pair) {
        return pair < count ? static_cast<unsigned>(keys[pair] >> TILE_SHIFT) : tiles;
    };
    unsigned first = 0, end = 0;
    if (i <= count) {
        first = i > 0 ? tile_of(i - 1) + 1 : 0;
        end = tile_of(i) + 1;
    }
    if (end - first <= LONG)
        for (unsigned t = first; t < end; t++) args.tile_starts[t] = i;
    for (unsigned lanes = __ballot_sync(FULL_WARP, end - first > LONG); lanes; lanes &= lanes - 1) {
        const int lane = __ffs(static_cast<int>(lanes)) - 1;
        const unsigned its_first = __shfl_sync(FULL_WARP, first, lane);
        const unsigned its_end = __shfl_sync(FULL_WARP, end, lane);
        const unsigned its_pair = i - lane_index() + static_cast<unsigned>(lane);
        for (unsigned t = its_first + lane_index(); t < its_end; t += 32) args.tile_starts[t] = its_pair;
    }
}
