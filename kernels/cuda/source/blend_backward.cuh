// Computes the derivative of blending: sums for every visible splat over the pixels it was blended into.
//
// A block takes one tile; warps and pixels as in staged.cuh. The list is walked back to front. The transmittance T
// before each splat is restored by division. `behind` is the light that arrives from behind the splat, by default as
// its product with the image gradient (Kerbl and Kopanas et al. 2023). blend_sums.cuh does the work for each splat.
//
// Shared memory:
// - walk of the whole block: 48 bytes (64 if the primitive is tilted) and 1 byte of warp bits for each of as many
//   splats as there are threads;
// - walk of each warp alone, without barriers: 48 or 64 bytes for each of 32 splats, and 64 waiting entries, a warp;
// - `transposed`: 4,320 bytes a warp more.
//
// `walk_range` walks a part of a list, and a block may call it any number of times, with pixels that start behind that
// part. Kernels that take tiles from a queue or split lists are built from it.
#pragma once
#include "blend_sums.cuh"

template <BlendBackwardPolicy P>
struct PixelsBackward {
    static constexpr int ROWS = rows_of(backward_map(P.map));
    PixelBackward of[ROWS];
};
template <BlendBackwardPolicy P>
struct BackwardShared {
    static constexpr int WARPS = warps_of(backward_map(P.map)), BATCH = 32 * WARPS;
    static constexpr bool BY_WARP = P.bwd_sync == Walk::warp, IS_TRANSPOSED = P.reduce == Reduce::transposed;
    StagedOf<P.primitive> staged[BATCH + 1];          // by block: the last is empty. By warp: 32 a warp
    unsigned char reached[BY_WARP ? 1 : BATCH];       // by block
    unsigned lasts[BY_WARP ? 1 : WARPS];              // by block
    uint2 waiting[BY_WARP ? WARPS : 1][64];           // by warp: entry and its place in the list, from the back
    float4 transposed[IS_TRANSPOSED ? WARPS : 1][IS_TRANSPOSED ? TRANSPOSED_FLOATS / 4 : 1];
};

// ---- Walks ----------------------------------------------------------------------------------------------------------

template <BlendBackwardPolicy P>
__device__ __forceinline__ unsigned slot_of(unsigned entry) {
    return P.cmask ? entry & ((1u << slot_bits(P.map)) - 1u) : entry;
}
template <BlendBackwardPolicy P>
__device__ __forceinline__ float* transposed_of(BackwardShared<P>& shared) {
    return reinterpret_cast<float*>(shared.transposed[P.reduce == Reduce::transposed ? warp_index() : 0]);
}

// Walks with the whole block, which stages splats from the back. Each warp visits the splats that may have reached it,
// of the entries before `warp_last`.
template <BlendBackwardPolicy P>
__device__ __forceinline__ void walk_as_block(const BlendBackwardArgs& args, BackwardShared<P>& shared,
                                              const ListRange& range, PixelsBackward<P>& pixels, unsigned warp_last,
                                              Leftover& leftover) {
    constexpr int BATCH = BackwardShared<P>::BATCH, CHUNKS = BATCH / 32, GROUP = splats_at_once(P.reduce, P.primitive);
    auto* staged = shared.staged;
    auto* nothing = staged + BATCH;
    const Spot spot = spot_of(place_in_tile<backward_map(P.map)>());
    const int thread = int(threadIdx.x), lane = int(lane_index()), warp = int(warp_index());
    __syncthreads();  // other threads may still read what an earlier range left
    if (lane == 0) shared.lasts[warp] = warp_last;
    if (thread == 0) *nothing = empty_of<P.primitive>();
    __syncthreads();
    unsigned end = 0;
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) end = max(end, shared.lasts[k]);
    end = min(end, range.count);
    const Target target = own_target<P.reduce, P.primitive>();

    for (int first = (int(end) - 1) / BATCH * BATCH; end > 0 && first >= 0; first -= BATCH) {
        const unsigned mine = unsigned(first + thread);
        shared.reached[thread] = 0;
        if (mine < end) {
            const unsigned entry = args.list[range.first + mine], slot = slot_of<P>(entry);
            const Splat splat = load_splat<P.layout>(args.splats, args.frame->visible_capacity, slot);
            const Aside aside = load_aside<P.primitive, false>(args, slot);
            const auto s = stage_for<P.primitive, P.log2_opacity>(splat, aside, range.tile_x, range.tile_y, mine, slot);
            staged[thread] = s;
            if constexpr (P.cmask) shared.reached[thread] = (unsigned char)(entry >> slot_bits(P.map));
            else shared.reached[thread] = (unsigned char)(
                warp_bits_for<P.primitive, backward_map(P.map), P.subtile>(s, splat, aside, range));
            if constexpr (P.touched) args.touched[slot] = 1;
        }
        __syncthreads();
        for (int chunk = CHUNKS - 1; chunk >= 0; chunk--) {
            const auto* of_chunk = staged + chunk * 32;
            const bool is_mine = (shared.reached[chunk * 32 + lane] >> warp & 1) &&
                                 unsigned(first + chunk * 32 + lane) < warp_last;
            unsigned waiting = __ballot_sync(FULL_WARP, is_mine);
            StagedOf<P.primitive> held;
            if constexpr (P.splat_fetch == Fetch::shuffle) held = of_chunk[lane];
            while (waiting) {
                Turn<P.primitive> group[GROUP];
#pragma unroll
                for (int k = 0; k < GROUP; k++) {
                    const int bit = 31 - __clz(int(waiting));
                    group[k] = {waiting ? of_chunk + bit : nothing, bit};
                    waiting &= ~(waiting ? 1u << bit : 0u);
                }
                add_group<P, P.cmask>(args, pixels.of, spot, group, held, target, transposed_of(shared), leftover);
            }
        }
        __syncthreads();
    }
}

