// From splats in depth order to the list of each tile.
//
// `emit` gives every (splat, tile) pair a place, splat after splat in depth order, and writes its tile as sort key
// and the splat's slot as payload. 256 threads a block; blocks take parts of 256 splats by ticket until none is
// left. Counts were made by project.cuh with the same function (tiles.cuh); their sums across blocks come by
// look-back (scan.cuh). A warp writes the pairs of its 32 splats side by side, tile row by tile row, so neither a
// splat of thousands of tiles nor a splat of one leaves lanes idle. Its blocks also count the digits of the keys, so
// that the sort (sort.cuh) needs no histogram of its own. Shared: 1 KB a pass of that sort and a few words.
// `ranges` finds where each tile begins among the sorted keys: a thread a key, 256 a block; shared: none.
//
// Where the pairs do not fit the capacity, the flag is set, the frame has 0 pairs and the wanted number stands in it.
//
// Policy: bounds, as in project.cuh; key_bytes, 2 up to 65,536 tiles, 4 beyond, 8 for keys tile << 32 | depth bits
// of splats that were not sorted before (`order` is then null: slot order).
#pragma once
#include "frame.cuh"
#include "sort.cuh"
#include "tiles.cuh"

constexpr unsigned EMIT_THREADS = 256, EMIT_WARPS = EMIT_THREADS / 32;
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

// Where a warp writes: the first pair's place, and how many pairs fit from there on.
struct Outlet {
    size_t place;
    unsigned room;
};

// Writes the pairs of the warp's 32 splats and counts their digits in `shared_bins`.
template <EmitPolicy P>
__device__ __forceinline__ void emit_warp(const EmitArgs& args, const Extent& extent, unsigned slot, unsigned depth, int tile_columns,
                                          Outlet outlet, unsigned* shared_bins) {
    using Key = typename KeyOf<P.key_bytes>::type;
    Key* keys = static_cast<Key*>(args.keys) + outlet.place;
    unsigned* slots = args.slots + outlet.place;
    unsigned written = 0;
    const unsigned row_count = length_of(extent.rows), rows_end = inclusive_warp_sum(row_count);
    visit_rows<P.bounds>(extent, rows_end, row_count, tile_columns, [&](unsigned, unsigned owner, int row, unsigned columns) {
        const unsigned pairs = length_of(columns), pairs_end = inclusive_warp_sum(pairs);
        const unsigned total = __shfl_sync(FULL_WARP, pairs_end, 31);
        const unsigned tile_of_first = static_cast<unsigned>(row * tile_columns + first_of(columns)) - (pairs_end - pairs);
        const unsigned its_slot = __shfl_sync(FULL_WARP, slot, static_cast<int>(owner));
        const unsigned its_depth = P.key_bytes == 8 ? __shfl_sync(FULL_WARP, depth, static_cast<int>(owner)) : 0;
        for (unsigned first = 0; first < total; first += 32) {
            const unsigned pair = first + lane_index();
            const int source = static_cast<int>(lanes_before(pairs_end, pair));
            const unsigned tile = __shfl_sync(FULL_WARP, tile_of_first, source) + pair;
            const unsigned pair_slot = __shfl_sync(FULL_WARP, its_slot, source);
            Key key = static_cast<Key>(tile);
            if constexpr (P.key_bytes == 8) key = key << 32 | __shfl_sync(FULL_WARP, its_depth, source);
            const bool exists = pair < total && written + pair < outlet.room;
            if (exists) {
                keys[written + pair] = key;
                slots[written + pair] = pair_slot;
            }
            for (unsigned pass = 0; pass < args.passes; pass++)
                count_digit(shared_bins + pass * BINS, static_cast<unsigned>(key >> (DIGIT_BITS * pass)) & (BINS - 1), exists);
        }
        written += total;
    });
}

template <EmitPolicy P>
__global__ void __launch_bounds__(EMIT_THREADS) emit(EmitArgs args) {
    constexpr unsigned MOST_PASSES = P.key_bytes;
    __shared__ unsigned shared_bins[MOST_PASSES * BINS], warp_sums[EMIT_WARPS], shared_part;
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
        Extent extent{};
        unsigned slot = 0, depth = 0;
        if (i < visible) {
            slot = args.order ? args.order[i] : i;
            extent = load_extent(args.extents, slot);
            if constexpr (P.key_bytes == 8) depth = args.depth_bits[slot];
        }
        unsigned tiles = extent.tiles;
        if constexpr (P.bounds != Bounds::row_span) tiles = length_of(extent.rows) * length_of(extent.tiles);
        unsigned total;
        const unsigned in_block = exclusive_block_sum<EMIT_WARPS>(tiles, warp_sums, total);
        if (warp_index() == 0) {
            const unsigned long long before = look_back(args.look_back, part, total, look_back_tag(frame.epoch, 0));
            if (lane_index() == 0) {
                shared_before = before;
                if (part == parts - 1) {
                    const unsigned long long wanted = before + total;
                    const bool fits = wanted <= capacity;
                    frame.instances_wanted = wanted;
                    frame.instances = fits ? static_cast<unsigned>(wanted) : 0;
                    if (!fits) atomicOr(&frame.overflow, OVERFLOW_INSTANCES);
                }
            }
        }
        __syncthreads();
        const unsigned long long place = shared_before + __shfl_sync(FULL_WARP, in_block, 0);
        if (place < capacity) {
            const Outlet outlet{static_cast<size_t>(place), capacity - static_cast<unsigned>(place)};
            emit_warp<P>(args, extent, slot, depth, tile_columns, outlet, shared_bins);
        }
    }
    publish_bins(shared_bins, args.bins, args.bin_starts, args.passes, &frame.tickets[args.finished_ticket], warp_sums);
}

// ---- Where each tile begins ------------------------------------------------------------------------------------------

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
    const unsigned tiles = static_cast<unsigned>(args.frame->tile_columns) * static_cast<unsigned>(args.frame->tile_rows);
    if (blockIdx.x * RANGES_THREADS > count) return;
    // Pair `count`, which does not exist, stands for the end.
    const auto tile_of = [&](unsigned pair) { return pair < count ? static_cast<unsigned>(keys[pair] >> TILE_SHIFT) : tiles; };
    unsigned first = 0, end = 0;
    if (i <= count) {
        first = i > 0 ? tile_of(i - 1) + 1 : 0;
        end = tile_of(i) + 1;
    }
    if (end - first <= LONG)
        for (unsigned t = first; t < end; t++) args.tile_starts[t] = i;
    for (unsigned lanes = __ballot_sync(FULL_WARP, end - first > LONG); lanes; lanes &= lanes - 1) {
        const int lane = __ffs(static_cast<int>(lanes)) - 1;
        const unsigned its_first = __shfl_sync(FULL_WARP, first, lane), its_end = __shfl_sync(FULL_WARP, end, lane);
        const unsigned its_pair = i - lane_index() + static_cast<unsigned>(lane);
        for (unsigned t = its_first + lane_index(); t < its_end; t += 32) args.tile_starts[t] = its_pair;
    }
}
