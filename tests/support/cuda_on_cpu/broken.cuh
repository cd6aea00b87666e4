// One kernel, one mistake an instantiation: each of these the harness must report, with the line it is on.
// The comment `line: name` marks the line a report must name.
#pragma once
#include "warp.cuh"

enum class Mistake {
    barrier_skipped, barrier_after_return, barriers_differ, barrier_forgotten,
    shuffle_of_unnamed, shuffle_outside_mask, shuffle_after_return, shuffle_and_barrier, collectives_differ,
    write_past_end, read_before_start, write_nowhere, shared_index, dynamic_shared_end, stack,
    misaligned, shift, cast, endless_poll, endless_loop, endless_lock,
};

struct BrokenArgs {
    float* out;        // [64]
    unsigned* word;    // [1], 0
    int sixty_four;    // 64, which the compiler does not know
};

template <Mistake M>
__global__ void broken(BrokenArgs args) {
    __shared__ float shared[64];
    const unsigned i = threadIdx.x, lane = lane_index();
    const int far = args.sixty_four + int(i);
    float value = float(i);
    shared[i] = value;
    if constexpr (M == Mistake::barrier_skipped) {
        if (i != 7) __syncthreads();  // line: barrier_skipped
    } else if constexpr (M == Mistake::barrier_after_return) {
        if (i >= 48) return;
        __syncthreads();  // line: barrier_after_return
    } else if constexpr (M == Mistake::barriers_differ) {
        if (i < 32) __syncthreads();
        else __syncthreads();  // line: barriers_differ
    } else if constexpr (M == Mistake::shuffle_of_unnamed) {
        value = __shfl_sync(0xffffu, value, 0);  // line: shuffle_of_unnamed
    } else if constexpr (M == Mistake::shuffle_outside_mask) {
        if (lane < 16) value = __shfl_sync(0xffffu, value, int(lane) + 16);  // line: shuffle_outside_mask
    } else if constexpr (M == Mistake::shuffle_after_return) {
        if (lane == 31) return;
        value = __shfl_xor_sync(FULL_WARP, value, 1);  // line: shuffle_after_return
    } else if constexpr (M == Mistake::collectives_differ) {
        if (lane < 16) value += float(__any_sync(FULL_WARP, 1));
        else value += float(__ballot_sync(FULL_WARP, 1));  // line: collectives_differ
    } else if constexpr (M == Mistake::shuffle_and_barrier) {
        if (lane == 3) __syncthreads();
        else value = __shfl_xor_sync(FULL_WARP, value, 1);  // line: shuffle_and_barrier
    } else if constexpr (M == Mistake::write_past_end) {
        args.out[far - 63] = value;  // line: write_past_end
    } else if constexpr (M == Mistake::read_before_start) {
        value = args.out[int(i) - 70000];  // line: read_before_start
    } else if constexpr (M == Mistake::write_nowhere) {
        args.out[(long long)(far) << 34] = value;  // line: write_nowhere
    } else if constexpr (M == Mistake::shared_index) {
        value = shared[far];  // line: shared_index
    } else if constexpr (M == Mistake::dynamic_shared_end) {
        dynamic_shared<float>()[i + 1] = value;  // line: dynamic_shared_end
    } else if constexpr (M == Mistake::stack) {
        float large[20000];
        for (int k = 0; k < 20000; k++) large[k] = value * float(k);
        value = large[far];
    } else if constexpr (M == Mistake::misaligned) {
        value = reinterpret_cast<float4*>(args.out + 1)->x;  // line: misaligned
    } else if constexpr (M == Mistake::shift) {
        value = float(1u << (args.sixty_four / 2));  // line: shift
    } else if constexpr (M == Mistake::cast) {
        value = float(int(float(args.sixty_four) * 1e9f));  // line: cast
    } else if constexpr (M == Mistake::endless_poll) {
        while (load_acquire(args.word) == 0) {}  // line: endless_poll
    } else if constexpr (M == Mistake::endless_loop) {
        while (*static_cast<volatile unsigned*>(args.word) == 0) {}  // line: endless_loop
    } else if constexpr (M == Mistake::endless_lock) {
        while (atomicCAS(args.word, 0u, 1u) != 0) {}  // line: endless_lock
    } else if constexpr (M == Mistake::barrier_forgotten) {
        value = shared[63 - i];
    }
    args.out[i] = value;
}
