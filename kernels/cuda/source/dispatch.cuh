// Hands out units, whole tiles and chunks, to blocks in the order that `plan` left (schedule.cuh).
//
// `for_each_unit` calls a function with one unit after another.
// - hardware: the hardware starts blocks in order, as many as there are tiles and at least as many as there may be
//   chunks. A block that had a chunk then takes one of the tiles left beyond the last block. In a frame without chunks,
//   no block starts in vain.
// - ticket: only as many blocks start as fit the GPU. They stay, and count to get their next unit.
//
// A chunk may wait for earlier chunks of its tile. Chunks are therefore always handed out by counting: the blocks with
// the earlier chunks are then already running.
//
// Also here: the arrays by which chunks pass results to each other and to the backward pass. Read blend_queue.cuh next.
#pragma once
#include "schedule.cuh"

enum class Taking : int {
    hardware,  // a block for each unit
    ticket,    // blocks that stay
};
enum class Coexec : int {
    off,      // chunks in a launch of their own, before the tiles
    streams,  // chunks in a launch of their own, at the same time, on another stream
    fused,    // some blocks begin with chunks, the others with tiles; then each takes what is left of the other kind
    queue,    // one queue: chunks, then tiles
};
enum class Part : int { both, chunks, tiles };  // which units this launch takes

struct DispatchPolicy {
    Taking take = Taking::hardware;
    Coexec coexec = Coexec::queue;
    Part part = Part::both;
    bool chunks = false;       // there may be chunks
    bool chunks_last = false;  // chunks come after the tiles
    bool is_sorted = false;    // whole tiles have an order of their own
    bool exact_stop = true;    // pixels end where they would in an unsplit tile; always so in training
    bool sat_flag = true;      // a chunk stops when an earlier one has ended all pixels of the tile
    bool records_work = false;  // writes the time of each tile
    bool record = false;        // writes a UnitRecord of each unit
};

constexpr unsigned TILE_PIXELS = TILE * TILE;

// When and where a unit ran. Each multiprocessor has its own clock; kernels/schedule/timeline.py fits one time to all.
struct UnitRecord {
    long long clock_start, clock_end;        // cycles
    unsigned long long ns_start, ns_end;     // of the timer that all multiprocessors share
    unsigned multiprocessor, block;
    unsigned listed, walked, again;          // splats listed; splats visited until all pixels ended (in training:
                                             // splats blended); splats visited a second time
    unsigned epoch;                          // of the frame; a record of an older epoch: the unit did not run
};

struct UnitArgs {
    Schedule* schedule;
    const unsigned* units;         // [T + chunk_capacity]
    const unsigned* sorted_tiles;  // [T] is_sorted: whole tiles
    const Chunk* chunks;           // [chunk_capacity]
    unsigned* arrived;             // [chunk_capacity] by a tile's first chunk: how many of its chunks have finished
    unsigned* ready;               // [chunk_capacity] 1 once the chunk's `alone` is written
    unsigned* saturated;           // [chunk_capacity] by a tile's first chunk: the first chunk that ended all pixels
    float* alone;    // [chunk_capacity, 256] by thread: transmittance of the chunk alone, negative if a pixel ends
    float* ends;     // [chunk_capacity, 256] by pixel: transmittance behind the chunk; negative if the pixel ended in
                     // it, 0 if it had ended before
    float4* colors;  // [chunk_capacity, 256] by pixel: colour and depth sum of the chunk; in training at last the sums
                     // up to and with it
    unsigned* lasts;   // [chunk_capacity, 256] by pixel, training: entries up to and with the last one blended
    unsigned* counts;  // [chunk_capacity] training: entries that the backward pass walks
    unsigned* work;    // [T] records_work: clock cycles / 64
    unsigned chunk_blocks;  // fused: blocks that begin with chunks
    UnitRecord* records;    // [T + chunk_capacity] record: of tiles, then of chunks
};

// A tile or a chunk, by number.
struct Unit {
    unsigned number;
    bool is_chunk;
};
__device__ __forceinline__ Unit unit_of(unsigned word) { return {word & ~CHUNK_FLAG, (word & CHUNK_FLAG) != 0}; }

__device__ __forceinline__ UnitRecord* record_of(const UnitArgs& args, const Unit& unit) {
    return args.records + (unit.is_chunk ? args.schedule->tiles : 0) + unit.number;
}
// Writes the start of a unit's record at once, which saves registers.
__device__ __forceinline__ void record_start(UnitRecord* record, unsigned epoch) {
    if (threadIdx.x != 0) return;
    record->multiprocessor = sm_index(), record->block = blockIdx.x, record->epoch = epoch;
    record->ns_start = global_timer(), record->clock_start = clock64();
}
// Writes the end of a unit's record, once all threads of the block have arrived.
__device__ __forceinline__ void record_end(UnitRecord* record, unsigned listed, unsigned walked, unsigned again) {
    __syncthreads();
    if (threadIdx.x != 0) return;
    record->clock_end = clock64(), record->ns_end = global_timer();
    record->listed = listed, record->walked = walked, record->again = again;
}

