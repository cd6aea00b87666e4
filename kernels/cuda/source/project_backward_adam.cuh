// Runs project_backward and passes its gradients straight to Adam: no array holds gradients, and none is cleared.
//
// Threads as in project_backward.cuh with sh_bwd = staged; five blocks on a multiprocessor, 9 KB of shared memory a
// warp. Each warp updates all of its 32 Gaussians. Gaussians that were not seen have a gradient of zero, so a step
// equals that of the dense `adam` to rounding. Each number takes six words of traffic. With gradient arrays it takes
// seven, and the gradients must be written first.
//
// Harmonics stay in shared memory as they were read. Their gradient is never written out: it is 16 weights a row, each
// times the gradient of the colour. The arrays have room for whole warps. Parameters are read through the pointers of
// project_backward and written through Adam's, which are the same: a warp has read its own rows before it writes them,
// and no other warp reads them.
//
// Flags:
// - lazy_sh: harmonics of Gaussians without a gradient do not move until they are caught up (lazy.cuh).
// - sparse: harmonics and all else of Gaussians without a gradient never move.
// With either, a warp goes only through the rows that move.
// - sh_dtype (sh_words.cuh): shared memory holds the halves of a row that both passes read; `split` reads the lower
//   halves together with the moments. A row that is caught up must be whole, so lazy_sh needs f32.
#pragma once
#include "adam.cuh"
#include "project_backward.cuh"

struct ProjectBackwardAdamArgs {
    ProjectBackwardArgs backward;  // its gradient pointers are not used
    AdamArgs adam;                 // its gradient pointers are not used either
    unsigned* stepped;             // lazy_sh: [N] of lazy.cuh, in and out
    float* reach;                  // lazy_sh: table of lazy.cuh
};

enum class Moves : int { all, lazy_sh, sparse };

constexpr unsigned STEPS_UNDER_WAY = 3;  // loaded at the same time, of the twelve steps through a warp's harmonics

// Where a lane's weights for the gradient of its harmonics are in shared memory: a float4 for each group, then the
// gradient of the colour. With five float4 a lane, those of eight neighbours are in different banks.
constexpr unsigned WEIGHT_PARTS = SH_GROUPS + 1;
__device__ __forceinline__ float4* weights_of_warp() {
    __shared__ float4 weights[PROJECT_BACKWARD_WARPS][32 * WEIGHT_PARTS];
    return weights[warp_index()];
}
// Returns the gradient of numbers 4 column … 4 column + 3 of a row.
__device__ __forceinline__ float4 gradient_of_quad(const float4* weights, unsigned row, unsigned column) {
    const float4* own = weights + row * WEIGHT_PARTS;
    const float* weight = reinterpret_cast<const float*>(own) + 4 * column / 3;
    const float4 c = own[SH_GROUPS];
    const float low = weight[0], high = weight[1];
    const unsigned turn = column % 3;  // channel of the first number
    const float a = turn == 0 ? c.x : turn == 1 ? c.y : c.z, b = turn == 0 ? c.y : turn == 1 ? c.z : c.x;
    const float d = turn == 0 ? c.z : turn == 1 ? c.x : c.y;
    return make_float4(low * a, (turn == 2 ? high : low) * b, (turn == 0 ? low : high) * d, high * a);
}

__device__ __forceinline__ float4 operator*(float s, float4 a) {
    return make_float4(s * a.x, s * a.y, s * a.z, s * a.w);
}

// Four numbers and their moments, in registers.
struct Moving {
    float4 value, first, second;
};

__device__ __forceinline__ float4 chosen(unsigned bits, float4 a, float4 b) {
    return make_float4(bits & 1 ? a.x : b.x, bits & 2 ? a.y : b.y, bits & 4 ? a.z : b.z, bits & 8 ? a.w : b.w);
}

