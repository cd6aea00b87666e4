// Plans a frame: which units the blocks of the blend kernels take, and in which order, from the tile counts alone.
//
// A unit is a whole tile or a chunk of a tile's list. Tiles that are too heavy for one block are split into chunks. The
// order is: the first chunks of all split tiles, their second chunks, and so on; then the whole tiles, longest first,
// in logarithmic bins. Within a bin the order is that in which the hardware reaches the tiles; it changes no result.
// With `modelled` and `length`, a frame that would gain little from another order keeps the grid order.
//
// One block of 1024 threads, before `blend`: a kernel of its own (`plan`), or the last block of `ranges_plan`
// (ranges.cuh). The host takes no part. Shared memory: 31 KB; with seed, fixed or other orders 22 KB.
//
// Every frame waits for this kernel, and most frames split nothing. The path by bins is therefore built for speed:
// - It reads each count once, all at the same time. A thread keeps only the bins of its eight tiles, a byte each.
// - A bin has eight counters, because tiles near each other often have the same bin.
// - It builds the order in shared memory, where writes in any order are cheap.
// - A kernel of one block waits for instructions that it runs for the first time. Loops that do not wait for memory
//   therefore stay rolled.
//
// Policy: sched, the order of whole tiles; chunk and cost_model, which tiles are split (schedule_rules.cuh).
// blend_queue.cuh runs the units.
#pragma once
#include "schedule_rules.cuh"

// ---- Chunks in order -----------------------------------------------------------------------------------------------

