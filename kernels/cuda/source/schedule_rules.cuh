// Decides which tiles are split into chunks and into how many, for `plan` (schedule.cuh).
//
// For one block of PLAN_THREADS threads. kernels/schedule/rules.py computes the same in NumPy, shares the constants and
// explains the cost model. Not here: the order of units, and which block takes which.
#pragma once
#include "frame.cuh"
#include "scan.cuh"

// ---- What is decided -----------------------------------------------------------------------------------------------

enum class Sched : int {
    grid,         // row by row, as in the picture
    lpt,          // longest first, by a sort; here only its keys are made
    lpt_binned,   // longest first, by bins of an eighth of an octave
    lpt_reverse,  // shortest first
    exact_work,   // as lpt_binned, by each tile's time in the previous frame
};
enum class Chunked : int {
    off,
    all,     // every tile, in the same number of parts
    fixed,   // the heaviest tiles, in the same number of parts
    catgs,   // tiles above twice the mean in parts of the mean, after all others (Zhang et al. 2026)
    modelled,  // as a cost model decides
};
enum class CostModel : int {
    seed,    // some of the heaviest tiles, in 2, 4, 8 or 16 parts each (Ryu and Yoo 2026, equation 6)
    length,  // all tiles above a cut, in parts of one length
};

struct PlanPolicy {
    Sched sched = Sched::lpt_binned;
    Chunked chunk = Chunked::modelled;
    CostModel cost_model = CostModel::length;
};

// One part of a tile's list.
struct Chunk {
    unsigned tile;
    unsigned begin, end;  // in the tile's list
    unsigned number;      // within its tile, from the front
    unsigned first;       // chunk of this tile that has number 0
    unsigned parts;       // of this tile
};

// The result of the decision: written by `plan`, read by the blend kernels and by the host for figures.
struct Schedule {
    unsigned chunk_units, tile_units;  // how many units of each kind to hand out
    unsigned tiles;
    unsigned in_grid_order;  // 1: all tiles whole and in grid order; `units` are not written
    unsigned next_forward[2], next_backward[2];  // units handed out so far
    unsigned chunks_wanted;  // including chunks without room, whose tiles stay whole
    unsigned total, heaviest;  // splats in all tiles, and in the heaviest
    unsigned split_tiles;
    unsigned cut;  // splats above which tiles are split; NO_CUT if none is
};

struct PlanArgs {
    Frame* frame;
    const unsigned* tile_start;  // [T + 1]
    unsigned tiles;              // T
    const unsigned* work;        // [T] exact_work: each tile's time in the previous frame
    Schedule* schedule;          // [1] out
    unsigned* units;             // [T + chunk_capacity] out: units in order, then NO_UNIT. Not with lpt, in grid order
    unsigned* tile_keys;         // [T] out, with lpt: the keys by which whole tiles are sorted
    unsigned* tile_parts;        // [T] scratch: chunks of each tile, 1 for a whole one
    unsigned* tile_ranks;        // [T] scratch
    uint4* split;                // [T] scratch: number, first chunk, splats and parts of each split tile
    Chunk* chunks;               // [chunk_capacity] out
    unsigned* arrived;           // [chunk_capacity] out: 0
    unsigned* ready;             // [chunk_capacity] out: 0
    unsigned* saturated;         // [chunk_capacity] out: `parts` of the chunk's tile
    unsigned chunk_capacity;
    unsigned heaviest_tiles, parts;  // fixed and all: how many tiles, in how many parts
    // The cost model, in splats; schedule/rules.py explains each.
    float workers, pace, chunk_cost, tail_cost, least_gain, second_pass;
    unsigned least_cut;  // of `length`, where a bin ends
};

// A unit is the number of a tile, or, with CHUNK_FLAG, the number of a chunk.
constexpr unsigned CHUNK_FLAG = 0x80000000u, NO_UNIT = 0xffffffffu;

// ---- Numbers that schedule/rules.py shares -------------------------------------------------------------------------

