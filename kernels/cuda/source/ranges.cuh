// Finds where each tile's list begins among the sorted pairs and, in `ranges_plan`, also plans the frame.
//
// Where the tile changes from a to b at pair i, the tiles a + 1 … b begin at i; all of them but b are empty. Tiles
// after the last key, up to T, begin at the end. Most threads see one and the same tile in all their keys.
//
// `ranges`: 256 threads a block, 16 bytes of keys a thread, any number of blocks, which share the keys. No shared
// memory. `ranges_plan`: the same in blocks of 1024 threads. The block that finishes last then does the work of `plan`
// (schedule.cuh), because by then all others have written their results. That saves a launch, and no block waits for
// another. Shared memory: at most 31 KB.
//
// Policy: key_bytes, as in bin.cuh; and the fields of `plan`. Read schedule.cuh next.
#pragma once
#include "schedule.cuh"
#include "sort.cuh"

// ---- Where each tile begins ----------------------------------------------------------------------------------------

constexpr unsigned RANGES_THREADS = 256;

// The tiles of 16 bytes of keys, from key i on. Keys from number `count` on do not exist and get tile T.
template <int KEY_BYTES>
struct TilesOfKeys {
    using Key = typename KeyOf<KEY_BYTES>::type;
    static constexpr unsigned EACH = 16 / KEY_BYTES, SHIFT = KEY_BYTES == 8 ? 32 : 0;
    unsigned of[EACH];

    __device__ __forceinline__ void load(const Key* keys, size_t i, unsigned count, unsigned tiles) {
        union {
            uint4 word;
            Key keys[EACH];
        } mine;
        if (i + EACH <= count) mine.word = *reinterpret_cast<const uint4*>(keys + i);
#pragma unroll
        for (unsigned k = 0; k < EACH; k++) {
            if (i + EACH > count && i + k < count) mine.keys[k] = keys[i + k];
            of[k] = i + k < count ? static_cast<unsigned>(mine.keys[k] >> SHIFT) : tiles;
        }
    }
};

// Writes, for each lane, that tiles next … end − 1 begin at its `pair`. The whole warp calls: all lanes together write
// a long run of empty tiles.
__device__ __forceinline__ void begin_tiles(unsigned* tile_starts, unsigned next, unsigned end, unsigned pair) {
    constexpr unsigned LONG = 8;
    if (end - next <= LONG)
        for (unsigned t = next; t < end; t++) tile_starts[t] = pair;
    for (unsigned lanes = __ballot_sync(FULL_WARP, end - next > LONG); lanes; lanes &= lanes - 1) {
        const int lane = __ffs(static_cast<int>(lanes)) - 1;
        const unsigned its_next = __shfl_sync(FULL_WARP, next, lane), its_end = __shfl_sync(FULL_WARP, end, lane);
        const unsigned its_pair = __shfl_sync(FULL_WARP, pair, lane);
        for (unsigned t = its_next + lane_index(); t < its_end; t += 32) tile_starts[t] = its_pair;
    }
}

// Writes `tile_starts` [T + 1]. All threads of the launch call.
template <int KEY_BYTES, unsigned THREADS>
__device__ __forceinline__ void find_ranges(const Frame& frame, const void* all_keys, unsigned* tile_starts) {
    using Tiles = TilesOfKeys<KEY_BYTES>;
    constexpr unsigned EACH = Tiles::EACH;
    const auto* keys = static_cast<const typename Tiles::Key*>(all_keys);
    const unsigned count = frame.instances, tiles = static_cast<unsigned>(frame.tile_columns * frame.tile_rows);
    const size_t stride = size_t(gridDim.x) * THREADS * EACH;
    for (size_t block = size_t(blockIdx.x) * THREADS * EACH; block <= count; block += stride) {
        const size_t i = block + threadIdx.x * EACH;
        Tiles mine;
        mine.load(keys, i, count, tiles);
        // The first tile that does not begin at an earlier pair; 0 for the first pair.
        unsigned next = __shfl_up_sync(FULL_WARP, mine.of[EACH - 1], 1) + 1;
        if (lane_index() == 0) {
            next = i == 0 ? 0 : tiles + 1;
            if (i > 0 && i <= count) next = static_cast<unsigned>(keys[i - 1] >> Tiles::SHIFT) + 1;
        }
        unsigned changes = 0;  // a bit for each key at which tiles begin
#pragma unroll
        for (unsigned k = 0; k < EACH; k++)
            changes |= unsigned(mine.of[k] + 1 != (k ? mine.of[k - 1] + 1 : next)) << k;
        // Most warps have one change or none. A loop over the changes keeps the code below short: it is compiled once.
        while (__any_sync(FULL_WARP, changes != 0)) {
            const unsigned change = static_cast<unsigned>(__ffs(static_cast<int>(changes))) - 1;
            unsigned end = next;
#pragma unroll
            for (unsigned k = 0; k < EACH; k++)
                if (k == change) end = mine.of[k] + 1;
            begin_tiles(tile_starts, next, end, static_cast<unsigned>(i) + change);
            next = end, changes &= changes - 1;
        }
    }
}

struct RangesPolicy {
    int key_bytes = 2;
};

struct RangesArgs {
    const Frame* frame;
    const void* keys;       // [I] sorted
    unsigned* tile_starts;  // out [T + 1] first pair of each tile; [T] is I
};

template <RangesPolicy P>
__global__ void __launch_bounds__(RANGES_THREADS) ranges(RangesArgs args) {
    find_ranges<P.key_bytes, RANGES_THREADS>(*args.frame, args.keys, args.tile_starts);
}

// ---- With the plan -------------------------------------------------------------------------------------------------

struct RangesPlanPolicy {
    int key_bytes = 2;
    Sched sched = Sched::lpt_binned;
    Chunked chunk = Chunked::modelled;
    CostModel cost_model = CostModel::length;
};

struct RangesPlanArgs {
    Frame* frame;
    const void* keys;       // [I] sorted
    unsigned* tile_starts;  // out [T + 1]; the plan's `tile_start`
    PlanArgs plan;
    unsigned ticket;        // which of Frame::tickets counts blocks that have finished
};

// Returns true in the block that arrives last of the launch; what the other blocks wrote before is then readable.
// All threads of the block call and get the answer.
__device__ __forceinline__ bool is_last_block(unsigned* through) {
    __shared__ bool is_last;
    __syncthreads();
    if (threadIdx.x == 0) is_last = add_acq_rel(through, 1) + 1 == gridDim.x;
    __syncthreads();
    return is_last;
}

template <RangesPlanPolicy P>
__global__ void __launch_bounds__(PLAN_THREADS, 1) ranges_plan(RangesPlanArgs args) {
    find_ranges<P.key_bytes, PLAN_THREADS>(*args.frame, args.keys, args.tile_starts);
    if (is_last_block(&args.frame->tickets[args.ticket]))
        make_plan<PlanPolicy{P.sched, P.chunk, P.cost_model}>(args.plan, args.frame->instances);
}
