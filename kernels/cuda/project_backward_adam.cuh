// project_backward whose gradients go into Adam at once: no gradient array exists, and none is cleared.
//
// Threads, blocks and shared memory as in project_backward.cuh with sh_bwd = staged. Each warp updates all of its 32
// Gaussians, those that were not seen with a gradient of zero, so that a step is that of the dense `adam` to rounding:
// six words a number move instead of seven, and the gradients' own. The arrays have room for whole warps. Parameters
// are read through the pointers of project_backward and written through Adam's, which are the same: a warp has read
// what it needs of its own rows before it writes them, and no other warp reads them.
// lazy_sh: harmonics of Gaussians without a gradient stand still (lazy.cuh). sparse: all of theirs do, for good.
#pragma once
#include "adam.cuh"
#include "project_backward.cuh"

struct ProjectBackwardAdamArgs {
    ProjectBackwardArgs backward;  // its gradient pointers are not used
    AdamArgs adam;                 // nor are these
    unsigned* stepped;             // [N] of lazy.cuh; lazy_sh: in and out
    float* reach;                  // of lazy.cuh; lazy_sh
};

enum class Moves : int { all, lazy_sh, sparse };

// Steps that a row has missed, and what came of them.
struct Late {
    unsigned missed;
    float reach, decay1, decay2;
};

// Takes gradients as StoreGradients does.
template <Moves M>
struct StepWithGradients {
    static constexpr bool LAZY = M == Moves::lazy_sh, SPARSE = M == Moves::sparse;
    const AdamArgs& args;
    AdamConstants constants;
    unsigned* stepped;
    const float* reach;

    // One quad of an array. `first_rate` is of its first three numbers.
    __device__ __forceinline__ void quad(AdamArrayName name, float* values, float* firsts, float* seconds, size_t quad,
                                         float4 gradient, float first_rate, float rate, Late late = {}) const {
        float4 *value = reinterpret_cast<float4*>(values) + quad, *first = reinterpret_cast<float4*>(firsts) + quad;
        float4 *second = reinterpret_cast<float4*>(seconds) + quad;
        float4 p = *value, m = __ldcs(first), v = __ldcs(second);
        if (LAZY && late.missed) {
            p = caught_up(p, m, v, late.reach);
            m = make_float4(late.decay1 * m.x, late.decay1 * m.y, late.decay1 * m.z, late.decay1 * m.w);
            v = make_float4(late.decay2 * v.x, late.decay2 * v.y, late.decay2 * v.z, late.decay2 * v.w);
        }
        const unsigned bad = adam_quad(p, m, v, gradient, first_rate, rate, constants);
        *value = p;
        __stcs(first, m);
        __stcs(second, v);
        if (bad) atomicAdd(&args.state->skipped[int(name)], bad);  // hardly ever
    }

    // The rows that the warp has fetched, as the forward pass has seen them.
    __device__ __forceinline__ void catch_up(uint4* rows, unsigned stride, size_t n, bool is_active) const {
        if constexpr (LAZY)
            catch_up_rows({args.sh_first, args.sh_second, stepped, reach, args.state}, reinterpret_cast<float4*>(rows),
                          unsigned(n), is_active, args.state->steps - 1, args.frame->sh_degree,
                          [=](unsigned row) { return row * stride; });
    }

