// Walks a group of staged splats back through the pixels of a warp and adds the splats' sums to memory.
//
// With g = alpha dL/dalpha, a splat's nine sums over its pixels are those of g, g u, g v, g u², g u v, g v² and, for
// each colour channel, weight times image gradient. u and v are defined in staged.cuh; with them, needle-shaped splats
// stay exact. project_backward.cuh turns the sums into gradients of parameters. With `absolute` there are two more
// sums, of the absolute values of each pixel's gradient of the projected mean.
//
// Atomics: one float for each sum, splat and warp. `deterministic` adds integers instead, whose order does not matter.
// Not here: which splats are walked, and in which order (blend_backward.cuh).
#pragma once
#include "blend_sums_tilted.cuh"

// ---- Policy and arguments -------------------------------------------------------------------------------------------

enum class Reduce : int {
    atomic,         // every lane adds its own terms
    butterfly,      // nine sums in lane 0, which adds them one by one
    scatter,        // nine sums in nine lanes
    pair,           // as scatter, two splats at a time
    deferred_pair,  // as pair; u is multiplied in once a column, after the rows are added up
    deferred_quad,  // as deferred_pair, four splats at a time
    transposed,     // five splats at a time through shared memory; each sum is added up by one lane
    deterministic,  // scatter, then integer atomics
};
enum class Accumulate : int { rgb, projected };
enum class Walk : int {
    block,  // the block stages splats together, with a barrier before and after
    warp,   // each warp stages the splats that cmask says it blended
};

// What is left out to measure what it costs. Every value but `off` gives wrong gradients and writes few of them.
enum class Ablate : int {
    off,
    no_atomics,     // sums stay in registers
    no_reductions,  // as no_atomics; each lane also keeps its own terms
    loop_floor,     // the loop only loads each splat
};

struct BlendBackwardPolicy {
    // Must have the values of the forward pass that wrote the list.
    Primitive primitive = Primitive::gs3d;
    Layout layout = Layout::packed48;
    Map map = Map::mixed;
    Subtile subtile = Subtile::ellipse;  // not used with cmask
    Fetch splat_fetch = Fetch::shared;
    Exponential exp = Exponential::ex2;
    AlphaCap alpha_cap = AlphaCap::cap99;
    bool log2_opacity = true;
    bool branchless = true;
    bool cmask = true;  // list entries say which warps blended them
    // Of the backward pass alone.
    Reduce reduce = Reduce::deferred_quad;
    Accumulate accum = Accumulate::projected;
    Walk bwd_sync = Walk::warp;
    bool row_combine = true;  // 8×8: the moments of a thread's two rows share their products
    bool touched = true;      // marks all splats that have sums, and few others once the list is compacted
    Ablate ablate = Ablate::off;
    bool absolute = false;    // two more sums, of |dL/dx| and |dL/dy| of the projected mean (Ye et al. 2024)
};

struct BlendBackwardArgs {
    const Frame* frame;
    const Splat* splats;           // [V]
    const float* depths;           // [V] camera z of means: gs2d
    const float* closeness;        // [V] gut3d
    const unsigned* tile_start;    // [T + 1]
    const unsigned* list;          // [I] as the forward pass left it
    const unsigned* entry_counts;  // [T]
    const unsigned* last;          // [H, W]
    const float* transmittance;    // [H, W]
    const float* image_gradient;   // [H, W, 3] dL/d(image)
    float* sums;                   // [V, 12] in the order of `Moment`, or [V, 16] in that of `TiltedTerm`; 0 before
    long long* integer_sums;       // the same, deterministic: in place of sums; 0 before the launch
    float integer_scale;           // deterministic: a sum times this is rounded to an integer below 2^63; a power of 2
    unsigned char* touched;        // [V] out, if wanted: 1 for splats that have sums; 0 before the launch
};

// ---- What follows from a policy -------------------------------------------------------------------------------------

