// Blends whole tiles and chunks of tiles, as `plan` ordered them; the blending itself is blend.cuh's.
//
// Threads, pixels and shared memory as there. A tile's chunks are blended by different blocks, each from
// transmittance 1; the block that comes through last adds them up, front to back, and writes the picture.
//
// What a pixel blends must not depend on the cut. A chunk alone does not know what is left of a pixel before it, so it
// goes on where the pixel has ended already, and may not see that it ends here. With `exact_stop` each chunk tells the
// others its own transmittance, waits for those before it, and so knows what is left: what it adds to a pixel that
// does not end in it is what it has, times that; pixels that do end go through its splats again, from there. So stops,
// lists and last indices are those of one walk, up to the rounding of a product. For training the first walk is for
// transmittance alone, and all pixels go through the second one. Without `exact_stop` a chunk goes through its splats
// once, and the sum stops at the first chunk that ended the pixel by itself or took it below the stop (Ryu and Yoo
// 2026).
#pragma once
#include "blend.cuh"
#include "dispatch.cuh"

struct BlendQueueArgs {
    const Frame* frame;
    BlendArgs blend;
    UnitArgs units;
};

// Of a walk that is not the last: nothing is listed for the backward pass.
template <BlendPolicy P>
__device__ constexpr BlendPolicy first_walk() {
    BlendPolicy first = P;
    first.training = first.compaction = first.cmask = false;
    return first;
}
template <BlendPolicy P>
struct QueueShared {
    static constexpr BlendPolicy FIRST = first_walk<P>();
    union {
        BlendShared<P> last;
        BlendShared<FIRST> first;
    };
    ListRange range;  // what the block is at: here it takes no registers
};
// The whole block calls it; what came before is done with the old range.
template <BlendPolicy P>
__device__ __forceinline__ void set_range(QueueShared<P>& shared, const ListRange& range) {
    __syncthreads();
    if (threadIdx.x == 0) shared.range = range;
    __syncthreads();
}

// ---- Pixels that begin within a list -------------------------------------------------------------------------------

// A pixel with so much left, negative if it is done.
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

// ---- A chunk by itself ---------------------------------------------------------------------------------------------

