// Reads and stores harmonics for the optimiser: as whole numbers, four at a time, from the form that `sh_dtype` keeps.
//
// - f32: numbers are kept as they are.
// - split: the upper half, rounded to the nearest bfloat16, is where both passes read it. The number's last 16 bits are
//   in an array that only the optimiser reads. Together they give the number to the bit
//   (kernels/cuda/step/harmonics.py).
// - bf16: only upper halves are kept. Most steps of Adam are smaller than half the distance between two bfloat16
//   numbers, and rounding to nearest would lose them. A new number is therefore rounded up or down at random, up with a
//   probability that grows with its distance from the lower one (Gupta et al. 2015). On average, no part of a step is
//   lost. The random bits follow from the step and the place alone, so that a run repeats exactly.
// Read adam.cuh next.
#pragma once
#include "sh.cuh"

// Returns the bits of x. Every NaN becomes one that is still a NaN after rounding.
__device__ __forceinline__ unsigned bits_to_round(float x) { return x == x ? __float_as_uint(x) : 0x7fc00000u; }

// Rounds to the nearest bfloat16, ties to even.
__device__ __forceinline__ unsigned bf16_bits(float x) {
    const unsigned bits = bits_to_round(x);
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

// Packs the upper halves of two numbers into a word. The caller has added what rounds them.
__device__ __forceinline__ unsigned upper_halves(unsigned low, unsigned high) {
    return low >> 16 | (high & 0xffff0000u);
}
// Joins an upper half, given as a number, with the lower half in the last 16 bits of `lower`.
__device__ __forceinline__ float with_lower_half(float upper, unsigned lower) {
    return __uint_as_float(__float_as_uint(upper) + unsigned(int(lower << 16) >> 16));
}

// Hashes x by the finaliser of MurmurHash3 (Appleby): every bit of x changes about half of the result's bits.
__device__ __forceinline__ unsigned mixed_bits(unsigned x) {
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

__device__ __forceinline__ float4 quad_of_words(uint2 upper) {
    return make_float4(low_bf16(upper.x), high_bf16(upper.x), low_bf16(upper.y), high_bf16(upper.y));
}
// Returns numbers 4 i … 4 i + 3 of the array from their upper halves, and from `lower` if sh_dtype keeps lower halves.
template <ShDtype D>
__device__ __forceinline__ float4 whole_quad(uint2 upper, uint2 lower) {
    float4 v = quad_of_words(upper);
    if constexpr (D == ShDtype::split)
        v = make_float4(with_lower_half(v.x, lower.x), with_lower_half(v.y, lower.x >> 16),
                        with_lower_half(v.z, lower.y), with_lower_half(v.w, lower.y >> 16));
    return v;
}
template <ShDtype D>
__device__ __forceinline__ void store_whole_quad(void* sh, void* lower, size_t i, float4 v, unsigned step) {
    if constexpr (D == ShDtype::f32) {
        static_cast<float4*>(sh)[i] = v;
        return;
    }
    const unsigned x = bits_to_round(v.x), y = bits_to_round(v.y), z = bits_to_round(v.z), w = bits_to_round(v.w);
    uint2 upper;
    if constexpr (D == ShDtype::split) {
        constexpr unsigned HALF = 0x8000u;
        upper = make_uint2(upper_halves(x + HALF, y + HALF), upper_halves(z + HALF, w + HALF));
        static_cast<uint2*>(lower)[i] = make_uint2((x & 0xffffu) | y << 16, (z & 0xffffu) | w << 16);
    } else {
        const unsigned key = mixed_bits(step), r = mixed_bits(2u * unsigned(i) ^ key);
        const unsigned s = mixed_bits((2u * unsigned(i) + 1u) ^ key);
        upper = make_uint2(upper_halves(x + (r & 0xffffu), y + (r >> 16)),
                           upper_halves(z + (s & 0xffffu), w + (s >> 16)));
    }
    static_cast<uint2*>(sh)[i] = upper;
}