__device__ constexpr bool is_deferred(Reduce reduce) {
    return reduce == Reduce::deferred_pair || reduce == Reduce::deferred_quad || reduce == Reduce::transposed;
}
__device__ constexpr int splats_at_once(Reduce reduce) {
    if (reduce == Reduce::transposed) return TRANSPOSED_SPLATS;
    if (reduce == Reduce::deferred_quad) return 4;
    return reduce == Reduce::deferred_pair || reduce == Reduce::pair ? 2 : 1;
}
// The same for tilted primitives, whose groups fold evenly.
__device__ constexpr int splats_at_once(Reduce reduce, Primitive primitive) {
    const int count = splats_at_once(reduce);
    return is_tilted(primitive) && count > 4 ? 4 : count;
}
__device__ constexpr int terms_of(Reduce reduce) { return is_deferred(reduce) ? DEFERRED_TERMS : MOMENTS; }

// ---- Pixels ---------------------------------------------------------------------------------------------------------

struct PixelBackward {
    float T;              // transmittance behind the next splat
    float by_red, by_green, by_blue;  // image gradient
    float behind[3];      // light from behind; `projected`: in [0] its product with the image gradient
    unsigned last;
};

struct PixelTerms {
    float g;       // alpha dL/dalpha
    float weight;  // dL/dcolour is weight times image gradient
};

