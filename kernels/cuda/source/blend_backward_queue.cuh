// Computes the derivative of blending for whole tiles and chunks of tiles, in the order of the forward pass.
//
// Threads, pixels, shared memory and the walk are those of blend_backward.cuh. A chunk's pixels begin with the
// transmittance behind the chunk and the light from behind it: the picture minus the colours up to and with the chunk,
// divided by that transmittance. Each chunk has its own compacted list and last indices (blend_queue.cuh), so blocks
// need nothing from each other.
#pragma once
#include "blend_backward.cuh"
#include "dispatch.cuh"

struct BlendBackwardQueueArgs {
    const Frame* frame;
    BlendBackwardArgs blend;
    UnitArgs units;
    const float* image;  // [H, W, 3] as the forward pass left it
};

// Returns the pixels of a tile, behind one of its chunks.
template <BlendBackwardPolicy P>
__device__ __forceinline__ PixelsBackward<P> load_chunk_pixels(const BlendBackwardQueueArgs& args, unsigned number,
                                                               int tile_x, int tile_y) {
    const Frame& frame = *args.frame;
    const Place place = place_in_tile<backward_map(P.map)>();
    PixelsBackward<P> pixels;
#pragma unroll
    for (int row = 0; row < PixelsBackward<P>::ROWS; row++) {
        const int px = tile_x + place.x, py = tile_y + place.y + row;
        const unsigned own = number * TILE_PIXELS + unsigned((place.y + row) * TILE + place.x);
        PixelBackward& pixel = pixels.of[row];
        pixel = {1.0f, 0.0f, 0.0f, 0.0f, {0.0f, 0.0f, 0.0f}, 0u};
        if (px >= frame.width || py >= frame.height || args.units.lasts[own] == 0) continue;
        const size_t i = 3 * (size_t(py) * size_t(frame.width) + size_t(px));
        const float4 through = args.units.colors[own];
        pixel.T = fabsf(args.units.ends[own]), pixel.last = args.units.lasts[own];
        pixel.by_red = args.blend.image_gradient[i];
        pixel.by_green = args.blend.image_gradient[i + 1];
        pixel.by_blue = args.blend.image_gradient[i + 2];
        const float inverse_T = 1.0f / pixel.T;
        const float red = (args.image[i] - through.x) * inverse_T, green = (args.image[i + 1] - through.y) * inverse_T,
                    blue = (args.image[i + 2] - through.z) * inverse_T;
        if constexpr (P.accum == Accumulate::projected) {
            pixel.behind[0] = fmaf(red, pixel.by_red, fmaf(green, pixel.by_green, blue * pixel.by_blue));
        } else {
            pixel.behind[0] = red, pixel.behind[1] = green, pixel.behind[2] = blue;
        }
    }
    return pixels;
}

template <BlendBackwardPolicy P, DispatchPolicy D>
__global__ void __launch_bounds__(threads_of(backward_map(P.map)),
                                  BACKWARD_RESIDENT<P> / threads_of(backward_map(P.map)))
    blend_backward_queue(BlendBackwardQueueArgs args) {
    check_policy<P>();
    __shared__ BackwardShared<P> shared;
    const Frame& frame = *args.frame;
    if (frame.overflow) return;
    for_each_unit<D>(args.units, &args.units.schedule->next_backward[0], [&](Unit unit) {
        unsigned tile = unit.number, first = 0, count = 0;
        if (D.chunks && unit.is_chunk) {
            tile = args.units.chunks[unit.number].tile, first = args.units.chunks[unit.number].begin;
            count = args.units.counts[unit.number];
        } else {
            count = args.blend.entry_counts[tile];
        }
        if (count == 0) return;
        if constexpr (D.record) record_start(record_of(args.units, unit), frame.epoch);
        const int tile_x = int(tile) % frame.tile_columns * TILE, tile_y = int(tile) / frame.tile_columns * TILE;
        PixelsBackward<P> pixels;
        if (D.chunks && unit.is_chunk) pixels = load_chunk_pixels<P>(args, unit.number, tile_x, tile_y);
        else pixels = load_pixels<P>(args.blend, tile_x, tile_y);
        walk_range<P>(args.blend, shared, {tile_x, tile_y, args.blend.tile_start[tile] + first, count}, pixels);
        if constexpr (D.record) record_end(record_of(args.units, unit), count, count, 0);
    });
}
