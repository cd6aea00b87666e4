// Blends whole tiles and chunks of tiles in the order of `plan`, with the blending of blend.cuh.
//
// Threads, pixels and shared memory as in blend.cuh. Different blocks blend the chunks of a tile, each from
// transmittance 1. The block that finishes last adds the chunks up, front to back, and writes the picture.
//
// With `exact_stop`, splitting a tile must not change what a pixel blends. A chunk alone does not know how much
// transmittance is left before it. It would go on for pixels that have ended already, and would miss that a pixel ends
// in it. Each chunk therefore publishes its own transmittance and waits for that of the chunks before it. Then:
// - A pixel that does not end in the chunk gets what the chunk computed, times the transmittance before the chunk.
// - A pixel that ends in the chunk is walked a second time, from the transmittance before the chunk.
// Stops, lists and last indices are then those of an unsplit tile, up to the rounding of a product.
//
// In training, if any pixel ends, the whole chunk is walked again, because all its pixels share one compacted list. The
// second walk visits only what the first one kept: with less transmittance nothing else can contribute.
//
// Without `exact_stop`, a chunk visits its splats once. The sum stops at the first chunk that ended the pixel by itself
// or took it below the stop (Ryu and Yoo 2026).
#pragma once
#include "blend.cuh"
#include "dispatch.cuh"

struct BlendQueueArgs {
    const Frame* frame;
    BlendArgs blend;
    UnitArgs units;
};

// The block's present unit is kept in shared memory, so that it takes no registers while the block blends. One value
// too many would make the compiler spill registers in all walks, also of whole tiles.
template <BlendPolicy P>
struct QueueShared {
    BlendShared<P> blend;
    ListRange range;  // the part of the list that the present walk visits
    unsigned number;  // of the present tile or chunk
    Chunk chunk;
    bool is_again;    // this is the chunk's second walk
    unsigned walked;  // splats visited in the chunk's first walk
};
// Sets the range of the next walk: the chunk's splats from `first` on, at most `most`. The whole block calls.
template <BlendPolicy P>
__device__ __forceinline__ void set_stretch(const BlendArgs& args, QueueShared<P>& shared, unsigned first,
                                            unsigned most, bool is_again = false) {
    __syncthreads();
    if (threadIdx.x == 0) {
        const Chunk& chunk = shared.chunk;
        shared.is_again = is_again;
        shared.range.first = args.tile_start[chunk.tile] + chunk.begin + first;
        shared.range.count = min(most, chunk.end - chunk.begin - first);
    }
    __syncthreads();
}

// ---- Pixels that begin within a list -------------------------------------------------------------------------------

// Returns a pixel with nothing blended and the given transmittance left, negative if the pixel is done.
template <BlendPolicy P>
__device__ __forceinline__ Pixel begun_pixel(float signed_left) {
    Pixel pixel = new_pixel<P>(signed_left < 0.0f);
    const float left = fabsf(signed_left);
    pixel.left = left;
    if constexpr (P.running_T) pixel.T = signed_left < 0.0f ? 0.0f : left;
    else pixel.T = P.sign_T ? signed_left : left;
    return pixel;
}

template <BlendPolicy P>
__device__ __forceinline__ unsigned pixel_in_tile(int row) {
    const Place place = place_in_tile<forward_map(P.map)>();
    return unsigned((place.y + row) * TILE + place.x);
}
template <BlendPolicy P>
__device__ __forceinline__ unsigned by_thread(unsigned chunk, int row) {
    return chunk * TILE_PIXELS + unsigned(row) * unsigned(threads_of(forward_map(P.map))) + threadIdx.x;
}

// ---- What is left before a chunk -----------------------------------------------------------------------------------

template <BlendPolicy P>
__device__ __forceinline__ void publish_alone(const UnitArgs& args, const Chunk& chunk, unsigned number,
                                              const float (&alone)[Pixels<P>::ROWS]) {
    if (chunk.number + 1 == chunk.parts) return;  // nobody waits for the last one
#pragma unroll
    for (int row = 0; row < Pixels<P>::ROWS; row++) args.alone[by_thread<P>(number, row)] = alone[row];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) store_release(args.ready + number, 1u);
}

// Waits for all earlier chunks of the tile. Returns false, perhaps at once, if one of them has ended all pixels.
template <DispatchPolicy D>
__device__ __forceinline__ bool wait_for_earlier(const UnitArgs& args, const Chunk& chunk) {
    bool is_over = false;
    if (warp_index() == 0)
        for (unsigned earlier = lane_index(); earlier < chunk.number && !is_over; earlier += 32)
            while (!is_over && load_acquire(args.ready + chunk.first + earlier) == 0) {
                if constexpr (D.sat_flag) is_over = load_relaxed(args.saturated + chunk.first) < chunk.number;
                __nanosleep(100);
            }
    return !__syncthreads_or(is_over);
}

