// The derivative of blending: for every visible splat nine sums over the pixels it was blended into.
//
// A block a tile; warps and pixels as in blend.cuh. The list is walked back to front; T before each splat is
// restored by division, and `behind` is the light that arrives from behind it, by default projected on the image
// gradient (Kerbl and Kopanas et al. 2023). With g = alpha dL/dalpha the sums are those of g, g u, g v, g u², g u v,
// g v² and of weight times image gradient; u and v as in blend.cuh, which keeps needles exact. project_backward.cuh
// turns them into gradients of parameters.
//
// Shared memory: with a block-wide walk 48 bytes for each of as many splats as there are threads, and 1 byte of warp
// bits; with a walk of each warp for itself 48 bytes for 32 splats and 64 waiting entries a warp, and no barrier;
// `transposed` needs 4,320 bytes a warp more.
// Atomics: one float a sum, splat and warp; `deterministic` adds integers, whose order does not matter.
#pragma once
#include "blend.cuh"
#include "reduce.cuh"

// ---- Policy and arguments -------------------------------------------------------------------------------------------

enum class Reduce : int {
    atomic,         // every lane adds its own terms
    butterfly,      // nine sums in lane 0, which adds them one by one
    scatter,        // nine sums in nine lanes
    pair,           // two splats in one go
    deferred_pair,  // and u is multiplied in once a column
    deferred_quad,  // four splats
    transposed,     // five splats, each sum by one lane, through shared memory
    deterministic,  // scatter, then integer atomics
};
enum class Accumulate : int { rgb, projected };
enum class Walk : int {
    block,  // the block stages together, a barrier before and after
    warp,   // each warp stages what cmask says it blended
};

struct BlendBackwardPolicy {
    // As the forward pass that wrote the list, which must have had the same values.
    Map map = Map::columns_8x8;
    Subtile subtile = Subtile::ellipse;  // not used with cmask
    Exponential exp = Exponential::ex2;
    bool log2_opacity = true;
    bool branchless = true;
    bool cmask = true;  // list entries say which warps blended them
    // Its own.
    Reduce reduce = Reduce::deferred_quad;
    Accumulate accum = Accumulate::projected;
    Walk bwd_sync = Walk::warp;
    bool row_combine = true;  // 8×8: the moments of both rows from one product each
    bool touched = true;      // marks the splats that may have sums; few others once the list is compacted
};

struct BlendBackwardArgs {
    const Frame* frame;
    const Splat* splats;           // [V]
    const unsigned* tile_start;    // [T + 1]
    const unsigned* list;          // [I] as the forward pass left it
    const unsigned* entry_counts;  // [T]
    const unsigned* last;          // [H, W]
    const float* transmittance;    // [H, W]
    const float* image_gradient;   // [H, W, 3] dL/d(image)
    float* sums;                   // [V, 12] in the order of `Moment`; 0 before the launch
    long long* integer_sums;       // [V, 12] deterministic: in place of sums; 0 before the launch
    float integer_scale;           // deterministic: a sum times this is rounded to an integer below 2^63; a power of 2
    unsigned char* touched;        // [V] out, if wanted: 1 for splats that have sums; 0 before the launch
};
constexpr int SUM_ROW = 12;  // floats a splat: 48 bytes

// ---- What follows from a policy -------------------------------------------------------------------------------------

__device__ constexpr bool is_deferred(Reduce reduce) {
    return reduce == Reduce::deferred_pair || reduce == Reduce::deferred_quad || reduce == Reduce::transposed;
}
__device__ constexpr int splats_at_once(Reduce reduce) {
    if (reduce == Reduce::transposed) return TRANSPOSED_SPLATS;
    if (reduce == Reduce::deferred_quad) return 4;
    return reduce == Reduce::deferred_pair || reduce == Reduce::pair ? 2 : 1;
}
__device__ constexpr int terms_of(Reduce reduce) { return is_deferred(reduce) ? DEFERRED_TERMS : MOMENTS; }

