// Lists splats by tile: makes a (tile, slot) pair for every tile of every splat, in depth order.
//
// Each pair gets a place in an array, splat after splat in depth order. The tile is the pair's sort key and the splat's
// slot its payload. Splats differ by a factor of thousands in their number of tiles, and the largest are next to each
// other at the front. Work is therefore divided by places, not by splats.
//
// `offsets` sums the tile counts (from project.cuh) over all preceding splats by look-back (scan.cuh). It writes the
// data that `emit` needs of each splat side by side in depth order, and notes for every CHUNK places which splat has
// the first of them. 256 threads a block, which takes a part of 8 × 256 splats by ticket. Shared memory: 48 bytes.
//
// `emit` fills a chunk of places at a time. 256 threads a block; blocks take chunks in turns. Each thread takes a splat
// that has places in the chunk.
// - Footprints with few bits: the thread turns them into tiles. With many bits, the whole warp does, a lane a bit.
// - Without bits: the warp computes the tiles again, a lane a tile row, with the function that counted them
//   (tiles.cuh).
// Tiles and slots are collected in shared memory and written side by side. Blocks also count the digits of the keys, so
// that the sort (sort.cuh) needs no histogram of its own. Shared memory: 8 KB, and 1 KB for each byte of the key.
//
// If the pairs exceed the capacity, `offsets` sets the overflow bit and the wanted number, and the frame has 0 pairs.
//
// Policy: bounds, as in project.cuh; key_bytes: 2 up to 65,536 tiles, 4 beyond, 8 for keys tile << 32 | depth bits, if
// splats were not sorted before (then `order` is null and splats come in slot order). Read ranges.cuh next.
#pragma once
#include "frame.cuh"
#include "sort.cuh"
#include "tiles.cuh"

// ---- Where the pairs of each splat begin ---------------------------------------------------------------------------

constexpr unsigned CHUNK = 1024;  // places

constexpr unsigned OFFSETS_THREADS = 256, OFFSETS_WARPS = OFFSETS_THREADS / 32;

struct OffsetsPolicy {
    int each = 8;  // splats a thread
};

// The 16 bytes that `emit` needs of each splat, side by side in depth order.
struct alignas(16) Placed {
    unsigned place;  // of the splat's first pair
    unsigned slot;
    Footprint footprint;
};

struct OffsetsArgs {
    Frame* frame;
    const Footprint* __restrict__ footprints;  // of splats in order
    const unsigned* __restrict__ order;        // slots, nearest first; null: slot order
    Placed* placed;                            // out [visible_capacity] splats in order
    unsigned* chunk_splats;                    // out [ceil(instance_capacity / CHUNK)] splat at the chunk's first place
    unsigned long long* look_back;             // [ceil(visible_capacity / (256 × 8))]
    unsigned ticket;                           // which of Frame::tickets counts parts
};

// Stores the number of pairs, or 0 and the overflow bit. Called by the one thread that knows the number.
__device__ __forceinline__ void finish_count(Frame& frame, unsigned long long wanted) {
    const bool fits = wanted <= frame.instance_capacity;
    frame.instances_wanted = wanted;
    frame.instances = fits ? static_cast<unsigned>(wanted) : 0;
    if (!fits) atomicOr(&frame.overflow, OVERFLOW_INSTANCES);
}

template <OffsetsPolicy P>
__global__ void __launch_bounds__(OFFSETS_THREADS) offsets(OffsetsArgs args) {
    constexpr unsigned EACH = P.each, SIZE = OFFSETS_THREADS * EACH;
    __shared__ unsigned warp_sums[OFFSETS_WARPS], shared_part;
    __shared__ unsigned long long shared_before;
    Frame& frame = *args.frame;
    const unsigned listed = frame.slots, parts = ceil_div(listed, SIZE);
    if (blockIdx.x >= parts) return;
    if (threadIdx.x == 0) shared_part = atomicAdd(&frame.tickets[args.ticket], 1u);
    __syncthreads();
    const unsigned part = shared_part, first = part * SIZE + warp_index() * 32 * EACH + lane_index();
    const unsigned long long tag = look_back_tag(frame.epoch, 0);
    unsigned slot[EACH], begins[EACH], in_warp = 0;
    Footprint footprint[EACH];
#pragma unroll
    for (unsigned k = 0; k < EACH; k++) {
        const unsigned i = first + 32 * k;
        slot[k] = args.order && i < listed ? args.order[i] : i;
    }
#pragma unroll
    for (unsigned k = 0; k < EACH; k++)
        footprint[k] = first + 32 * k < listed ? args.footprints[first + 32 * k] : Footprint{0, 0};
#pragma unroll
    for (unsigned k = 0; k < EACH; k++) {
        const unsigned tiles = count_of(footprint[k]), end = inclusive_warp_sum(tiles);
        begins[k] = in_warp + end - tiles;
        in_warp += __shfl_sync(FULL_WARP, end, 31);
    }
    if (lane_index() == 0) warp_sums[warp_index()] = in_warp;
    __syncthreads();
    unsigned warp_begin = 0, total = 0;
#pragma unroll
    for (unsigned w = 0; w < OFFSETS_WARPS; w++) {
        if (w == warp_index()) warp_begin = total;
        total += warp_sums[w];
    }
    if (warp_index() == 0) {
        publish_total(args.look_back, part, total, tag);
        const unsigned long long before = look_back(args.look_back, part, total, tag);
        if (lane_index() == 0) {
            shared_before = before;
            if (part == parts - 1) finish_count(frame, before + total);
        }
    }
    __syncthreads();
    const unsigned long long place = shared_before + warp_begin;
    const unsigned capacity = frame.instance_capacity;
#pragma unroll
    for (unsigned k = 0; k < EACH; k++) {
        const unsigned i = first + 32 * k;
        const unsigned long long begin = place + begins[k], end = begin + count_of(footprint[k]);
        if (i >= listed || end > capacity) continue;
        args.placed[i] = {static_cast<unsigned>(begin), slot[k], footprint[k]};
        for (unsigned chunk = static_cast<unsigned>((begin + CHUNK - 1) / CHUNK); size_t(chunk) * CHUNK < end; chunk++)
            args.chunk_splats[chunk] = i;
    }
}