// Computes the transmittance of this thread's pixels before a chunk, negative for pixels that have ended.
template <BlendPolicy P>
__device__ __forceinline__ void left_before(const UnitArgs& args, const Chunk& chunk, float (&left)[Pixels<P>::ROWS]) {
    constexpr unsigned AT_ONCE = 8;
#pragma unroll
    for (int row = 0; row < Pixels<P>::ROWS; row++) {
        float product = 1.0f;
        for (unsigned first = 0; first < chunk.number && product > 0.0f; first += AT_ONCE) {
            float alone[AT_ONCE];
#pragma unroll
            for (unsigned k = 0; k < AT_ONCE; k++)
                alone[k] = first + k < chunk.number
                               ? load_relaxed(args.alone + by_thread<P>(chunk.first + first + k, row)) : 1.0f;
#pragma unroll
            for (unsigned k = 0; k < AT_ONCE; k++) {
                const float after = product * alone[k];
                product = product > 0.0f && after < TRANSMITTANCE_STOP ? -1.0f : product > 0.0f ? after : product;
            }
        }
        left[row] = product;
    }
}

// ---- Chunks together -----------------------------------------------------------------------------------------------

// Adds up a tile's chunks and writes its pixels.
template <BlendPolicy P, DispatchPolicy D>
__device__ __forceinline__ void add_up(const BlendQueueArgs& args, const Chunk& chunk, int tile_x, int tile_y) {
    constexpr bool IS_EXACT = D.exact_stop || P.training;
    constexpr unsigned AT_ONCE = 2;
    Pixels<P> pixels;
#pragma unroll
    for (int row = 0; row < Pixels<P>::ROWS; row++) {
        float red = 0.0f, green = 0.0f, blue = 0.0f, depth = 0.0f, left = 1.0f;
        bool goes_on = true;
        for (unsigned first = 0; first < chunk.parts && goes_on; first += AT_ONCE) {
            const unsigned place = (chunk.first + first) * TILE_PIXELS + pixel_in_tile<P>(row);
            float ends[AT_ONCE];
            float4 colors[AT_ONCE];
#pragma unroll
            for (unsigned k = 0; k < AT_ONCE; k++) {
                const bool exists = first + k < chunk.parts;
                ends[k] = exists ? args.units.ends[place + k * TILE_PIXELS] : 0.0f;
                colors[k] = exists ? args.units.colors[place + k * TILE_PIXELS] : float4{};
            }
#pragma unroll
            for (unsigned k = 0; k < AT_ONCE; k++) {
                if (ends[k] == 0.0f) goes_on = false;
                if (!goes_on) continue;
                const float scale = IS_EXACT ? 1.0f : left;
                red = fmaf(scale, colors[k].x, red), green = fmaf(scale, colors[k].y, green);
                blue = fmaf(scale, colors[k].z, blue), depth = fmaf(scale, colors[k].w, depth);
                left = scale * fabsf(ends[k]);
                if (ends[k] < 0.0f || left < TRANSMITTANCE_STOP) goes_on = false;
                if constexpr (P.training)
                    args.units.colors[place + k * TILE_PIXELS] = make_float4(red, green, blue, 0.0f);
            }
        }
        Pixel& pixel = pixels.of[row] = begun_pixel<P>(left);
        pixel.red = red, pixel.green = green, pixel.blue = blue, pixel.depth = depth;
    }
    if constexpr (P.training)
        if (threadIdx.x == 0) args.blend.entry_counts[chunk.tile] = 0;
    write_pixels<P>(args.blend, tile_x, tile_y, pixels);
}

// Returns true in the last block of the tile to arrive here. What the other blocks wrote before is then readable.
__device__ __forceinline__ bool arrives_last(const UnitArgs& args, const Chunk& chunk) {
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(args.arrived + chunk.first, 1u) + 1 == chunk.parts;
    __syncthreads();
    if (is_last) __threadfence();
    return is_last;
}

// ---- A chunk -------------------------------------------------------------------------------------------------------

constexpr unsigned STRETCH = 256;       // splats visited between two checks of `saturated`; in training the whole chunk
constexpr float GOES_AGAIN = 2.0f;  // value of `ends`: the pixel needs a second walk

// Returns true if an earlier chunk has ended all pixels. The whole block calls.
template <DispatchPolicy D>
__device__ __forceinline__ bool is_saturated(const UnitArgs& args, const Chunk& chunk) {
    if constexpr (!D.sat_flag) return false;
    return __syncthreads_or(threadIdx.x == 0 && load_relaxed(args.saturated + chunk.first) < chunk.number);
}