// ---- Pixels ---------------------------------------------------------------------------------------------------------

struct PixelBackward {
    float T;              // behind the splat that comes next
    float by_red, by_green, by_blue;  // image gradient
    float behind[3];      // light from behind, or in [0] its product with the image gradient
    unsigned last;
};

struct PixelTerms {
    float g;       // alpha dL/dalpha
    float weight;  // dL/dcolour is weight times image gradient
};

// Moves the pixel to before the splat. The cap on alpha does not stop its gradient.
template <BlendBackwardPolicy P>
__device__ __forceinline__ PixelTerms unblend_pixel(PixelBackward& pixel, const Staged& s, float uncapped) {
    const float alpha = fminf(uncapped, ALPHA_CAP);
    pixel.T *= reciprocal_approx(1.0f - alpha);
    float gain;
    if constexpr (P.accum == Accumulate::projected) {
        gain = fmaf(s.red, pixel.by_red, fmaf(s.green, pixel.by_green, s.blue * pixel.by_blue)) - pixel.behind[0];
        pixel.behind[0] = fmaf(alpha, gain, pixel.behind[0]);
    } else {
        const float red = s.red - pixel.behind[0], green = s.green - pixel.behind[1], blue = s.blue - pixel.behind[2];
        gain = fmaf(red, pixel.by_red, fmaf(green, pixel.by_green, blue * pixel.by_blue));
        pixel.behind[0] = fmaf(alpha, red, pixel.behind[0]);
        pixel.behind[1] = fmaf(alpha, green, pixel.behind[1]);
        pixel.behind[2] = fmaf(alpha, blue, pixel.behind[2]);
    }
    return {uncapped * (pixel.T * gain), alpha * pixel.T};
}

// Goes through one splat for the pixels of a thread. Returns whether any of them blended it.
template <BlendBackwardPolicy P, int ROWS, int TERMS>
__device__ __forceinline__ bool splat_terms(PixelBackward (&pixels)[ROWS], const Staged& s, float x, float y,
                                            float (&terms)[TERMS], float& u) {
    const Evaluated<ROWS> e = evaluate<P.exp, P.log2_opacity, ROWS>(s, x, y);
    u = e.u;
    float g[ROWS], red = 0.0f, green = 0.0f, blue = 0.0f;
    bool is_hit_anywhere = false;
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        PixelBackward& pixel = pixels[row];
        const bool is_hit = e.alpha[row] >= ALPHA_MIN && s.index < pixel.last;
        is_hit_anywhere |= is_hit;
        g[row] = 0.0f;
        if (P.branchless || is_hit) {
            const PixelTerms t = unblend_pixel<P>(pixel, s, is_hit ? e.alpha[row] : 0.0f);
            g[row] = t.g;
            red = fmaf(t.weight, pixel.by_red, red);
            green = fmaf(t.weight, pixel.by_green, green);
            blue = fmaf(t.weight, pixel.by_blue, blue);
        }
    }
    float m0 = g[0], v = g[0] * e.v[0], vv = v * e.v[0];
    if constexpr (ROWS == 2 && P.row_combine) {
        // With v falling by c from row to row: Σ g v = m0 v0 − g1 c, and Σ g v² = v0 Σ g v − g1 c v1.
        const float shift = -g[1] * s.c;
        m0 = g[0] + g[1];
        v = fmaf(m0, e.v[0], shift);
        vv = fmaf(e.v[0], v, shift * e.v[1]);
    } else if constexpr (ROWS == 2) {
        const float lower = g[1] * e.v[1];
        m0 += g[1], v += lower, vv = fmaf(lower, e.v[1], vv);
    }
    if constexpr (TERMS == DEFERRED_TERMS) {
        terms[0] = m0, terms[1] = v, terms[2] = vv, terms[3] = red, terms[4] = green, terms[5] = blue;
    } else {
        const float m_u = m0 * u;
        terms[M_0] = m0, terms[M_U] = m_u, terms[M_V] = v, terms[M_UU] = m_u * u, terms[M_UV] = v * u;
        terms[M_VV] = vv, terms[M_RED] = red, terms[M_GREEN] = green, terms[M_BLUE] = blue;
    }
    return is_hit_anywhere;
}

