// Arithmetic that all kernels share: the constants that define the picture, exact and approximate operations, vectors.
//
// Everything below is plain C++ over names that exist on a GPU and on the CPU that tests run on. The few functions that
// differ between the two are in warp.cuh. A test compares the constants with constants.py. Read frame.cuh next.
#pragma once
#include "warp.cuh"

// ---- Constants of constants.py -------------------------------------------------------------------------------------

constexpr int TILE = 16;  // px along each side of a tile
constexpr float DILATION = 0.3f;
constexpr float ALPHA_CAP = 0.9900000095367432f;
constexpr float ALPHA_MIN = 0.00392156862745098f;  // 1/255
constexpr float TRANSMITTANCE_STOP = 1e-4f;

// ---- Derived -------------------------------------------------------------------------------------------------------

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;
constexpr float LOG2_ALPHA_MIN = -7.994353436858858f;  // log2(1/255)
constexpr float FLOAT_MAX = 3.402823466e38f;

// ---- Scalars -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= FLOAT_MAX; }  // false for NaN too
__device__ __forceinline__ float clamped(float x, float low, float high) { return fminf(fmaxf(x, low), high); }

// a / b by one multiplication and one approximate reciprocal: 2 ulp, for |b| below 2^126.
__device__ __forceinline__ float quotient_approx(float a, float b) { return __fdividef(a, b); }
// The approximate reciprocal after one step of Newton's method, 1 ulp, without the branches of a division.
__device__ __forceinline__ float reciprocal(float x) {
    const float r = reciprocal_approx(x);
    return fmaf(r, fmaf(-x, r, 1.0f), r);
}

// a b − c d without cancellation (Kahan): adds back the rounding error of c d. 1.5 ulp.
__device__ __forceinline__ float difference_of_products(float a, float b, float c, float d) {
    const float product = __fmul_rn(c, d);
    return __fadd_rn(__fmaf_rn(a, b, -product), __fmaf_rn(-c, d, product));
}

__device__ __forceinline__ constexpr unsigned max_of(unsigned a, unsigned b) { return a > b ? a : b; }
__device__ __forceinline__ unsigned ceil_div(unsigned a, unsigned b) { return (a + b - 1) / b; }

// ---- Vectors -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ float3 operator+(float3 a, float3 b) { return make_float3(a.x + b.x, a.y + b.y, a.z + b.z); }
__device__ __forceinline__ float3 operator-(float3 a, float3 b) { return make_float3(a.x - b.x, a.y - b.y, a.z - b.z); }
__device__ __forceinline__ float3 operator*(float s, float3 a) { return make_float3(s * a.x, s * a.y, s * a.z); }
__device__ __forceinline__ float3& operator+=(float3& a, float3 b) { return a = a + b; }
__device__ __forceinline__ float dot(float3 a, float3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
__device__ __forceinline__ float3 cross(float3 a, float3 b) {
    return make_float3(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x);
}
// a + s b
__device__ __forceinline__ float3 add_scaled(float3 a, float s, float3 b) {
    return make_float3(fmaf(s, b.x, a.x), fmaf(s, b.y, a.y), fmaf(s, b.z, a.z));
}
