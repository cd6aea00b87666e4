// Leaves harmonics alone while their Gaussian has no gradient, and catches them up before anyone reads them.
//
// Without a gradient, step j of Adam after step t0 moves a number by
//     rate (β1 / √β2)^j √(1 − β2^(t0+j)) / (1 − β1^(t0+j)) × m / √v,
// with m and v of step t0, and multiplies m by β1 and v by β2. The steps that a Gaussian misses can therefore be made
// up at once when it is seen again: its harmonics move by `reach` × m / √v. Epsilon is too small to matter next to √v.
//
// `reach` for each number of missed steps is in a table, renewed by every step. It has two halves, so that a step can
// write one while kernels still read the other. The constant term has a learning rate of its own, and so its own table.
// No Gaussian misses more than LAZY_STEPS steps.
//
// A warp works on its lanes' Gaussians together, a row of harmonics each. Read project_backward_adam.cuh next.
#pragma once
#include "sh.cuh"
#include "step.cuh"

constexpr unsigned LAZY_STEPS = 127, LAZY_TABLE = LAZY_STEPS + 1;
constexpr unsigned SH_QUADS = 12;  // quads (four numbers) in a row of harmonics

struct LazySh {
    const float* first;       // [N, 16, 3] first moments
    const float* second;      // [N, 16, 3] second moments
    const unsigned* stepped;  // [N] the last step that the row has made
    const float* reach;       // [2, 2, LAZY_TABLE] after an even or odd number of steps; rest, constant
    const StepState* state;
};

// Returns how many quads of a row of harmonics are in use at `degree`.
__device__ __forceinline__ unsigned sh_quads_in_use(int degree) {
    return (3u * unsigned((degree + 1) * (degree + 1)) + 3u) / 4u;
}

// Returns the half of the table that is valid after `steps` steps: first of the rest, then of the constant term.
__device__ __forceinline__ const float* reach_after(const float* reach, unsigned steps) {
    return reach + (steps & 1u) * (2 * LAZY_TABLE);
}

// Renews the table after a committed step, which every Gaussian may have missed. All threads of a block of at least
// LAZY_TABLE threads call.
__device__ __forceinline__ void renew_reach(float* reach, const StepInputs& inputs, const StepState& state) {
    const unsigned missed = threadIdx.x;
    if (missed >= LAZY_TABLE) return;
    float rest = 0.0f, constant = 0.0f;
    if (missed > 0) {
        const float ratio = exp2f(float(missed) * (log2f(float(inputs.beta1)) - 0.5f * log2f(float(inputs.beta2))));
        const float step = ratio * state.first_scale / state.second_scale;
        const float* before = reach_after(reach, state.steps + 1) + (missed - 1);
        rest = before[0] + inputs.sh_rest * step, constant = before[LAZY_TABLE] + inputs.sh_constant * step;
    }
    float* now = const_cast<float*>(reach_after(reach, state.steps)) + missed;
    now[0] = rest, now[LAZY_TABLE] = constant;
}

__device__ __forceinline__ float caught_up(float value, float first, float second, float reach) {
    return second > 0.0f ? value - reach * first * rsqrtf(second) : value;
}
// Catches up four numbers of a row, in column `column` of quads. `table` comes from `reach_after`.
__device__ __forceinline__ float4 caught_up(float4 value, float4 first, float4 second, const float* table,
                                            unsigned missed, unsigned column) {
    const float rest = table[missed], most = column == 0 ? table[LAZY_TABLE + missed] : rest;
    return make_float4(caught_up(value.x, first.x, second.x, most), caught_up(value.y, first.y, second.y, most),
                       caught_up(value.z, first.z, second.z, most), caught_up(value.w, first.w, second.w, rest));
}

// Returns the place of the k-th set bit.
__device__ __forceinline__ unsigned place_of_bit(unsigned bits, unsigned k) {
    unsigned place = 0;
#pragma unroll
    for (unsigned width = 16; width; width /= 2) {
        const unsigned low = unsigned(__popc(bits >> place & ((1u << width) - 1u)));
        if (k >= low) k -= low, place += width;
    }
    return min(place, 31u);
}
// The quad of a lane in a step in which a warp goes through the rows of some lanes, 12 quads each.
struct RowPart {
    bool is_one;
    unsigned row, column;
};
// `rows` has a bit for each row; `row_of_lane` is the lane's result of `place_of_bit`. All lanes call.
__device__ __forceinline__ RowPart row_part(unsigned rows, unsigned row_of_lane, unsigned step) {
    const unsigned part = step * 32 + lane_index(), place = part / SH_QUADS;
    const unsigned row = __shfl_sync(FULL_WARP, row_of_lane, int(place & 31u));
    return {place < unsigned(__popc(rows)), row, part - place * SH_QUADS};
}
__device__ __forceinline__ unsigned steps_for(unsigned rows) { return ceil_div(unsigned(__popc(rows)) * SH_QUADS, 32); }