// Decides, after a part of the first walk, whether another part follows. If so, sets its range and returns true. If
// not, `is_over` becomes true if an earlier chunk has ended all pixels.
template <BlendPolicy P, DispatchPolicy D>
__device__ __forceinline__ bool goes_on_alone(const BlendQueueArgs& args, QueueShared<P>& shared, unsigned walked,
                                              const Pixels<P>& pixels, bool& is_over) {
    const Chunk& chunk = shared.chunk;
    const bool some_go_on = __syncthreads_or(pixels.go_on());
    is_over = is_saturated<D>(args.units, chunk);
    if (threadIdx.x == 0) {
        shared.walked += walked;
        if (D.sat_flag && !some_go_on && !is_over) atomicMin(args.units.saturated + chunk.first, chunk.number);
    }
    const unsigned done = shared.range.first + shared.range.count - args.blend.tile_start[chunk.tile] - chunk.begin;
    if (!some_go_on || is_over || done == chunk.end - chunk.begin) return false;
    set_stretch<P>(args.blend, shared, done, STRETCH);
    return true;
}

// Writes the chunk's result for a pixel, colours multiplied by `scale`.
template <BlendPolicy P>
__device__ __forceinline__ void write_chunk_pixel(const BlendQueueArgs& args, unsigned place, const Pixel& pixel,
                                                  float end, float scale) {
    args.units.ends[place] = end;
    args.units.colors[place] = make_float4(pixel.red * scale, pixel.green * scale, pixel.blue * scale,
                                           P.wants_depth ? pixel.depth * scale : 0.0f);
    if constexpr (P.training) args.units.lasts[place] = end == 0.0f ? 0u : pixel.last;
}

// Sets the range to the entries that the first walk kept, or to none if no pixel goes on.
template <BlendPolicy P>
__device__ __forceinline__ void keep_range(const BlendQueueArgs& args, QueueShared<P>& shared, unsigned kept,
                                           bool some_go_on) {
    constexpr unsigned SLOT = P.cmask ? (1u << slot_bits(P.map)) - 1u : ~0u;
    if constexpr (P.cmask)
        for (unsigned i = threadIdx.x; i < kept; i += blockDim.x) args.blend.list[shared.range.first + i] &= SLOT;
    __syncthreads();
    if (threadIdx.x == 0) shared.range.count = some_go_on ? kept : 0, shared.is_again = true;
    __syncthreads();
}

// Decides, after a walk of a chunk, whether another one follows. If so, sets its range and pixels and returns true.
// `kept` is how many entries the walk left in the list or, without training, visited.
template <BlendPolicy P, DispatchPolicy D>
__device__ __forceinline__ bool walks_on(const BlendQueueArgs& args, QueueShared<P>& shared, unsigned kept,
                                         Pixels<P>& pixels) {
    constexpr int ROWS = Pixels<P>::ROWS;
    constexpr bool IS_EXACT = D.exact_stop || P.training;
    const Chunk& chunk = shared.chunk;
    const unsigned first_place = shared.number * TILE_PIXELS;
    if (P.training && threadIdx.x == 0) args.units.counts[shared.number] = kept;
    if (shared.is_again) {
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            const unsigned place = first_place + pixel_in_tile<P>(row);
            if (args.units.ends[place] == GOES_AGAIN)
                write_chunk_pixel<P>(args, place, pixels.of[row], signed_T<P>(pixels.of[row]), 1.0f);
        }
        return false;
    }
    bool is_over;
    if (goes_on_alone<P, D>(args, shared, kept, pixels, is_over)) return true;
    float alone[ROWS], before[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; row++) alone[row] = is_over ? -1.0f : signed_T<P>(pixels.of[row]);
    if constexpr (IS_EXACT) publish_alone<P>(args.units, chunk, shared.number, alone);
    if (!IS_EXACT || chunk.number == 0) {
#pragma unroll
        for (int row = 0; row < ROWS; row++)
            write_chunk_pixel<P>(args, first_place + pixel_in_tile<P>(row), pixels.of[row],
                                 is_over ? 0.0f : alone[row], 1.0f);
        return false;
    }

