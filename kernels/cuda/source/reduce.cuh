// Adds up a splat's terms over the 32 lanes of a warp, in six ways, and tells which lane holds which sum.
//
// A function takes the terms of its lane and returns what the lane holds afterwards. All 32 lanes must call it. Orders
// of addition differ, so results differ by rounding. Shuffles for each splat:
// - butterfly 45, scatter 12, pair 10, deferred pair 7.5, deferred quad 7;
// - transposed none, but six stores to shared memory, of which it needs 4,320 bytes a warp.
//
// The deferred forms need lanes as blend.cuh arranges them: lane % 8 is the column, lane / 8 the row (or pair of rows).
// They take six terms, {m0, v, vv, red, green, blue}. Lanes of one column share u, so the three moments with u are
// computed after the rows of a column have been added up. Read blend_backward.cuh next.
#pragma once
#include "math.cuh"

// Order of the nine terms, and of their sums in a row of memory. Sums that one lane ends with are next to each other,
// and its first is at an even place.
enum Term : int { T_0, T_U, T_V, T_UU, T_UV, T_VV, T_RED, T_GREEN, T_BLUE, MOMENTS };
enum Moment : int { M_0 = 0, M_U, M_V, M_UU = 4, M_UV, M_VV, M_RED, M_GREEN, M_BLUE = 10 };
constexpr int M_ABSOLUTE_X = 9, M_ABSOLUTE_Y = 11;  // with `absolute`; else spare
__device__ constexpr int place_of(int term) { return term + (term > T_V) + (term > T_GREEN); }
constexpr int SUM_ROW = 12;  // numbers in a splat's row
static_assert(place_of(T_V) == M_V && place_of(T_UU) == M_UU && place_of(T_RED) == M_RED && place_of(T_BLUE) == M_BLUE);
constexpr int DEFERRED_TERMS = 6;

// The sums that one lane holds at the end: terms `first` … `first + count − 1` of splat number `splat`.
struct Holding {
    int splat, first, count;
};

// Halving, as all functions below do it. At each offset, lanes with that bit set keep the upper part of the terms. Once
// one term is left, all lanes keep it, and the lanes without the bit count as its holders.
__device__ constexpr Holding halve(Holding h, int lane, int first_offset, int terms) {
    for (int offset = first_offset; offset > 0; offset /= 2) {
        const int kept = (terms + 1) / 2;
        const bool is_upper = (lane & offset) != 0;
        if (terms == 1) h.count = is_upper ? 0 : h.count;
        else if (is_upper) h.first += kept, h.count = h.count > kept ? h.count - kept : 0;
        else h.count = h.count < kept ? h.count : kept;
        terms = kept;
    }
    return h;
}
__device__ constexpr Holding scatter_holding(int lane) { return halve({0, 0, MOMENTS}, lane, 16, MOMENTS); }
__device__ constexpr Holding pair_holding(int lane) { return halve({lane >> 4, 0, MOMENTS}, lane, 8, MOMENTS); }
__device__ constexpr Holding quad_holding(int lane) {
    return halve({lane >> 4 | (lane >> 2 & 2), 0, MOMENTS}, lane, 4, MOMENTS);
}
// Column sums end in the order m0, m0 u, m0 u², v, v u, vv; lanes with bit 3 hold the colours.
__device__ constexpr Holding deferred_pair_holding(int lane) {
    const bool is_color = (lane & 8) != 0;
    Holding h = halve({lane >> 4, 0, is_color ? 3 : 6}, lane, 4, 6);
    constexpr int ORDER[6] = {T_0, T_U, T_UU, T_V, T_UV, T_VV};
    if (h.count) h.first = is_color ? T_RED + h.first : ORDER[h.first];
    return h;
}

// True where every sum of `splats` splats has exactly one holder.
template <class F>
__device__ constexpr bool is_complete(F holding, int splats) {
    for (int splat = 0; splat < splats; splat++)
        for (int moment = 0; moment < MOMENTS; moment++) {
            int holders = 0;
            for (int lane = 0; lane < 32; lane++) {
                const Holding h = holding(lane);
                holders += h.splat == splat && moment >= h.first && moment < h.first + h.count;
            }
            if (holders != 1) return false;
        }
    return true;
}

