// Decides, from the tile counts alone, what the blocks of the blend kernels take and in which order.
//
// One block of 1024 threads, between `ranges` and `blend`, so that the host learns of nothing. Tiles that are too
// heavy for one block are split into chunks of their list; chunks come first, the first ones of all tiles before the
// second ones, and then the whole tiles, longest first in logarithmic bins (the order of units within a bin is that
// in which the hardware gets there, and changes nothing else). It is on the critical path of every frame, so counts
// are read once and the rank of a tile in its bin is what counting it returned. Shared: about 20 KB.
//
// Policy: sched, the order of whole tiles; chunk and policy, which tiles are split. kernels/schedule.py says the same
// in NumPy and has the cost model; blend_queue.cuh runs the units.
#pragma once
#include "frame.cuh"
#include "scan.cuh"

// ---- What is decided -----------------------------------------------------------------------------------------------

enum class Sched : int {
    grid,         // as the tiles lie in the picture
    lpt,          // longest first, sorted; here only the keys of that sort are made
    lpt_binned,   // longest first, by bins of an eighth of an octave
    lpt_reverse,  // shortest first
    exact_work,   // lpt_binned by the time each took in the previous frame
};
enum class Chunked : int {
    off,
    all,     // every tile in as many parts
    fixed,   // the heaviest tiles in as many parts
    catgs,   // tiles above twice the mean in parts of the mean, after all others (Zhang et al. 2026)
    policy,  // by the cost model
};
enum class ChunkPolicy : int {
    seed,    // so many of the heaviest tiles, 2, 4, 8 or 16 parts each (Ryu and Yoo 2026, equation 6)
    length,  // all tiles above a cut, in parts of one length
};

struct PlanPolicy {
    Sched sched = Sched::lpt_binned;
    Chunked chunk = Chunked::policy;
    ChunkPolicy policy = ChunkPolicy::length;
};

// One part of a tile's list.
struct Chunk {
    unsigned tile;
    unsigned begin, end;  // in the tile's list
    unsigned number;      // within its tile, from the front
    unsigned first;       // chunk of this tile that has number 0
    unsigned parts;       // of this tile
};

// What the decision comes to: written by `plan`, read by the kernels that run it and by whoever wants figures.
struct Schedule {
    unsigned chunk_units, tile_units;  // to hand out
    unsigned tiles;
    unsigned next_forward[2], next_backward[2];  // handed out so far
    unsigned chunks_wanted;  // where there is no room for a tile's chunks, it stays whole
    unsigned total, heaviest;  // splats over all tiles, and of the heaviest
    unsigned split_tiles;
    unsigned cut;  // tiles above were to be split; NO_CUT if none
};

struct PlanArgs {
    const Frame* frame;
    const unsigned* tile_start;  // [T + 1]
    const unsigned* work;        // [T] exact_work: what each tile took in the previous frame
    Schedule* schedule;          // [1] out
    unsigned* units;             // [T + chunk_capacity] out: units in order, then NO_UNIT. Not with lpt
    unsigned* tile_keys;         // [T] out, with lpt: the keys by which whole tiles are sorted
    unsigned* tile_parts;        // [T] out: chunks of each tile, 1 for a whole one; not with chunk off
    unsigned* tile_ranks;        // [T] scratch
    uint2* split;                // [T] scratch: tile and first chunk of those that are split
    Chunk* chunks;               // [chunk_capacity] out
    unsigned* arrived;           // [chunk_capacity] out: 0
    unsigned* ready;             // [chunk_capacity] out: 0
    unsigned* saturated;         // [chunk_capacity] out: `parts` of the chunk's tile
    unsigned chunk_capacity;
    unsigned heaviest_tiles, parts;  // of all and fixed
    // The cost model, in splats; schedule.py has its words.
    float workers, pace, chunk_cost, tail_cost, least_gain, second_pass;
};

// A unit is the number of a tile, or with the flag that of a chunk.
constexpr unsigned CHUNK_FLAG = 0x80000000u, NO_UNIT = 0xffffffffu;