// ---- The pairs -----------------------------------------------------------------------------------------------------

constexpr unsigned EMIT_THREADS = 256;

struct EmitPolicy {
    Bounds bounds = Bounds::row_span;
    int key_bytes = 2;
};

struct EmitArgs {
    Frame* frame;
    const Extent* __restrict__ extents;         // by slot, of splats without bits
    const Placed* __restrict__ placed;          // splats in order
    const unsigned* __restrict__ chunk_splats;  // [ceil(I / CHUNK)] splat in order at the chunk's first place
    const unsigned* __restrict__ depth_bits;    // by slot; for key_bytes 8 only
    void* keys;                                 // out [instance_capacity]
    unsigned* slots;                            // out [instance_capacity]
    unsigned* bins;                             // in, out [passes][256] for the sort, as in sort.cuh
    unsigned passes;                            // of the sort, at most key_bytes
    unsigned digit_bits;                        // of each pass, at most 8
};

// The pairs of a chunk, collected in shared memory.
struct Chunk {
    unsigned tiles[CHUNK], slots[CHUNK];
};

// Writes a pair if its place is in the chunk. `place` counts from the chunk's first, modulo 2^32, so that places before
// the chunk are above CHUNK too.
__device__ __forceinline__ void put(Chunk& chunk, unsigned place, unsigned tile, unsigned slot) {
    if (place >= CHUNK) return;
    chunk.tiles[place] = tile;
    chunk.slots[place] = slot;
}

// Returns the tile of bit `bit` of a footprint.
__device__ __forceinline__ unsigned tile_of(unsigned corner, unsigned bit, int tile_columns) {
    const unsigned row = (corner & 0xffffu) + bit / FOOTPRINT_COLUMNS;
    return row * static_cast<unsigned>(tile_columns) + (corner >> 16) + bit % FOOTPRINT_COLUMNS;
}

// Writes the pairs of splats whose footprint has bits: its lane alone if there are few, else the whole warp, a lane a
// bit.
__device__ __forceinline__ void place_bits(Chunk& chunk, const Placed& mine, unsigned place, int tile_columns) {
    constexpr int FEW = 6;
    const bool has_few = __popc(mine.footprint.bits) <= FEW;
    unsigned at = place;
    for (unsigned bits = has_few ? mine.footprint.bits : 0; bits; bits &= bits - 1, at++) {
        const unsigned bit = static_cast<unsigned>(__ffs(static_cast<int>(bits))) - 1;
        put(chunk, at, tile_of(mine.footprint.corner, bit, tile_columns), mine.slot);
    }
    for (unsigned lanes = __ballot_sync(FULL_WARP, !has_few); lanes; lanes &= lanes - 1) {
        const int lane = __ffs(static_cast<int>(lanes)) - 1;
        const unsigned bits = __shfl_sync(FULL_WARP, mine.footprint.bits, lane);
        const unsigned corner = __shfl_sync(FULL_WARP, mine.footprint.corner, lane);
        const unsigned slot = __shfl_sync(FULL_WARP, mine.slot, lane), its_place = __shfl_sync(FULL_WARP, place, lane);
        const unsigned before = static_cast<unsigned>(__popc(bits & ((1u << lane_index()) - 1)));
        if (bits >> lane_index() & 1u)
            put(chunk, its_place + before, tile_of(corner, lane_index(), tile_columns), slot);
    }
}

