// The record of a training step: what the host writes before it, and what the device keeps between steps.
//
// A step commits on the device, or it changes nothing. `loss_gradient` decides. It refuses the step if the frame did
// not fit its buffers, if the loss is not finite, or if an earlier step was refused. It then sets
// - STEP_REFUSED in Frame::overflow, at which all later kernels return at once;
// - `halted`, so that steps already queued change nothing either.
// The host learns of it from the result, in pinned memory. It enlarges the buffers, clears `halted` and queues the same
// steps again. Read loss.cuh next.
#pragma once
#include "frame.cuh"

constexpr unsigned STEP_REFUSED = 4;  // in Frame::overflow, next to OVERFLOW_VISIBLE and OVERFLOW_INSTANCES

// The arrays of parameters, in the order of `skipped`.
constexpr int ADAM_ARRAYS = 5;
enum class AdamArrayName : int { means, log_scales, quats, logit_opacities, sh };

// Written by the host before each step.
struct alignas(16) StepInputs {
    // The photograph [H, W, 3] over the frame's background. With coverage: over black, and followed by alpha [H, W]. If
    // pixels are weighted, followed by their weights [H, W].
    const unsigned char* target;
    double beta1, beta2;          // decay of Adam's moments
    float epsilon;
    float dssim_weight;           // w of (1 − w) L1 + w (1 − SSIM)
    // Learning rates.
    float means, log_scales, quats, logit_opacities;
    float sh_constant, sh_rest;  // of the first row of harmonics, and of all others
    // Weights of two penalties, on the sum of all opacities and on the sum of all half axes.
    float opacity_penalty, scale_penalty;
    unsigned collects;           // not 0: collect the statistics of density control
    unsigned sequence;           // number of the step; its result goes to slot sequence % RESULT_SLOTS
    // For exposure.cuh: number of the photograph, and the learning rate of its map.
    unsigned photograph;
    float exposure_rate;
    // For noise.cuh: the size of random steps, and the sigmoid that spares opaque Gaussians.
    float noise, noise_centre, noise_steepness;
    unsigned noise_iteration;
    unsigned long long noise_seed;
};

// Kept on the device. The host writes it before the first step, and to continue after a refused step.
struct alignas(16) StepState {
    double beta1_power, beta2_power;  // beta^t after t steps
    unsigned steps;                   // t: steps committed
    unsigned halted;                  // not 0: steps are refused
    unsigned skipped[ADAM_ARRAYS];    // how many gradients were not finite, by array; their numbers did not move
    // Of the present step, if it commits.
    float first_scale;   // 1 / (1 − beta1^t)
    float second_scale;  // 1 / √(1 − beta2^t)
};

constexpr unsigned RESULT_SLOTS = 64;

// The result of a step, for the host.
struct alignas(16) StepResult {
    float loss, l1, ssim;
    unsigned sequence;
    unsigned overflow;  // Frame::overflow, with STEP_REFUSED
    unsigned steps;     // steps committed so far, with this one
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