// Moves the pixel from behind the splat to in front of it. Alpha has a gradient even where it is capped.
template <BlendBackwardPolicy P>
__device__ __forceinline__ PixelTerms unblend_pixel(PixelBackward& pixel, const Staged& s, float uncapped) {
    const float alpha = fminf(uncapped, cap_of(P.alpha_cap));
    pixel.T *= reciprocal_approx(1.0f - alpha);
    float gain;
    if constexpr (P.accum == Accumulate::projected) {
        gain = fmaf(s.blue, pixel.by_blue, -pixel.behind[0]);
        gain = fmaf(s.red, pixel.by_red, fmaf(s.green, pixel.by_green, gain));
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

// A splat's terms from the pixels of a thread: moments of g down the rows, and the weights of the colours.
template <int ROWS>
struct SplatTerms {
    float m0, v, vv;  // sums of g, g v, g v²
    float weights[ROWS];
    float u;
    bool is_hit;  // true if the splat hit any pixel
    float absolute_x, absolute_y;  // if wanted: sums of |g (a u + b v)| and |g c v|
};
template <BlendBackwardPolicy P, int ROWS>
__device__ __forceinline__ SplatTerms<ROWS> splat_terms(PixelBackward (&pixels)[ROWS], const Staged& s,
                                                        const Spot& spot) {
    const Evaluated<ROWS> e = evaluate<P.exp, P.log2_opacity, ROWS>(s, spot);
    SplatTerms<ROWS> terms;
    float g[ROWS];
    terms.is_hit = false, terms.u = e.u;
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        const bool is_hit = e.alpha[row] >= ALPHA_MIN && s.index < pixels[row].last;
        terms.is_hit |= is_hit;
        g[row] = terms.weights[row] = 0.0f;
        if (P.branchless || is_hit) {
            const PixelTerms t = unblend_pixel<P>(pixels[row], s, is_hit ? e.alpha[row] : 0.0f);
            g[row] = t.g, terms.weights[row] = t.weight;
        }
    }
    terms.m0 = g[0], terms.v = g[0] * e.v[0], terms.vv = terms.v * e.v[0];
    if constexpr (ROWS == 2 && P.row_combine) {
        // With v falling by c from row to row: Σ g v = m0 v0 − g1 c, and Σ g v² = v0 Σ g v − g1 c v1.
        const float shift = -g[1] * s.c;
        terms.m0 = g[0] + g[1];
        terms.v = fmaf(terms.m0, e.v[0], shift);
        terms.vv = fmaf(e.v[0], terms.v, shift * e.v[1]);
    } else if constexpr (ROWS == 2) {
        const float lower = g[1] * e.v[1];
        terms.m0 += g[1], terms.v += lower, terms.vv = fmaf(lower, e.v[1], terms.vv);
    }
    if constexpr (P.absolute) {
        const float a_u = s.a * e.u;
        terms.absolute_x = fabsf(g[0] * fmaf(s.b, e.v[0], a_u)), terms.absolute_y = fabsf(g[0] * e.v[0]);
        if constexpr (ROWS == 2) {
            terms.absolute_x += fabsf(g[1] * fmaf(s.b, e.v[1], a_u));
            terms.absolute_y += fabsf(g[1] * e.v[1]);
        }
        terms.absolute_y *= fabsf(s.c);
    }
    return terms;
}

template <int ROWS>
__device__ __forceinline__ float3 colors_of(const float (&weights)[ROWS], const PixelBackward (&pixels)[ROWS]) {
    float3 sum = weights[0] * make_float3(pixels[0].by_red, pixels[0].by_green, pixels[0].by_blue);
    if constexpr (ROWS == 2)
        sum = add_scaled(sum, weights[1], make_float3(pixels[1].by_red, pixels[1].by_green, pixels[1].by_blue));
    return sum;
}
template <int ROWS, int TERMS>
__device__ __forceinline__ void spread_terms(const SplatTerms<ROWS>& t, const PixelBackward (&pixels)[ROWS],
                                             float (&terms)[TERMS]) {
    const float3 color = colors_of(t.weights, pixels);
    if constexpr (TERMS == DEFERRED_TERMS) {
        terms[0] = t.m0, terms[1] = t.v, terms[2] = t.vv, terms[3] = color.x, terms[4] = color.y, terms[5] = color.z;
    } else {
        const float m_u = t.m0 * t.u;
        terms[T_0] = t.m0, terms[T_U] = m_u, terms[T_V] = t.v, terms[T_UU] = m_u * t.u, terms[T_UV] = t.v * t.u;
        terms[T_VV] = t.vv, terms[T_RED] = color.x, terms[T_GREEN] = color.y, terms[T_BLUE] = color.z;
    }
}
// Folds two splats as `fold` does. For colours, the lanes exchange weights before they are multiplied by the gradient,
// so that there are fewer numbers to select.
template <int ROWS>
__device__ __forceinline__ void fold_terms(const SplatTerms<ROWS>& a, const SplatTerms<ROWS>& b,
                                           const PixelBackward (&pixels)[ROWS], float (&terms)[DEFERRED_TERMS]) {
    const bool is_upper = (lane_index() & 16u) != 0;
    float moments[3] = {a.m0, a.v, a.vv};
    fold(moments, {b.m0, b.v, b.vv}, 16);
    float kept[ROWS], sent[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        kept[row] = is_upper ? b.weights[row] : a.weights[row];
        sent[row] = is_upper ? a.weights[row] : b.weights[row];
    }
    const float3 own = colors_of(kept, pixels), other = colors_of(sent, pixels);
    terms[0] = moments[0], terms[1] = moments[1], terms[2] = moments[2];
    terms[3] = own.x + __shfl_xor_sync(FULL_WARP, other.x, 16);
    terms[4] = own.y + __shfl_xor_sync(FULL_WARP, other.y, 16);
    terms[5] = own.z + __shfl_xor_sync(FULL_WARP, other.z, 16);
}

// ---- From terms to memory -------------------------------------------------------------------------------------------

// Which of a group's splats this lane holds sums of in the end, and the place of its first sum in the splat's row.
struct Target {
    int splat, count;
    unsigned place;
};
template <Reduce REDUCE, Primitive PRIMITIVE>
__device__ __forceinline__ Target own_target() {
    const int lane = int(lane_index());
    if constexpr (is_tilted(PRIMITIVE)) {
        const Holding held = tilted_holding(lane, splats_at_once(REDUCE, PRIMITIVE));
        return {held.splat, held.count, unsigned(held.first)};
    }
    Holding holding = scatter_holding(lane);
    if constexpr (REDUCE == Reduce::pair) holding = pair_holding(lane);
    if constexpr (REDUCE == Reduce::deferred_pair) holding = deferred_pair_holding(lane);
    if constexpr (REDUCE == Reduce::deferred_quad) holding = quad_holding(lane);
    if constexpr (REDUCE == Reduce::transposed) holding = transposed_holding(lane);
    if constexpr (REDUCE == Reduce::butterfly || REDUCE == Reduce::atomic) holding = {0, 0, lane == 0 ? MOMENTS : 0};
    return {holding.splat, holding.count, unsigned(place_of(holding.first))};
}
// At most 2^28 slots times 12 or 16 places.
template <Reduce REDUCE, Primitive PRIMITIVE = Primitive::gs3d>
__device__ __forceinline__ auto* place_of(const BlendBackwardArgs& args, const Target& target, unsigned slot) {
    const unsigned place = slot * unsigned(sum_row(PRIMITIVE)) + target.place;
    if constexpr (REDUCE == Reduce::deterministic)
        return reinterpret_cast<unsigned long long*>(args.integer_sums) + place;
    else return args.sums + place;
}

// The present splat: where it is staged, and, with splat_fetch = shuffle, the lane that holds a copy.
template <Primitive PRIMITIVE>
struct Turn {
    const StagedOf<PRIMITIVE>* at;
    int lane;  // below 0: no lane does
};
template <BlendBackwardPolicy P>
__device__ __forceinline__ StagedOf<P.primitive> splat_of(const Turn<P.primitive>& turn,
                                                          const StagedOf<P.primitive>& held) {
    if constexpr (P.splat_fetch == Fetch::shuffle)
        if (turn.lane >= 0) return handed_out(held, turn.lane);
    return *turn.at;
}

// Takes the results of ablated variants, so that the compiler cannot remove their computation.
struct Leftover {
    float sum;
    unsigned bits;
};
template <BlendBackwardPolicy P, class T>
__device__ __forceinline__ void add_sum(T* address, T value, bool adds, Leftover& leftover) {
    if constexpr (P.ablate == Ablate::off) {
        if (adds) atomicAdd(address, value);
    } else {
        leftover.sum += float(value);
    }
}
__device__ __forceinline__ void mix_in(const Staged& s, Leftover& leftover) {
    const float numbers[9] = {s.a, s.u0, s.b, s.v0, s.c, s.opacity, s.red, s.green, s.blue};
#pragma unroll
    for (int i = 0; i < 9; i++) leftover.bits ^= __float_as_uint(numbers[i]);
}

// Adds a group's sums of absolute values to places that are otherwise spare. A lane holds at most one of them.
template <BlendBackwardPolicy P, bool ALL_BLENDED, int ROWS, int GROUP>
__device__ __forceinline__ void add_absolute(const BlendBackwardArgs& args, const SplatTerms<ROWS> (&of_splat)[GROUP],
                                             const Turn<P.primitive> (&group)[GROUP], const bool (&is_hit)[GROUP],
                                             const Target& target, Leftover& leftover) {
    // Groups of two and four are folded as above, odd splats to the upper lanes, so that each lane has the same splat.
    constexpr int TERMS = 2 * GROUP, LANES = 32 / TERMS;
    constexpr bool FOLDS = GROUP * LANES * 2 == 32;
    float terms[TERMS];
#pragma unroll
    for (int k = 0; k < GROUP; k++) {
        const int place = FOLDS ? k % 2 * (GROUP / 2) + k / 2 : k;
        terms[2 * place] = of_splat[k].absolute_x, terms[2 * place + 1] = of_splat[k].absolute_y;
    }
    const float sum = reduce_all(terms);
    const int lane = int(lane_index());
    const Holding holding = FOLDS ? Holding{0, lane / LANES, lane % LANES == 0} : halve({0, 0, TERMS}, lane, 16, TERMS);
    const int splat = FOLDS ? target.splat : holding.first / 2;
    const Staged* own = group[0].at;
    bool adds = ALL_BLENDED || is_hit[0];
    if constexpr (P.bwd_sync == Walk::warp) {
        own += splat;
    } else {
#pragma unroll
        for (int k = 1; k < GROUP; k++)
            if (splat == k) own = group[k].at, adds = ALL_BLENDED || is_hit[k];
    }
    adds &= holding.count > 0 && (P.bwd_sync == Walk::warp || own->slot != NO_SLOT);
    const unsigned place = holding.first % 2 ? M_ABSOLUTE_Y : M_ABSOLUTE_X;
    auto* address = place_of<P.reduce>(args, {0, 1, place}, own->slot);
    if constexpr (P.reduce == Reduce::deterministic)
        add_sum<P>(address, (unsigned long long)(llrintf(sum * args.integer_scale)), adds, leftover);
    else add_sum<P>(address, sum, adds, leftover);
}

// Takes a group of flattened Gaussians through the pixels, as add_group below.
template <BlendBackwardPolicy P, bool ALL_BLENDED, int ROWS, int GROUP>
__device__ __forceinline__ void add_flat(const BlendBackwardArgs& args, PixelBackward (&pixels)[ROWS],
                                         const Spot& spot, const Turn<P.primitive> (&group)[GROUP], const Staged& held,
                                         const Target& target, float* transposed, Leftover& leftover) {
    constexpr bool FOLDS = P.reduce == Reduce::deferred_pair || P.reduce == Reduce::deferred_quad;
    constexpr int TERMS = terms_of(P.reduce), SETS = FOLDS ? GROUP / 2 : GROUP;
    SplatTerms<ROWS> of_splat[GROUP];
    float terms[SETS][TERMS];
    bool is_hit[GROUP], is_any_hit = false;
#pragma unroll
    for (int k = 0; k < GROUP; k++) {
        const Staged s = splat_of<P>(group[k], held);
        if constexpr (P.ablate == Ablate::loop_floor) {
            mix_in(s, leftover);
            continue;
        }
        of_splat[k] = splat_terms<P>(pixels, s, spot);
        is_hit[k] = of_splat[k].is_hit;
        if constexpr (!ALL_BLENDED && P.reduce != Reduce::atomic) is_hit[k] = __any_sync(FULL_WARP, is_hit[k]);
        is_any_hit |= is_hit[k];
        if constexpr (P.ablate == Ablate::no_reductions) {
            float own[TERMS];
            spread_terms(of_splat[k], pixels, own);
#pragma unroll
            for (int i = 0; i < TERMS; i++) leftover.sum += own[i];
        } else if constexpr (FOLDS) {
            if (k & 1) fold_terms(of_splat[k - 1], of_splat[k], pixels, terms[k / 2]);
        } else {
            spread_terms(of_splat[k], pixels, terms[k]);
            if constexpr (P.reduce == Reduce::transposed) store_transposed(transposed, k, terms[k]);
        }
    }
    if constexpr (P.ablate == Ablate::loop_floor || P.ablate == Ablate::no_reductions) return;
    if constexpr (P.reduce == Reduce::atomic) {
        if (!is_any_hit) return;
#pragma unroll
        for (int i = 0; i < MOMENTS; i++)
            add_sum<P>(args.sums + size_t(group[0].at->slot) * SUM_ROW + place_of(i), terms[0][i], true, leftover);
        if constexpr (P.absolute) {
            float* row = args.sums + size_t(group[0].at->slot) * SUM_ROW;
            add_sum<P>(row + M_ABSOLUTE_X, of_splat[0].absolute_x, true, leftover);
            add_sum<P>(row + M_ABSOLUTE_Y, of_splat[0].absolute_y, true, leftover);
        }
        return;
    }
    if constexpr (P.reduce == Reduce::transposed) __syncwarp();
    if (!ALL_BLENDED && !is_any_hit) return;

    // A warp that walks alone fills a group up with splats that add zeros to the warp's own row. Otherwise nothing is
    // added.
    const Staged* own = group[0].at;
    bool adds = ALL_BLENDED || is_hit[0];
    if constexpr (P.bwd_sync == Walk::warp) {
        own += target.splat;  // the group's rows are next to each other
    } else {
#pragma unroll
        for (int k = 1; k < GROUP; k++)
            if (target.splat == k) own = group[k].at, adds = ALL_BLENDED || is_hit[k];
    }
    adds &= target.count > 0 && (P.bwd_sync == Walk::warp || own->slot != NO_SLOT);
    auto* row = place_of<P.reduce>(args, target, own->slot);

    if constexpr (P.reduce == Reduce::butterfly) {
        reduce_butterfly(terms[0]);
#pragma unroll
        for (int i = 0; i < MOMENTS; i++) add_sum<P>(row + place_of(i), terms[0][i], adds, leftover);
    } else if constexpr (P.reduce == Reduce::scatter) {
        add_sum<P>(row, reduce_scatter(terms[0]), adds, leftover);
    } else if constexpr (P.reduce == Reduce::deterministic) {
        const float sum = reduce_scatter(terms[0]);
        add_sum<P>(row, (unsigned long long)(llrintf(sum * args.integer_scale)), adds, leftover);
    } else if constexpr (P.reduce == Reduce::pair) {
        add_sum<P>(row, reduce_pair(terms[0], terms[1]), adds, leftover);
    } else if constexpr (P.reduce == Reduce::deferred_pair) {
        const float sum = reduce_folded_pair(terms[0], target.splat == 0 ? of_splat[0].u : of_splat[1].u);
        add_sum<P>(row, sum, adds, leftover);
    } else if constexpr (P.reduce == Reduce::deferred_quad) {
        float2 sum = reduce_folded_quad(terms[0], terms[1], __fmaf_rn(-own->a, spot.x, own->u0));
        if constexpr (P.absolute) sum.y = target.count == 2 ? sum.y : 0.0f;  // else it could reach a spare place
        if constexpr (P.ablate == Ablate::off) {
            if (adds) add_pair(row, sum, target.count == 2);
        } else {
            leftover.sum += sum.x + sum.y;
        }
    } else if constexpr (P.reduce == Reduce::transposed) {
        const float middle = spot.x - float(lane_index() & 7u) + 3.5f;
        const float3 sum = reduce_transposed(transposed, own->a, fmaf(-own->a, middle, own->u0));
        add_sum<P>(row, sum.x, adds, leftover);
        add_sum<P>(row + (target.count == 3 ? M_U - M_0 : M_UV - M_V), sum.y, adds && target.count >= 2, leftover);
        add_sum<P>(row + (M_UU - M_0), sum.z, adds && target.count == 3, leftover);
        __syncwarp();  // before the rows are overwritten
    }
    if constexpr (P.absolute) add_absolute<P, ALL_BLENDED>(args, of_splat, group, is_hit, target, leftover);
}

// ---- Tilted primitives ----------------------------------------------------------------------------------------------

// Returns true if the splat hit any pixel of the thread.
template <BlendBackwardPolicy P, int ROWS>
__device__ __forceinline__ bool tilted_terms(PixelBackward (&pixels)[ROWS], const StagedTilted& s, const Spot& spot,
                                             float (&terms)[TILTED_TERMS]) {
    const auto e = evaluate_tilted<P.primitive, P.exp, P.log2_opacity, ROWS>(s, spot);
    float h = 0.0f, h_v = 0.0f, h_q = 0.0f, k = 0.0f;
    bool is_any_hit = false;
#pragma unroll
    for (int i = 0; i < TILTED_TERMS; i++) terms[i] = 0.0f;
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        const bool is_hit = e.alpha[row] >= ALPHA_MIN && s.index < pixels[row].last;
        is_any_hit |= is_hit;
        if (!P.branchless && !is_hit) continue;
        const PixelTerms t = unblend_pixel<P>(pixels[row], s, is_hit ? e.alpha[row] : 0.0f);
        const float u = e.u, v = e.v[row], q = e.q[row];
        // A pixel that is not hit may have any of these infinite.
        const bool is_along_ray = is_hit && !(P.primitive == Primitive::gs2d && e.is_circle[row]);
        const float by_d = is_along_ray ? e.inverse[row] : 0.0f, q_by_d = is_along_ray ? q * by_d : 0.0f;
        const float n_by_d = is_along_ray ? fmaf(u, u, v * v) * by_d : 0.0f;
        const float by_q = t.g * q_by_d, own_h = by_q * q_by_d, own_k = by_q * n_by_d, own_q = is_along_ray ? q : 0.0f;
        const float own_v = is_along_ray ? v : 0.0f;
        terms[TILTED_0] += t.g;
        h += own_h, k += own_k;
        h_v = fmaf(own_h, own_v, h_v), h_q = fmaf(own_h, own_q, h_q);
        terms[TILTED_VV] = fmaf(own_h * own_v, own_v, terms[TILTED_VV]);
        terms[TILTED_VQ] = fmaf(own_h * own_v, own_q, terms[TILTED_VQ]);
        terms[TILTED_KV] = fmaf(own_k, own_v, terms[TILTED_KV]);
        terms[TILTED_RED] = fmaf(t.weight, pixels[row].by_red, terms[TILTED_RED]);
        terms[TILTED_GREEN] = fmaf(t.weight, pixels[row].by_green, terms[TILTED_GREEN]);
        terms[TILTED_BLUE] = fmaf(t.weight, pixels[row].by_blue, terms[TILTED_BLUE]);
        if constexpr (P.primitive == Primitive::gs2d) {
            const float by_circle = is_hit && e.is_circle[row] ? t.g : 0.0f;
            terms[TILTED_X] = fmaf(by_circle, s.circle_x() - spot.x, terms[TILTED_X]);
            terms[TILTED_Y] = fmaf(by_circle, s.circle_y() - (spot.y + float(row)), terms[TILTED_Y]);
        } else {
            terms[TILTED_J] = fmaf(t.g * n_by_d, n_by_d, terms[TILTED_J]);
        }
    }
    const float u = is_any_hit ? e.u : 0.0f, h_u = h * u;
    terms[TILTED_UU] = h_u * u, terms[TILTED_UV] = h_v * u, terms[TILTED_UQ] = h_q * u, terms[TILTED_KU] = k * u;
    return is_any_hit;
}