// ---- From terms to memory -------------------------------------------------------------------------------------------

// Which of a group's splats this lane ends with, and where the first of its sums is in the row of splat slot 0.
template <class T>
struct Target {
    int splat, count;
    T* sums;
};
template <Reduce REDUCE>
__device__ __forceinline__ auto own_target(const BlendBackwardArgs& args) {
    const int lane = int(lane_index());
    Holding holding = scatter_holding(lane);
    if constexpr (REDUCE == Reduce::pair) holding = pair_holding(lane);
    if constexpr (REDUCE == Reduce::deferred_pair) holding = deferred_pair_holding(lane);
    if constexpr (REDUCE == Reduce::deferred_quad) holding = quad_holding(lane);
    if constexpr (REDUCE == Reduce::transposed) holding = transposed_holding(lane);
    if constexpr (REDUCE == Reduce::butterfly || REDUCE == Reduce::atomic) holding = {0, 0, lane == 0 ? MOMENTS : 0};
    if constexpr (REDUCE == Reduce::deterministic) {
        auto* sums = reinterpret_cast<unsigned long long*>(args.integer_sums);
        return Target<unsigned long long>{holding.splat, holding.count, sums + holding.first};
    } else {
        return Target<float>{holding.splat, holding.count, args.sums + holding.first};
    }
}
template <class T>
__device__ __forceinline__ T* row_of(const Target<T>& target, unsigned slot) {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(target.sums) + size_t(slot) * (SUM_ROW * sizeof(T)));
}