constexpr unsigned PLAN_THREADS = 1024, PLAN_WARPS = PLAN_THREADS / 32;
constexpr unsigned AT_ONCE = 8;  // counts of tiles that a thread loads at the same time
constexpr unsigned WORK_BINS = 256;
constexpr unsigned BIN_SHIFT = 20, BIN_OF_ONE = 127u << (23 - BIN_SHIFT);  // eight bins an octave
constexpr unsigned CHUNK_STEP = 32;     // splats; lengths of chunks are multiples of this
constexpr unsigned MOST_PARTS = 1024;   // parts of a tile
constexpr unsigned MOST_RANKED = 1024;  // heaviest tiles among which `seed` and `fixed` choose
constexpr unsigned SEED_TRIES = 4;      // 2, 4, 8, 16 parts
constexpr unsigned NO_CUT = 0xffffffffu;

// Returns the bin of a tile with `count` splats. Bin 0 is for empty tiles.
__device__ __forceinline__ unsigned work_bin(unsigned count) {
    const int bin = int(__float_as_uint(float(count)) >> BIN_SHIFT) - int(BIN_OF_ONE) + 1;
    return static_cast<unsigned>(min(max(bin, 0), int(WORK_BINS) - 2));
}
// Returns the least count above a bin, for bins from 1 on.
__device__ __forceinline__ float bin_end(unsigned bin) { return __uint_as_float((BIN_OF_ONE + bin) << BIN_SHIFT); }

__device__ __forceinline__ unsigned chunk_length(unsigned count, unsigned parts) {
    return CHUNK_STEP * ceil_div(ceil_div(count, CHUNK_STEP), parts);
}
__device__ __forceinline__ unsigned cut_length(float cut, float second_pass) {
    return max(CHUNK_STEP, __float2uint_rd(cut / (1.0f + second_pass)) / CHUNK_STEP * CHUNK_STEP);
}
__device__ __forceinline__ float schedule_cost(float total, float longest, float pace, const PlanArgs& args) {
    const float share = total / args.workers;
    return (1.0f - pace) * share + pace * (fmaxf(longest, share) + args.tail_cost * longest);
}

// ---- Over the block ------------------------------------------------------------------------------------------------

using Named = unsigned long long;
__device__ __forceinline__ Named lesser(Named a, Named b) { return b < a ? b : a; }

// Returns the smallest of the threads' values to all threads. Has two barriers.
__device__ __forceinline__ unsigned long long block_min(unsigned long long value) {
    __shared__ unsigned long long of_warp[PLAN_WARPS];
#pragma unroll
    for (int bit = 16; bit; bit >>= 1) value = lesser(value, __shfl_xor_sync(FULL_WARP, value, bit));
    __syncthreads();
    if (lane_index() == 0) of_warp[warp_index()] = value;
    __syncthreads();
    value = of_warp[lane_index()];
#pragma unroll
    for (int bit = 16; bit; bit >>= 1) value = lesser(value, __shfl_xor_sync(FULL_WARP, value, bit));
    return value;
}
// Packs a cost and a name, so that of equal costs the one with the lower name is smaller.
__device__ __forceinline__ unsigned long long named_cost(float cost, unsigned name) {
    return static_cast<unsigned long long>(__float_as_uint(cost)) << 32 | name;
}
__device__ __forceinline__ float cost_of(unsigned long long named) {
    return __uint_as_float(static_cast<unsigned>(named >> 32));
}

// Returns the sum of the values of all threads before this one; `total` becomes the sum of all. Has two barriers.
// `warp_sums` [32].
__device__ __forceinline__ unsigned sum_before(unsigned value, unsigned* warp_sums, unsigned& total) {
    const unsigned inclusive = inclusive_warp_sum(value);
    if (lane_index() == 31) warp_sums[warp_index()] = inclusive;
    __syncthreads();
    const unsigned through = inclusive_warp_sum(warp_sums[lane_index()]);
    __syncthreads();
    total = __shfl_sync(FULL_WARP, through, 31);
    const unsigned before = __shfl_up_sync(FULL_WARP, through, 1);
    const unsigned of_warps = __shfl_sync(FULL_WARP, lane_index() == 0 ? 0u : before, int(warp_index()));
    return of_warps + inclusive - value;
}
__device__ __forceinline__ unsigned sum_before(unsigned value, unsigned* warp_sums) {
    unsigned total;
    return sum_before(value, warp_sums, total);
}