// Takes gradients with the members of StoreGradients, and steps Adam with them.
template <Moves M>
struct StepWithGradients {
    static constexpr bool LAZY = M == Moves::lazy_sh, SPARSE = M == Moves::sparse;
    static constexpr bool FETCHES_ALL = M == Moves::all;

    const AdamArgs& args;
    AdamConstants constants;
    unsigned* stepped;
    const float* reach;

    __device__ __forceinline__ static float4 load_quad(const float* numbers, size_t quad) {
        return reinterpret_cast<const float4*>(numbers)[quad];
    }
    __device__ __forceinline__ static Moving load(const float* values, const float* firsts, const float* seconds,
                                                  size_t quad) {
        return {load_quad(values, quad), load_quad(firsts, quad), load_quad(seconds, quad)};
    }
    // Steps and stores four numbers; store(values) stores the numbers themselves. `first_rate` is for the first three.
    // sparse: numbers without a bit in `moves` do not move.
    template <class F>
    __device__ __forceinline__ void finish_by(AdamArrayName name, F store, float* firsts, float* seconds, size_t quad,
                                              Moving& x, float4 gradient, float first_rate, float rate,
                                              unsigned moves) const {
        const Moving before = x;
        const unsigned bad = adam_quad(x.value, x.first, x.second, gradient, first_rate, rate, constants);
        if constexpr (SPARSE) {
            x.value = chosen(moves, x.value, before.value);
            x.first = chosen(moves, x.first, before.first), x.second = chosen(moves, x.second, before.second);
        }
        store(x.value);
        reinterpret_cast<float4*>(firsts)[quad] = x.first;
        reinterpret_cast<float4*>(seconds)[quad] = x.second;
        if (bad) atomicAdd(&args.state->skipped[int(name)], bad);  // rare
    }
    __device__ __forceinline__ void finish(AdamArrayName name, float* values, float* firsts, float* seconds,
                                           size_t quad, Moving& x, float4 gradient, float rate,
                                           unsigned moves = 15) const {
        const auto store = [=](float4 value) { reinterpret_cast<float4*>(values)[quad] = value; };
        finish_by(name, store, firsts, seconds, quad, x, gradient, rate, rate, moves);
    }

    template <ShDtype D>
    __device__ __forceinline__ void catch_up(uint4* rows, size_t n, bool is_active) const {
        if constexpr (LAZY)
            catch_up_rows<2>({args.sh_first, args.sh_second, stepped, reach, args.state},
                             reinterpret_cast<float4*>(rows), unsigned(n), is_active, args.state->steps - 1,
                             args.frame->sh_degree, [](unsigned row) { return row * STAGED_PARTS<D>; });
    }
    template <ShDtype D>
    __device__ __forceinline__ void put(uint4*, int group, float4 weight, float3 by_color) const {
        float4* own = weights_of_warp() + lane_index() * WEIGHT_PARTS;
        own[group] = weight;
        if (group == 0) own[SH_GROUPS] = make_float4(by_color.x, by_color.y, by_color.z, 0.0f);
    }

