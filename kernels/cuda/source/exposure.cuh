// Gives each photograph its own exposure: an affine map of the picture's colours, x' = x A + b, with its gradient.
//
// - `expose` makes the picture that the loss compares with the photograph.
// - `expose_backward` turns dL/dx' into dL/dx in place and adds up dL/dA and dL/db, one sum for each block.
// - `step_exposures` adds those sums up in order and takes a step of Adam on the map of this photograph. The map's
//   moments count their own steps. It then moves all maps so that their mean stays the identity.
// A step that was refused (step.cuh) changes no map. 256 threads a block, one or more pixels a thread; `step_exposures`
// is one block.
#pragma once
#include "adam.cuh"

constexpr int EXPOSURE_THREADS = 256, EXPOSURE_WARPS = EXPOSURE_THREADS / 32;
constexpr int MAP = 12;  // numbers in a map: three rows of A, then b

struct ExposeArgs {
    const Frame* frame;
    const StepInputs* inputs;
    const float* values;  // [V, 4, 3]
    const float* image;   // [H, W, 3]
    float* exposed;       // [H, W, 3] out
};
struct ExposeBackwardArgs {
    const Frame* frame;
    const StepInputs* inputs;
    const float* values;  // [V, 4, 3]
    const float* image;   // [H, W, 3] before the map
    float* gradient;      // [H, W, 3] in: after the map, out: before it
    float* sums;          // [blocks, 12] out
};
struct StepExposuresArgs {
    const Frame* frame;
    const StepInputs* inputs;
    float* values;      // [V, 4, 3] in and out, like all below
    float* first;       // [V, 4, 3]
    float* second;      // [V, 4, 3]
    long long* steps;   // [V]
    const float* sums;  // [sum_count, 12]
    int views;          // V
    int sum_count;
};

struct ColorMap {
    float of[MAP];
};
__device__ __forceinline__ ColorMap color_map(const float* values, const StepInputs& inputs) {
    ColorMap map;
#pragma unroll
    for (int i = 0; i < MAP; i++) map.of[i] = values[size_t(inputs.photograph) * MAP + i];
    return map;
}

__global__ void __launch_bounds__(EXPOSURE_THREADS) expose(ExposeArgs args) {
    const int pixel = int(blockIdx.x) * EXPOSURE_THREADS + int(threadIdx.x);
    const Frame& frame = *args.frame;
    if (frame.overflow || pixel >= frame.width * frame.height) return;
    const ColorMap map = color_map(args.values, *args.inputs);
    const float* x = args.image + 3 * size_t(pixel);
    const float red = x[0], green = x[1], blue = x[2];
#pragma unroll
    for (int c = 0; c < 3; c++)
        args.exposed[3 * size_t(pixel) + c] =
            fmaf(red, map.of[c], fmaf(green, map.of[3 + c], fmaf(blue, map.of[6 + c], map.of[9 + c])));
}

__global__ void __launch_bounds__(EXPOSURE_THREADS) expose_backward(ExposeBackwardArgs args) {
    __shared__ float of_warp[EXPOSURE_WARPS][MAP];
    const Frame& frame = *args.frame;
    if (frame.overflow) return;
    const ColorMap map = color_map(args.values, *args.inputs);
    const int stride = int(gridDim.x) * EXPOSURE_THREADS;
    float sums[MAP] = {};
    for (int pixel = int(blockIdx.x) * EXPOSURE_THREADS + int(threadIdx.x); pixel < frame.width * frame.height;
         pixel += stride) {
        const float* x = args.image + 3 * size_t(pixel);
        float* g = args.gradient + 3 * size_t(pixel);
        const float by[3] = {g[0], g[1], g[2]}, color[3] = {x[0], x[1], x[2]};
#pragma unroll
        for (int k = 0; k < 3; k++) {
#pragma unroll
            for (int c = 0; c < 3; c++) sums[3 * k + c] = fmaf(color[k], by[c], sums[3 * k + c]);
            sums[9 + k] += by[k];
            g[k] = fmaf(map.of[3 * k], by[0], fmaf(map.of[3 * k + 1], by[1], map.of[3 * k + 2] * by[2]));
        }
    }
#pragma unroll
    for (int i = 0; i < MAP; i++) {
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) sums[i] += __shfl_xor_sync(FULL_WARP, sums[i], offset);
        if (lane_index() == 0) of_warp[warp_index()][i] = sums[i];
    }
    __syncthreads();
    if (threadIdx.x >= MAP) return;
    float sum = 0.0f;
    for (int warp = 0; warp < EXPOSURE_WARPS; warp++) sum += of_warp[warp][threadIdx.x];
    args.sums[blockIdx.x * MAP + threadIdx.x] = sum;
}

// Adds up, in each of the first MAP threads, number i of all `count` rows, always in the same order.
__device__ __forceinline__ float sum_of_rows(const float* rows, int count) {
    constexpr int GROUPS = EXPOSURE_THREADS / MAP;
    __shared__ float of_group[GROUPS * MAP];
    const int thread = int(threadIdx.x);
    float sum = 0.0f;
    __syncthreads();  // earlier results are written, and sums of an earlier call have been read
    if (thread < GROUPS * MAP) {
        for (int row = thread / MAP; row < count; row += GROUPS) sum += rows[size_t(row) * MAP + thread % MAP];
        of_group[thread] = sum;
    }
    __syncthreads();
    if (thread >= MAP) return 0.0f;
    sum = 0.0f;
    for (int group = 0; group < GROUPS; group++) sum += of_group[group * MAP + thread];
    return sum;
}

__global__ void __launch_bounds__(EXPOSURE_THREADS) step_exposures(StepExposuresArgs args) {
    __shared__ float shift[MAP];
    const StepInputs& inputs = *args.inputs;
    if (args.frame->overflow) return;
    const int thread = int(threadIdx.x);
    const float gradient = sum_of_rows(args.sums, args.sum_count);
    const size_t own = size_t(inputs.photograph) * MAP + thread;
    if (thread < MAP) {
        const double steps = double(args.steps[inputs.photograph] + 1);
        AdamConstants c{float(1.0 - inputs.beta1), float(inputs.beta2), float(1.0 - inputs.beta2), 0.0f, inputs.epsilon,
                        0.0f};
        c.second_scale = float(1.0 / sqrt(1.0 - pow(inputs.beta2, steps)));
        const float rate = inputs.exposure_rate * float(1.0 / (1.0 - pow(inputs.beta1, steps)));
        adam_number(args.values[own], args.first[own], args.second[own], gradient, rate, c);
    }
    const float sum = sum_of_rows(args.values, args.views);
    if (thread < MAP) shift[thread] = sum / float(args.views) - (thread < 9 && thread % 4 == 0 ? 1.0f : 0.0f);
    __syncthreads();
    if (thread == 0) args.steps[inputs.photograph]++;
    for (int i = thread; i < args.views * MAP; i += EXPOSURE_THREADS) args.values[i] -= shift[i % MAP];
}
