// Steps Adam (Kingma and Ba 2015) over all parameters of all Gaussians in one launch, and collects the statistics of
// density control.
//
// The arithmetic is that of kernels/cpu/adam.py: no weight decay, and a Gaussian that was not seen moves by its
// momentum. A number whose gradient is not finite keeps its value and its moments, and is counted. Nothing happens in a
// step that was refused (step.cuh).
//
// `adam` takes gradients from arrays. 256 threads a block, ADAM_QUADS times four numbers a thread. Blocks are divided
// over the arrays, harmonics first; the last blocks collect the statistics, a thread a Gaussian. No shared memory. It
// moves 28 bytes for each number: parameter, both moments, and the gradient, which is only read. Rows of harmonics
// above the degree in use are left out: they have no gradient and no moments yet, so they would not move. Harmonics and
// their gradients are stored as sh_dtype says (sh_words.cuh).
//
// Where no arrays hold the gradients, project_backward_adam.cuh calls `adam_quad` and its siblings itself: read it
// next.
#pragma once
#include "lazy.cuh"
#include "sh_words.cuh"

constexpr int ADAM_THREADS = 256;
constexpr unsigned ADAM_QUADS = 1;  // quads that a thread works on at the same time
constexpr unsigned ADAM_CHUNK = ADAM_THREADS * ADAM_QUADS;

struct AdamArgs {
    const Frame* frame;
    const StepInputs* inputs;
    StepState* state;
    float* means;                        // [N, 3] in and out, like its moments; all 16-byte aligned
    float* log_scales;                   // [N, 3]
    float* quats;                        // [N, 4]
    float* logit_opacities;              // [N]
    void* sh;                            // [N, 16, 3] in sh_dtype
    float* means_first;                  // first moments
    float* log_scales_first;
    float* quats_first;
    float* logit_opacities_first;
    float* sh_first;
    float* means_second;                 // second moments
    float* log_scales_second;
    float* quats_second;
    float* logit_opacities_second;
    float* sh_second;
    const float* means_gradient;
    const float* log_scales_gradient;
    const float* quats_gradient;
    const float* logit_opacities_gradient;
    const void* sh_gradient;             // in sh_dtype
    const float2* means2d_gradient;      // [N] dL/d(projected mean), per px
    const uint2* warp_slots;             // [ceil(N / 32)] visible lanes, slot of the first of them
    float* pull;                         // [N] in and out: summed length of dL/d(projected mean) in NDC units
    int* seen;                           // [N] in and out: steps in which it was visible
    void* sh_lower;                      // [N, 16, 3] lower halves; sh_dtype = split
};

// ---- The step of one number -----------------------------------------------------------------------------------------

struct AdamConstants {
    float first_gain, beta2, second_gain, second_scale, epsilon;
    float first_scale;  // the caller multiplies it into the learning rate
};
__device__ __forceinline__ AdamConstants adam_constants(const StepInputs& inputs, const StepState& state) {
    return {float(1.0 - inputs.beta1), float(inputs.beta2), float(1.0 - inputs.beta2), state.second_scale,
            inputs.epsilon, state.first_scale};
}

// Steps one number. Returns true if its gradient was finite. `rate` is the learning rate times first_scale. Root and
// reciprocal are one instruction each, with an error of 3 ulp together. Below 1e-38 the root is 0; there only epsilon
// matters.
__device__ __forceinline__ bool adam_number(float& value, float& first, float& second, float gradient, float rate,
                                            const AdamConstants& c) {
    const float m = fmaf(gradient - first, c.first_gain, first);
    const float v = fmaf(c.beta2, second, c.second_gain * (gradient * gradient));
    const float moved = value - rate * m * reciprocal_approx(fmaf(root_approx(v), c.second_scale, c.epsilon));
    const bool is_good = is_finite(gradient);
    value = is_good ? moved : value;
    first = is_good ? m : first;
    second = is_good ? v : second;
    return is_good;
}

// Steps four numbers. Returns how many gradients were not finite. `rate` is for the last number, `first_rate` for the
// first three.
__device__ __forceinline__ unsigned adam_quad(float4& value, float4& first, float4& second, float4 gradient,
                                              float first_rate, float rate, const AdamConstants& c) {
    unsigned bad = !adam_number(value.x, first.x, second.x, gradient.x, first_rate, c);
    bad += !adam_number(value.y, first.y, second.y, gradient.y, first_rate, c);
    bad += !adam_number(value.z, first.z, second.z, gradient.z, first_rate, c);
    bad += !adam_number(value.w, first.w, second.w, gradient.w, rate, c);
    return bad;
}

// ---- Penalties ------------------------------------------------------------------------------------------------------