// Returns the unit, as a word, at a place of this launch's order.
template <DispatchPolicy D>
__device__ __forceinline__ unsigned word_at(const UnitArgs& args, unsigned place) {
    constexpr bool TILES_ALONE = !D.chunks || D.part == Part::tiles;
    if constexpr (D.is_sorted && TILES_ALONE) return args.sorted_tiles[place];
    if constexpr (!D.chunks) return args.units[place];
    const unsigned tiles = args.schedule->tile_units, chunks = args.schedule->chunk_units;
    if constexpr (D.part == Part::tiles)
        return args.schedule->in_grid_order ? place : args.units[(D.chunks_last ? 0 : chunks) + place];
    if constexpr (D.part == Part::chunks) return args.units[(D.chunks_last ? tiles : 0) + place];
    if constexpr (D.is_sorted) {
        const unsigned tile = place - (D.chunks_last ? 0 : chunks);
        if (tile < tiles) return args.sorted_tiles[tile];
    } else if (args.schedule->in_grid_order) {
        return place < tiles ? place : NO_UNIT;
    }
    return args.units[place];
}

// Draws the block's next ticket. All threads call and get it.
__device__ __forceinline__ unsigned next_ticket(unsigned* next) {
    __shared__ unsigned ticket;
    __syncthreads();  // other threads may still read the last ticket, or the block's shared memory
    if (threadIdx.x == 0) ticket = atomicAdd(next, 1u);
    __syncthreads();
    return ticket;
}

// How many units this launch has to hand out.
template <DispatchPolicy D>
__device__ __forceinline__ unsigned unit_count(const UnitArgs& args) {
    unsigned units = 0;
    if constexpr (D.part != Part::chunks) units += args.schedule->tile_units;
    if constexpr (D.chunks && D.part != Part::tiles) units += args.schedule->chunk_units;
    return units;
}

// Calls work(unit) for each unit the block gets. `next` [2] are the counters of this launch: the first counts chunks,
// the second places beyond the last block or, if fused, tiles.
template <DispatchPolicy D, class Work>
__device__ __forceinline__ void for_each_unit(const UnitArgs& args, unsigned* next, Work work) {
    constexpr bool MIXED = D.chunks && D.part == Part::both, STAYS = D.take == Taking::ticket;
    if constexpr (D.coexec == Coexec::fused && MIXED) {
        const unsigned chunks = args.schedule->chunk_units, tiles = args.schedule->tile_units;
        const bool begins_with_chunks = blockIdx.x < args.chunk_blocks;
        for (int turn = 0; turn < 2; turn++) {
            const bool is_chunk = begins_with_chunks == (turn == 0);
            const unsigned first = is_chunk == D.chunks_last ? (is_chunk ? tiles : chunks) : 0;
            while (true) {
                const unsigned ticket = next_ticket(next + !is_chunk);
                if (ticket >= (is_chunk ? chunks : tiles)) break;
                work(unit_of(word_at<D>(args, first + ticket)));
            }
        }
    } else if constexpr (D.part == Part::chunks) {
        const unsigned chunks = args.schedule->chunk_units;
        if (blockIdx.x >= chunks) return;
        while (true) {
            const unsigned ticket = next_ticket(next);
            if (ticket >= chunks) return;
            work(Unit{word_at<D>(args, ticket) & ~CHUNK_FLAG, true});
        }
    } else {
        // A block's first unit is the one at its own number. The hardware spreads consecutive blocks over all
        // multiprocessors, so the heaviest units do not share one. A block with a whole tile waits for its word only.
        if constexpr (D.part == Part::tiles && D.chunks)
            if (blockIdx.x >= unit_count<D>(args)) return;
        unsigned word = word_at<D>(args, blockIdx.x);
        const auto goes_on = [&] {
            const unsigned place = gridDim.x + next_ticket(next + 1);
            const bool is_unit = place < unit_count<D>(args);
            if (is_unit) word = word_at<D>(args, place);
            return is_unit;
        };
        const unsigned* chunk_words = args.units;
        if constexpr (MIXED && D.chunks_last) chunk_words += args.schedule->tile_units;
        if constexpr (STAYS) {
            do {
                if (word == NO_UNIT) return;
                if (MIXED && (word & CHUNK_FLAG)) word = chunk_words[next_ticket(next)];
                work(MIXED ? unit_of(word) : Unit{word, false});
            } while (goes_on());
        } else {
            // There are at least as many blocks as chunks. Beyond the last block only tiles are left, fewer than
            // chunks.
            if constexpr (MIXED)
                if (word & CHUNK_FLAG) {
                    if (word == NO_UNIT) return;
                    work(Unit{chunk_words[next_ticket(next)] & ~CHUNK_FLAG, true});
                    if (!goes_on()) return;
                }
            work(Unit{word, false});
        }
    }
}