// Catches up rows in a warp's shared memory, for those lanes that want theirs. `place(row)` is where a row begins, `n`
// the lane's Gaussian, and `steps` the number of committed steps. Moments of AT_ONCE turns are loaded at the same time,
// which costs registers. All lanes call.
template <unsigned AT_ONCE, class F>
__device__ __forceinline__ void catch_up_rows(const LazySh& lazy, float4* rows, unsigned n, bool is_wanted,
                                              unsigned steps, int degree, F place) {
    const unsigned missed = is_wanted ? steps - lazy.stepped[n] : 0;
    const unsigned late = __ballot_sync(FULL_WARP, missed > 0);
    if (late == 0) return;
    const float* table = reach_after(lazy.reach, steps);
    const unsigned quads = sh_quads_in_use(degree), row_of_lane = place_of_bit(late, lane_index());
    const unsigned steps_to_go = steps_for(late);
#pragma unroll 1
    for (unsigned step = 0; step < steps_to_go; step += AT_ONCE) {
        float4 firsts[AT_ONCE], seconds[AT_ONCE];
        RowPart parts[AT_ONCE];
#pragma unroll
        for (unsigned k = 0; k < AT_ONCE; k++) {
            parts[k] = row_part(late, row_of_lane, step + k);
            const size_t at = size_t(__shfl_sync(FULL_WARP, n, int(parts[k].row))) * SH_QUADS + parts[k].column;
            parts[k].is_one &= parts[k].column < quads;
            if (!parts[k].is_one) continue;
            firsts[k] = reinterpret_cast<const float4*>(lazy.first)[at];
            seconds[k] = reinterpret_cast<const float4*>(lazy.second)[at];
        }
#pragma unroll
        for (unsigned k = 0; k < AT_ONCE; k++) {
            const unsigned its_missed = __shfl_sync(FULL_WARP, missed, int(parts[k].row));
            if (!parts[k].is_one) continue;
            float4& value = rows[place(parts[k].row) + parts[k].column];
            value = caught_up(value, firsts[k], seconds[k], table, its_missed, parts[k].column);
        }
    }
    __syncwarp();
}

// Catches up rows in shared memory that are packed as in projection.
__device__ __forceinline__ void catch_up_packed(const LazySh& lazy, uint4* rows, size_t n, bool is_wanted, int degree) {
    catch_up_rows<1>(lazy, reinterpret_cast<float4*>(rows), unsigned(n), is_wanted, lazy.state->steps, degree,
                     [](unsigned row) { return packed_row<ShDtype::f32>(row); });
}

// ---- All at once, before others read the harmonics ------------------------------------------------------------------

struct FlushShArgs {
    const Frame* frame;
    const StepInputs* inputs;
    const StepState* state;
    float* sh;          // [N, 16, 3] in and out, like the moments
    float* first;
    float* second;
    unsigned* stepped;  // [N] in and out
    const float* reach;
    unsigned gaussians;
};

// Catches up all Gaussians. 128 threads a block, 32 Gaussians a warp.
__global__ void __launch_bounds__(128) flush_sh(FlushShArgs args) {
    const size_t first = size_t(blockIdx.x) * 128 + warp_index() * 32;
    if (first >= args.gaussians) return;
    const unsigned steps = args.state->steps, n = unsigned(first) + lane_index();
    const unsigned missed = n < args.gaussians ? steps - args.stepped[n] : 0;
    const float* table = reach_after(args.reach, steps);
    const float decay1 = exp2f(float(missed) * log2f(float(args.inputs->beta1)));
    const float decay2 = exp2f(float(missed) * log2f(float(args.inputs->beta2)));
    for_each_part<32, SH_QUADS>([&](unsigned step, unsigned row, unsigned column) {
        const unsigned its_missed = __shfl_sync(FULL_WARP, missed, int(row));
        const float its_decay1 = __shfl_sync(FULL_WARP, decay1, int(row));
        const float its_decay2 = __shfl_sync(FULL_WARP, decay2, int(row));
        if (its_missed == 0) return;
        const size_t at = first * SH_QUADS + step * 32 + lane_index();
        float4 &value = reinterpret_cast<float4*>(args.sh)[at], &m = reinterpret_cast<float4*>(args.first)[at];
        float4& v = reinterpret_cast<float4*>(args.second)[at];
        value = caught_up(value, m, v, table, its_missed, column);
        m = make_float4(its_decay1 * m.x, its_decay1 * m.y, its_decay1 * m.z, its_decay1 * m.w);
        v = make_float4(its_decay2 * v.x, its_decay2 * v.y, its_decay2 * v.z, its_decay2 * v.w);
    });
    __syncwarp();
    if (missed) args.stepped[n] = steps;
}