// Turns each bin into the sum of the bins above it, or, if ASCENDING, below it. One warp calls.
template <bool ASCENDING = false>
__device__ __forceinline__ void sum_bins(unsigned* bins) {
    constexpr unsigned EACH = WORK_BINS / 32;
    unsigned* mine = bins + EACH * (ASCENDING ? lane_index() : 31 - lane_index());
    unsigned own[EACH], sum = 0;
#pragma unroll
    for (unsigned k = 0; k < EACH; k++) own[k] = mine[k], sum += own[k];
    sum = inclusive_warp_sum(sum) - sum;
#pragma unroll
    for (unsigned k = 0; k < EACH; k++) {
        const unsigned i = ASCENDING ? k : EACH - 1 - k;
        mine[i] = sum, sum += own[i];
    }
    __syncwarp();
}

// Sorts the threads' keys over the block, largest first: thread r gets the r-th key.
__device__ __forceinline__ unsigned long long block_sorted(unsigned long long key) {
    __shared__ unsigned long long keys[PLAN_THREADS];
    const unsigned thread = threadIdx.x;
    for (unsigned size = 2; size <= PLAN_THREADS; size *= 2)
        for (unsigned stride = size / 2; stride; stride /= 2) {
            unsigned long long other;
            if (stride >= 32) {
                __syncthreads();
                keys[thread] = key;
                __syncthreads();
                other = keys[thread ^ stride];
            } else {
                other = __shfl_xor_sync(FULL_WARP, key, static_cast<int>(stride));
            }
            const bool wants_larger = ((thread & stride) == 0) == ((thread & size) == 0);
            key = wants_larger == (other > key) ? other : key;
        }
    return key;
}

// ---- Which tiles are split -----------------------------------------------------------------------------------------

struct Counts {
    const unsigned* tile_start;
    unsigned tiles, total;
    __device__ __forceinline__ unsigned operator[](unsigned tile) const {
        return tile_start[tile + 1] - tile_start[tile];
    }
};

constexpr unsigned ROUND = PLAN_THREADS * AT_ONCE;  // tiles whose counts the block loads at the same time
// Calls visit(tile, count) for all tiles of this thread. They are PLAN_THREADS apart.
template <class Visit>
__device__ __forceinline__ void for_each_tile(const Counts& counts, Visit visit) {
    for (unsigned first = 0; first < counts.tiles; first += ROUND) {
        unsigned count[AT_ONCE];
#pragma unroll
        for (unsigned k = 0; k < AT_ONCE; k++) {
            const unsigned tile = first + k * PLAN_THREADS + threadIdx.x;
            count[k] = tile < counts.tiles ? counts[tile] : 0;
        }
#pragma unroll
        for (unsigned k = 0; k < AT_ONCE; k++) {
            const unsigned tile = first + k * PLAN_THREADS + threadIdx.x;
            if (tile < counts.tiles) visit(tile, count[k]);
        }
    }
}

// Selects the tiles to split: all with more than `above` splats, and those with exactly `above` whose number is below
// `ties_end`.
struct SplitRule {
    unsigned above = NO_CUT, ties_end = 0;
    unsigned length = 0;  // splats of a chunk, or
    unsigned parts = 0;   // chunks of a tile. Both 0: chunks of the mean tile's length

    __device__ __forceinline__ bool splits(unsigned tile, unsigned count) const {
        return count > above || (count == above && tile < ties_end);
    }
};

// The share of a frame's time that another order must gain by the model. The model overrates orders: where it predicted
// 10%, half of that was measured.
constexpr float ORDER_GAIN = 0.03f;

// The prospects of the grid order: of a thread's tiles, then of all tiles.
struct Outlook {
    unsigned heaviest;  // splats of the heaviest tile
    // When the last tile ends, times the number of workers, if each tile begins once an even share of the tiles before
    // it is done. Wraps with more than three million splats in a tile.
    unsigned reach;