static_assert(is_complete(scatter_holding, 1) && is_complete(pair_holding, 2));
static_assert(is_complete(deferred_pair_holding, 2) && is_complete(quad_holding, 4));

// Halves N terms in place, once: the partner at `offset` gets the terms it keeps, and gives us those we keep. Reads
// terms[0 … N), leaves terms[0 … (N + 1) / 2).
template <int N, int SIZE>
__device__ __forceinline__ void halve_terms(float (&terms)[SIZE], int offset) {
    const bool is_upper = (lane_index() & unsigned(offset)) != 0;
    constexpr int KEPT = (N + 1) / 2;
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        if (i + KEPT >= N) {  // no counterpart: the upper lanes' copy is not used
            terms[i] += __shfl_xor_sync(FULL_WARP, terms[i], offset);
        } else {
            const float upper = terms[i + KEPT < SIZE ? i + KEPT : 0];
            const float kept = is_upper ? upper : terms[i], sent = is_upper ? terms[i] : upper;
            terms[i] = kept + __shfl_xor_sync(FULL_WARP, sent, offset);
        }
    }
}

// Folds two splats into a: lanes without the bit of `offset` then hold terms of a, the others of b.
template <int N>
__device__ __forceinline__ void fold(float (&a)[N], const float (&b)[N], int offset) {
    const bool is_upper = (lane_index() & unsigned(offset)) != 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float kept = is_upper ? b[i] : a[i], sent = is_upper ? a[i] : b[i];
        a[i] = kept + __shfl_xor_sync(FULL_WARP, sent, offset);
    }
}

// Adds up with 45 shuffles; every lane ends with all nine sums.
__device__ __forceinline__ void reduce_butterfly(float (&terms)[MOMENTS]) {
#pragma unroll
    for (int i = 0; i < MOMENTS; i++)
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) terms[i] += __shfl_xor_sync(FULL_WARP, terms[i], offset);
}

// Adds up with 5 + 3 + 2 + 1 + 1 shuffles. scatter_holding tells which lane holds which sum.
__device__ __forceinline__ float reduce_scatter(float (&terms)[MOMENTS]) {
    halve_terms<9>(terms, 16);
    halve_terms<5>(terms, 8);
    halve_terms<3>(terms, 4);
    halve_terms<2>(terms, 2);
    halve_terms<1>(terms, 1);
    return terms[0];
}

// Adds up any number of terms, halved at each offset. halve({0, 0, N}, lane, 16, N) tells which lane holds which sum.
template <int OFFSET = 16, int LEFT = 0, int N>
__device__ __forceinline__ float reduce_all(float (&terms)[N]) {
    constexpr int TERMS = LEFT ? LEFT : N;
    halve_terms<TERMS>(terms, OFFSET);
    if constexpr (OFFSET > 1) return reduce_all<OFFSET / 2, (TERMS + 1) / 2>(terms);
    else return terms[0];
}

// Adds up two splats with 9 + 5 + 3 + 2 + 1 shuffles. pair_holding tells which lane holds which sum.
__device__ __forceinline__ float reduce_pair(float (&a)[MOMENTS], const float (&b)[MOMENTS]) {
    fold(a, b, 16);
    halve_terms<9>(a, 8);
    halve_terms<5>(a, 4);
    halve_terms<3>(a, 2);
    halve_terms<2>(a, 1);
    return a[0];
}

// Adds up two splats with 6 + 3 + 3 + 2 + 1 shuffles: fold them over offset 16, then call this. `u` belongs to the
// splat that this half of the warp holds after the fold. deferred_pair_holding tells which lane holds which sum.
__device__ __forceinline__ float reduce_folded_pair(float (&a)[DEFERRED_TERMS], float u) {
    halve_terms<6>(a, 8);  // bit 3 clear: m0, v, vv; set: red, green, blue
    const bool is_color = (lane_index() & 8u) != 0;
    const float first_u = a[0] * u;
    // Colour lanes need their three sums as they are; what they compute beyond them is not used.
    float terms[6] = {a[0], is_color ? a[1] : first_u, is_color ? a[2] : first_u * u, a[1], a[1] * u, a[2]};
    halve_terms<6>(terms, 4);
    halve_terms<3>(terms, 2);
    halve_terms<2>(terms, 1);
    return terms[0];
}