// ---- Numbers that schedule.py shares -------------------------------------------------------------------------------

constexpr unsigned PLAN_THREADS = 1024, PLAN_WARPS = PLAN_THREADS / 32;
constexpr unsigned AT_ONCE = 8;  // tiles of a thread whose counts are on their way at the same time
constexpr unsigned WORK_BINS = 256, ROOMLESS = WORK_BINS - 1;  // a bin for heavy tiles that stay whole
constexpr unsigned BIN_SHIFT = 20, BIN_OF_ONE = 127u << (23 - BIN_SHIFT);  // eight bins an octave
constexpr unsigned CHUNK_STEP = 32;     // splats; lengths of chunks are multiples
constexpr unsigned MOST_PARTS = 1024;   // of a tile
constexpr unsigned MOST_RANKED = 1024;  // heaviest tiles among which `seed` and `fixed` choose
constexpr float LEAST_CUT = 1024.0f;    // splats
constexpr unsigned SEED_TRIES = 4;      // 2, 4, 8, 16 parts
constexpr unsigned NO_CUT = 0xffffffffu;

// Bin 0 is for nothing at all.
__device__ __forceinline__ unsigned work_bin(unsigned count) {
    const unsigned bin = (__float_as_uint(float(count)) >> BIN_SHIFT) - BIN_OF_ONE + 1u;
    return count == 0 ? 0u : min(bin, ROOMLESS - 1);
}
// The least count beyond a bin, from bin 1 on.
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

// Smallest of one value a thread; all threads get it. Two barriers.
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
// A cost and who has it: of equal costs the one with the lower name is smaller.
__device__ __forceinline__ unsigned long long named_cost(float cost, unsigned name) {
    return static_cast<unsigned long long>(__float_as_uint(cost)) << 32 | name;
}
__device__ __forceinline__ float cost_of(unsigned long long named) {
    return __uint_as_float(static_cast<unsigned>(named >> 32));
}

// Sum over the bins above this thread's, which is bin 255 − thread. One barrier, and one before the next call.
__device__ __forceinline__ unsigned sum_above(unsigned of_own_bin, unsigned* warp_sums) {
    unsigned total;
    return exclusive_block_sum<PLAN_WARPS>(of_own_bin, warp_sums, total);
}

// Sorts one key a thread over the block, the largest first: thread r gets the r-th.
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

