// Blends each tile's list of splats front to back; in training it also leaves what the backward pass needs.
//
// A block takes one tile, with 256 or 128 threads. A warp owns 8×4 pixels, one a thread, or 8×8 pixels, two a thread,
// one above the other. lane % 8 is the column, lane / 8 the row or pair of rows. Shared memory: as `blend_range`
// (blend_range.cuh) needs.
//
// `blend_range` blends a part of a list, and a block may call it any number of times. Kernels that take tiles from a
// queue or split lists (blend_queue.cuh) are built from it. Not here: the order of tiles, and their lists. Read
// blend_backward.cuh next.
#pragma once
#include "blend_range.cuh"

template <BlendPolicy P>
__device__ __forceinline__ Pixels<P> new_pixels(const Frame& frame, int tile_x, int tile_y) {
    const Place place = place_in_tile<forward_map(P.map)>();
    Pixels<P> pixels;
#pragma unroll
    for (int row = 0; row < Pixels<P>::ROWS; row++) {
        const bool is_outside = tile_x + place.x >= frame.width || tile_y + place.y + row >= frame.height;
        pixels.of[row] = new_pixel<P>(is_outside);
    }
    return pixels;
}
template <BlendPolicy P>
__device__ __forceinline__ void write_pixels(const BlendArgs& args, int tile_x, int tile_y, const Pixels<P>& pixels) {
    const Frame& frame = *args.frame;
    const Place place = place_in_tile<forward_map(P.map)>();
#pragma unroll
    for (int row = 0; row < Pixels<P>::ROWS; row++) {
        const int px = tile_x + place.x, py = tile_y + place.y + row;
        if (px >= frame.width || py >= frame.height) continue;
        const size_t i = size_t(py) * size_t(frame.width) + size_t(px);
        const Pixel& pixel = pixels.of[row];
        const float left = fabsf(signed_T<P>(pixel));
        args.image[3 * i] = fmaf(left, frame.background[0], pixel.red);
        args.image[3 * i + 1] = fmaf(left, frame.background[1], pixel.green);
        args.image[3 * i + 2] = fmaf(left, frame.background[2], pixel.blue);
        args.transmittance[i] = left;
        // The weights add up to 1 − transmittance. An empty pixel gives 0 / 0, which is the NaN we want.
        if constexpr (P.wants_depth)
            args.depth[i] = (P.primitive == Primitive::gs2d ? frame.near_z * pixel.depth : pixel.depth) / (1.0f - left);
        if constexpr (P.training) args.last[i] = pixel.last;
    }
}

// ---- The kernel -----------------------------------------------------------------------------------------------------

template <BlendPolicy P>
__device__ constexpr void check_policy() {
    static_assert(P.map != Map::adaptive, "a kernel has one map: launch that of mixed or that of columns_8x8");
    static_assert(!P.sign_T || P.branchless, "sign_T keeps a pixel's end in the sign of T: switch on branchless first");
    static_assert(!P.running_T || (P.branchless && !P.sign_T),
                  "running_T is one of the branchless ways to end a pixel: switch on branchless and off sign_T first");
    static_assert(!P.branchless || P.subtile != Subtile::off,
                  "branchless needs sub-tile masks: switch on subtile first");
    static_assert(P.subtile_list == SubtileList::ballot || P.subtile != Subtile::off,
                  "lists of warps need sub-tile masks: switch on subtile first");
    static_assert(!P.compaction || P.training, "compaction serves the backward pass: it needs training");
    static_assert(!P.compaction || P.subtile != Subtile::off,
                  "compaction needs sub-tile masks: switch on subtile first");
    static_assert(!P.cmask || P.compaction, "cmask is stored by compaction: switch on compaction first");
    static_assert(!P.log2_opacity || P.exp == Exponential::ex2,
                  "log2_opacity is an exponent of 2: switch exp to ex2 first");
    static_assert(P.alpha_cap == AlphaCap::cap99 || P.stop == Stop::inclusive,
                  "a cap above 0.99 would drop splats of up to a tenth of a pixel: switch stop to inclusive first");
}

template <BlendPolicy P>
__global__ void __launch_bounds__(threads_of(forward_map(P.map)), BlendShared<P>::BLOCKS) blend(BlendArgs args) {
    check_policy<P>();
    __shared__ BlendShared<P> shared;
    __shared__ ListRange range;
    const Frame& frame = *args.frame;
    if (frame.overflow) return;
    const int tile = int(blockIdx.x);
    const int tile_x = tile % frame.tile_columns * TILE, tile_y = tile / frame.tile_columns * TILE;
    if (threadIdx.x == 0) range = {tile_x, tile_y, args.tile_start[tile], args.tile_start[tile + 1] - args.tile_start[tile]};
    __syncthreads();
    Pixels<P> pixels = new_pixels<P>(frame, tile_x, tile_y);
    const unsigned kept = blend_range<P>(args, shared, range, pixels);
    if constexpr (P.training)
        if (threadIdx.x == 0) args.entry_counts[blockIdx.x] = kept;
    write_pixels<P>(args, range.tile_x, range.tile_y, pixels);
}