// Gradients of the penalties on opacities and on half axes, by the raw parameters.
__device__ __forceinline__ float opacity_pull(float logit, float penalty) {
    const float opacity = quotient_approx(1.0f, 1.0f + exp2_approx(-LOG2_E * clamped(logit, -80.0f, 80.0f)));
    return penalty * opacity * (1.0f - opacity);
}
__device__ __forceinline__ float scale_pull(float log_scale, float penalty) { return penalty * expf(log_scale); }

// ---- Statistics -----------------------------------------------------------------------------------------------------

// Adds to the pull of a visible Gaussian, in NDC units, so that it does not depend on the size of the image.
__device__ __forceinline__ void add_statistics(const Frame& frame, float* pull, int* seen, size_t n, float2 mean2d) {
    const float x = 0.5f * float(frame.width) * mean2d.x, y = 0.5f * float(frame.height) * mean2d.y;
    pull[n] += sqrtf(fmaf(x, x, y * y));
    seen[n] += 1;
}

// ---- The kernel -----------------------------------------------------------------------------------------------------

// The array a block works on: `length` numbers in rows of 48, of which the first 4 `columns` are stepped. Arrays
// without harmonics are treated as such rows too, with all columns in use.
struct AdamArray {
    float *value, *first, *second;
    const float* gradient;
    unsigned gaussians, columns, length_per_gaussian;
    float first_rate, rate;  // for the first three numbers of a row, and for the others
    AdamArrayName name;
    float penalty;
};
__device__ __forceinline__ float with_penalty(const AdamArray& a, float gradient, float value) {
    return gradient + (a.name == AdamArrayName::log_scales ? scale_pull(value, a.penalty)
                                                           : opacity_pull(value, a.penalty));
}
__device__ __forceinline__ unsigned chunks_of(unsigned quads) { return ceil_div(quads, ADAM_CHUNK); }

// Steps one chunk. The last quad of an array may reach beyond its end.
__device__ __forceinline__ void adam_chunk(const AdamArray& a, unsigned chunk, StepState& state,
                                           const AdamConstants& c) {
    float4 value[ADAM_QUADS], first[ADAM_QUADS], second[ADAM_QUADS], gradient[ADAM_QUADS];
    const size_t length = size_t(a.gaussians) * a.length_per_gaussian;
    unsigned at[ADAM_QUADS], bad = 0;
    bool is_whole[ADAM_QUADS], is_first[ADAM_QUADS];
#pragma unroll
    for (unsigned k = 0; k < ADAM_QUADS; k++) {
        const unsigned i = chunk * ADAM_CHUNK + k * ADAM_THREADS + threadIdx.x, row = i / a.columns;
        at[k] = i + row * (SH_QUADS - a.columns);
        is_first[k] = i == row * a.columns;
        is_whole[k] = size_t(at[k]) * 4 + 4 <= length;
        if (is_whole[k]) {
            gradient[k] = __ldcs(reinterpret_cast<const float4*>(a.gradient) + at[k]);
            value[k] = reinterpret_cast<const float4*>(a.value)[at[k]];
            first[k] = __ldcs(reinterpret_cast<const float4*>(a.first) + at[k]);
            second[k] = __ldcs(reinterpret_cast<const float4*>(a.second) + at[k]);
        }
    }
#pragma unroll
    for (unsigned k = 0; k < ADAM_QUADS; k++) {
        if (is_whole[k]) {
            if (a.penalty != 0.0f) {
                gradient[k].x = with_penalty(a, gradient[k].x, value[k].x);
                gradient[k].y = with_penalty(a, gradient[k].y, value[k].y);
                gradient[k].z = with_penalty(a, gradient[k].z, value[k].z);
                gradient[k].w = with_penalty(a, gradient[k].w, value[k].w);
            }
            const float first_rate = is_first[k] ? a.first_rate : a.rate;
            bad += adam_quad(value[k], first[k], second[k], gradient[k], first_rate, a.rate, c);
            reinterpret_cast<float4*>(a.value)[at[k]] = value[k];
            __stcs(reinterpret_cast<float4*>(a.first) + at[k], first[k]);
            __stcs(reinterpret_cast<float4*>(a.second) + at[k], second[k]);
        } else {
#pragma unroll 1
            for (size_t n = size_t(at[k]) * 4; n < length; n++) {
                const float pull = a.penalty != 0.0f ? with_penalty(a, a.gradient[n], a.value[n]) : a.gradient[n];
                bad += !adam_number(a.value[n], a.first[n], a.second[n], pull, a.rate, c);
            }
        }
    }
    if (bad) atomicAdd(&state.skipped[int(a.name)], bad);  // rare
}

