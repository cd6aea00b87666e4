// What a training step knows beyond its frame: what the host writes before it, and what the device keeps between steps.
//
// A step commits on the device or does nothing. `loss_gradient` decides: if the frame did not fit its buffers, the loss
// is not finite, or an earlier step was refused, it sets STEP_REFUSED in Frame::overflow, at which all later kernels
// return at once, and `halted`, so that steps already queued do nothing either. The host learns of it from the result,
// which lies in pinned memory, makes room, clears `halted` and queues the same steps again. Read loss.cuh next.
#pragma once
#include "frame.cuh"

constexpr unsigned STEP_REFUSED = 4;  // in Frame::overflow, beside OVERFLOW_VISIBLE and OVERFLOW_INSTANCES

// The arrays of a Gaussian, in the order in which `skipped` counts.
constexpr int ADAM_ARRAYS = 5;
enum class AdamArrayName : int { means, log_scales, quats, logit_opacities, sh };

// Written by the host before each step.
struct alignas(16) StepInputs {
    // The photograph [H, W, 3], over the background of the frame; with coverage, over black and followed by alpha
    // [H, W]; then, if pixels are weighed, their weights [H, W].
    const unsigned char* target;
    double beta1, beta2;          // of Adam
    float epsilon;
    float dssim_weight;           // w of (1 − w) L1 + w (1 − SSIM)
    // Learning rates.
    float means, log_scales, quats, logit_opacities;
    float sh_constant, sh_rest;  // the first row of harmonics, and all others
    // Added to the gradients: of a penalty on opacities, and one on half axes, each of the sum over all Gaussians.
    float opacity_penalty, scale_penalty;
    unsigned collects;           // not 0: add to the statistics of density control
    unsigned sequence;           // of the step; its result goes to slot sequence % RESULT_SLOTS
    // Of exposure.cuh: which photograph this is, and the learning rate of its map.
    unsigned photograph;
    float exposure_rate;
    // Of noise.cuh: how large random steps are, and the sigmoid that spares opaque Gaussians.
    float noise, noise_centre, noise_steepness;
    unsigned noise_iteration;
    unsigned long long noise_seed;
};

// Kept on the device; the host writes it before the first step and to continue after a refusal.
struct alignas(16) StepState {
    double beta1_power, beta2_power;  // beta^t after t steps
    unsigned steps;                   // t: steps committed
    unsigned halted;                  // not 0: steps are refused
    unsigned skipped[ADAM_ARRAYS];    // numbers whose gradient was not finite, by array; they stay as they were
    // Of the step under way, if it commits.
    float first_scale;   // 1 / (1 − beta1^t)
    float second_scale;  // 1 / √(1 − beta2^t)
};

constexpr unsigned RESULT_SLOTS = 64;

// What became of a step.
struct alignas(16) StepResult {
    float loss, l1, ssim;
    unsigned sequence;
    unsigned overflow;  // as in Frame, STEP_REFUSED included
    unsigned steps;     // committed so far, with this one
    unsigned visible, instances;
    unsigned visible_wanted;
    unsigned heaviest;
    unsigned long long instances_wanted;
    unsigned skipped[ADAM_ARRAYS];  // as in StepState, without this step
};

// Decides whether the step commits, and tells the host. One thread, once a step.
__device__ __forceinline__ void decide_step(Frame& frame, const StepInputs& inputs, StepState& state,
                                            StepResult* results, float l1, float ssim) {
    const float w = inputs.dssim_weight, loss = (1.0f - w) * l1 + w * (1.0f - ssim);
    const bool commits = frame.overflow == 0 && state.halted == 0 && is_finite(loss);
    if (commits) {
        state.steps++;
        state.beta1_power *= inputs.beta1;
        state.beta2_power *= inputs.beta2;
        state.first_scale = float(1.0 / (1.0 - state.beta1_power));
        state.second_scale = float(1.0 / sqrt(1.0 - state.beta2_power));
    } else {
        state.halted = 1;
        frame.overflow |= STEP_REFUSED;
    }
    StepResult& result = results[inputs.sequence % RESULT_SLOTS];
    result = {loss, l1, ssim, inputs.sequence, frame.overflow, state.steps, frame.visible, frame.instances,
              frame.visible_wanted, frame.heaviest, frame.instances_wanted};
    for (int i = 0; i < ADAM_ARRAYS; i++) result.skipped[i] = state.skipped[i];
}