    __device__ __forceinline__ void add(unsigned start, unsigned count, unsigned workers) {
        heaviest = max(heaviest, count);
        reach = max(reach, start + workers * count);
    }
    // Adds this thread's to the block's. All threads call; `of_block` is valid after a barrier.
    __device__ __forceinline__ void note(Outlook& of_block) const {
        const unsigned most = warp_max(heaviest), last = warp_max(reach);
        if (lane_index() == 0) atomicMax(&of_block.heaviest, most), atomicMax(&of_block.reach, last);
    }
    // Returns true if the best order would gain next to nothing. No order ends before its heaviest tile, nor before
    // every worker has done an even share.
    __device__ __forceinline__ bool keeps_grid(const PlanArgs& args, float total) const {
        const float best = fmaxf(float(heaviest) * args.workers, total);
        return args.pace * (float(reach) - best) <= ORDER_GAIN * total;
    }
};

// Tiles in each bin, and splats in bins of at least `least_cut` splats.
struct alignas(16) Histogram {
    unsigned tiles[WORK_BINS], splats[WORK_BINS];
    Outlook outlook;
};

// Returns the cost below which `length` splits tiles.
__device__ __forceinline__ float cost_to_split(const PlanArgs& args, float total, unsigned heaviest) {
    return (1.0f - args.least_gain) * schedule_cost(total, float(heaviest), args.pace, args);
}
// Returns false if splitting cannot pay: it leaves the workers' shares as they are, and it needs a tile of at least the
// least cut. All costs are multiplied by the number of workers.
__device__ __forceinline__ bool may_split(const PlanArgs& args, float total, unsigned heaviest) {
    const float longest = float(heaviest) * args.workers, late = fmaxf(longest, total) + args.tail_cost * longest;
    const float enough = (1.0f - args.least_gain) * ((1.0f - args.pace) * total + args.pace * late);
    return total < enough && heaviest >= args.least_cut;
}

// Finds the rule of `length`, if `may_split`. One warp calls. `above.tiles` are already sums over the bins above each
// bin; `above.splats` become such sums. The cut is the end of a bin, so that whole bins are split.
__device__ __forceinline__ SplitRule rule_by_length(const PlanArgs& args, float total, Histogram& above) {
    const float share = total / args.workers, enough = cost_to_split(args, total, above.outlook.heaviest);
    sum_bins(above.splats);
    Named best = named_cost(FLOAT_MAX, 0);
    const unsigned end = work_bin(above.outlook.heaviest);
#pragma unroll 1
    for (unsigned bin = work_bin(args.least_cut) - 1 + lane_index(); bin < end; bin += 32) {
        const float tiles = float(above.tiles[bin]), splats = float(above.splats[bin]), cut = bin_end(bin);
        const float parts = splats / float(cut_length(cut, args.second_pass));
        const float work = total + args.chunk_cost * (parts + 0.5f * tiles) + args.second_pass * splats;
        if (cut >= 0.25f * share && parts + tiles <= float(args.chunk_capacity))
            best = lesser(best, named_cost(schedule_cost(work, cut, args.pace, args), bin));
    }
#pragma unroll
    for (int bit = 16; bit; bit >>= 1) best = lesser(best, __shfl_xor_sync(FULL_WARP, best, bit));
    if (cost_of(best) > enough) return {};
    const float cut = bin_end(static_cast<unsigned>(best));
    return {__float2uint_rd(cut) - 1, 0, cut_length(cut, args.second_pass), 0};
}