// Steps one chunk of harmonics that are kept in halves. Their rows are whole quads.
template <ShDtype D>
__device__ __forceinline__ void adam_halves(const AdamArgs& args, unsigned chunk, unsigned columns) {
    static_assert(ADAM_QUADS == 1);
    const unsigned i = chunk * ADAM_CHUNK + threadIdx.x, row = i / columns, column = i - row * columns;
    if (row >= args.frame->gaussians) return;
    const size_t at = size_t(row) * SH_QUADS + column;
    const uint2 gradient = __ldcs(static_cast<const uint2*>(args.sh_gradient) + at);
    const uint2 upper = static_cast<const uint2*>(args.sh)[at];
    uint2 lower = make_uint2(0u, 0u);
    if constexpr (D == ShDtype::split) lower = static_cast<const uint2*>(args.sh_lower)[at];
    float4* firsts = reinterpret_cast<float4*>(args.sh_first) + at;
    float4* seconds = reinterpret_cast<float4*>(args.sh_second) + at;
    float4 value = whole_quad<D>(upper, lower), first = __ldcs(firsts), second = __ldcs(seconds);
    const AdamConstants c = adam_constants(*args.inputs, *args.state);
    const float rate = c.first_scale * args.inputs->sh_rest;
    const float first_rate = column == 0 ? c.first_scale * args.inputs->sh_constant : rate;
    const unsigned bad = adam_quad(value, first, second, quad_of_words(gradient), first_rate, rate, c);
    store_whole_quad<D>(args.sh, args.sh_lower, at, value, args.state->steps);
    __stcs(firsts, first);
    __stcs(seconds, second);
    if (bad) atomicAdd(&args.state->skipped[int(AdamArrayName::sh)], bad);
}

// Six blocks on a multiprocessor, except for harmonics in halves, which would spill registers on Ampere with six.
template <ShDtype D>
__global__ void __launch_bounds__(ADAM_THREADS, IS_NARROW<D> ? 5 : 6) adam(AdamArgs args) {
    const Frame& frame = *args.frame;
    if (frame.overflow) return;
    const StepInputs& inputs = *args.inputs;
    const unsigned n = frame.gaussians, sh_quads = sh_quads_in_use(frame.sh_degree);
    const unsigned threes = chunks_of(ceil_div(3 * n, 4)), fours = chunks_of(n), ones = chunks_of(ceil_div(n, 4));
    if constexpr (IS_NARROW<D>) {
        if (blockIdx.x < chunks_of(n * sh_quads)) return adam_halves<D>(args, blockIdx.x, sh_quads);
    }
    using enum AdamArrayName;
    const auto array = [&](AdamArrayName name, float* value, float* first, float* second, const float* gradient,
                           unsigned width, float rate) {
        return AdamArray{value, first, second, gradient, n, SH_QUADS, width, rate, rate, name, 0.0f};
    };
    unsigned chunk = blockIdx.x;
    AdamArray a = array(sh, static_cast<float*>(args.sh), args.sh_first, args.sh_second,
                        static_cast<const float*>(args.sh_gradient), 4 * SH_QUADS, inputs.sh_rest);
    a.columns = sh_quads, a.first_rate = inputs.sh_constant;
    unsigned chunks = chunks_of(n * sh_quads);
    if (chunk >= chunks) {
        chunk -= chunks, chunks = threes;
        a = array(means, args.means, args.means_first, args.means_second, args.means_gradient, 3, inputs.means);
        if (chunk >= chunks) {
            chunk -= chunks;
            a = array(log_scales, args.log_scales, args.log_scales_first, args.log_scales_second,
                      args.log_scales_gradient, 3, inputs.log_scales);
            a.penalty = inputs.scale_penalty;
        }
        if (chunk >= chunks) {
            chunk -= chunks, chunks = fours;
            a = array(quats, args.quats, args.quats_first, args.quats_second, args.quats_gradient, 4, inputs.quats);
        }
        if (chunk >= chunks) {
            chunk -= chunks, chunks = ones;
            a = array(logit_opacities, args.logit_opacities, args.logit_opacities_first, args.logit_opacities_second,
                      args.logit_opacities_gradient, 1, inputs.logit_opacities);
            a.penalty = inputs.opacity_penalty;
        }
        if (chunk >= chunks) {
            if (!inputs.collects) return;
            chunk -= chunks;
#pragma unroll
            for (unsigned k = 0; k < 4 * ADAM_QUADS; k++) {
                const unsigned i = (chunk * 4 * ADAM_QUADS + k) * ADAM_THREADS + threadIdx.x;
                if (i < n && (args.warp_slots[i / 32].x >> (i % 32) & 1u))
                    add_statistics(frame, args.pull, args.seen, i, args.means2d_gradient[i]);
            }
            return;
        }
    }
    const AdamConstants c = adam_constants(inputs, *args.state);
    a.first_rate *= c.first_scale, a.rate *= c.first_scale;
    adam_chunk(a, chunk, *args.state, c);
}