// Takes a group of staged splats through the pixels and adds their sums to memory.
// ALL_BLENDED: the warp is known to have blended each splat that is not empty.
template <BlendBackwardPolicy P, bool ALL_BLENDED, int ROWS, int GROUP, class T>
__device__ __forceinline__ void add_group(const BlendBackwardArgs& args, PixelBackward (&pixels)[ROWS], float x,
                                          float y, const Staged* const (&group)[GROUP], const Target<T>& target,
                                          float* transposed) {
    constexpr int TERMS = terms_of(P.reduce);
    float terms[GROUP][TERMS], u[GROUP];
    bool is_hit[GROUP], is_any_hit = false;
#pragma unroll
    for (int k = 0; k < GROUP; k++) {
        is_hit[k] = splat_terms<P>(pixels, *group[k], x, y, terms[k], u[k]);
        if constexpr (!ALL_BLENDED && P.reduce != Reduce::atomic) is_hit[k] = __any_sync(FULL_WARP, is_hit[k]);
        is_any_hit |= is_hit[k];
        if constexpr (GROUP == 4)
            if (k & 1) quad_fold(terms[k - 1], terms[k]);
        if constexpr (P.reduce == Reduce::transposed) store_transposed(transposed, k, terms[k]);
    }
    if constexpr (P.reduce == Reduce::atomic) {
        if (!is_any_hit) return;
#pragma unroll
        for (int i = 0; i < MOMENTS; i++)
            atomicAdd(args.sums + size_t(group[0]->slot) * SUM_ROW + i, terms[0][i]);
        return;
    }
    if constexpr (P.reduce == Reduce::transposed) __syncwarp();
    if (!ALL_BLENDED && !is_any_hit) return;

    // A warp that walks alone fills up with splats that add zeros to a row of its own; else nothing is added.
    const Staged* own = group[0];
    bool adds = ALL_BLENDED || is_hit[0];
    if constexpr (P.bwd_sync == Walk::warp) {
        own += target.splat;  // such a group lies side by side
    } else {
#pragma unroll
        for (int k = 1; k < GROUP; k++)
            if (target.splat == k) own = group[k], adds = ALL_BLENDED || is_hit[k];
    }
    adds &= target.count > 0 && (P.bwd_sync == Walk::warp || own->slot != NO_SLOT);
    T* row = row_of(target, own->slot);

    if constexpr (P.reduce == Reduce::butterfly) {
        reduce_butterfly(terms[0]);
        if (adds)
#pragma unroll
            for (int i = 0; i < MOMENTS; i++) atomicAdd(row + i, terms[0][i]);
    } else if constexpr (P.reduce == Reduce::scatter) {
        const float sum = reduce_scatter(terms[0]);
        if (adds) atomicAdd(row, sum);
    } else if constexpr (P.reduce == Reduce::deterministic) {
        const float sum = reduce_scatter(terms[0]);
        if (adds) atomicAdd(row, (unsigned long long)(llrintf(sum * args.integer_scale)));
    } else if constexpr (P.reduce == Reduce::pair) {
        const float sum = reduce_pair(terms[0], terms[1]);
        if (adds) atomicAdd(row, sum);
    } else if constexpr (P.reduce == Reduce::deferred_pair) {
        const float sum = reduce_deferred_pair(terms[0], terms[1], target.splat == 0 ? u[0] : u[1]);
        if (adds) atomicAdd(row, sum);
    } else if constexpr (P.reduce == Reduce::deferred_quad) {
        const float2 sum = reduce_folded_quad(terms[0], terms[2], __fmaf_rn(-own->a, x, own->u0));
        if (adds) atomicAdd(row, sum.x);
        if (adds && target.count == 2) atomicAdd(row + 1, sum.y);
    } else if constexpr (P.reduce == Reduce::transposed) {
        const float middle = x - float(lane_index() & 7u) + 3.5f;
        const float3 sum = reduce_transposed(transposed, own->a, fmaf(-own->a, middle, own->u0));
        if (adds) atomicAdd(row, sum.x);
        if (adds && target.count >= 2) atomicAdd(row + transposed_offset(target.count, 1), sum.y);
        if (adds && target.count == 3) atomicAdd(row + transposed_offset(3, 2), sum.z);
        __syncwarp();  // before the rows are overwritten
    }
}

// ---- Walks ----------------------------------------------------------------------------------------------------------

template <BlendBackwardPolicy P>
__device__ __forceinline__ unsigned slot_of(unsigned entry) {
    return P.cmask ? entry & ((1u << slot_bits(P.map)) - 1u) : entry;
}

struct Walked {
    unsigned start, count;  // the tile's part of the list
    int tile_x, tile_y;
    float x, y;         // of the thread's topmost pixel, from the corner of the tile
    unsigned warp_last;  // entries before this may have been blended by the warp
    float* transposed;   // the warp's, if the policy uses it
};