// Blends a chunk from transmittance 1, as long as any pixel goes on and no earlier chunk has ended them all. Returns
// whether one has.
template <BlendPolicy P, DispatchPolicy D>
__device__ __forceinline__ bool blend_alone(const BlendQueueArgs& args, QueueShared<P>& shared, const ListRange& range,
                                            const Chunk& chunk, Pixels<first_walk<P>()>& pixels, unsigned& walked) {
    constexpr BlendPolicy FIRST = first_walk<P>();
    constexpr unsigned STRETCH = 1024;  // splats between two looks at the flag
    unsigned* saturated = args.units.saturated + chunk.first;
    bool is_over = false;
    for (unsigned first = 0; first < range.count; first += STRETCH) {
        if constexpr (D.sat_flag) is_over = load_relaxed(saturated) < chunk.number;
        set_range<P>(shared, {range.tile_x, range.tile_y, range.first + first, min(STRETCH, range.count - first)});
        walked += blend_range<FIRST>(args.blend, shared.first, shared.range, pixels);
        if (!__syncthreads_or(pixels.go_on() && !is_over)) break;
    }
    if constexpr (!D.sat_flag) return false;
    is_over = __syncthreads_or(is_over);
    if (!__syncthreads_or(pixels.go_on()) && !is_over && threadIdx.x == 0) atomicMin(saturated, chunk.number);
    return is_over;
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

// Returns false, perhaps without waiting, if an earlier chunk has ended all pixels.
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

// What is left of this thread's pixels before a chunk, negative where they have ended.
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
    constexpr unsigned AT_ONCE = 4;
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

// Whether this block is the last one of its tile to come here. What the others wrote before is then there to be read.
__device__ __forceinline__ bool arrives_last(const UnitArgs& args, const Chunk& chunk) {
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(args.arrived + chunk.first, 1u) + 1 == chunk.parts;
    __syncthreads();
    if (is_last) __threadfence();
    return is_last;
}

template <BlendPolicy P, DispatchPolicy D>
__device__ __forceinline__ void blend_chunk(const BlendQueueArgs& args, QueueShared<P>& shared, unsigned number) {
    constexpr int ROWS = Pixels<P>::ROWS;
    constexpr bool IS_EXACT = D.exact_stop || P.training;
    constexpr BlendPolicy FIRST = first_walk<P>();
    const Frame& frame = *args.frame;
    const Chunk chunk = args.units.chunks[number];
    const int tile = int(chunk.tile);
    const int tile_x = tile % frame.tile_columns * TILE, tile_y = tile / frame.tile_columns * TILE;
    const ListRange range{tile_x, tile_y, args.blend.tile_start[chunk.tile] + chunk.begin, chunk.end - chunk.begin};
    const bool begins = IS_EXACT && chunk.number == 0;  // knows what is left before it, and walks once
    UnitRecord* record = nullptr;
    if constexpr (D.record) {
        record = record_of(args.units, {number, true});
        record_start(record, frame.epoch);
    }

    Pixels<P> pixels = new_pixels<P>(frame, tile_x, tile_y);
    float before[ROWS];  // what is left before the chunk, negative where the pixel has ended
#pragma unroll
    for (int row = 0; row < ROWS; row++) before[row] = is_going_on<P>(pixels.of[row]) ? 1.0f : -1.0f;
    bool adds = true;  // any pixel goes on here
    unsigned kept = 0, walked = 0;
    if (begins) {
        set_range<P>(shared, range);
        kept = blend_range<P>(args.blend, shared.last, shared.range, pixels);
        float alone[ROWS];
        bool goes_on = false;
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            alone[row] = signed_T<P>(pixels.of[row]);
            goes_on |= alone[row] > 0.0f;
        }
        if constexpr (D.sat_flag)
            if (!__syncthreads_or(goes_on) && threadIdx.x == 0) atomicMin(args.units.saturated + chunk.first, 0u);
        publish_alone<P>(args.units, chunk, number, alone);
    } else {
        Pixels<FIRST> by_itself;
#pragma unroll
        for (int row = 0; row < ROWS; row++) by_itself.of[row] = pixels.of[row];
        adds = !blend_alone<P, D>(args, shared, range, chunk, by_itself, walked);
        float alone[ROWS];
#pragma unroll
        for (int row = 0; row < ROWS; row++) alone[row] = adds ? signed_T<FIRST>(by_itself.of[row]) : -1.0f;
        bool walks[ROWS] = {};  // once more, from what is left
        if constexpr (IS_EXACT) {
            publish_alone<P>(args.units, chunk, number, alone);
            adds = adds && wait_for_earlier<D>(args.units, chunk);
            bool goes_on = false;
            if (adds) {
                left_before<P>(args.units, chunk, before);
#pragma unroll
                for (int row = 0; row < ROWS; row++) goes_on |= before[row] > 0.0f;
            }
            adds = __syncthreads_or(goes_on);
#pragma unroll
            for (int row = 0; row < ROWS; row++)
                walks[row] = adds && before[row] > 0.0f &&
                             (P.training || before[row] * alone[row] < TRANSMITTANCE_STOP);
        }
#pragma unroll
        for (int row = 0; row < ROWS; row++) pixels.of[row] = begun_pixel<P>(walks[row] ? before[row] : -1.0f);
        if (IS_EXACT && __syncthreads_or(pixels.go_on())) {
            set_range<P>(shared, range);
            kept = blend_range<P>(args.blend, shared.last, shared.range, pixels);
        }
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            if (walks[row]) continue;
            const float scale = IS_EXACT ? fmaxf(before[row], 0.0f) : 1.0f;
            const Pixel& own = by_itself.of[row];
            Pixel& pixel = pixels.of[row] = begun_pixel<P>(alone[row] * scale);
            pixel.red = own.red * scale, pixel.green = own.green * scale, pixel.blue = own.blue * scale;
            pixel.depth = own.depth * scale;
        }
    }

    if constexpr (P.training)
        if (threadIdx.x == 0) args.units.counts[number] = kept;
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        const Pixel& pixel = pixels.of[row];
        const unsigned place = number * TILE_PIXELS + pixel_in_tile<P>(row);
        const bool has_ended = IS_EXACT && before[row] < 0.0f && chunk.number > 0;
        args.units.ends[place] = !adds || has_ended ? 0.0f : signed_T<P>(pixel);
        if (!adds) continue;
        args.units.colors[place] = make_float4(pixel.red, pixel.green, pixel.blue, P.wants_depth ? pixel.depth : 0.0f);
        if constexpr (P.training) args.units.lasts[place] = pixel.last;
    }
    if (arrives_last(args.units, chunk)) add_up<P, D>(args, chunk, tile_x, tile_y);
    if constexpr (D.record) record_end(record, range.count, walked + (begins ? kept : 0), begins ? 0 : kept);
}

// ---- The kernel ----------------------------------------------------------------------------------------------------

// As many blocks a multiprocessor as `blend` has: what chunks need beside must not keep whole tiles from running.
template <BlendPolicy P, DispatchPolicy D>
__global__ void __launch_bounds__(threads_of(forward_map(P.map)), BlendShared<P>::BLOCKS)
    blend_queue(BlendQueueArgs args) {
    check_policy<P>();
    __shared__ QueueShared<P> shared;
    const Frame& frame = *args.frame;
    if (frame.overflow) return;
    for_each_unit<D>(args.units, &args.units.schedule->next_forward[0], [&](Unit unit) {
        if (D.chunks && unit.is_chunk) {
            if constexpr (D.chunks) blend_chunk<P, D>(args, shared, unit.number);
            return;
        }
        const long long began = D.records_work ? clock64() : 0;
        if constexpr (D.record) record_start(args.units.records + unit.number, frame.epoch);
        const int tile = int(unit.number);
        const int tile_x = tile % frame.tile_columns * TILE, tile_y = tile / frame.tile_columns * TILE;
        const unsigned start = args.blend.tile_start[tile], count = args.blend.tile_start[tile + 1] - start;
        set_range<P>(shared, {tile_x, tile_y, start, count});
        Pixels<P> pixels = new_pixels<P>(frame, tile_x, tile_y);
        const unsigned kept = blend_range<P>(args.blend, shared.last, shared.range, pixels);
        if constexpr (P.training)
            if (threadIdx.x == 0) args.blend.entry_counts[unit.number] = kept;
        write_pixels<P>(args.blend, shared.range.tile_x, shared.range.tile_y, pixels);
        if constexpr (D.record) record_end(args.units.records + unit.number, count, kept, 0);
        if constexpr (D.records_work)
            if (threadIdx.x == 0) args.units.work[unit.number] = unsigned((clock64() - began) >> 6);
    });
}