// Writes the pairs of all lanes' splats with the whole warp, a lane a tile row. A lane without a splat has no rows.
template <Bounds B>
__device__ __forceinline__ void place_rows(Chunk& chunk, const Extent& mine, unsigned tiles, unsigned slot,
                                           unsigned place, int tile_columns) {
    const unsigned row_count = length_of(mine.rows), rows_end = inclusive_warp_sum(row_count);
    // Add this to a pair's number among the warp's pairs to get its place.
    const unsigned to_place = place - (inclusive_warp_sum(tiles) - tiles);
    unsigned before = 0;
    visit_rows<B>(mine, rows_end, row_count, tile_columns, [&](unsigned, unsigned owner, int row, unsigned columns) {
        const unsigned pairs = length_of(columns), end = inclusive_warp_sum(pairs);
        const unsigned begin = __shfl_sync(FULL_WARP, to_place, static_cast<int>(owner)) + before + end - pairs;
        const unsigned its_slot = __shfl_sync(FULL_WARP, slot, static_cast<int>(owner));
        const unsigned tile = static_cast<unsigned>(row * tile_columns + first_of(columns));
        // Skips pairs before the chunk and pairs behind it.
        for (unsigned k = begin < CHUNK ? 0 : min(pairs, 0u - begin); k < pairs && begin + k < CHUNK; k++)
            put(chunk, begin + k, tile + k, its_slot);
        before += __shfl_sync(FULL_WARP, end, 31);
    });
}

// Loads splat number i in order; beyond the last, returns a splat without tiles.
__device__ __forceinline__ Placed load_placed(const EmitArgs& args, unsigned i, unsigned last) {
    if (i > last) return {};
    const uint4 word = reinterpret_cast<const uint4*>(args.placed)[i];
    return {word.x, word.y, {word.z, word.w}};
}

// Writes the pairs of a splat for each lane into the chunk that begins at place `first`. The whole warp calls.
template <Bounds B>
__device__ __forceinline__ void place_pairs(Chunk& chunk, const EmitArgs& args, const Placed& mine, unsigned first,
                                            int tile_columns) {
    const unsigned place = mine.place - first;
    place_bits(chunk, mine, place, tile_columns);
    const bool is_large = mine.footprint.bits == 0 && mine.footprint.corner;
    if (!__any_sync(FULL_WARP, is_large)) return;
    Extent extent{};
    if (is_large) extent = load_extent(args.extents, mine.slot);
    place_rows<B>(chunk, extent, is_large ? mine.footprint.corner : 0, mine.slot, place, tile_columns);
}

template <EmitPolicy P>
__global__ void __launch_bounds__(EMIT_THREADS, 4) emit(EmitArgs args) {
    using Key = typename KeyOf<P.key_bytes>::type;
    constexpr unsigned BINS = 256;
    __shared__ unsigned shared_bins[P.key_bytes * BINS];
    __shared__ Chunk chunk;
    Frame& frame = *args.frame;
    const unsigned listed = frame.slots, pairs = frame.instances;
    const int tile_columns = frame.tile_columns;
    for (unsigned i = threadIdx.x; i < args.passes * BINS; i += EMIT_THREADS) shared_bins[i] = 0;
    for (size_t first = size_t(blockIdx.x) * CHUNK; first < pairs; first += size_t(gridDim.x) * CHUNK) {
        const unsigned number = static_cast<unsigned>(first / CHUNK), held = min(pairs - unsigned(first), CHUNK);
        // The chunk's last splat is at most the splat at the first place of the next chunk.
        const unsigned begin = args.chunk_splats[number];
        const unsigned last = first + CHUNK < pairs ? args.chunk_splats[number + 1] : listed - 1;
        // Loads the next splats while the present ones are placed.
        Placed placed = load_placed(args, begin + threadIdx.x, last);
        for (unsigned base = begin; base <= last; base += EMIT_THREADS) {
            const Placed next = load_placed(args, base + EMIT_THREADS + threadIdx.x, last);
            place_pairs<P.bounds>(chunk, args, placed, static_cast<unsigned>(first), tile_columns);
            placed = next;
        }
        __syncthreads();
        Key* keys = static_cast<Key*>(args.keys) + first;
        for (unsigned i = threadIdx.x; i < held; i += EMIT_THREADS) {
            const unsigned slot = chunk.slots[i];
            Key key = static_cast<Key>(chunk.tiles[i]);
            if constexpr (P.key_bytes == 8) key = key << 32 | args.depth_bits[slot];
            keys[i] = key;
            args.slots[first + i] = slot;
            count_digits<BINS, P.key_bytes>(shared_bins, key, args.passes, args.digit_bits);
        }
        __syncthreads();
    }
    publish_bins<BINS>(shared_bins, args.bins, args.passes);
}