// Finds the rule of `seed` or `fixed` among the heaviest whole bins that hold at most MOST_RANKED tiles, in order.
template <bool FIXED>
__device__ __forceinline__ SplitRule rule_by_rank(const PlanArgs& args, const Counts& counts,
                                                  const Histogram& histogram, unsigned* warp_sums) {
    __shared__ uint2 found[MOST_RANKED];  // count, tile
    __shared__ unsigned found_count, lowest_bin, chosen[2];
    const unsigned thread = threadIdx.x, bin = WORK_BINS - 1 - thread;
    if (thread == 0) found_count = 0, lowest_bin = WORK_BINS;
    const unsigned own = thread < WORK_BINS ? histogram.tiles[bin] : 0;
    const unsigned above = sum_before(own, warp_sums);
    // Bin 0 is empty tiles, which nobody splits.
    if (thread < WORK_BINS && bin > 0 && above + own <= MOST_RANKED) atomicMin(&lowest_bin, bin);
    __syncthreads();
    for_each_tile(counts, [&](unsigned tile, unsigned count) {
        if (work_bin(count) >= lowest_bin) found[atomicAdd(&found_count, 1u)] = make_uint2(count, tile);
    });
    __syncthreads();
    const unsigned n = found_count;
    unsigned long long key = 0;
    if (thread < n) key = static_cast<unsigned long long>(found[thread].x) << 32 | ~found[thread].y;
    key = block_sorted(key);
    const unsigned rank = thread, count = static_cast<unsigned>(key >> 32), tile = ~static_cast<unsigned>(key);
    unsigned h = min(args.heaviest_tiles, n), parts = args.parts;
    if constexpr (!FIXED) {
        // Splitting the tiles before this one leaves this one the heaviest whole tile. Published: a pace of 1.
        const float total = float(counts.total), heaviest = float(histogram.outlook.heaviest);
        const float whole = schedule_cost(total, heaviest, 1.0f, args);
        const float before = float(sum_before(thread < n ? count : 0, warp_sums));
        unsigned long long best = named_cost(whole, 0);
        if (thread < n && rank > 0)
            for (unsigned i = 0; i < SEED_TRIES; i++) {
                const float k = float(2u << i), longest = fmaxf(heaviest / k, float(count));
                const float work = total + args.chunk_cost * float(rank) * k + args.second_pass * before;
                best = lesser(best, named_cost(schedule_cost(work, longest, 1.0f, args), i << 16 | rank));
            }
        best = block_min(best);
        h = cost_of(best) <= (1.0f - args.least_gain) * whole ? static_cast<unsigned>(best) & 0xffffu : 0;
        parts = 2u << (static_cast<unsigned>(best) >> 16);
    }
    if (h == 0) return {};
    if (rank == h - 1) chosen[0] = count, chosen[1] = tile;
    __syncthreads();
    return {chosen[0], chosen[1] + 1, 0, parts};
}

// All threads call and get it.
template <PlanPolicy P>
__device__ __forceinline__ SplitRule split_rule(const PlanArgs& args, const Counts& counts, Histogram& histogram,
                                                unsigned* warp_sums) {
    if constexpr (P.chunk == Chunked::all) return {0, 0, 0, args.parts};
    if constexpr (P.chunk == Chunked::catgs) {
        const auto twice = 2ull * counts.total / counts.tiles;
        return {static_cast<unsigned>(twice < NO_CUT ? twice : NO_CUT), 0, 0, 0};
    }
    if constexpr (P.chunk == Chunked::fixed) return rule_by_rank<true>(args, counts, histogram, warp_sums);
    if constexpr (P.cost_model == CostModel::seed) return rule_by_rank<false>(args, counts, histogram, warp_sums);
    __shared__ SplitRule rule;
    if (warp_index() == 0) {
        sum_bins(histogram.tiles);
        SplitRule found;
        if (may_split(args, float(counts.total), histogram.outlook.heaviest))
            found = rule_by_length(args, float(counts.total), histogram);
        if (lane_index() == 0) rule = found;
    }
    __syncthreads();
    return rule;
}

__device__ __forceinline__ unsigned parts_by_length(unsigned length, unsigned count) {
    // Lengths are rounded up, which may leave fewer.
    return ceil_div(count, chunk_length(count, min(ceil_div(count, length), MOST_PARTS)));
}
__device__ __forceinline__ unsigned parts_of(const SplitRule& rule, const Counts& counts, unsigned count) {
    if (rule.length) return parts_by_length(rule.length, count);
    unsigned parts = rule.parts;
    if (parts == 0) {
        const auto means = (static_cast<unsigned long long>(count) * counts.tiles + counts.total - 1) / counts.total;
        parts = means < MOST_PARTS ? static_cast<unsigned>(means) : MOST_PARTS;
    }
    return ceil_div(count, chunk_length(count, min(parts, MOST_PARTS)));
}