    __device__ __forceinline__ void put_nothing() const {
        float4* own = weights_of_warp() + lane_index() * WEIGHT_PARTS;
#pragma unroll
        for (unsigned part = 0; part < WEIGHT_PARTS; part++) own[part] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    template <ShDtype D>
    __device__ __forceinline__ void harmonics(size_t first, size_t count, unsigned active, const uint4* rows) const {
        static_assert(!LAZY || !IS_NARROW<D>, "rows are caught up whole: switch sh_dtype to f32 first");
        constexpr unsigned AT_ONCE = SPARSE && IS_NARROW<D> ? STEPS_UNDER_WAY - 1 : STEPS_UNDER_WAY;
        const unsigned quads = sh_quads_in_use(args.frame->sh_degree);
        const float rest = args.inputs->sh_rest * constants.first_scale;
        const float constant = args.inputs->sh_constant * constants.first_scale;
        const float4* weights = weights_of_warp();
        const auto staged = [=](unsigned row, unsigned column, uint2 lower) {
            if constexpr (IS_NARROW<D>)
                return whole_quad<D>(reinterpret_cast<const uint2*>(rows + row * STAGED_PARTS<D>)[column], lower);
            return reinterpret_cast<const float4*>(rows)[row * STAGED_PARTS<D> + column];
        };
        // Lazy: rows with a gradient move, and rows that have missed as many steps as they may.
        const unsigned done = args.state->steps - 1;  // steps before this one
        unsigned missed = 0, moving = SPARSE ? active : FULL_WARP;
        if constexpr (LAZY) {
            const size_t n = first + lane_index();
            missed = n < count ? done - stepped[n] : 0;
            moving = active | __ballot_sync(FULL_WARP, missed >= LAZY_STEPS);
            if (n < count && (moving >> lane_index() & 1u)) stepped[n] = done + 1;
        }
        const float log2_beta1 = LAZY ? log2f(float(args.inputs->beta1)) : 0.0f;
        const float log2_beta2 = LAZY ? log2f(float(args.inputs->beta2)) : 0.0f;
        // Rows that do not move are left out.
        const unsigned steps = FETCHES_ALL ? SH_QUADS : steps_for(moving);
        const unsigned row_of_lane = FETCHES_ALL ? 0 : place_of_bit(moving, lane_index());
        const auto part_of = [&](unsigned batch, unsigned k) {
            if constexpr (!FETCHES_ALL) return row_part(moving, row_of_lane, batch + k);
            const unsigned within = k % 3 * 32 + lane_index(), row = within / SH_QUADS;
            return RowPart{true, (batch + k) / 3 * 8 + row, within - row * SH_QUADS};
        };
#pragma unroll 1
        for (unsigned batch = 0; batch < steps; batch += AT_ONCE) {
            float4 firsts[AT_ONCE], seconds[AT_ONCE];
            uint2 lowers[AT_ONCE] = {};
            RowPart parts[AT_ONCE];
#pragma unroll
            for (unsigned k = 0; k < AT_ONCE; k++) {
                parts[k] = part_of(batch, k);
                parts[k].is_one &= parts[k].column < quads;
                if (!parts[k].is_one) continue;
                const size_t at = (first + parts[k].row) * SH_QUADS + parts[k].column;
                firsts[k] = load_quad(args.sh_first, at);
                seconds[k] = load_quad(args.sh_second, at);
                if constexpr (D == ShDtype::split) lowers[k] = static_cast<const uint2*>(args.sh_lower)[at];
            }
#pragma unroll
            for (unsigned k = 0; k < AT_ONCE; k++) {
                const auto [is_one, row, column] = parts[k];
                const unsigned late = LAZY ? __shfl_sync(FULL_WARP, missed, int(row)) : 0;
                if (!is_one) continue;
                const size_t at = (first + row) * SH_QUADS + column;
                Moving x{staged(row, column, lowers[k]), firsts[k], seconds[k]};
                if (LAZY && late) {
                    if (!(active >> row & 1u))  // active rows are caught up already; the others were not fetched
                        x.value = caught_up(static_cast<const float4*>(args.sh)[at], x.first, x.second,
                                            reach_after(reach, done), late, column);
                    x.first = exp2_approx(float(late) * log2_beta1) * x.first;
                    x.second = exp2_approx(float(late) * log2_beta2) * x.second;
                }
                const auto store = [&](float4 value) {
                    store_whole_quad<D>(args.sh, args.sh_lower, at, value, args.state->steps);
                };
                finish_by(AdamArrayName::sh, store, args.sh_first, args.sh_second, at, x,
                          gradient_of_quad(weights, row, column), column == 0 ? constant : rest, rest, 15);
            }
        }
    }
    // Adds the penalty's gradient to that of log scales. Numbers behind the last Gaussian are skipped: they may be
    // anything.
    __device__ __forceinline__ float4 with_scale_penalty(float4 gradient, float4 value, size_t quad,
                                                         size_t count) const {
        const float penalty = args.inputs->scale_penalty;
        if (penalty == 0.0f) return gradient;
        const size_t left = 3 * count - min(3 * count, 4 * quad);
        if (left > 0) gradient.x += scale_pull(value.x, penalty);
        if (left > 1) gradient.y += scale_pull(value.y, penalty);
        if (left > 2) gradient.z += scale_pull(value.z, penalty);
        if (left > 3) gradient.w += scale_pull(value.w, penalty);
        return gradient;
    }
    // Starts all loads before the first of them is needed.
    __device__ __forceinline__ void geometry(size_t first, size_t count, unsigned active, bool is_visible,
                                             const float* numbers, const GaussianGradient& g) const {
        const StepInputs& inputs = *args.inputs;
        const unsigned lane = lane_index();
        const size_t n = first + lane, three = first / 4 * 3 + lane;
        const bool moves = !SPARSE || (active >> lane & 1u), has_logit = moves && n < count;
        unsigned three_moves = 15;  // a bit for each of four neighbouring numbers
        if constexpr (SPARSE) {
            three_moves = 0;
            for (unsigned i = 0; i < 4; i++) three_moves |= (active >> min((4 * lane + i) / 3, 31u) & 1u) << i;
        }
        const bool has_threes = lane < 24 && three_moves;
        Moving mean{}, scale{}, quat{};
        float logit = 0.0f, logit_first = 0.0f, logit_second = 0.0f;
        if (has_threes) {
            mean = load(args.means, args.means_first, args.means_second, three);
            scale = load(args.log_scales, args.log_scales_first, args.log_scales_second, three);
        }
        if (moves) quat = load(args.quats, args.quats_first, args.quats_second, n);
        if (has_logit) {
            logit = args.logit_opacities[n];
            logit_first = args.logit_opacities_first[n], logit_second = args.logit_opacities_second[n];
        }
        if (n < count && is_visible && inputs.collects) add_statistics(*args.frame, args.pull, args.seen, n, g.mean2d);

        if (has_threes) {
            const float4* gradient = reinterpret_cast<const float4*>(numbers) + lane;
            const float rate = inputs.means * constants.first_scale;
            finish(AdamArrayName::means, args.means, args.means_first, args.means_second, three, mean, gradient[0],
                   rate, three_moves);
            const float scale_rate = inputs.log_scales * constants.first_scale;
            finish(AdamArrayName::log_scales, args.log_scales, args.log_scales_first, args.log_scales_second, three,
                   scale, with_scale_penalty(gradient[24], scale.value, three, count), scale_rate, three_moves);
        }
        if (moves) {
            const float rate = inputs.quats * constants.first_scale;
            finish(AdamArrayName::quats, args.quats, args.quats_first, args.quats_second, n, quat, g.quat, rate);
        }
        if (has_logit) {
            const float penalty = inputs.opacity_penalty, rate = inputs.logit_opacities * constants.first_scale;
            const float by_logit = penalty != 0.0f ? g.logit + opacity_pull(logit, penalty) : g.logit;
            if (!adam_number(logit, logit_first, logit_second, by_logit, rate, constants))
                atomicAdd(&args.state->skipped[int(AdamArrayName::logit_opacities)], 1u);
            args.logit_opacities[n] = logit;
            args.logit_opacities_first[n] = logit_first, args.logit_opacities_second[n] = logit_second;
        }
    }
};

template <ProjectBackwardPolicy P, Moves M>
__global__ void __launch_bounds__(PROJECT_BACKWARD_THREADS, 5) project_backward_adam(ProjectBackwardAdamArgs args) {
    static_assert(P.sh_bwd == ShBackward::staged, "only staged rows go to Adam as whole runs");
    const AdamConstants constants = adam_constants(*args.adam.inputs, *args.adam.state);
    backward_of_thread<P>(args.backward, StepWithGradients<M>{args.adam, constants, args.stepped, args.reach});
}
