// Decides, from the tile counts alone, what the blocks of the blend kernels take and in which order.
//
// One block of 1024 threads, between `ranges` and `blend`, so that the host learns of nothing. Tiles that are too
// heavy for one block are split into chunks of their list; chunks come first, the first ones of all tiles before the
// second ones, and then the whole tiles, longest first in logarithmic bins (the order of units within a bin is that
// in which the hardware gets there, and changes nothing else). It is on the critical path of every frame, and most
// frames split nothing: by bins, each count is read once, the rank of a tile in its bin is what counting it returned,
// and one warp decides while the others wait. Code counts too: a kernel of one block waits for what it has not run
// yet. Shared: 39 KB; with seed and fixed, or other orders, 22 KB.
//
// Policy: sched, the order of whole tiles; chunk and policy, which tiles are split (schedule_rules.cuh).
// blend_queue.cuh runs the units.
#pragma once
#include "schedule_rules.cuh"

// ---- Chunks in order -----------------------------------------------------------------------------------------------

// Writes the chunks of all split tiles, and their order from `order` on. `places[p]` says how many tiles have p + 1
// parts, and is used up. Returns how many chunks there are.
__device__ __forceinline__ unsigned write_chunks(const PlanArgs& args, unsigned split_count, unsigned* places,
                                                 unsigned* order, unsigned* warp_sums) {
    static_assert(MOST_PARTS == PLAN_THREADS);
    // How many tiles have a chunk numbered so, and where the chunks of that number begin.
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

// What both ways to plan share, [1] a block.
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
        if (thread == 0) chunk_count = split_count = histogram.heaviest = 0;
        __syncthreads();
    }
    // Makes room for a tile's chunks, if there is any. Whether there was.
    __device__ __forceinline__ bool split(const PlanArgs& args, unsigned tile, unsigned count, unsigned parts) {
        const unsigned first = atomicAdd(&chunk_count, parts);
        if (first + parts > args.chunk_capacity) return false;
        args.split[atomicAdd(&split_count, 1u)] = make_uint4(tile, first, count, parts);
        atomicAdd(&places[parts - 1], 1u);
        return true;
    }
    // What was decided, and the places that have no unit.
    __device__ __forceinline__ void write(const PlanArgs& args, const Counts& counts, unsigned chunks, unsigned cut) {
        const unsigned whole = counts.tiles - split_count;
        if constexpr (CHUNKS)
#pragma unroll 1
            for (unsigned i = whole + chunks + threadIdx.x; i < counts.tiles + args.chunk_capacity; i += PLAN_THREADS)
                args.units[i] = NO_UNIT;
        if (threadIdx.x == 0)
            *args.schedule = {chunks, whole, counts.tiles, {0, 0}, {0, 0}, chunk_count, counts.total,
                              histogram.heaviest, split_count, cut};
    }
};

// ---- Tiles by bins, whole ones and those above a cut ---------------------------------------------------------------