    template <ShDtype D, class F>
    __device__ __forceinline__ void harmonics(size_t first, size_t count, unsigned active, F row_part) const {
        static_assert(D == ShDtype::f32, "harmonics are trained in single precision");
        const unsigned quads = sh_quads_in_use(args.frame->sh_degree);
        const float rest = args.inputs->sh_rest * constants.first_scale;
        const float constant = args.inputs->sh_constant * constants.first_scale;
        // Lazy: rows with a gradient move, and those that may not wait any longer.
        const unsigned done = args.state->steps - 1;  // before this step
        unsigned missed = 0, moving = SPARSE ? active : FULL_WARP;
        float its_reach = 0.0f;
        if constexpr (LAZY) {
            const size_t n = first + lane_index();
            missed = n < count ? done - stepped[n] : 0;
            moving = active | __ballot_sync(FULL_WARP, missed >= LAZY_STEPS);
            its_reach = reach_after(reach, done)[missed];
            if (n < count && (moving >> lane_index() & 1u)) stepped[n] = done + 1;
        }
        const float decay1 = exp2f(float(missed) * log2f(float(args.inputs->beta1)));
        const float decay2 = exp2f(float(missed) * log2f(float(args.inputs->beta2)));
        for_each_part<32, SH_QUADS>([&](unsigned step, unsigned row, unsigned column) {
            Late late{};
            if constexpr (LAZY)
                late = {__shfl_sync(FULL_WARP, missed, int(row)), __shfl_sync(FULL_WARP, its_reach, int(row)),
                        __shfl_sync(FULL_WARP, decay1, int(row)), __shfl_sync(FULL_WARP, decay2, int(row))};
            if (column >= quads || ((SPARSE || column > 0) && !(moving >> row & 1u))) return;
            if (column == 0) late.missed = 0;
            const uint4 bits = row_part(step, row);
            const float4 gradient = make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y),
                                                __uint_as_float(bits.z), __uint_as_float(bits.w));
            quad(AdamArrayName::sh, args.sh, args.sh_first, args.sh_second, first * SH_QUADS + step * 32 + lane_index(),
                 gradient, column == 0 ? constant : rest, rest, late);
        });
    }
    // The lane's own three, where a quad would hold numbers of Gaussians that stand still.
    __device__ __forceinline__ void own_three(AdamArrayName name, float* values, float* firsts, float* seconds,
                                              size_t at, const float* gradient, float rate) const {
        const float penalty = name == AdamArrayName::log_scales ? args.inputs->scale_penalty : 0.0f;
        unsigned bad = 0;
#pragma unroll
        for (size_t n = at; n < at + 3; n++) {
            const float pull = penalty != 0.0f ? scale_pull(values[n], penalty) : 0.0f;
            bad += !adam_number(values[n], firsts[n], seconds[n], gradient[n - at] + pull, rate, constants);
        }
        if (bad) atomicAdd(&args.state->skipped[int(name)], bad);
    }
    __device__ __forceinline__ void threes(size_t first, size_t count, unsigned active, const float* numbers) const {
        if constexpr (SPARSE) {
            if (!(active >> lane_index() & 1u)) return;
            const size_t at = 3 * (first + lane_index());
            const float* own = numbers + 3 * lane_index();
            const float scale = constants.first_scale;
            own_three(AdamArrayName::means, args.means, args.means_first, args.means_second, at, own,
                      args.inputs->means * scale);
            own_three(AdamArrayName::log_scales, args.log_scales, args.log_scales_first, args.log_scales_second, at,
                      own + 96, args.inputs->log_scales * scale);
            return;
        }
        if (lane_index() >= 24) return;
        const size_t at = first / 4 * 3 + lane_index();
        const float4* gradient = reinterpret_cast<const float4*>(numbers) + lane_index();
        const float mean_rate = args.inputs->means * constants.first_scale;
        const float scale_rate = args.inputs->log_scales * constants.first_scale;
        quad(AdamArrayName::means, args.means, args.means_first, args.means_second, at, gradient[0], mean_rate,
             mean_rate);
        float4 by_scale = gradient[24];
        const float penalty = args.inputs->scale_penalty;
        if (penalty != 0.0f) {  // but not at what lies behind the last Gaussian, which may be anything
            const float4 value = reinterpret_cast<const float4*>(args.log_scales)[at];
            const size_t left = 3 * count - min(3 * count, 4 * at);
            if (left > 0) by_scale.x += scale_pull(value.x, penalty);
            if (left > 1) by_scale.y += scale_pull(value.y, penalty);
            if (left > 2) by_scale.z += scale_pull(value.z, penalty);
            if (left > 3) by_scale.w += scale_pull(value.w, penalty);
        }
        quad(AdamArrayName::log_scales, args.log_scales, args.log_scales_first, args.log_scales_second, at, by_scale,
             scale_rate, scale_rate);
    }
    __device__ __forceinline__ void rest(size_t n, size_t count, bool is_visible, bool is_active,
                                         const GaussianGradient& g) const {
        const StepInputs& inputs = *args.inputs;
        if (n < count && is_visible && inputs.collects) add_statistics(*args.frame, args.pull, args.seen, n, g.mean2d);
        if (SPARSE && !is_active) return;
        const float rate = inputs.quats * constants.first_scale;
        quad(AdamArrayName::quats, args.quats, args.quats_first, args.quats_second, n, g.quat, rate, rate);
        if (n >= count) return;
        float& logit = args.logit_opacities[n];
        const float by_logit = inputs.opacity_penalty != 0.0f ? g.logit + opacity_pull(logit, inputs.opacity_penalty)
                                                              : g.logit;
        const bool is_good =
            adam_number(logit, args.logit_opacities_first[n], args.logit_opacities_second[n], by_logit,
                        inputs.logit_opacities * constants.first_scale, constants);
        if (!is_good) atomicAdd(&args.state->skipped[int(AdamArrayName::logit_opacities)], 1u);
    }
};

template <ProjectBackwardPolicy P, Moves M>
__global__ void __launch_bounds__(PROJECT_BACKWARD_THREADS, 6) project_backward_adam(ProjectBackwardAdamArgs args) {
    static_assert(P.sh_bwd == ShBackward::staged, "only staged rows go to Adam as whole runs");
    const AdamConstants constants = adam_constants(*args.adam.inputs, *args.adam.state);
    backward_of_thread<P>(args.backward, StepWithGradients<M>{args.adam, constants, args.stepped, args.reach});
}
