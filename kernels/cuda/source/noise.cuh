// Moves all means by a random step at the end of a training step (Kheradmand et al. 2024): covariance times normal
// numbers.
//
// The numbers follow from seed, step and Gaussian alone and equal those of kernels/noise.py. Nothing happens in a step
// that was refused (step.cuh). A Gaussian whose extent overflows does not move. 256 threads a block, a thread a
// Gaussian; no shared memory.
#pragma once
#include "step.cuh"

constexpr int SHAKE_THREADS = 256;

struct ShakeArgs {
    const Frame* frame;
    const StepInputs* inputs;
    float* means;                  // [N, 3] in and out
    const float* log_scales;       // [N, 3]
    const float4* quats;           // [N] (w, x, y, z)
    const float* logit_opacities;  // [N]
};

// Philox4x32 with ten rounds (Salmon et al. 2011).
__device__ __forceinline__ uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const unsigned long long first = 0xD2511F53ull * counter.x, second = 0xCD9E8D57ull * counter.z;
        counter = make_uint4(unsigned(second >> 32) ^ counter.y ^ key.x, unsigned(second),
                             unsigned(first >> 32) ^ counter.w ^ key.y, unsigned(first));
        key.x += 0x9E3779B9u, key.y += 0xBB67AE85u;
    }
    return counter;
}

// Returns a number in (0, 1].
__device__ __forceinline__ float uniform_of(unsigned word) { return fmaf(float(word), 0x1p-32f, 0x1p-33f); }

// Returns two normal numbers by Box and Muller's method.
__device__ __forceinline__ float3 normal_numbers(unsigned long long seed, unsigned iteration, unsigned n) {
    const uint4 words = philox(make_uint4(n, iteration, 0u, 0u), make_uint2(unsigned(seed), unsigned(seed >> 32)));
    constexpr float TURN = 6.2831853071795865f;
    const float length = sqrtf(-2.0f * logf(uniform_of(words.x)));
    const float other_length = sqrtf(-2.0f * logf(uniform_of(words.z)));
    const float angle = TURN * uniform_of(words.y), other_angle = TURN * uniform_of(words.w);
    return make_float3(length * cosf(angle), length * sinf(angle), other_length * cosf(other_angle));
}

// Rotates v by a unit quaternion (w, axis).
__device__ __forceinline__ float3 turned_by(float w, float3 axis, float3 v) {
    const float3 across = 2.0f * cross(axis, v);
    return v + w * across + cross(axis, across);
}

__global__ void __launch_bounds__(SHAKE_THREADS) shake(ShakeArgs args) {
    const unsigned n = blockIdx.x * SHAKE_THREADS + threadIdx.x;
    const StepInputs& inputs = *args.inputs;
    if (args.frame->overflow || n >= args.frame->gaussians) return;
    const float opacity = 1.0f / (1.0f + expf(-args.logit_opacities[n]));
    const float damping = 1.0f / (1.0f + expf(inputs.noise_steepness * (opacity - inputs.noise_centre)));
    const float4 q = args.quats[n];
    const float inverse = rsqrtf(q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w), w = q.x * inverse;
    const float3 axis = inverse * make_float3(q.y, q.z, q.w);
    const float* scales = args.log_scales + 3 * size_t(n);
    float3 along = turned_by(w, -1.0f * axis, normal_numbers(inputs.noise_seed, inputs.noise_iteration, n));
    along = make_float3(along.x * expf(2.0f * scales[0]), along.y * expf(2.0f * scales[1]),
                        along.z * expf(2.0f * scales[2]));
    const float3 step = inputs.noise * damping * turned_by(w, axis, along);
    if (!is_finite(step.x) || !is_finite(step.y) || !is_finite(step.z)) return;
    float* mean = args.means + 3 * size_t(n);
    mean[0] += step.x, mean[1] += step.y, mean[2] += step.z;
}