// Walks with each warp alone. A warp collects the entries it blended, 32 at a time, and never waits for another warp.
template <BlendBackwardPolicy P>
__device__ __forceinline__ void walk_as_warp(const BlendBackwardArgs& args, BackwardShared<P>& shared,
                                             const ListRange& range, PixelsBackward<P>& pixels, unsigned warp_last,
                                             Leftover& leftover) {
    constexpr int GROUP = splats_at_once(P.reduce, P.primitive), SLICE = 32 / GROUP * GROUP;
    const Spot spot = spot_of(place_in_tile<backward_map(P.map)>());
    const int lane = int(lane_index()), warp = int(warp_index());
    auto* staged = shared.staged + 32 * warp;
    uint2* waiting = shared.waiting[warp];
    const Target target = own_target<P.reduce, P.primitive>();
    const unsigned lower_lanes = (1u << lane) - 1u, own_bit = 1u << (slot_bits(P.map) + warp);

    // Entries not looked at yet. The same in all lanes; the sum over the warp tells the compiler so.
    int left = int(warp_add(lane == 0 ? min(warp_last, range.count) : 0u));
    int ready = 0;  // entries collected and not walked yet
    const auto entry_before = [&](int end) {
        return end > lane ? args.list[range.first + unsigned(end - 1 - lane)] : 0u;
    };
    unsigned ahead = entry_before(left);  // read one turn ahead
    while (left > 0 || ready > 0) {
        while (ready < SLICE && left > 0) {
            const unsigned entry = ahead, place = unsigned(left - 1 - lane);
            left -= 32;
            ahead = entry_before(left);
            const unsigned blended = __ballot_sync(FULL_WARP, (entry & own_bit) != 0);
            if (entry & own_bit) waiting[ready + __popc(blended & lower_lanes)] = make_uint2(entry, place);
            ready += __popc(blended);
        }
        if (ready == 0) break;
        __syncwarp();
        const int count = min(ready, SLICE);
        const uint2 own = waiting[min(lane, count - 1)], moved = waiting[lane + SLICE];
        const unsigned slot = slot_of<P>(own.x);
        auto held = empty_of<P.primitive>();
        if (lane < count) {
            const Splat splat = load_splat<P.layout>(args.splats, args.frame->visible_capacity, slot);
            const Aside aside = load_aside<P.primitive, false>(args, slot);
            held = stage_for<P.primitive, P.log2_opacity>(splat, aside, range.tile_x, range.tile_y, own.y, slot);
            if constexpr (P.touched) args.touched[slot] = 1;
        }
        held.slot = slot;
        staged[lane] = held;
        __syncwarp();
        waiting[lane] = moved;
        ready -= count;
        for (int number = 0; number < count; number += GROUP) {
            Turn<P.primitive> group[GROUP];
#pragma unroll
            for (int k = 0; k < GROUP; k++) group[k] = {staged + number + k, number + k};
            add_group<P, true>(args, pixels.of, spot, group, held, target, transposed_of(shared), leftover);
        }
        __syncwarp();
    }
}

// ---- A block and a stretch of a list --------------------------------------------------------------------------------