// Calls visit(tile, count) for all tiles of this thread, having asked for AT_ONCE counts before it waits for one.
template <class Visit>
__device__ __forceinline__ void for_each_tile(const Counts& counts, Visit visit) {
    for (unsigned first = 0; first < counts.tiles; first += PLAN_THREADS * AT_ONCE) {
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

// Tiles of more than `above` splats, and of those that have exactly so many the ones numbered below `ties_end`.
struct SplitRule {
    unsigned above = NO_CUT, ties_end = 0;
    unsigned length = 0;  // of the chunks, or
    unsigned parts = 0;   // how many; both 0: parts of the mean

    __device__ __forceinline__ bool splits(unsigned tile, unsigned count) const {
        return count > above || (count == above && tile < ties_end);
    }
};

// How many tiles there are in each bin, how many splats in them, and the heaviest tile of all.
struct Histogram {
    unsigned tiles[WORK_BINS], splats[WORK_BINS];
    unsigned heaviest;
};

// `length`: a thread a bin, the cut where the bin ends.
__device__ __forceinline__ SplitRule rule_by_length(const PlanArgs& args, const Counts& counts,
                                                    const Histogram& histogram, unsigned* warp_sums) {
    const unsigned thread = threadIdx.x, bin = WORK_BINS - 1 - thread;
    const float total = float(counts.total), share = total / args.workers;
    const float whole = schedule_cost(total, float(histogram.heaviest), args.pace, args);
    const float enough = (1.0f - args.least_gain) * whole;
    if (share >= enough) return {};  // whatever is split, this much work is left
    const unsigned tiles = sum_above(thread < WORK_BINS ? histogram.tiles[bin] : 0, warp_sums);
    __syncthreads();
    const float splats = float(sum_above(thread < WORK_BINS ? histogram.splats[bin] : 0, warp_sums));
    unsigned long long best = named_cost(FLOAT_MAX, 0);
    if (thread < WORK_BINS && bin > 0 && bin < ROOMLESS && tiles > 0) {
        const float cut = bin_end(bin), parts = splats / float(cut_length(cut, args.second_pass));
        const float work = total + args.chunk_cost * (parts + 0.5f * float(tiles)) + args.second_pass * splats;
        if (cut >= fmaxf(LEAST_CUT, 0.25f * share) && parts + float(tiles) <= float(args.chunk_capacity))
            best = named_cost(schedule_cost(work, cut, args.pace, args), bin);
    }
    best = block_min(best);
    if (cost_of(best) > enough) return {};
    const float cut = bin_end(static_cast<unsigned>(best));
    return {__float2uint_rd(cut) - 1, 0, cut_length(cut, args.second_pass), 0};
}

// `seed` and `fixed`: the heaviest whole bins that hold at most MOST_RANKED tiles, in order.
template <bool FIXED>
__device__ __forceinline__ SplitRule rule_by_rank(const PlanArgs& args, const Counts& counts,
                                                  const Histogram& histogram, unsigned* warp_sums) {
    __shared__ uint2 found[MOST_RANKED];  // count, tile
    __shared__ unsigned found_count, lowest_bin, chosen[2];
    const unsigned thread = threadIdx.x, bin = WORK_BINS - 1 - thread;
    if (thread == 0) found_count = 0, lowest_bin = WORK_BINS;
    const unsigned own = thread < WORK_BINS ? histogram.tiles[bin] : 0;
    const unsigned above = sum_above(own, warp_sums);
    __syncthreads();
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
        const float total = float(counts.total), heaviest = float(histogram.heaviest);
        const float whole = schedule_cost(total, heaviest, 1.0f, args);
        const float before = float(sum_above(thread < n ? count : 0, warp_sums));
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

template <PlanPolicy P>
__device__ __forceinline__ SplitRule split_rule(const PlanArgs& args, const Counts& counts, const Histogram& histogram,
                                                unsigned* warp_sums) {
    if constexpr (P.chunk == Chunked::all) return {0, 0, 0, args.parts};
    if constexpr (P.chunk == Chunked::catgs) {
        const auto twice = 2ull * counts.total / counts.tiles;
        return {static_cast<unsigned>(twice < NO_CUT ? twice : NO_CUT), 0, 0, 0};
    }
    if constexpr (P.chunk == Chunked::fixed) return rule_by_rank<true>(args, counts, histogram, warp_sums);
    if constexpr (P.policy == ChunkPolicy::seed) return rule_by_rank<false>(args, counts, histogram, warp_sums);
    return rule_by_length(args, counts, histogram, warp_sums);
}

__device__ __forceinline__ unsigned parts_of(const SplitRule& rule, const Counts& counts, unsigned count) {
    unsigned parts = rule.parts;
    if (rule.length) {
        parts = ceil_div(count, rule.length);
    } else if (parts == 0) {
        const auto means = (static_cast<unsigned long long>(count) * counts.tiles + counts.total - 1) / counts.total;
        parts = means < MOST_PARTS ? static_cast<unsigned>(means) : MOST_PARTS;
    }
    // Lengths are rounded up, which may leave fewer.
    return ceil_div(count, chunk_length(count, min(parts, MOST_PARTS)));
}

// ---- Chunks in order -----------------------------------------------------------------------------------------------

// Writes the chunks of all split tiles, and their order from `order` on. `places[p]` says how many tiles have p + 1
// parts, and is used up. Returns how many chunks there are.
__device__ __forceinline__ unsigned write_chunks(const PlanArgs& args, const Counts& counts, unsigned split_count,
                                                 unsigned* places, unsigned* order, unsigned* warp_sums) {
    static_assert(MOST_PARTS == PLAN_THREADS);
    // How many tiles have a chunk numbered so, and where the chunks of that number begin.
    const unsigned thread = threadIdx.x, backwards = MOST_PARTS - 1 - thread;
    unsigned total;
    const unsigned own = places[backwards];
    const unsigned having = own + exclusive_block_sum<PLAN_WARPS>(own, warp_sums, total);
    __syncthreads();
    places[backwards] = having;
    __syncthreads();
    const unsigned begin = exclusive_block_sum<PLAN_WARPS>(places[thread], warp_sums, total);
    __syncthreads();
    places[thread] = begin;
    __syncthreads();
    for (unsigned i = warp_index(); i < split_count; i += PLAN_WARPS) {
        const uint2 split = args.split[i];
        const unsigned tile = split.x, first = split.y, count = counts[tile], parts = args.tile_parts[tile];
        const unsigned length = chunk_length(count, parts);
        for (unsigned number = lane_index(); number < parts; number += 32) {
            const unsigned chunk = first + number;
            args.chunks[chunk] = {tile, number * length, min((number + 1) * length, count), number, first, parts};
            args.arrived[chunk] = args.ready[chunk] = 0;
            args.saturated[chunk] = parts;
            order[atomicAdd(&places[number], 1u)] = CHUNK_FLAG | chunk;
        }
    }
    return total;
}

// ---- The kernel ----------------------------------------------------------------------------------------------------

template <PlanPolicy P>
__global__ void __launch_bounds__(PLAN_THREADS, 1) plan(PlanArgs args) {
    constexpr bool CHUNKS = P.chunk != Chunked::off, BINNED = P.sched != Sched::grid && P.sched != Sched::lpt;
    constexpr bool BY_LENGTH = P.chunk == Chunked::policy && P.policy == ChunkPolicy::length;
    // What is split by length are whole bins, so that the first count of tiles holds for those that stay whole.
    constexpr bool COUNTS_FIRST = CHUNKS && P.chunk != Chunked::all && P.chunk != Chunked::catgs;
    constexpr bool COUNTS_AGAIN = BINNED && !(BY_LENGTH && P.sched != Sched::exact_work);
    __shared__ Histogram histogram;
    __shared__ unsigned places[CHUNKS ? MOST_PARTS : 1], warp_sums[PLAN_WARPS];
    __shared__ unsigned chunk_count, split_count;
    const unsigned thread = threadIdx.x, bin = WORK_BINS - 1 - thread;
    const unsigned tiles = static_cast<unsigned>(args.frame->tile_columns * args.frame->tile_rows);
    const Counts counts{args.tile_start, tiles, args.tile_start[tiles]};
    unsigned* in_bins = histogram.tiles;
    if (thread < WORK_BINS) in_bins[thread] = histogram.splats[thread] = 0;
    if constexpr (CHUNKS) places[thread] = 0;
    if (thread == 0) chunk_count = split_count = histogram.heaviest = 0;
    __syncthreads();

    // Which tiles are split.
    SplitRule rule;
    if constexpr (COUNTS_FIRST) {
        unsigned heaviest = 0;
        for_each_tile(counts, [&](unsigned tile, unsigned count) {
            if (count == 0 && !BY_LENGTH) return;
            const unsigned own = work_bin(count), rank = atomicAdd(&in_bins[own], 1u);
            if constexpr (BY_LENGTH) {
                args.tile_ranks[tile] = rank;
                if (count) atomicAdd(&histogram.splats[own], count);
            }
            heaviest = max(heaviest, count);
        });
#pragma unroll
        for (int bit = 16; bit; bit >>= 1) heaviest = max(heaviest, __shfl_xor_sync(FULL_WARP, heaviest, bit));
        if (lane_index() == 0) atomicMax(&histogram.heaviest, heaviest);
        __syncthreads();
    }
    if constexpr (CHUNKS) rule = split_rule<P>(args, counts, histogram, warp_sums);
    __syncthreads();
    if constexpr (COUNTS_FIRST && COUNTS_AGAIN) {
        if (thread < WORK_BINS) in_bins[thread] = 0;
        __syncthreads();
    }

    // Chunks for the tiles that are split, as long as there is room. How many of the others there are in each bin.
    const bool is_any_split = rule.above != NO_CUT;
    if (COUNTS_AGAIN || P.sched == Sched::lpt || is_any_split)
        for_each_tile(counts, [&](unsigned tile, unsigned count) {
            unsigned parts = CHUNKS && rule.splits(tile, count) ? parts_of(rule, counts, count) : 1;
            bool found_room = true;
            if (CHUNKS && parts > 1) {
                const unsigned first = atomicAdd(&chunk_count, parts);
                found_room = first + parts <= args.chunk_capacity;
                if (found_room) {
                    args.split[atomicAdd(&split_count, 1u)] = make_uint2(tile, first);
                    atomicAdd(&places[parts - 1], 1u);
                }
            }
            if constexpr (CHUNKS) args.tile_parts[tile] = found_room ? parts : 1;
            if constexpr (P.sched == Sched::lpt) {
                args.tile_keys[tile] = parts == 1 || !found_room ? ~count : NO_CUT;
            } else if constexpr (COUNTS_AGAIN) {
                const unsigned weight = P.sched == Sched::exact_work ? args.work[tile] : count;
                if (parts == 1 || !found_room) args.tile_ranks[tile] = atomicAdd(&in_bins[work_bin(weight)], 1u);
            } else if constexpr (BINNED) {
                if (rule.splits(tile, count) && (parts == 1 || !found_room))
                    args.tile_ranks[tile] = atomicAdd(&in_bins[ROOMLESS], 1u);
            }
        });
    else if constexpr (CHUNKS)
        for (unsigned tile = thread; tile < tiles; tile += PLAN_THREADS) args.tile_parts[tile] = 1;
    __syncthreads();
    const unsigned whole = tiles - split_count;
    unsigned chunks = 0;
    if constexpr (CHUNKS) {
        unsigned* order = args.units + (P.chunk == Chunked::catgs ? whole : 0);
        if (split_count) chunks = write_chunks(args, counts, split_count, places, order, warp_sums);
        for (unsigned i = whole + chunks + thread; i < tiles + args.chunk_capacity; i += PLAN_THREADS)
            args.units[i] = NO_UNIT;
    }
    if (thread == 0)
        *args.schedule = {chunks, whole, tiles, {0, 0}, {0, 0}, chunk_count, counts.total, histogram.heaviest,
                          split_count, rule.above};
    unsigned* order = args.units + (P.chunk == Chunked::catgs ? 0 : chunks);

    // The whole tiles in order.
    if constexpr (P.sched == Sched::grid) {
        unsigned before = 0;
        for (unsigned first = 0; first < tiles; first += PLAN_THREADS) {
            const unsigned tile = first + thread;
            const bool is_whole = tile < tiles && (!CHUNKS || args.tile_parts[tile] == 1);
            unsigned total;
            __syncthreads();
            const unsigned place = before + exclusive_block_sum<PLAN_WARPS>(is_whole, warp_sums, total);
            if (is_whole) order[place] = tile;
            before += total;
        }
    } else if constexpr (BINNED) {
        const bool is_reverse = P.sched == Sched::lpt_reverse;
        const unsigned cut_bin = BY_LENGTH && is_any_split && !COUNTS_AGAIN ? work_bin(rule.above) : ROOMLESS;
        const unsigned own_bin = is_reverse ? thread : bin;
        const bool is_in_order = thread < WORK_BINS && (own_bin <= cut_bin || own_bin == ROOMLESS);
        __syncthreads();
        const unsigned begin = sum_above(is_in_order ? in_bins[own_bin] : 0, warp_sums);
        if (thread < WORK_BINS) histogram.splats[own_bin] = begin;  // done with as sums
        __syncthreads();
        for_each_tile(counts, [&](unsigned tile, unsigned count) {
            if (CHUNKS && args.tile_parts[tile] != 1) return;
            unsigned own = work_bin(P.sched == Sched::exact_work ? args.work[tile] : count);
            if (own > cut_bin) own = ROOMLESS;
            order[histogram.splats[own] + args.tile_ranks[tile]] = tile;
        });
    }
}