// The block stages from the back; each warp goes through what may have reached it.
template <BlendBackwardPolicy P, int ROWS>
__device__ __forceinline__ void walk_as_block(const BlendBackwardArgs& args, PixelBackward (&pixels)[ROWS],
                                              const Walked& tile) {
    constexpr int BATCH = threads_of(P.map), CHUNKS = BATCH / 32, GROUP = splats_at_once(P.reduce);
    __shared__ Staged staged[BATCH + 1];  // and an empty one
    __shared__ unsigned char reached[BATCH];
    __shared__ unsigned lasts[CHUNKS];
    Staged* nothing = staged + BATCH;
    const int thread = int(threadIdx.x), lane = int(lane_index()), warp = int(warp_index());
    if (lane == 0) lasts[warp] = tile.warp_last;
    if (thread == 0) *nothing = empty_splat();
    __syncthreads();
    unsigned end = 0;
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) end = max(end, lasts[k]);
    end = min(end, tile.count);
    const auto target = own_target<P.reduce>(args);

    for (int first = (int(end) - 1) / BATCH * BATCH; end > 0 && first >= 0; first -= BATCH) {
        const unsigned mine = unsigned(first + thread);
        reached[thread] = 0;
        if (mine < end) {
            const unsigned entry = args.list[tile.start + mine], slot = slot_of<P>(entry);
            const Splat splat = load_splat(args.splats, slot);
            const Staged s = staged_splat<P.log2_opacity>(splat, tile.tile_x, tile.tile_y, mine, slot);
            staged[thread] = s;
            if constexpr (P.cmask) reached[thread] = (unsigned char)(entry >> slot_bits(P.map));
            else reached[thread] = (unsigned char)(warp_bits<P.map, P.subtile>(
                s, splat.x - float(tile.tile_x), splat.y - float(tile.tile_y), splat.log2_opacity));
            if constexpr (P.touched) args.touched[slot] = 1;
        }
        __syncthreads();
        for (int chunk = CHUNKS - 1; chunk >= 0; chunk--) {
            const bool is_mine = (reached[chunk * 32 + lane] >> warp & 1) &&
                                 unsigned(first + chunk * 32 + lane) < tile.warp_last;
            unsigned waiting = __ballot_sync(FULL_WARP, is_mine);
            while (waiting) {
                const Staged* group[GROUP];
#pragma unroll
                for (int k = 0; k < GROUP; k++) {
                    const int bit = 31 - __clz(int(waiting));
                    group[k] = waiting ? staged + chunk * 32 + bit : nothing;
                    waiting &= ~(waiting ? 1u << bit : 0u);
                }
                add_group<P, P.cmask>(args, pixels, tile.x, tile.y, group, target, tile.transposed);
            }
        }
        __syncthreads();
    }
}

// Each warp collects the entries it blended, 32 at a time, and never waits for another warp.
template <BlendBackwardPolicy P, int ROWS>
__device__ __forceinline__ void walk_as_warp(const BlendBackwardArgs& args, PixelBackward (&pixels)[ROWS],
                                             const Walked& tile) {
    constexpr int WARPS = warps_of(P.map), GROUP = splats_at_once(P.reduce), SLICE = 32 / GROUP * GROUP;
    __shared__ Staged staged_by_warp[WARPS][32];
    __shared__ uint2 waiting_by_warp[WARPS][64];  // entry and place in the list, nearest to the back first
    const int lane = int(lane_index()), warp = int(warp_index());
    Staged* staged = staged_by_warp[warp];
    uint2* waiting = waiting_by_warp[warp];
    const auto target = own_target<P.reduce>(args);
    const unsigned lower_lanes = (1u << lane) - 1u, own_bit = 1u << (slot_bits(P.map) + warp);

    // Entries not looked at. All lanes know it; the sum tells the compiler so.
    int left = int(warp_add(lane == 0 ? min(tile.warp_last, tile.count) : 0u));
    int ready = 0;  // entries waiting
    while (left > 0 || ready > 0) {
        while (ready < SLICE && left > 0) {
            const int place = left - 1 - lane;
            const unsigned entry = place >= 0 ? args.list[tile.start + unsigned(place)] : 0u;
            const unsigned blended = __ballot_sync(FULL_WARP, (entry & own_bit) != 0);
            if (entry & own_bit) waiting[ready + __popc(blended & lower_lanes)] = make_uint2(entry, unsigned(place));
            ready += __popc(blended);
            left -= 32;
        }
        if (ready == 0) break;
        __syncwarp();
        const int count = min(ready, SLICE);
        const uint2 own = waiting[min(lane, count - 1)], moved = waiting[lane + SLICE];
        const unsigned slot = slot_of<P>(own.x);
        Staged s = empty_splat();
        if (lane < count) {
            s = staged_splat<P.log2_opacity>(load_splat(args.splats, slot), tile.tile_x, tile.tile_y, own.y, slot);
            if constexpr (P.touched) args.touched[slot] = 1;
        }
        s.slot = slot;
        staged[lane] = s;
        __syncwarp();
        waiting[lane] = moved;
        ready -= count;
        for (int number = 0; number < count; number += GROUP) {
            const Staged* group[GROUP];
#pragma unroll
            for (int k = 0; k < GROUP; k++) group[k] = staged + number + k;
            add_group<P, true>(args, pixels, tile.x, tile.y, group, target, tile.transposed);
        }
        __syncwarp();
    }
}