// Returns the pixels of a tile, behind all splats that were blended into them.
template <BlendBackwardPolicy P>
__device__ __forceinline__ PixelsBackward<P> load_pixels(const BlendBackwardArgs& args, int tile_x, int tile_y) {
    const Frame& frame = *args.frame;
    const float* background = frame.background;
    const Place place = place_in_tile<backward_map(P.map)>();
    PixelsBackward<P> pixels;
#pragma unroll
    for (int row = 0; row < PixelsBackward<P>::ROWS; row++) {
        const int px = tile_x + place.x, py = tile_y + place.y + row;
        PixelBackward& pixel = pixels.of[row];
        pixel = {1.0f, 0.0f, 0.0f, 0.0f, {0.0f, 0.0f, 0.0f}, 0u};
        if (px >= frame.width || py >= frame.height) continue;
        const size_t i = size_t(py) * size_t(frame.width) + size_t(px);
        pixel.T = args.transmittance[i], pixel.last = args.last[i];
        pixel.by_red = args.image_gradient[3 * i];
        pixel.by_green = args.image_gradient[3 * i + 1];
        pixel.by_blue = args.image_gradient[3 * i + 2];
        if constexpr (P.accum == Accumulate::projected) {
            pixel.behind[0] = fmaf(background[0], pixel.by_red,
                                   fmaf(background[1], pixel.by_green, background[2] * pixel.by_blue));
        } else {
            pixel.behind[0] = background[0], pixel.behind[1] = background[1], pixel.behind[2] = background[2];
        }
    }
    return pixels;
}

// Walks `pixels` from behind the range to in front of it, and adds up the sums of its splats. A pixel's `last` counts
// from the range's first entry. All threads of the block call. The range is in shared memory because it then takes no
// registers.
template <BlendBackwardPolicy P>
__device__ __forceinline__ void walk_range(const BlendBackwardArgs& args, BackwardShared<P>& shared,
                                           const ListRange& range, PixelsBackward<P>& pixels) {
    unsigned last = pixels.of[0].last;
    if constexpr (PixelsBackward<P>::ROWS == 2) last = max(last, pixels.of[1].last);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) last = max(last, __shfl_xor_sync(FULL_WARP, last, offset));
    Leftover leftover{0.0f, 0u};
    if constexpr (P.bwd_sync == Walk::warp) walk_as_warp<P>(args, shared, range, pixels, last, leftover);
    else walk_as_block<P>(args, shared, range, pixels, last, leftover);
    // Never true, but the compiler does not know that.
    if constexpr (P.ablate != Ablate::off)
        if (leftover.sum == 0x1.23456p99f || leftover.bits == 0x9e3779b9u) args.touched[0] = 2;
}

// ---- The kernel -----------------------------------------------------------------------------------------------------

template <BlendBackwardPolicy P>
__device__ constexpr void check_policy() {
    static_assert(P.map != Map::adaptive, "a kernel has one map: that of mixed follows both ways forward");
    static_assert(!P.branchless || P.subtile != Subtile::off,
                  "branchless needs sub-tile masks: switch on subtile first");
    static_assert(P.bwd_sync == Walk::block || P.cmask,
                  "a warp can walk alone only if the list says what it blended: switch on cmask first");
    static_assert(!P.log2_opacity || P.exp == Exponential::ex2,
                  "log2_opacity is an exponent of 2: switch exp to ex2 first");
    static_assert(!P.absolute || P.primitive == Primitive::gs3d,
                  "sums of absolute values are those of the projected mean, which is gs3d's");
    static_assert(!P.row_combine || backward_map(P.map) == Map::columns_8x8,
                  "row_combine needs two rows a thread: switch map to 8x8x2");
}

// Threads on a multiprocessor: with more, a thread would spill registers.
template <BlendBackwardPolicy P>
constexpr int BACKWARD_RESIDENT = is_tilted(P.primitive) ? 768 : 1024;

template <BlendBackwardPolicy P>
__global__ void __launch_bounds__(threads_of(backward_map(P.map)),
                                  BACKWARD_RESIDENT<P> / threads_of(backward_map(P.map)))
    blend_backward(BlendBackwardArgs args) {
    check_policy<P>();
    __shared__ BackwardShared<P> shared;
    __shared__ ListRange range;
    const Frame& frame = *args.frame;
    if (frame.overflow) return;
    const int tile = int(blockIdx.x);
    const unsigned count = args.entry_counts[tile];
    if (count == 0) return;
    const int tile_x = tile % frame.tile_columns * TILE, tile_y = tile / frame.tile_columns * TILE;
    if (threadIdx.x == 0) range = {tile_x, tile_y, args.tile_start[tile], count};
    __syncthreads();
    PixelsBackward<P> pixels = load_pixels<P>(args, tile_x, tile_y);
    walk_range<P>(args, shared, range, pixels);
}