// Writes the chunks of all split tiles, and their order from `order` on. Returns how many chunks there are. On entry,
// `places[p]` is how many tiles have p + 1 parts; it is overwritten.
__device__ __forceinline__ unsigned write_chunks(const PlanArgs& args, unsigned split_count, unsigned* places,
                                                 unsigned* order, unsigned* warp_sums) {
    static_assert(MOST_PARTS == PLAN_THREADS);
    // For each chunk number: how many tiles have such a chunk, and where these chunks begin in the order.
    const unsigned thread = threadIdx.x, backwards = MOST_PARTS - 1 - thread;
    unsigned total;
    const unsigned own = places[backwards];
    places[backwards] = own + sum_before(own, warp_sums);
    __syncthreads();
    const unsigned begin = sum_before(places[thread], warp_sums, total);
    places[thread] = begin;
    __syncthreads();
#pragma unroll 1
    for (unsigned i = warp_index(); i < split_count; i += PLAN_WARPS) {
        const uint4 split = args.split[i];
        const unsigned tile = split.x, first = split.y, count = split.z, parts = split.w;
        const unsigned length = chunk_length(count, parts);
#pragma unroll 1
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

// The block's shared memory that both ways to plan use.
template <PlanPolicy P>
struct PlanShared {
    static constexpr bool CHUNKS = P.chunk != Chunked::off;
    Histogram histogram;
    unsigned places[CHUNKS ? MOST_PARTS : 1], warp_sums[PLAN_WARPS];
    unsigned chunk_count, split_count;

    __device__ __forceinline__ void clear() {
        const unsigned thread = threadIdx.x;
        if (thread < WORK_BINS) histogram.tiles[thread] = histogram.splats[thread] = 0;
        if constexpr (CHUNKS) places[thread] = 0;
        if (thread == 0) chunk_count = split_count = 0, histogram.outlook = {};
        __syncthreads();
    }
    // Reserves room for a tile's chunks. Returns false if there is none.
    __device__ __forceinline__ bool split(const PlanArgs& args, unsigned tile, unsigned count, unsigned parts) {
        const unsigned first = atomicAdd(&chunk_count, parts);
        if (first + parts > args.chunk_capacity) return false;
        args.split[atomicAdd(&split_count, 1u)] = make_uint4(tile, first, count, parts);
        atomicAdd(&places[parts - 1], 1u);
        return true;
    }
    // Writes the schedule, and NO_UNIT to places without a unit.
    __device__ __forceinline__ void write(const PlanArgs& args, const Counts& counts, unsigned chunks, unsigned cut) {
        const unsigned whole = counts.tiles - split_count;
        if constexpr (CHUNKS)
#pragma unroll 1
            for (unsigned i = whole + chunks + threadIdx.x; i < counts.tiles + args.chunk_capacity; i += PLAN_THREADS)
                args.units[i] = NO_UNIT;
        if (threadIdx.x != 0) return;
        const unsigned heaviest = histogram.outlook.heaviest;
        *args.schedule = {chunks, whole, counts.tiles, 0, {0, 0}, {0, 0}, chunk_count, counts.total, heaviest,
                          split_count, cut};
        args.frame->heaviest = heaviest;  // the host sees it with the counters (kernels/cuda/blend_choice.py)
    }
    // Writes a schedule in which all tiles stay whole and in grid order.
    __device__ __forceinline__ void write_grid(const PlanArgs& args, const Counts& counts) {
        if (threadIdx.x != 0) return;
        const unsigned heaviest = histogram.outlook.heaviest;
        *args.schedule = {0, counts.tiles, counts.tiles, 1, {0, 0}, {0, 0}, 0, counts.total, heaviest, 0, NO_CUT};
        args.frame->heaviest = heaviest;
    }
};

// ---- Tiles by bins, whole ones and those above a cut ---------------------------------------------------------------

constexpr unsigned COPIES = 8, COUNTERS = WORK_BINS * COPIES;  // counters of a bin, and of all bins, heaviest first

// Counters and order of tiles by bins, in shared memory.
struct BinnedTiles {
    alignas(16) unsigned counters[COUNTERS];  // how many tiles; later the place of the next tile
    unsigned short order[ROUND];

    __device__ __forceinline__ unsigned* counter_of(unsigned bin) {
        return &counters[(WORK_BINS - 1 - bin) * COPIES + lane_index() % COPIES];
    }
    // Sums the counters. `first_of_bin[b]` becomes the number of tiles in heavier bins. All threads call.
    __device__ __forceinline__ void sum_counters(unsigned* first_of_bin, unsigned* warp_sums) {
        static_assert(WORK_BINS == 256 && COPIES == 8);
        constexpr unsigned WARPS = WORK_BINS / 32;
        const unsigned thread = threadIdx.x;
        const bool has_bin = thread < WORK_BINS;
        uint4* copies = reinterpret_cast<uint4*>(counters) + 2 * thread;
        uint4 low{}, high{};
        unsigned sum = 0, inclusive = 0;
        if (has_bin) {
            low = copies[0], high = copies[1];
            sum = low.x + low.y + low.z + low.w + high.x + high.y + high.z + high.w;
            inclusive = inclusive_warp_sum(sum);
            if (lane_index() == 31) warp_sums[warp_index()] = inclusive;
        }
        __syncthreads();
        if (has_bin) {
            unsigned place = inclusive - sum;
#pragma unroll
            for (unsigned w = 0; w < WARPS; w++) place += w < warp_index() ? warp_sums[w] : 0;
            first_of_bin[WORK_BINS - 1 - thread] = place;
            const auto next = [&](unsigned tiles) { return place += tiles, place - tiles; };
            const unsigned x = next(low.x), y = next(low.y), z = next(low.z), w = next(low.w);
            copies[0] = make_uint4(x, y, z, w);
            const unsigned p = next(high.x), q = next(high.y), r = next(high.z);
            copies[1] = make_uint4(p, q, r, place);
        }
        __syncthreads();
    }
};

// The tiles of a thread in a round, next to each other.
struct OwnTiles {
    unsigned first, held;
    unsigned long long bins;  // a byte for each tile

    // Calls visit(tile, bin).
    template <class Visit>
    __device__ __forceinline__ void for_each(Visit visit) const {
        unsigned long long rest = bins;
#pragma unroll 1
        for (unsigned k = 0; k < held; k++, rest >>= 8) visit(first + k, static_cast<unsigned>(rest & 255u));
    }
};
__device__ __forceinline__ OwnTiles read_round(const PlanArgs& args, const Counts& counts, unsigned round,
                                               Outlook& outlook) {
    static_assert(AT_ONCE == 8);
    const unsigned first = round + threadIdx.x * AT_ONCE, held = first < counts.tiles ? counts.tiles - first : 0;
    OwnTiles own{first, min(held, AT_ONCE), 0};
    if (held == 0) return own;
    unsigned start[AT_ONCE + 1];
    if (held >= AT_ONCE) {
        const uint4* words = reinterpret_cast<const uint4*>(counts.tile_start + first);
        const uint4 low = words[0], high = words[1];
        start[0] = low.x, start[1] = low.y, start[2] = low.z, start[3] = low.w;
        start[4] = high.x, start[5] = high.y, start[6] = high.z, start[7] = high.w;
        start[8] = counts.tile_start[first + AT_ONCE];
    } else {
#pragma unroll
        for (unsigned k = 0; k <= AT_ONCE; k++) start[k] = counts.tile_start[min(first + k, counts.tiles)];
    }
    unsigned bins[2] = {0, 0};
#pragma unroll
    for (unsigned k = 0; k < AT_ONCE; k++) {
        const unsigned count = start[k + 1] - start[k];
        outlook.add(start[k], count, unsigned(args.workers));
        bins[k / 4] |= work_bin(count) << 8 * (k % 4);
    }
    own.bins = static_cast<unsigned long long>(bins[1]) << 32 | bins[0];
    return own;
}

// Makes chunks of the tiles above the cut. Returns how many.
template <PlanPolicy P>
__device__ __forceinline__ unsigned split_above_cut(const PlanArgs& args, const Counts& counts, PlanShared<P>& shared,
                                                    const SplitRule& rule) {
#pragma unroll 1
    for (unsigned tile = threadIdx.x; tile < counts.tiles; tile += PLAN_THREADS)
        if (const unsigned count = counts[tile]; count > rule.above) {
            const unsigned parts = parts_by_length(rule.length, count);
            // The rule splits only as many tiles as there is room for.
            const unsigned first = atomicAdd(&shared.chunk_count, parts);
            args.split[atomicAdd(&shared.split_count, 1u)] = make_uint4(tile, first, count, parts);
            atomicAdd(&shared.places[parts - 1], 1u);
        }
    __syncthreads();
    return write_chunks(args, shared.split_count, shared.places, args.units, shared.warp_sums);
}

template <PlanPolicy P>
__device__ __forceinline__ void plan_by_bins(const PlanArgs& args, const Counts& counts, PlanShared<P>& shared) {
    constexpr bool CHUNKS = P.chunk != Chunked::off;
    __shared__ SplitRule shared_rule;
    __shared__ BinnedTiles binned;
    const unsigned thread = threadIdx.x, tiles = counts.tiles;
    const float total = float(counts.total);
    // Several rounds: counts do not fit the registers and are read again each time.
    const bool is_one_round = tiles <= ROUND;
    Outlook outlook{};
    static_assert(COUNTERS == 2 * PLAN_THREADS);
    binned.counters[thread] = binned.counters[thread + PLAN_THREADS] = 0;
    OwnTiles own{};
#pragma unroll 1
    for (unsigned round = 0; round < tiles; round += ROUND) own = read_round(args, counts, round, outlook);
    shared.clear();
    outlook.note(shared.histogram.outlook);
    __syncthreads();
    outlook = shared.histogram.outlook;
    const bool has_rule = CHUNKS && may_split(args, total, outlook.heaviest);
    if (CHUNKS && !has_rule && outlook.keeps_grid(args, total)) {
        shared.write_grid(args, counts);
        return;
    }
    // Splats are counted only in bins of tiles that may be split, which are few.
    const unsigned least_bin = has_rule ? work_bin(args.least_cut) : WORK_BINS;

#pragma unroll 1
    for (unsigned round = 0; round < tiles; round += ROUND) {
        if (!is_one_round) own = read_round(args, counts, round, outlook);
        own.for_each([&](unsigned tile, unsigned bin) {
            atomicAdd(binned.counter_of(bin), 1u);
            if (bin >= least_bin) atomicAdd(&shared.histogram.splats[bin], counts[tile]);
        });
    }
    __syncthreads();
    binned.sum_counters(shared.histogram.tiles, shared.warp_sums);
    SplitRule rule;
    unsigned chunks = 0;
    if (has_rule) {
        if (warp_index() == 0) {
            const SplitRule found = rule_by_length(args, total, shared.histogram);
            if (lane_index() == 0) shared_rule = found;
        }
        __syncthreads();
        rule = shared_rule;
        if (rule.above != NO_CUT) chunks = split_above_cut(args, counts, shared, rule);
    }
    shared.write(args, counts, chunks, rule.above);

    // Split tiles have been counted too; their places come first and are skipped.
    const unsigned skipped = shared.split_count, whole = tiles - skipped;
    unsigned* order = args.units + chunks;
#pragma unroll 1
    for (unsigned round = 0; round < tiles; round += ROUND) {
        if (!is_one_round) own = read_round(args, counts, round, outlook);
        own.for_each([&](unsigned tile, unsigned bin) {
            const unsigned place = atomicAdd(binned.counter_of(bin), 1u) - skipped;
            if (place >= whole) return;  // it is split
            if (is_one_round) binned.order[place] = static_cast<unsigned short>(tile);
            else order[place] = tile;
        });
    }
    if (!is_one_round) return;
    __syncthreads();
#pragma unroll 1
    for (unsigned i = thread; i < whole; i += PLAN_THREADS) order[i] = binned.order[i];
}

// ---- Any other order and rule --------------------------------------------------------------------------------------

template <PlanPolicy P>
__device__ __forceinline__ void plan_in_passes(const PlanArgs& args, const Counts& counts, PlanShared<P>& shared) {
    constexpr bool CHUNKS = P.chunk != Chunked::off, BINNED = P.sched != Sched::grid && P.sched != Sched::lpt;
    constexpr bool COUNTS_FIRST = CHUNKS && P.chunk != Chunked::all && P.chunk != Chunked::catgs;
    const unsigned thread = threadIdx.x, tiles = counts.tiles;
    unsigned* in_bins = shared.histogram.tiles;

    // Decides which tiles are split.
    SplitRule rule;
    unsigned heaviest = 0;
    shared.clear();
    if constexpr (COUNTS_FIRST) {
        for_each_tile(counts, [&](unsigned, unsigned count) {
            if (count == 0) return;
            const unsigned own = work_bin(count);
            atomicAdd(&in_bins[own], 1u);
            if (count >= args.least_cut) atomicAdd(&shared.histogram.splats[own], count);
            heaviest = max(heaviest, count);
        });
        Outlook{heaviest, 0}.note(shared.histogram.outlook);
        __syncthreads();
    }
    if constexpr (CHUNKS) rule = split_rule<P>(args, counts, shared.histogram, shared.warp_sums);
    __syncthreads();
    if constexpr (COUNTS_FIRST) {
        if (thread < WORK_BINS) in_bins[thread] = 0;
        __syncthreads();
    }

    // Makes chunks of split tiles, as long as there is room, and counts whole tiles by bin.
    for_each_tile(counts, [&](unsigned tile, unsigned count) {
        heaviest = max(heaviest, count);
        bool is_whole = true;
        if constexpr (CHUNKS) {
            const unsigned parts = rule.splits(tile, count) ? parts_of(rule, counts, count) : 1;
            is_whole = parts == 1 || !shared.split(args, tile, count, parts);
            args.tile_parts[tile] = is_whole ? 1 : parts;
        }
        if constexpr (P.sched == Sched::lpt) {
            args.tile_keys[tile] = is_whole ? ~count : NO_CUT;
        } else if constexpr (BINNED) {
            const unsigned weight = P.sched == Sched::exact_work ? args.work[tile] : count;
            if (is_whole) args.tile_ranks[tile] = atomicAdd(&in_bins[work_bin(weight)], 1u);
        }
    });
    if constexpr (!COUNTS_FIRST) Outlook{heaviest, 0}.note(shared.histogram.outlook);
    __syncthreads();
    const unsigned whole = tiles - shared.split_count;
    unsigned chunks = 0;
    if constexpr (CHUNKS) {
        unsigned* order = args.units + (P.chunk == Chunked::catgs ? whole : 0);
        if (shared.split_count) chunks = write_chunks(args, shared.split_count, shared.places, order, shared.warp_sums);
    }
    shared.write(args, counts, chunks, rule.above);
    unsigned* order = args.units + (P.chunk == Chunked::catgs ? 0 : chunks);

    // Writes the whole tiles in order.
    if constexpr (P.sched == Sched::grid) {
        unsigned before = 0;
        for (unsigned first = 0; first < tiles; first += PLAN_THREADS) {
            const unsigned tile = first + thread;
            const bool is_whole = tile < tiles && (!CHUNKS || args.tile_parts[tile] == 1);
            unsigned total;
            const unsigned place = before + sum_before(is_whole, shared.warp_sums, total);
            if (is_whole) order[place] = tile;
            before += total;
        }
    } else if constexpr (BINNED) {
        if (warp_index() == 0) sum_bins<P.sched == Sched::lpt_reverse>(in_bins);
        __syncthreads();
        for_each_tile(counts, [&](unsigned tile, unsigned count) {
            if (CHUNKS && args.tile_parts[tile] != 1) return;
            const unsigned own = work_bin(P.sched == Sched::exact_work ? args.work[tile] : count);
            order[in_bins[own] + args.tile_ranks[tile]] = tile;
        });
    }
}

// ---- The kernel ----------------------------------------------------------------------------------------------------

// Plans the frame with one block. `total` is the number of pairs of all tiles.
template <PlanPolicy P>
__device__ __forceinline__ void make_plan(const PlanArgs& args, unsigned total) {
    constexpr bool BY_CUT =
        P.chunk == Chunked::off || (P.chunk == Chunked::modelled && P.cost_model == CostModel::length);
    __shared__ PlanShared<P> shared;
    const Counts counts{args.tile_start, args.tiles, total};
    if constexpr (BY_CUT && P.sched == Sched::lpt_binned) plan_by_bins<P>(args, counts, shared);
    else plan_in_passes<P>(args, counts, shared);
}

template <PlanPolicy P>
__global__ void __launch_bounds__(PLAN_THREADS, 1) plan(PlanArgs args) {
    make_plan<P>(args, args.tile_start[args.tiles]);
}