// ---- The kernel -----------------------------------------------------------------------------------------------------

template <BlendBackwardPolicy P>
__global__ void __launch_bounds__(threads_of(P.map), 1024 / threads_of(P.map)) blend_backward(BlendBackwardArgs args) {
    static_assert(!P.branchless || P.subtile != Subtile::off,
                  "branchless needs sub-tile masks: switch on subtile first");
    static_assert(P.bwd_sync == Walk::block || P.cmask,
                  "a warp can walk alone only if the list says what it blended: switch on cmask first");
    static_assert(!P.log2_opacity || P.exp == Exponential::ex2,
                  "log2_opacity is an exponent of 2: switch exp to ex2 first");
    static_assert(!P.row_combine || P.map == Map::columns_8x8,
                  "row_combine needs two rows a thread: switch map to 8x8x2");
    constexpr int ROWS = rows_of(P.map);

    const Frame& frame = *args.frame;
    if (frame.overflow) return;
    const int tile = int(blockIdx.x);
    const Place place = place_in_tile<P.map>();
    Walked walked;
    walked.start = args.tile_start[tile], walked.count = args.entry_counts[tile];
    if (walked.count == 0) return;
    walked.tile_x = tile % frame.tile_columns * TILE, walked.tile_y = tile / frame.tile_columns * TILE;
    walked.x = float(place.x) + 0.5f, walked.y = float(place.y) + 0.5f;

    PixelBackward pixels[ROWS];
    unsigned last = 0;
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        const int px = walked.tile_x + place.x, py = walked.tile_y + place.y + row;
        PixelBackward& pixel = pixels[row];
        pixel = {1.0f, 0.0f, 0.0f, 0.0f, {0.0f, 0.0f, 0.0f}, 0u};
        if (px >= frame.width || py >= frame.height) continue;
        const size_t i = size_t(py) * size_t(frame.width) + size_t(px);
        pixel.T = args.transmittance[i], pixel.last = args.last[i];
        pixel.by_red = args.image_gradient[3 * i];
        pixel.by_green = args.image_gradient[3 * i + 1];
        pixel.by_blue = args.image_gradient[3 * i + 2];
        const float* background = frame.background;
        if constexpr (P.accum == Accumulate::projected) {
            pixel.behind[0] = fmaf(background[0], pixel.by_red,
                                   fmaf(background[1], pixel.by_green, background[2] * pixel.by_blue));
        } else {
            pixel.behind[0] = background[0], pixel.behind[1] = background[1], pixel.behind[2] = background[2];
        }
        last = max(last, pixel.last);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) last = max(last, __shfl_xor_sync(FULL_WARP, last, offset));
    walked.warp_last = last;
    constexpr bool IS_TRANSPOSED = P.reduce == Reduce::transposed;
    __shared__ float4 transposed[IS_TRANSPOSED ? warps_of(P.map) : 1][IS_TRANSPOSED ? TRANSPOSED_FLOATS / 4 : 1];
    walked.transposed = reinterpret_cast<float*>(transposed[IS_TRANSPOSED ? warp_index() : 0]);
    if constexpr (P.bwd_sync == Walk::warp) walk_as_warp<P>(args, pixels, walked);
    else walk_as_block<P>(args, pixels, walked);
}