#pragma unroll
    for (int row = 0; row < ROWS; row++) before[row] = -1.0f;
    if (!is_over && wait_for_earlier<D>(args.units, chunk)) left_before<P>(args.units, chunk, before);
    bool some_end = false;  // pixels outside the picture do not count
    if constexpr (P.training) {
        const Pixels<P> fresh = new_pixels<P>(*args.frame, shared.range.tile_x, shared.range.tile_y);
#pragma unroll
        for (int row = 0; row < ROWS; row++)
            some_end |= is_going_on<P>(fresh.of[row]) && !(before[row] * alone[row] >= TRANSMITTANCE_STOP);
        some_end = __syncthreads_or(some_end);
    }
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        const bool goes_on = before[row] > 0.0f, ends_here = goes_on && before[row] * alone[row] < TRANSMITTANCE_STOP;
        const bool goes_again = P.training ? goes_on && some_end : ends_here;
        write_chunk_pixel<P>(args, first_place + pixel_in_tile<P>(row), pixels.of[row],
                             goes_again ? GOES_AGAIN : goes_on ? before[row] * alone[row] : 0.0f, before[row]);
        pixels.of[row] = begun_pixel<P>(goes_again ? before[row] : -1.0f);
    }
    const bool some_go_again = __syncthreads_or(pixels.go_on());
    if (P.training ? !some_end : !some_go_again) return false;
    if constexpr (P.training) keep_range<P>(args, shared, kept, some_go_again);
    else set_stretch<P>(args.blend, shared, 0, NO_UNIT, true);
    return true;
}

// ---- A unit --------------------------------------------------------------------------------------------------------

// Sets the block to a whole tile, or to the beginning of a chunk. Since the last unit the block has passed a barrier,
// in `next_ticket`.
template <BlendPolicy P, DispatchPolicy D>
__device__ __forceinline__ void set_unit(const BlendQueueArgs& args, QueueShared<P>& shared, const Unit& unit) {
    if (threadIdx.x == 0) {
        unsigned tile = unit.number, begin = 0, count = 0;
        if constexpr (D.chunks) {
            shared.is_again = false, shared.walked = 0;
            if (unit.is_chunk) {
                const Chunk chunk = shared.chunk = args.units.chunks[unit.number];
                tile = chunk.tile, begin = chunk.begin, count = chunk.end - chunk.begin;
                if (!P.training) count = min(count, STRETCH);
                if (D.sat_flag && load_relaxed(args.units.saturated + chunk.first) < chunk.number) count = 0;
            }
        }
        const unsigned start = args.blend.tile_start[tile];
        if (!D.chunks || !unit.is_chunk) count = args.blend.tile_start[tile + 1] - start;
        const int columns = args.frame->tile_columns, number = int(tile);
        shared.range = {number % columns * TILE, number / columns * TILE, start + begin, count};
        shared.number = unit.number;
    }
    __syncthreads();
}

template <BlendPolicy P, DispatchPolicy D>
__device__ __forceinline__ void blend_unit(const BlendQueueArgs& args, QueueShared<P>& shared, const Unit& unit) {
    if constexpr (D.record) record_start(record_of(args.units, unit), args.frame->epoch);
    const long long began = D.records_work ? clock64() : 0;
    set_unit<P, D>(args, shared, unit);
    Pixels<P> pixels = new_pixels<P>(*args.frame, shared.range.tile_x, shared.range.tile_y);
    unsigned kept;
    do kept = blend_range<P>(args.blend, shared.blend, shared.range, pixels);
    while (D.chunks && unit.is_chunk && walks_on<P, D>(args, shared, kept, pixels));

    if (!D.chunks || !unit.is_chunk) {
        if constexpr (P.training)
            if (threadIdx.x == 0) args.blend.entry_counts[shared.number] = kept;
        write_pixels<P>(args.blend, shared.range.tile_x, shared.range.tile_y, pixels);
        if constexpr (D.record) record_end(args.units.records + shared.number, shared.range.count, kept, 0);
        if constexpr (D.records_work)
            if (threadIdx.x == 0) args.units.work[shared.number] = unsigned((clock64() - began) >> 6);
        return;
    }
    if constexpr (D.chunks) {
        if (arrives_last(args.units, shared.chunk))
            add_up<P, D>(args, shared.chunk, shared.range.tile_x, shared.range.tile_y);
        if constexpr (D.record)
            record_end(record_of(args.units, {shared.number, true}), shared.chunk.end - shared.chunk.begin,
                       shared.walked, shared.is_again ? kept : 0);
    }
}

// ---- The kernel ----------------------------------------------------------------------------------------------------

// Returns how many blocks should fit a multiprocessor: as many as for `blend`, but one fewer for viewing with chunks.
// With one block more, the code for chunks would make whole tiles spill registers; that cost 2 to 7% of blending in
// frames without chunks.
template <BlendPolicy P, DispatchPolicy D>
__device__ constexpr int queue_blocks() {
    return BlendShared<P>::BLOCKS - (D.chunks && D.part != Part::tiles && !P.training);
}
template <BlendPolicy P, DispatchPolicy D>
__global__ void __launch_bounds__(threads_of(forward_map(P.map)), queue_blocks<P, D>())
    blend_queue(BlendQueueArgs args) {
    check_policy<P>();
    __shared__ QueueShared<P> shared;
    if (args.frame->overflow) return;
    for_each_unit<D>(args.units, &args.units.schedule->next_forward[0],
                     [&](const Unit& unit) { blend_unit<P, D>(args, shared, unit); });
}
