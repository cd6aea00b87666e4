// Adds up the sums of disks and of Gaussians seen along rays: what blend_sums.cuh does for flattened Gaussians.
//
// With g = alpha dL/dalpha, D = Q² + closeness N, h = g Q²/D² and k = g N Q/D², a splat's sums over its pixels are those
// of g, h u², h u v, h v², h u Q, h v Q, k u, k v, and of weight times image gradient for each colour. gut3d adds g N²/D²;
// gs2d adds g times the way from the pixel to the circle's centre, where the circle decides, and leaves out the others
// there. geometry_backward_tilted.cuh turns them into gradients of parameters.
//
// `reduce` groups splats as for gs3d: one, two or four at a time. Nothing is left to multiply by u later, so the two
// deferred forms are pairs and fours, `transposed` is fours and `butterfly` is scatter.
#pragma once
#include "reduce.cuh"
#include "staged_tilted.cuh"

// Order of the terms, and of their sums in a row of memory.
enum TiltedTerm : int {
    TILTED_0, TILTED_UU, TILTED_UV, TILTED_VV, TILTED_UQ, TILTED_VQ, TILTED_KU, TILTED_KV,
    TILTED_RED, TILTED_GREEN, TILTED_BLUE, TILTED_X, TILTED_Y, TILTED_TERMS
};
constexpr int TILTED_J = TILTED_X;  // gut3d, which has no circle
constexpr int TILTED_SUM_ROW = 16;  // numbers in a splat's row

// Numbers in a splat's row of sums.
__device__ constexpr int sum_row(Primitive p) { return is_tilted(p) ? TILTED_SUM_ROW : SUM_ROW; }

__device__ constexpr Holding tilted_holding(int lane, int group) {
    const int splat = group == 4 ? lane >> 4 | (lane >> 2 & 2) : group == 2 ? lane >> 4 : 0;
    Holding h = halve({splat, 0, TILTED_SUM_ROW}, lane, 16 / group, TILTED_SUM_ROW);
    const int left = TILTED_TERMS - h.first;
    h.count = h.count < left ? h.count : left > 0 ? left : 0;
    return h;
}

// Adds up the terms of one, two or four splats over the warp. tilted_holding tells which lane holds which sum or two.
template <int GROUP>
__device__ __forceinline__ float2 reduce_tilted(float (&terms)[GROUP][TILTED_TERMS]) {
    if constexpr (GROUP >= 2) fold(terms[0], terms[1], 16);
    if constexpr (GROUP == 4) fold(terms[2], terms[3], 16), fold(terms[0], terms[2], 8);
    float padded[TILTED_SUM_ROW];
#pragma unroll
    for (int i = 0; i < TILTED_SUM_ROW; i++) padded[i] = i < TILTED_TERMS ? terms[0][i] : 0.0f;
    reduce_all<16 / GROUP>(padded);
    return make_float2(padded[0], padded[1]);
}