// Adds up four splats with 6 + 6 + 6 + 5 + 3 + 2 shuffles: fold a with b, and c with d, over offset 16, then call this.
// `u` belongs to the splat that this quarter of the warp holds: number quad_holding(lane).splat. Each lane ends with
// two sums.
__device__ __forceinline__ float2 reduce_folded_quad(float (&ab)[DEFERRED_TERMS], const float (&cd)[DEFERRED_TERMS],
                                                     float u) {
    fold(ab, cd, 8);
    const float first_u = ab[0] * u;
    float terms[MOMENTS] = {ab[0], first_u, ab[1], first_u * u, ab[1] * u, ab[2], ab[3], ab[4], ab[5]};
    halve_terms<9>(terms, 4);
    halve_terms<5>(terms, 2);
    halve_terms<3>(terms, 1);
    return make_float2(terms[0], terms[1]);
}

// ---- Through shared memory ------------------------------------------------------------------------------------------

// Five splats × six terms: each has a row of 32 numbers in shared memory, which one lane then adds up. Rows are 36
// numbers apart, which avoids bank conflicts both in storing a row and in reading 16 bytes of each.
constexpr int TRANSPOSED_SPLATS = 5, TRANSPOSED_ROW = 36;
constexpr int TRANSPOSED_FLOATS = TRANSPOSED_SPLATS * DEFERRED_TERMS * TRANSPOSED_ROW;

// Lane 6 splat + term holds the sum of that term; then, for m0 and v, the sum times u; then, for m0, the sum times u².
__device__ constexpr Holding transposed_holding(int lane) {
    const int term = lane % 6, first = term == 0 ? int(T_0) : term == 1 ? int(T_V) : int(T_VV) + term - 2;
    return {lane / 6, first, lane >= 30 ? 0 : term == 0 ? 3 : term == 1 ? 2 : 1};
}
// Returns which term sum i of a lane is, counted from its first: m0 u and m0 u² are at 1 and 3, v u is at 2.
__device__ constexpr int transposed_offset(int count, int i) { return i == 0 ? 0 : i == 1 ? 4 - count : 3; }

__device__ __forceinline__ void store_transposed(float* rows, int splat, const float (&terms)[DEFERRED_TERMS]) {
#pragma unroll
    for (int i = 0; i < DEFERRED_TERMS; i++)
        rows[(splat * DEFERRED_TERMS + i) * TRANSPOSED_ROW + int(lane_index())] = terms[i];
}

// Returns Σ, Σ u and Σ u² of the lane's row. u falls by `a` from column to column and is `center` between columns 3 and
// 4. The moments are first computed about that middle and then moved. This costs no accuracy: the mean of a splat that
// reaches the 8×8 pixels is near, in units of the splat's width.
__device__ __forceinline__ float3 reduce_transposed(const float* rows, float a, float center) {
    const unsigned lane = lane_index() < 30u ? lane_index() : 0u;
    const float4* row = reinterpret_cast<const float4*>(rows + lane * TRANSPOSED_ROW);
    float4 left = row[0], right = row[1];
#pragma unroll
    for (int k = 1; k < 4; k++) {
        const float4 more_left = row[2 * k], more_right = row[2 * k + 1];
        left.x += more_left.x, left.y += more_left.y, left.z += more_left.z, left.w += more_left.w;
        right.x += more_right.x, right.y += more_right.y, right.z += more_right.z, right.w += more_right.w;
    }
    const float outer = left.x + right.w, second = left.y + right.z, third = left.z + right.y, inner = left.w + right.x;
    const float sum = (outer + second) + (third + inner);
    const float first = fmaf(3.5f, right.w - left.x, fmaf(2.5f, right.z - left.y,
                        fmaf(1.5f, right.y - left.z, 0.5f * (right.x - left.w))));
    const float square = fmaf(12.25f, outer, fmaf(6.25f, second, fmaf(2.25f, third, 0.25f * inner)));
    const float with_u = fmaf(center, sum, -a * first);
    return make_float3(sum, with_u, fmaf(center, with_u, -a * fmaf(center, first, -a * square)));
}