template <PlanPolicy P>
__device__ __forceinline__ void plan_by_bins(const PlanArgs& args, const Counts& counts, PlanShared<P>& shared) {
    constexpr bool CHUNKS = P.chunk != Chunked::off;
    __shared__ SplitRule shared_rule;
    // Of the tiles of a round: the splats, and then bin and rank. In registers it would be eight times the code.
    __shared__ unsigned marks[ROUND];
    constexpr unsigned RANK_BITS = 24;
    const bool is_one_round = counts.tiles <= ROUND;
    unsigned heaviest = 0;
#pragma unroll 1
    for (unsigned first = 0; first < counts.tiles; first += ROUND) {
        RoundCounts count;
        count.load(counts, first);
#pragma unroll
        for (unsigned k = 0; k < AT_ONCE; k++) marks[k * PLAN_THREADS + threadIdx.x] = count.of[k];
#pragma unroll 1
        for (unsigned place = threadIdx.x; place < ROUND && first + place < counts.tiles; place += PLAN_THREADS) {
            const unsigned of_tile = marks[place], bin = work_bin(of_tile);
            const unsigned mark = bin << RANK_BITS | atomicAdd(&shared.histogram.tiles[bin], 1u);
            if (CHUNKS && of_tile >= args.least_cut) atomicAdd(&shared.histogram.splats[bin], of_tile);
            marks[place] = mark;
            if (!is_one_round) args.tile_ranks[first + place] = mark;
            heaviest = max(heaviest, of_tile);
        }
    }
    note_heaviest(shared.histogram, heaviest);
    __syncthreads();
    if (warp_index() == 0) {
        sum_bins(shared.histogram.tiles);
        if constexpr (CHUNKS) {
            const SplitRule rule = rule_by_length(args, float(counts.total), shared.histogram);
            if (lane_index() == 0) shared_rule = rule;
        }
    }
    __syncthreads();

    SplitRule rule;
    if constexpr (CHUNKS) rule = shared_rule;
    const auto mark_of = [&](unsigned tile) { return is_one_round ? marks[tile] : args.tile_ranks[tile]; };
    const unsigned last_bin = rule.above == NO_CUT ? WORK_BINS : work_bin(rule.above);  // of whole tiles
    unsigned chunks = 0;
    if (CHUNKS && rule.above != NO_CUT) {
#pragma unroll 1
        for (unsigned tile = threadIdx.x; tile < counts.tiles; tile += PLAN_THREADS)
            if (mark_of(tile) >> RANK_BITS > last_bin)
                args.split[atomicAdd(&shared.split_count, 1u)] = make_uint4(tile, 0, counts[tile], 0);
        __syncthreads();
#pragma unroll 1
        for (unsigned i = threadIdx.x; i < shared.split_count; i += PLAN_THREADS) {
            const unsigned parts = parts_by_length(rule.length, args.split[i].z);
            // The rule has seen to it that there is room.
            args.split[i].y = atomicAdd(&shared.chunk_count, parts), args.split[i].w = parts;
            atomicAdd(&shared.places[parts - 1], 1u);
        }
        __syncthreads();
        chunks = write_chunks(args, shared.split_count, shared.places, args.units, shared.warp_sums);
    }
    shared.write(args, counts, chunks, rule.above);
    unsigned* order = args.units + chunks - shared.split_count;  // all tiles that are split would come first
#pragma unroll 1
    for (unsigned tile = threadIdx.x; tile < counts.tiles; tile += PLAN_THREADS) {
        const unsigned mark = mark_of(tile), bin = mark >> RANK_BITS;
        if (bin <= last_bin) order[shared.histogram.tiles[bin] + (mark & (1u << RANK_BITS) - 1)] = tile;
    }
}

// ---- Any other order and rule --------------------------------------------------------------------------------------

template <PlanPolicy P>
__device__ __forceinline__ void plan_in_passes(const PlanArgs& args, const Counts& counts, PlanShared<P>& shared) {
    constexpr bool CHUNKS = P.chunk != Chunked::off, BINNED = P.sched != Sched::grid && P.sched != Sched::lpt;
    constexpr bool COUNTS_FIRST = CHUNKS && P.chunk != Chunked::all && P.chunk != Chunked::catgs;
    const unsigned thread = threadIdx.x, tiles = counts.tiles;
    unsigned* in_bins = shared.histogram.tiles;

    // Which tiles are split.
    SplitRule rule;
    unsigned heaviest = 0;
    if constexpr (COUNTS_FIRST) {
        for_each_tile(counts, [&](unsigned, unsigned count) {
            if (count == 0) return;
            const unsigned own = work_bin(count);
            atomicAdd(&in_bins[own], 1u);
            if (count >= args.least_cut) atomicAdd(&shared.histogram.splats[own], count);
            heaviest = max(heaviest, count);
        });
        note_heaviest(shared.histogram, heaviest);
        __syncthreads();
    }
    if constexpr (CHUNKS) rule = split_rule<P>(args, counts, shared.histogram, shared.warp_sums);
    __syncthreads();
    if constexpr (COUNTS_FIRST) {
        if (thread < WORK_BINS) in_bins[thread] = 0;
        __syncthreads();
    }

    // Chunks for the tiles that are split, as long as there is room. How many of the others there are in each bin.
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
    if constexpr (!COUNTS_FIRST) note_heaviest(shared.histogram, heaviest);
    __syncthreads();
    const unsigned whole = tiles - shared.split_count;
    unsigned chunks = 0;
    if constexpr (CHUNKS) {
        unsigned* order = args.units + (P.chunk == Chunked::catgs ? whole : 0);
        if (shared.split_count) chunks = write_chunks(args, shared.split_count, shared.places, order, shared.warp_sums);
    }
    shared.write(args, counts, chunks, rule.above);
    unsigned* order = args.units + (P.chunk == Chunked::catgs ? 0 : chunks);

    // The whole tiles in order.
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

template <PlanPolicy P>
__global__ void __launch_bounds__(PLAN_THREADS, 1) plan(PlanArgs args) {
    constexpr bool BY_CUT = P.chunk == Chunked::off || (P.chunk == Chunked::policy && P.policy == ChunkPolicy::length);
    __shared__ PlanShared<P> shared;
    const Counts counts{args.tile_start, args.tiles, args.tile_start[args.tiles]};
    shared.clear();
    if constexpr (BY_CUT && P.sched == Sched::lpt_binned) plan_by_bins<P>(args, counts, shared);
    else plan_in_passes<P>(args, counts, shared);
}