// As add_group below.
template <BlendBackwardPolicy P, bool ALL_BLENDED, int ROWS, int GROUP>
__device__ __forceinline__ void add_tilted(const BlendBackwardArgs& args, PixelBackward (&pixels)[ROWS],
                                           const Spot& spot, const Turn<P.primitive> (&group)[GROUP],
                                           const StagedTilted& held, const Target& target, Leftover& leftover) {
    float terms[GROUP][TILTED_TERMS];
    bool is_hit[GROUP], is_any_hit = false;
#pragma unroll
    for (int k = 0; k < GROUP; k++) {
        const StagedTilted s = splat_of<P>(group[k], held);
        if constexpr (P.ablate == Ablate::loop_floor) {
            mix_in(s, leftover);
            continue;
        }
        is_hit[k] = tilted_terms<P>(pixels, s, spot, terms[k]);
        if constexpr (!ALL_BLENDED && P.reduce != Reduce::atomic) is_hit[k] = __any_sync(FULL_WARP, is_hit[k]);
        is_any_hit |= is_hit[k];
        if constexpr (P.ablate == Ablate::no_reductions) {
#pragma unroll
            for (int i = 0; i < TILTED_TERMS; i++) leftover.sum += terms[k][i];
        }
    }
    if constexpr (P.ablate == Ablate::loop_floor || P.ablate == Ablate::no_reductions) return;
    if constexpr (P.reduce == Reduce::atomic) {
        if (!is_any_hit) return;
#pragma unroll
        for (int i = 0; i < TILTED_TERMS; i++)
            add_sum<P>(args.sums + size_t(group[0].at->slot) * TILTED_SUM_ROW + i, terms[0][i], true, leftover);
        return;
    }
    if (!ALL_BLENDED && !is_any_hit) return;
    const auto* own = group[0].at;
    bool adds = ALL_BLENDED || is_hit[0];
    if constexpr (P.bwd_sync == Walk::warp) {
        own += target.splat;  // the group's rows are next to each other
    } else {
#pragma unroll
        for (int k = 1; k < GROUP; k++)
            if (target.splat == k) own = group[k].at, adds = ALL_BLENDED || is_hit[k];
    }
    adds &= target.count > 0 && (P.bwd_sync == Walk::warp || own->slot != NO_SLOT);
    auto* row = place_of<P.reduce, P.primitive>(args, target, own->slot);
    const float2 sum = reduce_tilted(terms);
    if constexpr (P.reduce == Reduce::deterministic) {
        add_sum<P>(row, (unsigned long long)(llrintf(sum.x * args.integer_scale)), adds, leftover);
    } else if constexpr (GROUP == 4 && P.ablate == Ablate::off) {
        if (adds) add_pair(row, sum, target.count == 2);
    } else {
        add_sum<P>(row, sum.x, adds, leftover);
        if constexpr (GROUP == 4) add_sum<P>(row + 1, sum.y, adds && target.count == 2, leftover);
    }
}

// Takes a group of staged splats through the pixels and adds their sums to memory.
// ALL_BLENDED: the warp is known to have blended each splat that is not empty.
template <BlendBackwardPolicy P, bool ALL_BLENDED, int ROWS, int GROUP>
__device__ __forceinline__ void add_group(const BlendBackwardArgs& args, PixelBackward (&pixels)[ROWS],
                                          const Spot& spot, const Turn<P.primitive> (&group)[GROUP],
                                          const StagedOf<P.primitive>& held, const Target& target, float* transposed,
                                          Leftover& leftover) {
    if constexpr (is_tilted(P.primitive)) {
        add_tilted<P, ALL_BLENDED>(args, pixels, spot, group, held, target, leftover);
    } else {
        add_flat<P, ALL_BLENDED>(args, pixels, spot, group, held, target, transposed, leftover);
    }
}
